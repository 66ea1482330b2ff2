"""Commands that the README and the guides quote: all are understood, and those that need no real node are run.

They run on what `hack/demo --keep` leaves behind, which is a node on disk: machine, cgroup tree and state directory.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from nri_plugin.agent import arguments
from nri_plugin.cli import main as cli
from tests import guides

DEMO = "hack/demo "
DAY = "hack/demo --fast --keep node"
LSTOPO = guides.ROOT / "tests" / "machines" / "lstopo" / "demo.xml.gz"

ELSEWHERE = {"run", "install", "migrate", "release", "doctor", "extender", "noise"}
"""Commands that would serve, or change, judge or measure this machine; tests of their own run them."""

STANDS_FOR = {
    "/run/nri-pin": "node/state",
    "/var/lib/kubelet": "kubelet",
    "/etc/bash_completion.d/": "./",
    "/usr/local/share/man/man1": "man1",
}
"""Places of a real node, and what is there in this test."""

NODE = "--root node/machine"
STATE = "--state-dir node/state"
CGROUPS = "--cgroup-root node/cgroup"
ADDED = {
    "topology": f"{NODE} --state node/state",
    "state show": f"{STATE} {NODE}",
    "state verify": f"{STATE} {NODE} {CGROUPS}",
    "state history": STATE,
    "state import": f"{NODE} --config node/config.yaml --state-dir imported",
    "state export": f"{NODE} {STATE}",
    "top": f"--once {STATE} {NODE} {CGROUPS}",
    "explain": STATE,
    "who": f"{STATE} {NODE}",
}
"""Options that name the node on disk, for commands that would look at this machine."""

DIFFERS = (
    "explain --cpu 16 --device",
    "explain --cpu 3 --policy",
    "explain --machine demo --cpu",
    "explain --machine gb200-34-numa",
)
"""Lines whose answer is exit code 1: a refusal."""


def pieces(line: str) -> list[list[str]]:
    """The words of every `nri-pin` in a line, also behind a pipe or in a pod."""
    found = re.findall(r"(?:^|[|] |-- )nri-pin ([^|>]*)", line)
    return [shlex.split(words.split(" && ")[0]) for words in found]


QUOTED = [quoted for quoted in guides.quoted_commands() if pieces(quoted.line)]
DEMOS = [quoted for quoted in guides.quoted_commands() if quoted.line.startswith(DEMO)]


def command_of(words: list[str]) -> str:
    """The command that the words begin with, such as `state show`."""
    return " ".join(words[:2]) if words[0] == "state" else words[0]


RUN = [
    quoted
    for quoted in QUOTED
    if quoted.line.startswith(("nri-pin ", "lstopo ", "kubectl get "))
    and command_of(pieces(quoted.line)[0]) not in ELSEWHERE
]


@pytest.mark.parametrize("quoted", QUOTED, ids=lambda quoted: f"{quoted.document}: {quoted.line}")
def test_every_quoted_command_is_understood(quoted: guides.Quoted) -> None:
    for words in pieces(quoted.line):
        if words[0] == "run":
            arguments.parse(words[1:])
            continue
        command: click.Command = cli.group
        context = click.Context(command, **command.context_settings)
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None
            command = found
        wrong = ""
        try:
            command.make_context(command.name or "", words, parent=context)
        except click.UsageError as error:
            wrong = error.format_message()
        assert not wrong or "does not exist" in wrong or "is not readable" in wrong


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder in which every quoted demo was played, with the other files that the guides name."""
    top = tmp_path
    (top / "hack" / "pictures").mkdir(parents=True)
    shutil.copy(guides.ROOT / "hack" / "pictures" / "busy.yaml", top / "hack" / "pictures")
    programs = top / "bin"
    programs.mkdir()
    (programs / "nri-pin").write_text(f'#!/bin/sh\nexec {sys.executable} -m nri_plugin "$@"\n')
    (programs / "lstopo").write_text(f"#!/bin/sh\nzcat {LSTOPO}\n")
    (programs / "kubectl").write_text(f"#!/bin/sh\necho '{json.dumps(PODS)}'\n")
    if not shutil.which("jq"):
        (programs / "jq").write_text("#!/bin/sh\ncat\n")
    (top / "hack" / "demo").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m tests.lab.demo "$@"\n')
    (top / "hack" / "demo").chmod(0o755)
    for program in programs.iterdir():
        program.chmod(0o755)
    for quoted in DEMOS:
        played = shell(top, quoted.line)
        assert played.returncode == 0
        if quoted.line == DAY:
            (top / "day.txt").write_text(played.stdout)
    for name, text in guides.quoted_files().items():
        (top / name).write_text(text)
    (top / "pods.yaml").write_text("- {pod: db, cpu: 2, memory: 1Gi, count: 3}\n")
    (top / "config.yaml").write_text(
        guides.blocks((guides.GUIDE / "install.md").read_text("utf-8"), "yaml")[0]
    )
    for name in ("strict.yaml", "tomorrow.yaml", "next.yaml"):
        shutil.copy(top / "node" / "config.yaml", top / name)
    shutil.copy(top / "node" / "state" / "state.json", top / "state.json")
    shell(top, "nri-pin topology demo -o json > node7.json; zcat " + f"{LSTOPO} > node7.xml")
    done = shell(
        top,
        "mkdir kubelet && nri-pin state export kubelet --state-dir node/state --root node/machine --config node/config.yaml",
    )
    assert done.returncode == 0, done.stderr
    shutil.copy(top / "node" / "config.yaml", top / "kubelet" / "config.yaml")
    (top / "rehearsal").mkdir()
    return top


