"""Recordings: what is in them, what never is, and what is made of damaged ones."""

import base64
import dataclasses
import gzip
import json
import tracemalloc
import zlib
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.drift import CpusetsObserved, MachineChanged, Observed, Target
from nri_plugin.core.engine import decide
from nri_plugin.core.hint_providers import Question
from nri_plugin.core.pod_news import PodFactsTold, PodHasEnded
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node, Options, ReservedMemory, TopologyManagerPolicy, TopologyTieBreak
from nri_plugin.model.records import Amounts, CgroupRef, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import CPUSet, NodeMask, NUMANodeID
from nri_plugin.model.state import State
from nri_plugin.model.topology import NUMANode, SharedQueue, Topology
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.policy.hints import Hint, HintSet, Provider
from nri_plugin.recording.file import CURRENT, PREVIOUS, head_lines, line_of, node_line, outcome_of
from nri_plugin.recording.reader import read
from nri_plugin.recording.rows import Event, RecordedNode, RecordedNUMANode, TopologyRow, node_from, node_row
from nri_plugin.wire.nri.events import (
    CreateContainer,
    RemovePodSandbox,
    RunPodSandbox,
    StartContainer,
    Synchronize,
    UpdateContainer,
    UpdatePodSandbox,
)
from nri_plugin.wire.nri.messages import Container, ContainerState, DeviceNode, Pod, Resources
from tests.builders import container, machine, node, pod

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NODE = node(machine())
FIRST, SECOND = pod("p1", cpu=2), pod("p2", cpu=3)


def day(known: Node = NODE, state: State | None = None, why: str = "start") -> bytes:
    """A head and the life of two pods."""
    state = state or State()
    pieces = [head_lines(known, state, NOW, why)]
    for one, cpu in ((FIRST, 2), (SECOND, 3)):
        for event in (
            RunPodSandbox(one),
            CreateContainer(one, container(one, cpu=cpu)),
            StartContainer(one, container(one, cpu=cpu)),
        ):
            decision = decide(known, state, event)
            pieces.append(line_of(event, NOW, "0000abcd", outcome_of(decision, took_us=7)))
            state = decision.state
    return b"".join(pieces)


def written(folder: Path, data: bytes, name: str = "tape") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def test_moments_carry_the_state_they_met(tmp_path: Path) -> None:
    moments = list(read(written(tmp_path, day())).moments())
    assert [type(moment.event).__name__ for moment in moments] == [
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
    ] * 2
    assert moments[0].state_before == State()
    assert str(moments[4].state_before.exclusive) == "2-3"
    assert str(moments[4].state_after.exclusive) == "2-6"
    assert moments[4].outcome.cpus == "4-6"
    assert (moments[4].when, moments[4].op, moments[4].outcome.took_us) == (NOW, "0000abcd", 7)
    assert moments[4].place.endswith("tape:7")


def test_a_refused_event_changed_nothing(tmp_path: Path) -> None:
    event = CreateContainer(FIRST, container(FIRST, cpu=99))
    decision = decide(NODE, State(), event)
    line = line_of(event, NOW, "", outcome_of(decision, str(decision.refusal)))
    (moment,) = read(written(tmp_path, head_lines(NODE, State(), NOW) + line)).moments()
    assert moment.outcome.refusal == str(decision.refusal)
    assert moment.outcome.reason == decision.refusal.reason if decision.refusal else None
    assert moment.state_after is moment.state_before


def test_what_failed_for_other_reasons_changed_nothing(tmp_path: Path) -> None:
    event = CreateContainer(FIRST, container(FIRST, cpu=2))
    outcome = outcome_of(decide(NODE, State(), event), "no space left", failed=True)
    line = line_of(event, NOW, "", outcome)
    (moment,) = read(written(tmp_path, head_lines(NODE, State(), NOW) + line)).moments()
    assert moment.decision.state.exclusive
    assert moment.state_after == State()


