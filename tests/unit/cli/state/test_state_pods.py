"""`state show` of pods as wholes: blocks, containers that are not created, init containers, and pods that run in part."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_plugin.agent.observing.status_client import IncompletePodRow, RefusedContainerRow, SiblingRow
from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.state.rows import kept_by_ended, waiting
from nri_plugin.cli.state.source import SOCKET
from nri_plugin.cli.state.state import command
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Regime,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import Configure
from tests.builders import GIB
from tests.builders import node as a_node

WHOLE = Amounts(6000, 6000, 6 * GIB, 6 * GIB)


def facts(*kinds: tuple[str, Kind]) -> PodFacts:
    return PodFacts("u1", QOSClass.GUARANTEED, tuple(ContainerFacts(*one) for one in kinds), WHOLE)


def record(name: str, phase: Phase = Phase.RUNNING, uid: str = "u1") -> ContainerRecord:
    parent = f"/kubepods/pod{uid}"
    return ContainerRecord(f"id-{name}", uid, name, phase, CgroupRef(parent, f"{parent}/{name}"))


def pod(*kinds: tuple[str, Kind]) -> PodRecord:
    known = facts(*kinds)
    return PodRecord("u1", "sb", "db", "shop", QOSClass.GUARANTEED, facts=known, is_admitted=True)


def part(text: str, **more: Any) -> Allocation:
    return Allocation(CPUSet.parse(text), NodeMask.of(0), **more)


KINDS = ("setup", Kind.INIT), ("mesh", Kind.SIDECAR), ("db", Kind.APP), ("log", Kind.APP)
BLOCK = State(
    {"u1": pod(*KINDS)},
    {one.id: one for one in (record("setup", Phase.STOPPED), record("mesh"), record("db"))},
    {
        "u1/": part("2-7", memory=(MemoryBlock(NodeMask.of(0), "memory", 6 * GIB),), cpu_milli=6000),
        "u1/setup": part("2-5", is_init=True),
        "u1/mesh": part("6-7", is_pod_shared=True),
        "u1/db": part("2-5"),
        "u1/log": part("6-7", is_pod_shared=True),
    },
)
INCOMPLETE = IncompletePodRow(
    "u1",
    "shop",
    "db",
    (RefusedContainerRow("late", "TopologyAffinityError", "TopologyAffinityError: no room"),),
    (SiblingRow("db", "2-5", "0", is_created=True),),
)


def show(folder: Path, state: State, *args: str) -> Result:
    CheckpointFile(str(folder / "state"), a_node(), durable=False).save(state)
    machine = folder / "machine.yaml"
    machine.write_text("topology: pack:2 numa:1(memory=16GiB) l3:1 core:4 pu:2\n")
    return CliRunner().invoke(
        command, ["show", "--state-dir", str(folder / "state"), "--machine", str(machine), *args]
    )


def told(folder: Path, state: State, *args: str) -> dict[str, Any]:
    return json.loads(show(folder, state, "-o", "json", *args).output)


def test_the_block_is_on_the_line_of_the_pod_and_its_parts_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    lines = show(tmp_path, BLOCK).output.splitlines()
    block = "CPUs 2-7 (6) are the pod's, pod shared pool 6-7, memory on NUMA 0"
    assert lines[1] == f"shop/db  Guaranteed  {block}"
    rows = {line.split()[0]: line for line in lines[2:5]}
    assert "  slice " in rows["db"]
    assert rows["mesh"].split()[1:6] == ["(sidecar)", "pod", "shared", "2", "6-7"]
    assert "  ended " in rows["setup"]
    assert "allocated, not created: shop/db/log: pod shared pool, CPUs 6-7" in lines
    assert "exclusive    2-7" in lines
    assert f"pod: shop/db: {block}" in show(tmp_path, BLOCK, "--wide").output.splitlines()


def test_programs_get_all_of_a_block(tmp_path: Path) -> None:
    found = told(tmp_path, BLOCK)
    (one,) = found["pods"]
    assert one == {
        "pod_uid": "u1",
        "namespace": "shop",
        "pod": "db",
        "qos": "Guaranteed",
        "is_admitted_as_a_whole": True,
        "is_container_by_container": False,
        "block": {
            "cpus": "2-7",
            "pod_shared_pool": "6-7",
            "mems": "0",
            "cpu_milli": 6000,
            "memory": [{"numa_nodes": "0", "resource": "memory", "size_bytes": 6 * GIB}],
        },
        "incomplete": None,
    }
    rows = {row["container"]: (row["kind"], row["cpus"], row["kept_cpus"]) for row in found["containers"]}
    assert rows == {
        "db": ("slice", "2-5", ""),
        "mesh": ("pod shared", "6-7", ""),
        "setup": ("ended", "", ""),
    }
    assert [(row["container"], row["is_pod_shared"]) for row in found["waiting"]] == [("log", True)]


def test_a_block_without_containers_is_told_too(tmp_path: Path) -> None:
    bare = replace(BLOCK, containers={})
    line = "pod: shop/db: CPUs 2-7 (6) are the pod's, pod shared pool 6-7, memory on NUMA 0"
    assert line in " ".join(show(tmp_path, bare).output.split())
    assert line not in " ".join(show(tmp_path, BLOCK).output.split())
    assert [one["block"]["cpus"] for one in told(tmp_path, bare)["pods"]] == ["2-7"]


EARLIER = ("log", Kind.SIDECAR), *KINDS[:3]


@pytest.mark.parametrize(
    ("others", "held", "kind", "kept"),
    [
        ((record("db"),), "2-5", "ended", ""),
        ((record("db"),), "2-3", "kept", "4-5"),
        ((record("db"),), "", "kept", "2-5"),  # the later containers share
        ((record("db", Phase.STOPPED),), "2-3", "kept", "4-5"),  # a crash loop does not bring it back
        ((record("mesh"),), "2-3", "kept", "4-5"),
        ((record("log"),), "2-3", "exclusive", ""),  # a sidecar before it may run while it has not run yet
        ((), "2-3", "exclusive", ""),
    ],
)
def test_an_init_container_that_is_over_keeps_what_no_later_container_has(
    tmp_path: Path, others: tuple[ContainerRecord, ...], held: str, kind: str, kept: str
) -> None:
    setup = record("setup", Phase.STOPPED)
    parts = {"u1/setup": part("2-5", is_init=True), "u1/db": part(held)}
    found = told(tmp_path, State({"u1": pod(*EARLIER)}, {one.id: one for one in (setup, *others)}, parts))
    row = next(row for row in found["containers"] if row["container"] == "setup")
    assert (row["kind"], row["kept_cpus"]) == (kind, kept)
    assert [one["cpus"] for one in found["kept"]] == ([kept] if kept else [])


@pytest.mark.parametrize("has_record", [True, False])
def test_kept_cpus_are_shown_with_their_place_and_told_below_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_record: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    records = [record("db"), *([record("setup", Phase.STOPPED)] if has_record else [])]
    held = {"u1/setup": part("2-5", is_init=True), "u1/db": part("2-3")}
    state = State({"u1": pod(*KINDS)}, {one.id: one for one in records}, held)
    text, wide = show(tmp_path, state).output.splitlines(), show(tmp_path, state, "--wide").output
    note = "kept: shop/db/setup has ended: CPUs 4-5 stay allocated until its pod ends, and other pods cannot have them"
    assert note in text
    assert note in wide.splitlines()
    rows = [line.split() for line in text if "setup (init)" in line]
    assert rows == (
        [["setup", "(init)", "kept", "2", "4-5", "4", "0", "0", "0", "NSUC"]] if has_record else []
    )
    assert note not in show(tmp_path, state, "--pod", "nothing").output


def test_of_two_init_containers_that_keep_a_cpu_one_is_told() -> None:
    held = {"u1/setup": part("2-5", is_init=True), "u1/mesh": part("4-7", is_init=True), "u1/db": part("2")}
    state = State({"u1": pod(*KINDS)}, {"id-log": record("log")}, held)
    assert {key: str(cpus) for key, cpus in kept_by_ended(state).items()} == {
        "u1/setup": "3-5",
        "u1/mesh": "6-7",
    }


def test_a_pod_that_runs_in_part_is_shown_with_what_its_containers_hold(tmp_path: Path) -> None:
    CheckpointFile(str(tmp_path / "state"), a_node(), durable=False).save(BLOCK)
    feed = StatusFeed()
    feed.incomplete.rows = lambda _state: (INCOMPLETE,)  # type: ignore[method-assign]
    runtime = Configure("", "containerd", "v2.1.9")
    socket = StatusSocket(tmp_path / "state" / SOCKET, lambda: (a_node(), BLOCK), feed, lambda: runtime)
    try:
        text, wide = show(tmp_path, BLOCK).output, show(tmp_path, BLOCK, "--wide").output
        (of_pod,) = told(tmp_path, BLOCK)["pods"]
        other = show(tmp_path, BLOCK, "--pod", "nothing").output
    finally:
        socket.close()
    line = "shop/db: incomplete: refused: late (TopologyAffinityError); other containers of the pod: db (CPUs 2-5)"
    assert line in wide.splitlines()
    assert line in " ".join(text.split())
    assert of_pod["incomplete"]["refused"][0]["reason"] == "TopologyAffinityError"
    assert "incomplete" not in other


def test_a_pod_of_very_many_containers_is_shown_as_container_by_container(tmp_path: Path) -> None:
    many = pod(*((f"c{number}", Kind.APP) for number in range(MOST_CONTAINERS + 1)))
    state = State({"u1": replace(many, is_admitted=False)}, {"id-c0": record("c0")})
    text = " ".join(show(tmp_path, state).output.split())
    assert "shop/db Guaranteed container by container, for it has more than 128" in text
    assert [one["is_container_by_container"] for one in told(tmp_path, state)["pods"]] == [True]
    with_own = State({"u1": replace(many, regime=Regime.WHOLE)}, {"id-c0": record("c0")})
    assert "container by container" not in show(tmp_path, with_own).output


@pytest.mark.parametrize(("others", "is_waiting"), [(("mesh", "db"), False), ((), True)])
def test_an_init_container_whose_record_is_gone_has_ended_where_a_later_container_exists(
    others: tuple[str, ...], is_waiting: bool
) -> None:
    state = State(
        {"u1": pod(*KINDS)},
        {f"id-{name}": record(name) for name in others},
        {"u1/setup": part("2-7", is_init=True), "u1/db": part("2-5")},
    )
    assert ("u1/setup" in waiting(state)) == is_waiting
