"""Laws of the cpuset tree: whatever is written in whatever order, what the kernel promises holds."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model import bits
from nri_plugin.model.sets import CPUSet, NodeMask
from tests.lab.runtime.cgroup_tree import CgroupTree, CgroupWriteError, CpusetFile, parent_of

PATHS = ("a", "a/b", "a/b/c", "a/d", "e")
CPUS = 6
NODES = 3

paths = st.sampled_from(PATHS)
cpu_masks = st.integers(0, (1 << CPUS) - 1)
writes = st.tuples(st.just("write"), paths, st.sampled_from(list(CpusetFile)), cpu_masks)
attaches = st.tuples(st.just("attach"), paths)
hotplugs = st.tuples(st.just("online"), st.integers(1, (1 << CPUS) - 1))
histories = st.lists(writes | attaches | hotplugs, max_size=25)


def played(version: int, history: list[tuple[object, ...]]) -> CgroupTree:
    tree = CgroupTree(
        online=CPUSet((1 << CPUS) - 1), memory_nodes=NodeMask((1 << NODES) - 1), version=version
    )
    for path in PATHS:
        tree.add(path)
    for verb, *rest in history:
        with suppress(CgroupWriteError, OSError):
            if verb == "write":
                tree.write(rest[0], rest[1], bits.format_list(rest[2]))  # type: ignore[arg-type]
            elif verb == "attach":
                tree.attach(rest[0])  # type: ignore[arg-type]
            else:
                tree.set_online(CPUSet(rest[0]))  # type: ignore[arg-type]
    return tree


@given(histories)
def test_v2_effective_sets_are_never_empty_and_within_the_parents(history: list[tuple[object, ...]]) -> None:
    tree = played(2, history)
    for path in PATHS:
        assert tree.effective_cpus(path)
        assert tree.effective_mems(path)
        assert tree.effective_cpus(path) <= tree.effective_cpus(parent_of(path))
        assert tree.effective_mems(path) <= tree.effective_mems(parent_of(path))


@given(histories)
def test_v2_effective_is_own_within_parents_or_all_of_the_parents(history: list[tuple[object, ...]]) -> None:
    tree = played(2, history)
    for path in PATHS:
        above = tree.effective_cpus(parent_of(path))
        within = tree.own_cpus(path) & above
        assert tree.effective_cpus(path) == (within or above)


@given(histories)
def test_v1_own_sets_nest(history: list[tuple[object, ...]]) -> None:
    tree = played(1, history)
    for path in PATHS:
        if parent_of(path):
            assert tree.own_cpus(path) <= tree.own_cpus(parent_of(path))
            assert tree.own_mems(path) <= tree.own_mems(parent_of(path))
        assert tree.effective_cpus(path) == tree.own_cpus(path)


@given(histories, paths, cpu_masks)
@pytest.mark.parametrize("version", [1, 2])
def test_a_rejected_write_changes_nothing(
    version: int, history: list[tuple[object, ...]], path: str, mask: int
) -> None:
    tree = played(version, history)
    before = [(tree.own_cpus(p), tree.effective_cpus(p)) for p in tree]
    try:
        tree.write(path, CpusetFile.CPUS, bits.format_list(mask))
    except CgroupWriteError:
        assert [(tree.own_cpus(p), tree.effective_cpus(p)) for p in tree] == before
    else:
        assert tree.own_cpus(path) == CPUSet(mask)


@given(histories, st.integers(1, (1 << CPUS) - 1))
def test_v2_hotplug_and_back_restores_every_effective_set(
    history: list[tuple[object, ...]], online: int
) -> None:
    tree = played(2, history)
    whole = tree.effective_cpus("")
    before = [tree.effective_cpus(path) for path in tree]
    tree.set_online(CPUSet(online))
    tree.set_online(whole)
    assert [tree.effective_cpus(path) for path in tree] == before