def test_secrets_are_never_written() -> None:
    secretive = Pod("s", annotations={"token": "SECRET", "nri-pin/numa-node": "1"}, labels={"a": "SECRET"})
    holder = Container(
        "c",
        env=("PASSWORD=SECRET", "PCIDEVICE_X=0000:00:01.0"),
        annotations={"nri-pin/x": "SECRET"},
        labels={"b": "SECRET"},
        devices=(DeviceNode("/dev/SECRET"),),
        cdi_devices=("SECRET=1",),
    )
    text = line_of(CreateContainer(secretive, holder), NOW, "", outcome_of(Decision(State())))
    assert b"SECRET" not in text
    assert json.loads(text)["pod"]["annotations"] == {"nri-pin/numa-node": "1"}


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    recording = read(written(tmp_path, day()[:-9]))
    assert len(list(recording.moments())) == 5
    assert recording.problems == [f"{tmp_path}/tape:8: is torn: its writer ended in the middle of it"]


def test_what_follows_a_damaged_line_is_listed_and_not_decided_again(tmp_path: Path) -> None:
    lines = day().splitlines(keepends=True)
    lines[4] = b"\x00" * 20 + b"\n"
    recording = read(written(tmp_path, b"".join(lines)))
    assert len(list(recording.moments())) == 2
    assert [entry.lost for entry in recording.entries()] == [False] * 3 + [True] * 3
    assert [problem.split(": ")[0] for problem in recording.problems] == [f"{tmp_path}/tape:5"]


def test_the_next_snapshot_ends_the_doubt(tmp_path: Path) -> None:
    recording = read(written(tmp_path, day()[:-9] + b"\n" + day()))
    assert len(list(recording.moments())) == 5 + 6
    assert len(recording.problems) == 1


def test_another_node_is_decided_for_from_its_line_on(tmp_path: Path) -> None:
    smaller = node(machine(cores=2))
    event = CreateContainer(FIRST, container(FIRST, cpu=7))
    lines = [line_of(event, NOW, "", outcome_of(decide(one, State(), event), "x")) for one in (NODE, smaller)]
    data = head_lines(NODE, State(), NOW) + lines[0] + node_line(smaller, NOW) + lines[1]
    moments = list(read(written(tmp_path, data)).moments())
    assert [moment.decision.refusal is None for moment in moments] == [True, False]
    assert moments[1].node.topology == smaller.topology


def test_another_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, day().replace(b'"version":2', b'"version":9'))
    with pytest.raises(HostError, match=r"has version 9 .* reads version 2"):
        read(path)


def test_another_version_in_the_middle_costs_its_own_part(tmp_path: Path) -> None:
    data = day() + day().replace(b'"version":2', b'"version":9') + day()
    recording = read(written(tmp_path, data))
    assert len(list(recording.moments())) == 12
    assert any("tape:9: has version 9" in problem for problem in recording.problems)


@pytest.mark.parametrize("data", [b"", b"hello\n", b'{"snapshot":{}}\n', b"\xff\xfe\n"])
def test_what_is_no_recording_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(HostError, match="is no head of a"):
        read(written(tmp_path, data))


