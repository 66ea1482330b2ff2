"""The engine under any order of events a runtime can send, with a model of the cgroups beside it.

After every step: the state judges itself sound; a running container with exclusive CPUs runs on
exactly those it was promised first; no other running container shares one of them.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.pool import late_write, waiting_containers
from nri_plugin.model.options import Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources
from tests.builders import container, machine, node, pod

NODES = [
    node(machine(nodes=2, cores=4), topology_manager_policy=policy, **more)
    for policy in TopologyManagerPolicy
    for more in (
        {},
        {"topology_manager_scope": TopologyManagerScope.POD},
        {"full_pcpus_only": True, "prefer_align_cpus_by_uncore_cache": True},
    )
]

ASKED = Amounts(2000, 2000, 1 << 30, 1 << 30)


class Runtime(RuleBasedStateMachine):
    """A runtime whose cgroups hold what replies and direct writes put there."""

    pods: Bundle[Pod] = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.on: Node = NODES[0]
        self.state = State()
        self.number = 0
        self.containers: dict[str, tuple[Pod, Container]] = {}
        self.stored: dict[str, CPUSet] = {}
        self.cgroups: dict[str, CPUSet] = {}
        self.promised: dict[str, CPUSet] = {}
        self.stopped: set[str] = set()
        self.live: dict[str, Pod] = {}
        self.facts: dict[str, PodFacts] = {}

    @initialize(choice=st.sampled_from(NODES))
    def choose_options(self, choice: Node) -> None:
        self.on = choice

    @rule(
        target=pods,
        qos=st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]),
        total=st.integers(1, 9),
        kinds=st.none() | st.tuples(*[st.sampled_from(Kind)] * 3),
    )
    def run_pod(self, qos: str, total: int, kinds: tuple[Kind, ...] | None) -> Pod:
        self.number += 1
        new = pod(f"p{self.number}", qos, cpu=total)
        self.live[new.id] = new
        if kinds:
            rows = tuple(ContainerFacts(name, kind, ASKED) for name, kind in zip("abc", kinds, strict=True))
            self.facts[new.id] = PodFacts(new.uid, QOSClass(qos), rows)
        self.apply(nri.RunPodSandbox(new))
        return new

    @rule(
        of=pods,
        name=st.sampled_from("abc"),
        cpu=st.sampled_from([2, 4, 1, 6, 0.5, 3, 9]),
        waits=st.booleans(),
        heard=st.booleans(),
    )
    def create(self, of: Pod, name: str, cpu: float, waits: bool, heard: bool) -> None:
        self.number += 1
        facts = self.facts.get(of.id)
        ends = {name, *(facts.names(Kind.INIT) if facts else ())}  # these end before the next is created
        for other_pod, other in list(self.containers.values()):
            if other.pod_id == of.id and other.name in ends:
                self.stop(other_pod, other)
        # The kubelet creates what the object says; another size would be a resize, which has laws of its own.
        asked = ASKED.cpu_request_milli / 1000 if facts else cpu
        new = container(of, name, cpu=asked, number=self.number)
        decision = self.apply(InformedCreate(nri.CreateContainer(of, new), facts=facts if heard else None))
        if decision.refusal is not None:
            return
        assert isinstance(decision.response, nri.CreateContainerResponse)
        assert decision.response.resources is not None
        self.stored[new.id] = CPUSet.parse(decision.response.resources.cpus)
        self.containers[new.id] = (of, new)
        self.apply(nri.PostCreateContainer(of, new))
        if not waits:
            self.start(of, new)

    @rule(data=st.data())
    def start_one(self, data: st.DataObject) -> None:
        waiting = [pair for pair in self.containers.values() if pair[1].id not in self.cgroups]
        waiting = [pair for pair in waiting if pair[1].id not in self.stopped]
        if not waiting:
            return
        self.start(*data.draw(st.sampled_from(waiting)))

    def start(self, of: Pod, what: Container) -> None:
        self.cgroups[what.id] = self.stored[what.id]
        self.apply(nri.StartContainer(of, what))
        self.apply(nri.PostStartContainer(of, what))

    @rule(data=st.data(), gone=st.booleans())
    def stop_one(self, data: st.DataObject, gone: bool) -> None:
        if not self.containers:
            return
        of, what = data.draw(st.sampled_from(list(self.containers.values())))
        self.stop(of, what)
        if gone:
            self.apply(nri.RemoveContainer(Pod(id=""), what))
            del self.containers[what.id]

    @rule(data=st.data(), cpus=st.sampled_from(["", "0-15", "4-7"]))
    def update_one(self, data: st.DataObject, cpus: str) -> None:
        running = [pair for pair in self.containers.values() if pair[1].id in self.cgroups]
        if not running:
            return
        of, what = data.draw(st.sampled_from(running))
        now = self.reported(what)
        decision = self.apply(nri.UpdateContainer(of, now, Resources(cpu_shares=0, cpus=cpus)))
        assert isinstance(decision.response, nri.UpdateContainerResponse)
        own = [
            update.resources.cpus for update in decision.response.updates if update.container_id == what.id
        ]
        self.stored[what.id] = CPUSet.parse(own[0] if own else cpus or now.resources.cpus)
        self.cgroups[what.id] = self.stored[what.id]

    @rule(of=consumes(pods))
    def end_pod(self, of: Pod) -> None:
        for other_pod, other in list(self.containers.values()):
            if other.pod_id == of.id:
                self.stop(other_pod, other)
                del self.containers[other.id]
        del self.live[of.id]
        self.apply(nri.StopPodSandbox(of))
        self.apply(nri.RemovePodSandbox(of))

    @rule(lost=st.booleans())
    def reconnect(self, lost: bool) -> None:
        if lost:
            self.state = State()
        before, known = dict(self.cgroups), set(self.state.containers)
        decision = self.apply(
            nri.Synchronize(tuple(self.live.values()), tuple(map(self.reported, self.living())))
        )
        assert isinstance(decision.response, nri.SynchronizeResponse)
        for update in decision.response.updates:
            self.stored[update.container_id] = CPUSet.parse(update.resources.cpus)
        if known >= set(self.cgroups):
            assert self.cgroups == before

    @rule(of=pods, cpu=st.sampled_from([2, 4, 0.5, 9]))
    def born_unseen(self, of: Pod, cpu: float) -> None:
        self.number += 1
        facts = self.facts.get(of.id)
        for _, other in self.containers.values():  # what has to end before it has ended unseen, too
            if other.pod_id == of.id and facts is not None and other.name in facts.names(Kind.INIT):
                self.vanish(other)
        new = container(of, f"late{self.number}", cpu=cpu, number=self.number)
        self.containers[new.id] = (of, new)
        self.stored[new.id] = self.cgroups[new.id] = self.on.topology.online
        self.reconnect(lost=False)

    def living(self) -> list[Container]:
        return [what for _, what in self.containers.values() if what.id not in self.stopped]

    def reported(self, what: Container) -> Container:
        state = ContainerState.RUNNING if what.id in self.cgroups else ContainerState.CREATED
        resources = Resources(cpu_shares=what.resources.cpu_shares, cpus=str(self.stored[what.id]))
        return Container(
            what.id, what.pod_id, what.name, state, resources=resources, cgroups_path=what.cgroups_path
        )

    def vanish(self, what: Container) -> None:
        self.cgroups.pop(what.id, None)
        self.promised.pop(what.id, None)
        self.stopped.add(what.id)

    def stop(self, of: Pod, what: Container) -> None:
        self.vanish(what)
        self.apply(nri.StopContainer(of, what))

    def apply(self, event: nri.NRIEvent | InformedCreate) -> Decision:
        decision = decide(self.on, self.state, event)
        if decision.refusal is not None:
            after, before = decision.state, self.state
            assert (after.allocations, after.containers) == (before.allocations, before.containers)
            self.state = after  # the pod's refusal may be remembered
            assert not decision.writes
            return decision
        late = [
            write
            for one in waiting_containers(self.on, decision.state)
            for write in late_write(self.on, decision.state, one, compare=True)
        ]
        self.state = decision.state
        for write in (*decision.writes, *late):
            assert write.cpus
            if write.container_id in self.cgroups:
                self.cgroups[write.container_id] = write.cpus
        return decision

    @invariant()
    def state_is_sound(self) -> None:
        assert violations(self.on, self.state) == []

    @invariant()
    def nobody_shares_an_exclusive_cpu(self) -> None:
        for cid, cpus in self.cgroups.items():
            own = self.state.allocation_of(self.state.containers[cid])
            mine = own.cpus if own is not None else NO_CPUS
            assert cpus.isdisjoint(self.state.exclusive - mine), cid

    @invariant()
    def nobody_running_is_moved(self) -> None:
        for cid, cpus in self.cgroups.items():
            own = self.state.allocation_of(self.state.containers[cid])
            if own is not None and own.cpus:
                assert cpus == own.cpus
                # A size that was refused may be possible when the checkpoint is lost, and the container grows to it.
                assert self.promised.get(cid, own.cpus) <= own.cpus
                self.promised[cid] = own.cpus
            else:
                assert cid not in self.promised


TestRuntime = Runtime.TestCase
TestRuntime.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
