"""`nri-pin top` on a terminal of its own, beside an agent that works."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.wire.nri import events as nri
from tests.agent_process import Site
from tests.builders import container, pod
from tests.terminal import Terminal

POD = pod("db-0", cpu=2, namespace="shop")
CREATE = nri.CreateContainer(POD, container(POD, "db", cpu=2))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


class Watched:
    """A site, and terminals on it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.terminals: list[Terminal] = []

    def top(self, *words: str, **options: object) -> Terminal:
        state = str(self.site.folder / "state")
        words = ("top", "--state-dir", state, "--interval", "0.1", *words)
        self.terminals.append(Terminal(*words, **options))  # type: ignore[arg-type]
        return self.terminals[-1]


@pytest.fixture
def watched(site: Site) -> Iterator[Watched]:
    made = Watched(site)
    yield made
    for terminal in made.terminals:
        terminal.close()


def test_changes_are_shown_as_they_happen_and_the_terminal_is_given_back(watched: Watched) -> None:
    process = watched.site.start()
    peer = watched.site.accept()
    peer.synchronize()
    process.wait_for_line("ready")
    screen = watched.top()
    first = screen.wait_for("q quit  s sort: name")  # the last line: a terminal may give a picture in pieces
    assert "exclusive 0" in first
    assert "refused 0" in first
    peer.ask(CREATE)
    shown = screen.wait_for("gained")
    assert re.search(r"^\* shop/db-0/db \(creating\) +2 +2-3 +0 +0 +- +NSUC", shown, re.MULTILINE)
    assert "exclusive 2" in shown
    big = pod("big", cpu=500, namespace="shop")
    peer.ask(nri.CreateContainer(big, container(big, cpu=500)))
    assert "refused 1" in screen.wait_for("refused shop/big/c")
    screen.press("q")
    assert screen.wait() == 0
    assert screen.raw.endswith("\x1b[?25h\x1b[?1049l")


def test_without_the_agent_its_checkpoint_is_shown_and_said(watched: Watched) -> None:
    process = watched.site.start()
    peer = watched.site.accept()
    peer.synchronize()
    peer.ask(CREATE)
    screen = watched.top()
    screen.wait_for("from agent at")
    process.signal(signal.SIGTERM)
    process.wait()
    away = screen.wait_for("the agent is away; this is its checkpoint")
    assert "AGENT AWAY" in away
    assert "shop/db-0/db" in away
    again = watched.site.start()
    peer = watched.site.accept()
    peer.listed = ((POD,), (container(POD, "db", cpu=2, cpus="2-3"),))
    peer.synchronize()
    assert "AGENT AWAY" not in screen.wait_for("the agent answers")
    again.end()


def test_keys_sort_filter_and_pause(watched: Watched) -> None:
    watched.site.start()
    peer = watched.site.accept()
    peer.synchronize()
    peer.ask(CREATE)
    other = pod("web-0", cpu=2, namespace="shop")
    peer.ask(nri.CreateContainer(other, container(other, "web", cpu=2)))
    screen = watched.top()
    screen.wait_for("web-0")
    screen.press("s")
    screen.wait_for("s sort: cpus")
    screen.press("nwex\x7f")
    screen.wait_for("Esc to leave): we")
    screen.press("\r")
    assert "db-0" not in screen.wait_for("n filter: we")
    screen.press("n\x7f\x7f\r")
    screen.wait_for("n filter: none")
    screen.press("p")
    screen.wait_for("PAUSED")
    third = pod("late-0", cpu=2, namespace="shop")
    peer.ask(nri.CreateContainer(third, container(third, "late", cpu=2)))
    screen.press("s")
    assert "late-0" not in screen.wait_for("s sort: use")
    screen.press("p")
    screen.wait_for("late-0")


def test_another_size_is_another_picture(watched: Watched) -> None:
    watched.site.start()
    peer = watched.site.accept()
    peer.synchronize()
    peer.ask(CREATE)
    screen = watched.top()
    screen.wait_for("q quit")
    assert screen.lines[24].startswith("\x1b[2mq quit")
    screen.resize(50, 12)
    screen.wait_for(lambda text: len(screen.lines) <= 12 and "q quit" in text)
    assert max(len(line) for line in screen.text.splitlines()) <= 50


def test_no_line_is_written_that_is_there_already(watched: Watched) -> None:
    watched.site.start()
    peer = watched.site.accept()
    peer.synchronize()
    screen = watched.top()
    screen.wait_for("q quit")
    screen.press("s")
    screen.wait_for("s sort: cpus")
    assert screen.raw.count("\x1b[2J") == 1
    assert screen.raw.count("from agent at") == 1


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(watched: Watched, variables: dict[str, str]) -> None:
    watched.site.start()
    watched.site.accept().synchronize()
    screen = watched.top(**variables)
    screen.wait_for("q quit")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", screen.raw)


def test_interrupted_it_gives_the_terminal_back_too(watched: Watched) -> None:
    watched.site.start()
    watched.site.accept().synchronize()
    screen = watched.top()
    screen.wait_for("q quit")
    screen.press("\x03")
    assert screen.wait() == 130
    assert "\x1b[?1049l" in screen.raw


def test_json_is_one_line_now_and_one_for_each_change(watched: Watched) -> None:
    site = watched.site
    site.start()
    peer = site.accept()
    peer.synchronize()
    words = [
        sys.executable,
        "-m",
        "nri_plugin",
        "top",
        "-o",
        "json",
        "--state-dir",
        str(site.folder / "state"),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        now = json.loads(process.stdout.readline())
        assert (now["what"], now["connected"], now["containers"]) == ("now", True, [])
        peer.ask(CREATE)
        change = json.loads(process.stdout.readline())
        assert (change["what"], change["name"], change["cpus"]["gained"]) == ("gained", "shop/db-0/db", "2-3")
        process.stdout.close()
        process.terminate()


def test_without_a_terminal_it_says_what_to_do(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nri_plugin", "top", "--state-dir", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "nri-pin: there is no terminal to draw on; --once prints one picture, -o json tells changes\n"
    )


def test_with_neither_agent_nor_checkpoint_it_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nri_plugin", "top", "--once", "--state-dir", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no agent answers, and there is no checkpoint" in done.stderr