@pytest.mark.parametrize("data", [b"\x1f\x8bno gzip", gzip.compress(b"x" * 99, mtime=0)[:14]])
def test_damaged_compression_is_said(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "day.gz").write_bytes(data)
    with pytest.raises(HostError, match=r"cannot be read: .*; give a whole copy of it"):
        read(str(tmp_path / "day.gz"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"nowhere: is not there; name what"):
        read(str(tmp_path / "nowhere"))


def test_a_directory_is_read_older_segment_first(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    written(history, day(), PREVIOUS)
    after = list(read(written(tmp_path, day())).moments())[-1].state_after
    gone = RemovePodSandbox(FIRST)
    line = line_of(gone, NOW, "", outcome_of(decide(NODE, after, gone)))
    written(history, head_lines(NODE, after, NOW, "full") + line, CURRENT)
    for path in (history, tmp_path):
        moments = list(read(str(path)).moments())
        assert len(moments) == 7
        assert str(moments[-1].state_after.exclusive) == "4-6"


def test_a_directory_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no recording in it"):
        read(str(tmp_path))


def test_compressed_recordings_are_read(tmp_path: Path) -> None:
    assert len(list(read(written(tmp_path, gzip.compress(day()))).moments())) == 6


def test_an_unknown_event_is_a_damaged_line(tmp_path: Path) -> None:
    data = day().replace(b'"StartContainer"', b'"DanceContainer"', 1)
    recording = read(written(tmp_path, data))
    assert len(list(recording.moments())) == 2
    assert "'DanceContainer' is not known to this version" in recording.problems[0]


def test_an_unknown_option_is_said(tmp_path: Path) -> None:
    data = day().replace(b'"cpu_manager_policy"', b'"colour"', 1)
    recording = read(written(tmp_path, data))
    assert list(recording.moments()) == []
    assert "option colour is not known to this version" in recording.problems[0]


def test_every_fact_of_a_machine_and_every_option_is_kept() -> None:
    """A field that is not written would silently be something else in a replay."""
    assert set(Topology.__struct_fields__) == set(TopologyRow.__struct_fields__)
    assert set(NUMANode.__struct_fields__) == set(RecordedNUMANode.__struct_fields__)
    assert {one.name for one in fields(Node)} == set(RecordedNode.__struct_fields__)
    options = Options(
        never_refuse=frozenset({"b", "a"}),
        reserved_memory=(ReservedMemory(NUMANodeID(1), "memory", 7),),
        topology_tie_break=TopologyTieBreak.SPREAD,
        max_allowable_numa_nodes=9,
    )
    topology = replace(machine(), isolated=CPUSet.of(3), offline=CPUSet.of(99), caches_known=False)
    queue = SharedQueue(CPUSet.of(0, 1), CPUSet.of(1))
    topology = replace(topology, without_l3=CPUSet.of(2), queues=(queue,))
    known = Node(topology, options, CPUSet.of(0))
    again = node_from(node_row(known))
    assert (again.topology, again.options, again.reserved) == (topology, options, CPUSet.of(0))


FULL = Resources(
    cpu_shares=3,
    cpu_quota_us=4,
    cpu_period_us=5,
    cpus="6",
    mems="7",
    memory_limit_bytes=8,
    hugepage_limits=(("2MB", 9),),
)
A_POD = Pod(
    "s",
    "n",
    "u",
    "ns",
    annotations={"nri-pin/numa-node": "1"},
    cgroup_parent="/kubepods/podu",
    resources=FULL,
    pid=5,
)
A_CONTAINER = Container(
    "c", "s", "n", ContainerState.STOPPED, resources=FULL, cgroups_path="/kubepods/podu/c"
)
FACTS = PodFacts(
    "u", QOSClass.GUARANTEED, (ContainerFacts("n", Kind.INIT, Amounts(1, 2, 3, 4, (("hugepages-2Mi", 5),))),)
)
DEVICES = (DeviceResource("x/gpu", (Device("g", NodeMask.of(0, 1)),), ((NodeMask.of(0), 2),)),)
OTHERS = (("side", DEVICES), ("none", ()))
OBSERVED = Observed(Target(CgroupRef("p", "q"), "c"), CPUSet.of(1), None)


@pytest.mark.parametrize(
    "event",
    [
        Synchronize((A_POD,), (A_CONTAINER,)),
        UpdateContainer(A_POD, A_CONTAINER, FULL),
        UpdatePodSandbox(A_POD, resources=FULL),
        StartContainer(A_POD, A_CONTAINER),
        RemovePodSandbox(A_POD),
        CpusetsObserved((OBSERVED, dataclasses.replace(OBSERVED, cpus=None, effective=CPUSet()))),
        MachineChanged(),
        PodFactsTold(A_POD, FACTS, OTHERS),
        PodFactsTold(A_POD, FACTS),
        PodHasEnded(A_POD),
        InformedCreate(CreateContainer(A_POD, A_CONTAINER), DEVICES, DEVICES, FACTS, OTHERS),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_read_as_it_was_written(tmp_path: Path, event: Event) -> None:
    line = line_of(event, NOW, "", outcome_of(Decision(State())))
    (entry,) = [
        one for one in read(written(tmp_path, head_lines(NODE, State(), NOW) + line)).entries() if one.event
    ]
    assert entry.event == event


def elsewhere(question: Question) -> Provider:
    """A hint provider of another package."""
    return (HintSet("x", (Hint(0b10, preferred=True),)),)


def test_hint_providers_are_asked_again_where_they_are_installed(tmp_path: Path) -> None:
    known = Node(
        machine(),
        Options(topology_manager_policy=TopologyManagerPolicy.RESTRICTED),
        CPUSet.of(0),
        (elsewhere,),
    )
    path = written(tmp_path, day(known))
    recording = read(path, (elsewhere,))
    assert [moment.decision.steps for moment in recording.moments()] == [
        moment.outcome.steps for moment in recording.moments()
    ]
    assert str(list(recording.moments())[1].state_after.exclusive) == "8-9"
    assert recording.problems == []
    without = read(path)
    assert str(list(without.moments())[1].state_after.exclusive) == "2-3"
    assert "hint providers elsewhere were asked, which are not those installed here" in without.problems[0]


@pytest.mark.parametrize("cut", [5, 40])
def test_a_packed_line_that_is_damaged_costs_what_follows_up_to_the_next_snapshot(
    tmp_path: Path, cut: int
) -> None:
    packed = zlib.compress(b'{"at":"2026-01-31T12:00:00Z","event":"MachineChanged","outcome":{}}')
    line = b'{"packed":"' + base64.b64encode(packed[:cut]) + b'"}\n'
    recording = read(written(tmp_path, day() + line + day()))
    assert len(list(recording.moments())) == 12
    assert "cannot be unpacked" in recording.problems[0]


def packed(text: bytes) -> bytes:
    return b'{"packed":"' + base64.b64encode(zlib.compress(text, 1)) + b'"}\n'


POD = b'{"uid":"u","sandbox_id":"","namespace":"","name":"","qos":"Guaranteed","cgroup_parent":""},'
ROWS = b'{"snapshot":{"pods":[' + POD * 200_000 + POD[:-1] + b'],"containers":[],"allocations":[]}}\n'


@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        (packed(ROWS), "values, more than the"),
        (packed(b'{"why":"' + b"a" * (40 << 20) + b'"}'), "cannot be unpacked"),
        (packed(b"[" * (20 << 20)), "values, more than the"),
        (packed(b'{"why":"' + b"a" * (20 << 20) + b'"}') * 6, "times as long as its file"),
        (ROWS, "is longer than 8 MiB"),
        (b" " * (9 << 20), "is longer than 8 MiB"),
        (b"x\n" * 5000, "more than 1000 of its lines are damaged"),
        ((b" " * (1 << 20) + b"\n") * 100, "times as long as its file"),
    ],
    ids=["rows", "length", "depth", "many lengths", "raw rows", "raw length", "lines", "compressed"],
)
def test_a_recording_that_is_a_bomb_takes_little_memory(tmp_path: Path, bomb: bytes, why: str) -> None:
    path = tmp_path / "bomb.jsonl"
    path.write_bytes(gzip.compress(day() + bomb + day(), 1))
    recording = read(str(path))
    tracemalloc.start()
    moments = len(list(recording.moments()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert moments in (6, 12)
    assert why in recording.problems[-1]
    assert len(recording.problems) <= 1003
    assert peak < 150 << 20


def test_a_first_line_without_end_is_no_head(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl"
    path.write_bytes(gzip.compress(b" " * (64 << 20), 1))
    with pytest.raises(HostError, match="is no head of a recording"):
        read(str(path))
