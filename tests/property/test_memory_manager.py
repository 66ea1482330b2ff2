"""Whole lives of memory, container by container, beside a slow reading of the rules."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.memory_assignment import allocate_memory, memory_hint_sets
from nri_plugin.policy.memory_state import MemoryMachine, memory_state, shrink_reused
from nri_plugin.policy.merge import MergedHint
from tests.oracles.manager_steps import reuse_after, without_blocks
from tests.oracles.memory_manager import RefusedError, SlowMemoryManager

SIZES = st.sampled_from([0, 1, 2, 3, 4, 6, 9, 14])
REQUESTS = st.fixed_dictionaries({"memory": SIZES}, optional={"hugepages-2Mi": st.integers(0, 3)})
PODS = st.lists(
    st.tuples(
        st.lists(st.tuples(REQUESTS, st.sampled_from(["init", "sidecar"])), max_size=2),
        st.lists(REQUESTS, min_size=1, max_size=2),
    ),
    min_size=1,
    max_size=8,
)


@st.composite
def amounts(draw):
    """Allocatable amounts by resource and node."""
    count = draw(st.integers(1, 4))
    return {
        name: {node: draw(st.integers(low, high)) for node in range(count)}
        for name, low, high in (("memory", 2, 8), ("hugepages-2Mi", 0, 4))
    }


def mask_of(nodes):
    return NodeMask.from_ids(nodes)


class Ours:
    """The product's functions, remembering what they give."""

    def __init__(self, allocatable):
        nodes = tuple(allocatable["memory"])
        self.state = memory_state(MemoryMachine(nodes, allocatable, {}, allocatable))
        self.blocks, self.reuse = {}, {}

    def hints(self, pod, request):
        (hint_set, *_) = memory_hint_sets(self.state, request, reuse=self.reuse.get(pod, {}))
        return [(frozenset(NodeMask(mask)), preferred) for mask, preferred in hint_set.hints or ()]

    def allocate(self, pod, container, request, hint, *, init, earlier_inits):
        nodes, preferred = hint
        merged = MergedHint(None if nodes is None else mask_of(nodes), preferred)
        grant = allocate_memory(self.state, request, merged, reuse=self.reuse.get(pod, {}))
        self.state = grant.state
        self.reuse = {pod: reuse_after(self.reuse.get(pod, {}), grant.blocks, init=init)}
        earlier = [(pod, name) for name in earlier_inits]
        shrunk = shrink_reused([self.blocks[key] for key in earlier], grant.blocks)
        self.blocks |= dict(zip(earlier, shrunk, strict=True)) | {(pod, container): grant.blocks}

    def remove(self, pod, container):
        self.state = without_blocks(self.state, self.blocks.pop((pod, container)))

    def shown(self):
        return {
            key: [(frozenset(one.nodes), one.resource, one.size_bytes) for one in blocks]
            for key, blocks in self.blocks.items()
        }


@given(amounts(), PODS, st.data())
def test_every_container_is_hinted_and_placed_as_by_the_slow_reading(allocatable, pods, data):
    slow, ours = SlowMemoryManager(allocatable), Ours(allocatable)
    for number, (inits, apps) in enumerate(pods):
        pod, earlier = f"p{number}", []
        for place, (request, kind) in enumerate([*inits, *((app, "app") for app in apps)]):
            found = slow.hints(pod, request)
            assert ours.hints(pod, request) == found
            anywhere = st.tuples(st.none(), st.booleans())
            hint = data.draw(st.one_of(anywhere, st.sampled_from(found)) if found else anywhere)
            init, answers = kind == "init", []
            for manager in (slow, ours):
                try:
                    manager.allocate(pod, f"c{place}", request, hint, init=init, earlier_inits=earlier)
                    answers.append("placed")
                except (RefusedError, AdmissionError):
                    answers.append("refused")
            assert answers in (["placed"] * 2, ["refused"] * 2)
            assert ours.shown() == slow.blocks
            if answers[0] == "refused":
                break
            earlier += [f"c{place}"] if init else []
        for key in (
            data.draw(st.lists(st.sampled_from(sorted(slow.blocks)), max_size=2, unique=True))
            if slow.blocks
            else ()
        ):
            slow.remove(*key)
            ours.remove(*key)
        assert dict(ours.state.assignments) == slow.assignments
        assert {node: mask_of(group).mask for node, group in slow.groups.items()} == dict(ours.state.group)
        assert all(
            ours.state.free(name)[node] == slow.free(name, node)
            for name in allocatable
            for node in allocatable[name]
        )
