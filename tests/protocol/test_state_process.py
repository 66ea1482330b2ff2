"""`nri-pin state` beside a real agent."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.wire.nri import events as nri
from tests.agent_process import Peer, Process, Site
from tests.builders import container, pod

DB, WEB = pod("db-0", cpu=2, namespace="shop"), pod("web-0", cpu=2, namespace="shop")
CREATE_DB = nri.CreateContainer(DB, container(DB, "db", cpu=2))
CREATE_WEB = nri.CreateContainer(WEB, container(WEB, "web", cpu=2))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture
def agent(site: Site) -> tuple[Process, Peer]:
    """One that has placed a container."""
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    peer.ask(CREATE_DB)
    return process, peer


def state(site: Site, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nri_plugin", "state", verb, *words]
    return subprocess.run(
        [*command, "--state-dir", str(site.folder / "state")], capture_output=True, text=True, check=False
    )


def test_an_agent_starts_on_a_damaged_checkpoint_as_verify_says(
    site: Site, agent: tuple[Process, Peer]
) -> None:
    process, peer = agent
    peer.ask(CREATE_WEB)
    process.signal(signal.SIGKILL)
    process.wait()
    file = site.folder / "state/state.json"
    file.write_bytes(file.read_bytes().replace(b"4-5", b"4-6"))
    verified = state(site, "verify")
    assert verified.returncode == 1
    assert "at its next start the agent keeps it as state.json.damaged-N and goes on" in verified.stderr
    site.start()
    peer = site.accept()
    peer.listed = (
        (DB, WEB),
        (container(DB, "db", cpu=2, cpus="2-3"), container(WEB, "web", cpu=2, cpus="4-5")),
    )
    peer.synchronize()
    shown = json.loads(state(site, "show", "-o", "json").stdout)
    assert {row["container"]: row["cpus"] for row in shown["containers"]} == {"db": "2-3", "web": "4-5"}
    assert (site.folder / "state/state.json.damaged-1").exists()


def test_the_history_of_an_agent_tells_whom_it_placed_and_refused(
    site: Site, agent: tuple[Process, Peer]
) -> None:
    process, peer = agent
    big = pod("big-0", cpu=50, namespace="shop")
    peer.ask(nri.CreateContainer(big, container(big, "big", cpu=50)))
    process.signal(signal.SIGTERM)
    process.wait()
    rows = [json.loads(line) for line in state(site, "history", "-o", "json").stdout.splitlines()]
    told = [(row["what"], row["name"]) for row in rows if row["what"] != "checkpoint"]
    assert told == [
        ("started", ""),
        ("synchronized", ""),
        ("placed", "shop/db-0/db"),
        ("refused", "shop/big-0/big"),
    ]
    assert [row["file"] for row in rows if row["what"] == "checkpoint"] == ["state.json"]
