"""What one side says on the status socket is what the other reads."""

from dataclasses import replace

import pytest

from nri_plugin.agent.observing.status_client import (
    AgentStatus,
    DriftRow,
    LostRow,
    RefusalRow,
    decode,
    encode,
)
from nri_plugin.model.options import Node, Options, ReservedMemory, TopologyManagerPolicy
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    MemoryBlock,
    Phase,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from tests.builders import GIB, machine


def status() -> AgentStatus:
    options = Options(
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        reserved_memory=(ReservedMemory(0, "memory", GIB),),
        never_refuse=frozenset({"kube-system"}),
    )
    allocation = Allocation(
        CPUSet.parse("2-3,100"), NodeMask.parse("0-1"), (MemoryBlock(NodeMask(3), "memory", GIB),)
    )
    pod = PodRecord(
        "u1", "s1", "web", "default", QOSClass.GUARANTEED, "/kubepods/podu1", affinity=NodeMask(1)
    )
    container = ContainerRecord(
        "c1", "u1", "app", Phase.RUNNING, CgroupRef("/kubepods/podu1", "/kubepods/podu1/c1")
    )
    state = State({"u1": pod}, {"c1": container}, {"u1/app": allocation})
    refusal = RefusalRow(
        1, "u2", "default", "db", "app", "TopologyAffinityError", "TopologyAffinityError: no"
    )
    drift = DriftRow(
        7,
        "/kubepods/podu1/c1",
        "c1",
        "default/web/app",
        None,
        None,
        "2-3",
        "files-gone",
        "sweep",
        1,
        is_fight=False,
    )
    node = Node(machine(nodes=2, cores=64), options, CPUSet.parse("0-1"))
    return AgentStatus(node, state, (refusal,), (drift,))


def test_a_line_is_read_as_it_was_meant() -> None:
    told = status()
    read = decode(encode(told))
    assert (read.state, read.refusals, read.drifts) == (told.state, told.refusals, told.drifts)
    assert (read.node.topology, read.node.options) == (told.node.topology, told.node.options)
    assert read.node.reserved == told.node.reserved


def test_who_misses_cpus_is_told_with_what_is_left() -> None:
    told = status()
    small = Node(machine(nodes=2, cores=1), told.node.options, told.node.reserved)
    assert decode(encode(told)).lost == ()
    assert decode(encode(replace(told, node=small))).lost == (LostRow("u1", "app", "100", "2-3"),)
    assert b'"lost":[{"pod_uid":"u1","container":"app","lost":"100","runs_on":"2-3"}]' in encode(
        replace(told, node=small)
    )


def test_a_line_is_one_line() -> None:
    assert encode(status()).count(b"\n") == 1


def test_another_version_is_named() -> None:
    line = encode(status()).replace(b'"version":1', b'"version":2', 1)
    with pytest.raises(ValueError, match="the agent speaks version 2 of the status, this program version 1"):
        decode(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "truncated"),
        (b"{}", "missing required field `version`"),
        (b"[1]", "Expected `object`"),
        (b'{"version":1}', "missing required field `agent`"),
        (b"\xff", "malformed"),
    ],
)
def test_what_is_no_status_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(line)


def test_equal_states_make_equal_lines() -> None:
    assert encode(status()) == encode(replace(status()))