PODS = {
    "kind": "List",
    "apiVersion": "v1",
    "items": [
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "db-0", "namespace": "shop", "uid": "1"},
            "spec": {
                "nodeName": "node7",
                "containers": [
                    {"name": "db", "image": "db", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
                ],
            },
        }
    ],
}


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line as a reader types it."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=folder,
        env={
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(guides.ROOT),
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
            "HOME": str(folder),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def on_this_node(line: str) -> str:
    """The line with the places of the test in it."""
    for place, stand_in in STANDS_FOR.items():
        line = line.replace(place, stand_in)
    words = pieces(line)[0]
    command = command_of(words)
    operands = [word for word in words[1:] if word == "-" or not word.startswith("-")]
    has_machine = command == "topology" and bool(set(operands) - {"svg", "json"})
    is_what_if = command == "explain" and "--machine" in words
    if command not in ADDED or has_machine or is_what_if:
        return line
    options = shlex.split(ADDED[command])
    pairs = [pair for pair in zip(options[::2], options[1::2], strict=False) if pair[0] not in words]
    if options[0] == "--once":
        pairs = [("--once", ""), *zip(options[1::2], options[2::2], strict=True)]
    added = " ".join(f"{option} {value}" for option, value in pairs)
    before, mark, after = re.match(r"((?:.*?)nri-pin [^|>]*)([|>]?)(.*)", line).groups()  # type: ignore[union-attr]
    return f"{before.rstrip()} {added} {mark}{after}"


def complaint(node: Path, quoted: guides.Quoted) -> str:
    """What is wrong with the way a line ends; nothing where it ends as it should."""
    line = on_this_node(quoted.line)
    done = shell(node, line)
    differs = any(f"nri-pin {words}" in quoted.line for words in DIFFERS)
    expected = 2 if quoted.shown.startswith("nri-pin: ") else int(differs)
    if done.returncode == expected and "Traceback" not in done.stderr:
        return ""
    return f"{quoted.document}: {line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(900)
def test_quoted_commands_that_need_no_real_node_work(node: Path) -> None:
    """One test for all, because the demos that make the node take longest."""
    (shown,) = guides.blocks(guides.README.read_text("utf-8"), "text")
    printed = steady((node / "day.txt").read_text())
    assert [line for line in steady(shown) if line not in printed] == []
    assert len(RUN) > 30
    assert "\n".join(filter(None, (complaint(node, quoted) for quoted in RUN))) == ""


def steady(text: str) -> list[str]:
    """Lines without a time that differs from run to run."""
    return [re.sub(r"after [0-9.]+ s", "after a while", line) for line in text.splitlines()]
