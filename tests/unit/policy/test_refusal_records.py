"""A policy refuses with a record: its fields, not its sentence, are what code reads."""

import pytest

from nri_plugin.model.errors import (
    AdmissionError,
    InsufficientCPUsError,
    InsufficientMemoryError,
    SMTAlignmentError,
    TopologyAffinityError,
    UncoreCacheAlignmentError,
)
from nri_plugin.model.options import SMTOddCounts, TopologyManagerPolicy
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.refusals import (
    CacheShortage,
    CPUShortage,
    FoundInPart,
    HintNotAdmitted,
    MemoryAmount,
    MemoryNotPreferred,
    MemoryShortage,
    MixedMemory,
    PartialCore,
    WholeCoreShortage,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import allocate_cpus, check_full_pcpus, whole_core_count
from nri_plugin.policy.hints import HintSet
from nri_plugin.policy.memory_assignment import allocate_memory
from nri_plugin.policy.memory_state import MemoryMachine, memory_state
from nri_plugin.policy.merge import MergedHint, admit
from tests.unit.policy.shapes import machine

TWO = cpu_tables(machine(2, 1, cores=4, threads=2))
BOTH = NodeMask(0b11)
ROOM = {"memory": {0: 10, 1: 10}}
MACHINE = MemoryMachine((0, 1), ROOM, {}, ROOM)


def detail_of(error, act):
    with pytest.raises(error) as refused:
        act()
    return refused.value.refusal.detail


def test_cpus():
    few = CPUSet.parse("0-1,8")
    with pytest.raises(InsufficientCPUsError) as refused:
        allocate_cpus(TWO, 4, few, NodeMask(0b01))
    assert refused.value.refusal.detail == CPUShortage(2, 1)
    assert refused.value.refusal.remark == FoundInPart(4, 2, "0")
    assert UncoreCacheAlignmentError(5, 3, 4).refusal.detail == CacheShortage(5, 3, 4)


def test_whole_cores():
    few = CPUSet.parse("2-3")
    asked = detail_of(SMTAlignmentError, lambda: whole_core_count(SMTOddCounts.REJECT, 3, 2))
    assert asked == PartialCore(3, 2, by_odd_counts=True)
    threads = TWO.cpus_per_core
    count = 4 * threads
    asked = detail_of(SMTAlignmentError, lambda: check_full_pcpus(TWO, count, few, CPUSet()))
    assert asked == WholeCoreShortage(count, 2, threads)


def test_hints():
    policy = TopologyManagerPolicy.RESTRICTED
    nowhere = ((HintSet("cpu", ()),),)
    asked = detail_of(TopologyAffinityError, lambda: admit(policy, BOTH, nowhere))
    assert asked == HintNotAdmitted("restricted", is_single=False, affinity="0-1")


def memory_detail(error, blocks, size, hint):
    state = memory_state(MACHINE, blocks)
    return detail_of(error, lambda: allocate_memory(state, {"memory": size}, hint))


def test_memory():
    anywhere = MergedHint(None, preferred=True)
    first, second, both = (MemoryBlock(NodeMask(mask), "memory", 2) for mask in (0b01, 0b10, 0b11))
    mixed = MixedMemory("0-1", ("0", "1"))
    assert memory_detail(InsufficientMemoryError, (), 21, anywhere) == MemoryShortage(
        "", (MemoryAmount("memory", 21, 20, "0-1"),), None
    )
    apart = [[first], [second]]
    assert memory_detail(InsufficientMemoryError, apart, 12, anywhere).mixed == mixed
    assert memory_detail(AdmissionError, apart, 12, MergedHint(BOTH, preferred=True)) == mixed
    assert memory_detail(AdmissionError, [[both]], 5, anywhere) == MemoryNotPreferred(
        "", "0-1", (MemoryAmount("memory", 5, 18, "0-1"),)
    )
