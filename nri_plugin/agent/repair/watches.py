"""The work of the agent between two requests; timers of the loop run it.

* `MachineWatch` notices CPUs and memory nodes that come or go, and adapts the cgroups.
* `LateWriter` writes the cgroups that may wait until an answer is out.
* `EndedPodsWatch` releases allocations of pods whose end was not reported; `LostRemovals` drops other records.
"""

import logging
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.config.loading import Config
from nri_plugin.core.drift import MachineChanged
from nri_plugin.core.outdated import Overcommitted, allocatable_memory, overcommitted
from nri_plugin.core.pool import slices_of
from nri_plugin.host.cgroup import Reach, read_reach
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.host.sysfs import discover, outline
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef, Phase, named
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.process.logs import LogRateLimit, say, say_trace
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import RemoveContainer

LOOK_PAUSE_S = 0.5
"""Seconds between two checks of the machine: three small files, 30 us. The kernel's own notices (uevents) do not reach
every network namespace."""


def warn_of_overcommitted(
    node: Node, state: State, log: logging.Logger, former: Container[Overcommitted] = ()
) -> None:
    """Warn of NUMA nodes with more memory allocated than there is, except those that were in `former` already."""
    for one in overcommitted(state, allocatable_memory(node)):
        if one not in former:
            say(log, logging.WARNING, "more memory is allocated than there is, and is kept", which=str(one))


class HostMachine:
    """Reads the machine of a configuration, with the CPUs that pods can reach.

    Args:
        config: names the places of its files.
        handler: has the state; its pods tell where kubepods is.
        returning: CPUs of ended partitions of ours, which the kernel gives back a moment later.
    """

    def __init__(
        self, config: Config, handler: Handler, returning: Callable[[], CPUSet] = lambda: NO_CPUS
    ) -> None:
        self._config, self._handler, self._returning = config, handler, returning
        self._reach: Reach | None = None

    def outline(self) -> tuple[object, ...]:
        """Return a value that changes whenever the machine does."""
        return (*outline(self._config.sysfs_root), self._now())

    def seen(self) -> object:
        """Return the outline of the machine that the handler decides for; None when it may have changed since."""
        topology = self._handler.node.topology
        try:
            online, *_ = now = outline(self._config.sysfs_root)
            self._reach = self._now()
        except HostError:
            return None
        reached = topology.kernel_online & self._reach.cpus or topology.kernel_online
        is_same = online == str(topology.kernel_online) and reached == topology.online
        return (*now, self._reach) if is_same else None

    def discover(self) -> Topology:
        """Read the machine."""
        topology = discover(self._config.sysfs_root)
        self._reach = self._now()
        if self._reach.above:
            # Where the kernel refuses, kubepods does not have the CPUs, which the next look finds.
            with suppress(HostError):
                self._handler.cpusets.widen_kubepods(self._handler.state, self._reach.cpus)
        return topology.within(self._reach.cpus)

    def _now(self) -> Reach:
        try:
            tree = find_cpuset_tree(self._config.cgroup_root)
        except HostError:
            return Reach()  # logged already
        state = self._handler.state
        found = read_reach(tree, slices_of(state), state.exclusive, self._reach)
        return replace(found, cpus=found.cpus and found.cpus | self._returning())


