"""A restart from a checkpoint that was not saved for a while: what runs keeps its CPUs, whatever was saved last.

Pods get new sandboxes under the same uid, containers are made anew under the same name or resized, and init containers
leave their CPUs to others, so that the checkpoint tells of allocations that ended since. Some CPUs are out of reach for a
while, so that the runtime is not told of all.
"""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nri_plugin.core.drift import MachineChanged
from nri_plugin.core.engine import decide
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod
from tests.builders import container, cpu_resources, cpus, machine, node, pod

NODES = [
    node(machine(nodes=2, cores=4), topology_manager_policy=policy, full_pcpus_only=whole)
    for policy in TopologyManagerPolicy
    for whole in (False, True)
]
UIDS = ("a", "b", "d")
NAMES = ("init", "c")


class Saving(RuleBasedStateMachine):
    """A runtime, an agent, and the state that the agent's file holds."""

    def __init__(self) -> None:
        super().__init__()
        self.on = NODES[0]
        self.state, self.saved = State(), State()
        self.can_save = True
        self.serial = 0
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, tuple[Pod, Container]] = {}

    @initialize(on=st.sampled_from(NODES))
    def choose(self, on) -> None:
        self.on = on

    def tell(self, event: nri.NRIEvent) -> nri.NRIResponse | None:
        decision = decide(self.on, self.state, event)
        if decision.refusal is not None:
            return None
        self.state = decision.state
        if self.can_save:
            self.saved = self.state
        return decision.response

    @rule(uid=st.sampled_from(UIDS))
    def run_pod(self, uid: str) -> None:
        if uid not in self.pods:
            self.run_pod_of(uid)

    def run_pod_of(self, uid: str) -> None:
        self.serial += 1
        self.pods[uid] = pod(uid, sandbox=f"sandbox-{self.serial}")
        self.tell(nri.RunPodSandbox(self.pods[uid]))

    @precondition(lambda self: self.pods)
    @rule(
        data=st.data(),
        name=st.sampled_from(NAMES),
        cpu=st.sampled_from([1, 2, 2, 4]),
        start=st.sampled_from([True, True, False]),
    )
    def create(self, data: st.DataObject, name: str, cpu: int, start: bool) -> None:
        of = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        if any(p is of and c.name == name and is_alive(c) for p, c in self.containers.values()):
            return
        self.serial += 1
        made = container(of, name, cpu=cpu, number=self.serial, state=ContainerState.CREATED)
        response = self.tell(nri.CreateContainer(of, made))
        if not isinstance(response, nri.CreateContainerResponse) or response.resources is None:
            return
        made = replace(made, resources=replace(made.resources, cpus=response.resources.cpus))
        self.containers[made.id] = (of, made)
        self.tell(nri.PostCreateContainer(of, made))
        if start:
            self.tell(nri.StartContainer(of, made))
            self.containers[made.id] = (of, replace(made, state=ContainerState.RUNNING))

    @precondition(lambda self: self.containers)
    @rule(data=st.data(), cpu=st.sampled_from([1, 2, 3, 4]))
    def resize(self, data: st.DataObject, cpu: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.containers)))
        of, one = self.containers[key]
        if one.state is not ContainerState.RUNNING:
            return
        response = self.tell(nri.UpdateContainer(of, one, cpu_resources(cpu)))
        if not isinstance(response, nri.UpdateContainerResponse):
            return
        stored = next((str(each.resources.cpus) for each in response.updates if each.container_id == key), "")
        one = replace(one, resources=cpu_resources(cpu, cpus=stored or one.resources.cpus))
        self.containers[key] = (of, one)
        self.tell(nri.PostUpdateContainer(of, one))

    @rule(gone=st.sampled_from(["", "2", "3", "4-5"]))
    def reach(self, gone: str) -> None:
        """The cgroup above the pods loses CPUs, or has all again; the runtime is not told."""
        topology = NODES[0].topology
        self.on = dataclasses.replace(self.on, topology=topology.within(topology.online - cpus(gone)))
        self.tell(MachineChanged())

    @precondition(lambda self: self.containers)
    @rule(data=st.data(), is_removed=st.booleans())
    def end(self, data: st.DataObject, is_removed: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.containers)))
        of, one = self.containers[key]
        one = replace(one, state=ContainerState.STOPPED)
        self.tell(nri.StopContainer(of, one))
        self.containers[key] = (of, one)
        if is_removed:
            self.tell(nri.RemoveContainer(of, one))
            del self.containers[key]

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def end_pod(self, data: st.DataObject) -> None:
        self.end_pod_of(data.draw(st.sampled_from(sorted(self.pods))))

    def end_pod_of(self, uid: str) -> None:
        of = self.pods.pop(uid)
        for key, (owner, one) in list(self.containers.items()):
            if owner is of:
                self.tell(nri.StopContainer(of, one))
                del self.containers[key]
        self.tell(nri.StopPodSandbox(of))
        self.tell(nri.RemovePodSandbox(of))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def new_sandbox(self, data: st.DataObject) -> None:
        """Its containers end, and their CPUs are anybody's."""
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        self.end_pod_of(uid)
        self.run_pod_of(uid)

    @precondition(lambda self: self.can_save and self.state.allocations)
    @rule()
    def directory_fails(self) -> None:
        self.can_save = False

    @precondition(lambda self: not self.can_save)
    @rule()
    def restart(self) -> None:
        before, saved = self.exclusive(), self.saved
        listed = nri.Synchronize(tuple(self.pods.values()), tuple(one for _, one in self.containers.values()))
        self.state, self.can_save = self.saved, True
        self.tell(listed)
        after = self.exclusive()
        for key, had in before.items():
            of, one = self.containers[key]
            held = saved.allocations.get(f"{of.uid}/{one.name}")
            known = cpus(one.resources.cpus) | (held.cpus if held else CPUSet())
            # Neither tells of a CPU that it grew by and that was out of reach at the next update.
            assert after[key] == had if had <= known else had & known <= after[key]
        again = decide(self.on, self.state, listed).state
        assert again == self.state

    def exclusive(self) -> dict[str, CPUSet]:
        """The exclusive CPUs of those that run."""
        return {
            key: held.cpus
            for key, (_, one) in self.containers.items()
            if one.state is ContainerState.RUNNING
            and (held := self.state.allocation_of(self.state.containers[key]))
            and held.cpus
        }

    @invariant()
    def state_is_sound(self) -> None:
        assert violations(self.on, self.state) == []


def is_alive(one: Container) -> bool:
    return one.state is not ContainerState.STOPPED


Saving.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSaving = Saving.TestCase
