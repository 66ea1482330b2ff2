"""A refused pod stays refused however late the exporter is, and one that is set to Failed until its sandbox ends."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_plugin.checkpoint.format import Encoder, decode
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.pod_news import PodRejected
from nri_plugin.core.validator import new_violations
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.records import Allocation, Amounts, ContainerFacts, Kind, PodFacts, PodRefusal, QOSClass
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import ContainerState, Pod
from tests.builders import GIB, container, cpu_resources, node, pod

NEIGHBOUR = {"other/app": Allocation(CPUSet.parse("5-15"))}
"""Of CPUs 0 to 15, of which 0 and 1 are reserved, it leaves three, all of them on the first NUMA node."""

RPC = PodRefusal("UnexpectedAdmissionError", "the row of the exporter")


class Refused:
    """A pod of containers on a node; the exporter may be late at each creation, and the agent may start anew."""

    def __init__(self, *counts: int, inits: int = 0, policy: TopologyManagerPolicy | None = None) -> None:
        self.on = node(topology_manager_policy=policy or TopologyManagerPolicy.NONE)
        self.of, self.counts = pod("refused", cpu=sum(counts)), dict(zip("abcdef", counts, strict=False))
        self.inits = frozenset(list(self.counts)[:inits])
        self.state = State(allocations=NEIGHBOUR)
        self.tell(nri.RunPodSandbox(self.of))

    def facts(self, **counts: int) -> PodFacts:
        rows = (
            ContainerFacts(
                name,
                Kind.INIT if name in self.inits else Kind.APP,
                Amounts(1000 * count, 1000 * count, GIB, GIB),
            )
            for name, count in {**self.counts, **counts}.items()
        )
        return PodFacts(self.of.uid, QOSClass.GUARANTEED, tuple(rows))

    def tell(self, event: object) -> Decision:
        before = self.state
        decision = decide(self.on, before, event)  # type: ignore[arg-type]
        if decision.refusal is None:
            assert new_violations(self.on, before, event, decision) == []  # type: ignore[arg-type]
        self.state = decision.state
        return decision

    def creates(
        self, name: str, facts: PodFacts | None = None, devices: Sequence[DeviceResource] = (), **more: object
    ) -> str:
        """Why the container is refused; empty where it is admitted and runs."""
        made = replace(container(self.of, name), resources=cpu_resources(self.counts[name], GIB))
        event = InformedCreate(nri.CreateContainer(self.of, made), tuple(devices), facts=facts, **more)  # type: ignore[arg-type]
        refusal = self.tell(event).refusal
        if refusal is None:
            self.tell(nri.StartContainer(self.of, made))
        return str(refusal or "")

    def restart(self) -> None:
        """The agent starts anew, from its checkpoint and the runtime's list."""
        stored = decode(b"".join(Encoder().encode(self.state, 1))).state
        assert stored == self.state
        self.state = stored
        here = tuple(
            replace(container(self.of, one.name), state=ContainerState.RUNNING)
            for one in self.state.containers_of(self.of.uid)
        )
        others = self.state.allocations.keys() & NEIGHBOUR.keys()
        self.tell(nri.Synchronize((self.of,), here))
        if others:
            self.state = replace(self.state, allocations={**self.state.allocations, **NEIGHBOUR})

    def room(self, *, is_free: bool) -> None:
        """The neighbour ends or comes back."""
        mine = {key: one for key, one in self.state.allocations.items() if key not in NEIGHBOUR}
        self.state = replace(self.state, allocations=mine if is_free else {**mine, **NEIGHBOUR})


def test_a_pod_that_was_refused_as_a_whole_is_so_where_the_exporter_is_late_at_its_next_container() -> None:
    life = Refused(2, 2)
    assert "container b of the pod" in life.creates("a", life.facts())
    assert "container b of the pod" in life.creates("b")
    life.restart()
    assert "container b of the pod" in life.creates("a")
    assert life.state.allocations == NEIGHBOUR


def test_it_is_admitted_as_a_whole_where_there_is_room_although_the_exporter_is_late() -> None:
    life = Refused(2, 2)
    life.creates("a", life.facts())
    life.room(is_free=True)
    assert life.creates("b") == ""
    assert {key for key in life.state.allocations if key.startswith(life.of.uid)} == {
        f"{life.of.uid}/a",
        f"{life.of.uid}/b",
    }
    assert life.state.pods[life.of.uid].refusal is None