class MachineWatch:
    """Compares the machine with the one that decisions are made for.

    Reserved CPUs stay as they were chosen at the start: a new choice could take CPUs that are allocated.

    Args:
        handler: gets the new machine.
        machine: reads it.
        log: takes lines for CPUs and nodes that came or went, and for containers that lost CPUs.
        clock: seconds, monotonic.
        changed: called after a change, when the cgroups have been adapted.
    """

    def __init__(
        self,
        handler: Handler,
        machine: HostMachine,
        log: logging.Logger,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._handler, self._machine = handler, machine
        self._log, self._clock, self._changed = log, clock, changed
        self._seen = machine.seen()
        handler.machine_moved = self.moved
        self._trouble = LogRateLimit()

    def start(self, loop: Loop) -> None:
        """Check now, and then by the clock."""
        self.moved()
        loop.repeat("machine", LOOK_PAUSE_S, self.moved)

    def moved(self) -> bool:
        """Check once; return whether the machine changed. If it did, the cgroups have been adapted."""
        try:
            now = self._machine.outline()
            if now == self._seen:
                return False
            topology = self._machine.discover()
            self._seen = now
            self._trouble.forget()
            return self._follow(topology)
        except NriPinError as error:
            if self._trouble.is_due(str(error), self._clock()):
                say(self._log, logging.ERROR, "a change of the machine cannot be followed", err=error)
        except Exception:  # noqa: BLE001 - an error here must not keep containers from being placed
            say_trace(self._log, "internal error, a change of the machine is not followed")
        return False

    def _follow(self, topology: Topology) -> bool:
        before = self._handler.node
        if topology == before.topology:
            return False
        lost = self._handler.state.lost(before)
        overcommitted_before = overcommitted(self._handler.state, allocatable_memory(before))
        node = replace(before, topology=topology)
        self._handler.change_node(node)
        self._log_machine(before.topology, topology)
        self._log_containers(lost)
        warn_of_overcommitted(node, self._handler.state, self._log, overcommitted_before)
        # The shared pool gets CPUs that came; the kernel has taken those that went out of every cpuset.
        _, errors = self._handler.put_right(MachineChanged())
        for error in errors:
            say(self._log, logging.ERROR, "cpuset not written", event="MachineChanged", err=error)
        self._changed()
        return True

    def _log_machine(self, before: Topology, after: Topology) -> None:
        say(
            self._log,
            logging.WARNING,
            "the machine changed",
            cpus_gone=before.kernel_online - after.kernel_online or None,
            cpus_come=after.kernel_online - before.kernel_online or None,
            out_of_reach=after.unreachable - before.unreachable or None,
            in_reach_again=before.unreachable & after.online or None,
            memory_nodes_gone=before.nodes_with_memory - after.nodes_with_memory or None,
            memory_nodes_come=after.nodes_with_memory - before.nodes_with_memory or None,
            online=after.online,
        )

    def _log_containers(self, former: Mapping[str, CPUSet]) -> None:
        node, state = self._handler.node, self._handler.state
        if not state.shared_pool(node):
            text = "no CPU is left for the shared pool: its containers run on exclusive CPUs of others until one ends"
            say(self._log, logging.ERROR, text, online=node.topology.online)
        now = state.lost(node)
        for key, lost in now.items():
            if former.get(key) != lost:
                left = state.allocations[key].cpus - lost
                say(
                    self._log,
                    logging.WARNING,
                    "a container lost exclusive CPUs; they stay allocated to it",
                    name=named(state.pods, key),
                    lost=lost,
                    runs_on=left or state.shared_pool(node),
                    confined="shared pool" if not left else None,
                )
        for key in (former.keys() - now.keys()) & state.allocations.keys():
            say(
                self._log,
                logging.INFO,
                "a container has all its exclusive CPUs again",
                name=named(state.pods, key),
                cpus=state.allocations[key].cpus,
            )


PORTIONS = 8
"""The most portions in a turn of the loop; before each but the first, the runtime is given way."""

QUIET_S, BURST_S = 0.002, 0.1
"""The runtime asked between two portions, so requests come in a burst: the next portion follows when none came for
`QUIET_S` seconds, or `BURST_S` seconds later at the latest. Requests of a burst then find their code in the caches."""


class LateWriter:
    """Writes the cgroups that may wait until an answer is out, in portions; requests are answered between two portions.

    A burst of requests comes before the next portion.

    Args:
        handler: writes them.
        loop: runs some portions in each of its turns, as long as the runtime asks for nothing.
    """

    def __init__(self, handler: Handler, loop: Loop) -> None:
        self._handler, self._loop = handler, loop
        self._burst_until = 0.0

    def start(self) -> None:
        """Look by the clock, too: the sweep may have left something unfinished."""
        self._loop.repeat("unfinished writes", LOOK_PAUSE_S, self._look)

    def __call__(self, _outcome: RequestOutcome) -> None:
        """Observe an outcome: something may wait now."""
        self._look()

    def _look(self) -> None:
        if self._handler.has_rest:
            self._write_soon()

    def _write_soon(self) -> None:
        now = self._loop.clock()
        when = min(now + QUIET_S, self._burst_until) if now < self._burst_until else now
        self._loop.set_timer("late writes", when, self._write)

    def _write(self) -> None:
        for _ in range(PORTIONS):
            if not self._handler.write_waiting():
                return
            if self._loop.is_asked():
                self._burst_until = self._loop.clock() + BURST_S
                break
        self._write_soon()


ENDED_PAUSE_S = 10.0
"""Seconds between two checks. The handler checks before every refusal, too."""

MOST_LOOKED_AT, MOST_DROPPED = 256, 32
"""Records of lost removals in a look: some milliseconds."""

CONFIRM_S = 8.0
"""Seconds between the two looks at a record, less than `ENDED_PAUSE_S`."""

KUBELET_CGROUP = "kubepods"
NOT_STARTED = (Phase.CREATING, Phase.CREATED)

SOON_S = 0.5
"""Seconds from the removal of a pod's last container to a check: the kubelet removes the cgroup of an ended pod then."""


class EndedPodsWatch:
    """Releases allocations of pods whose end was not reported.

    A restarted runtime does not report the end of pods that are older than itself, nor of containers that ended before.
    The kubelet makes the cgroup of a pod first and removes it last, so a missing cgroup proves that the pod has ended.

    Args:
        release: checks once and releases; see `Handler.release_ended`.
        loop: has the clock.
        drop: drops some of the records whose removal was lost, and returns whether there are more; see `LostRemovals`.
    """

    def __init__(
        self, release: Callable[[], bool], loop: Loop, drop: Callable[[float], bool] = lambda _now: False
    ) -> None:
        self._release, self._loop, self._drop = release, loop, drop

    def start(self, pause_s: float = ENDED_PAUSE_S) -> None:
        """Check after `pause_s`, and by the clock from then on."""
        self._loop.set_timer("ended pods", self._loop.clock() + pause_s, self._look)

    def __call__(self, outcome: RequestOutcome) -> None:
        """Check soon when a pod has lost its last container: the end of the pod may not be reported."""
        if not isinstance(outcome.event, RemoveContainer):
            return
        record, after = outcome.before.containers.get(outcome.event.container.id), outcome.decision.state
        pod = after.pods.get(record.pod_uid) if record else None
        if pod is not None and not pod.run_seen and not after.containers_of(pod.uid):
            self.start(SOON_S)

    def _look(self) -> None:
        self._release()
        self.start(SOON_S if self._drop(self._loop.clock()) else ENDED_PAUSE_S)


class LostRemovals:
    """Drops records of pods and containers whose removal was not reported: without a restart they would stay for ever.

    They hold no CPUs. A pod is over when its cgroup is gone. Where the kubelet did not make that cgroup, it may come with the
    first process: CRI-O's sandboxes have none. There a pod with a container that was created and not started stays. A
    container is over when its cgroup is gone and another one has taken its name. Each is looked at twice.

    Args:
        handler: has the state, reads cgroups, and drops records.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._walk: Iterator[str] = iter(())
        self._gone_since: dict[str, float] = {}

    def __call__(self, now: float) -> bool:
        """Look at the next records, and drop some of those that are gone; return whether others wait for it."""
        state = self._handler.state
        portion = list(islice(self._walk, MOST_LOOKED_AT))
        if len(portion) < MOST_LOOKED_AT:
            self._walk = iter([*state.pods, *state.containers])
            portion += islice(self._walk, MOST_LOOKED_AT - len(portion))
        for one in portion:
            if self._is_gone(one):
                self._gone_since.setdefault(one, now)
        due = [one for one, since in self._gone_since.items() if now - since >= CONFIRM_S]
        for one in due[:MOST_DROPPED]:
            del self._gone_since[one]
            if self._is_gone(one):
                self._drop(one)
        return len(due) > MOST_DROPPED

    def _drop(self, one: str) -> None:
        state = self._handler.state
        if one in state.pods:
            self._handler.drop_pod(state.pods[one])
        else:
            self._handler.drop_container(state.containers[one])

    def _is_gone(self, one: str) -> bool:
        state, is_removed = self._handler.state, self._handler.cpusets.is_removed
        if pod := state.pods.get(one):
            if not pod.cgroup_parent or not is_removed(CgroupRef(pod.cgroup_parent)):
                return False
            is_kubelets = KUBELET_CGROUP in pod.cgroup_parent
            return is_kubelets or not any(each.phase in NOT_STARTED for each in state.containers_of(one))
        record = state.containers.get(one)
        if record is None or not record.cgroup.path or record.phase in NOT_STARTED:
            return False
        successors = (each for each in state.containers_of(record.pod_uid) if each.name == record.name)
        is_followed = any(each.id != one and each.phase is not Phase.STOPPED for each in successors)
        return is_followed and is_removed(record.cgroup)
