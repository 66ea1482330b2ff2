"""A state directory that was copied from another node: its history tells the machine."""

from pathlib import Path

import pytest

from nri_plugin.__main__ import main
from nri_plugin.model.options import Node
from nri_plugin.recording.file import CURRENT, DIRECTORY
from nri_plugin.wire.nri.events import CreateContainer, StartContainer
from tests.builders import container, machine, pod
from tests.builders import node as a_node
from tests.unit.cli.explain_cases import forget, lived

NODE: Node = a_node(machine(nodes=3))
"""Of a shape that the machine of the tests does not have."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shared, own = pod("web-0", "Burstable", namespace="shop"), pod("db-0", cpu=2, namespace="shop")
    web, db = container(shared, "web"), container(own, "db", cpu=2)
    events = [CreateContainer(shared, web), StartContainer(shared, web), CreateContainer(own, db)]
    lived(tmp_path / "state", NODE, events)
    return tmp_path / "state"


def test_show_who_and_top_know_its_cores_and_caches(copied: Path, capsys) -> None:
    assert main(["state", "show", "--state-dir", str(copied), "-c", "db"]) == 0
    shown = capsys.readouterr().out
    assert "that of the history beside" in " ".join(shown.split())
    assert "NSUC" in shown
    assert main(["who", "cache", "1", "--state", str(copied)]) == 0
    assert capsys.readouterr().out.startswith("cache 1")
    assert main(["top", "--once", "--state-dir", str(copied)]) == 0
    assert "NSUC" in capsys.readouterr().out


def test_topology_draws_it_and_says_what_it_cannot_print(copied: Path, capsys) -> None:
    assert main(["topology", "--state", str(copied)]) == 0
    assert "3 NUMA nodes" in capsys.readouterr().out
    assert main(["topology", "--state", str(copied / "state.json"), "-o", "json"]) == 2
    assert "holds no kernel files of its machine" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["gone", "no recording"])
def test_without_a_history_nothing_is_guessed(copied: Path, damage: str, capsys) -> None:
    if damage == "gone":
        forget(copied)
    else:
        (copied / DIRECTORY / CURRENT).write_text("no recording\n")
    assert main(["state", "show", "--state-dir", str(copied)]) == 0
    assert "cores, sockets and caches are not known" in " ".join(capsys.readouterr().out.split())
    assert main(["topology", "--state", str(copied)]) == 2
    assert "name its own with --machine" in capsys.readouterr().err


def test_a_shared_container_is_explained_with_the_pool_of_today(copied: Path, capsys) -> None:
    assert main(["explain", "web", "--state-dir", str(copied)]) == 0
    assert "the shared pool has changed since: today it is CPUs " in " ".join(capsys.readouterr().out.split())


def test_room_on_a_named_machine_heeds_the_directory(copied: Path, tmp_path: Path, capsys) -> None:
    description = tmp_path / "machine.yaml"
    description.write_text("topology: pack:1 numa:3(memory=8GiB) l3:1 core:4 pu:2\n")
    assert main(["room", "--machine", str(description), "--state-dir", str(copied)]) == 0
    assert "with the allocations of" in " ".join(capsys.readouterr().out.split())