def test_a_pod_whose_object_has_changed_is_placed_anew() -> None:
    life = Refused(2, 2)
    life.creates("a", life.facts())
    life.counts["b"] = 1
    assert life.creates("a", life.facts()) == ""


def gpu(number: int) -> tuple[DeviceResource, ...]:
    return (DeviceResource("gpu", (Device("0", NodeMask.of(number)),)),)


def test_devices_that_a_late_exporter_does_not_tell_count_all_the_same() -> None:
    life = Refused(1, 1, policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    far = {"pod_devices": gpu(1), "devices_by_container": (("b", gpu(1)),)}
    before = life.creates("a", life.facts(), **far)
    assert before
    assert before.partition(": ")[2] in life.creates("a")
    life.on = dataclasses.replace(
        life.on,
        options=dataclasses.replace(life.on.options, topology_manager_policy=TopologyManagerPolicy.NONE),
    )
    assert life.creates("a") == ""


def test_no_container_of_a_pod_that_is_set_to_failed_is_admitted_until_its_sandbox_ends() -> None:
    life = Refused(2, 2)
    life.creates("a", life.facts())
    life.tell(PodRejected(life.of, RPC))
    life.room(is_free=True)
    for facts in (life.facts(), None):
        assert "the pod is set to Failed" in life.creates("b", facts)
        life.restart()
    life.of = replace(life.of, id="its next sandbox")
    life.tell(nri.RunPodSandbox(life.of))
    assert life.creates("a", life.facts()) == ""


@pytest.mark.parametrize(
    ("inits", "is_known", "is_rejected"), [(0, True, False), (1, True, True), (1, False, False)]
)
def test_what_runs_is_not_failed(inits: int, is_known: bool, is_rejected: bool) -> None:
    life = Refused(1, 2, inits=inits)
    assert life.creates("a", life.facts() if is_known else None) == ""
    life.tell(PodRejected(life.of, RPC))
    assert bool(life.state.pods[life.of.uid].refusal) == is_rejected


def test_a_pod_that_was_refused_without_its_object_is_rejected_with_the_words_of_the_exporter() -> None:
    life = Refused(4)
    assert life.creates("a")
    life.tell(PodRejected(life.of, RPC))
    life.room(is_free=True)
    assert RPC.message in life.creates("a", life.facts())


def test_no_container_of_a_pod_that_has_ended_in_the_cluster_is_admitted() -> None:
    life = Refused(1)
    assert "the pod has ended in the cluster" in life.creates("a", life.facts(), has_ended=True)
    assert life.creates("a", life.facts()) == ""


def test_news_of_another_sandbox_or_of_no_pod_reject_none() -> None:
    life = Refused(2, 2)
    life.creates("a", life.facts())
    for other in (replace(life.of, id="another"), Pod(id="s", uid="none")):
        life.tell(PodRejected(other, RPC))
    refusal = life.state.pods[life.of.uid].refusal
    assert refusal is not None
    assert not refusal.is_final


def test_what_was_created_while_the_agent_was_away_runs_whatever_was_said_of_its_pod() -> None:
    life = Refused(2, 2)
    life.creates("a", life.facts())
    life.tell(PodRejected(life.of, RPC))
    found = replace(container(life.of, "a"), resources=cpu_resources(2, GIB), state=ContainerState.RUNNING)
    life.tell(nri.Synchronize((life.of,), (found,)))
    assert life.state.pods[life.of.uid].refusal is None


STEPS = st.one_of(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.booleans()),
    st.tuples(st.sampled_from(["room", "restart", "reject"]), st.booleans()),
)


@given(st.lists(STEPS, max_size=12))
@example([("b", False), ("restart", True), ("c", False), ("room", True), ("a", False)])
def test_a_pod_runs_as_a_whole_or_not_at_all_whatever_is_late(steps: list[tuple[str, bool]]) -> None:
    """The first container comes with the facts; then anything may happen in any order."""
    life = Refused(2, 2, 1)
    life.creates("a", life.facts())
    is_final = False
    for what, flag in steps:
        if what == "room":
            life.room(is_free=flag)
        elif what == "restart":
            life.restart()
        elif what == "reject":
            life.tell(PodRejected(life.of, RPC))
            refusal = life.state.pods[life.of.uid].refusal
            is_final = refusal is not None and refusal.is_final
        else:
            life.creates(what, life.facts() if flag else None)
        lives = life.state.containers_of(life.of.uid)
        assert not (is_final and lives)
        assert not lives or life.state.pods[life.of.uid].is_admitted
