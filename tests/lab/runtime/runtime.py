"""A simulated container runtime: calls of the kubelet go in, events go to the plugin, cpusets go to cgroups.

The order of events, the stored resources, and the effects of an error or a lost plugin follow the runtime that
`Behaviour` names. `Plugin` is the connection to the plugin: a socket, or an object of a test.

A runtime never reads a cgroup back. It stores the resources of the last call, and writes all of them again whenever it
updates a container for any reason. So an old cpuset can return.

Source: containerd internal/cri and internal/nri; CRI-O internal/nri; NRI pkg/adaptation.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from nri_plugin.model.errors import NriPinError
from nri_plugin.model.records import QOSClass
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.simulator.simulate.pods import (
    ContainerSpec,
    Driver,
    Names,
    PodSpec,
    RuntimeIdentity,
    container_names,
    pod_names,
    stable_id,
    stable_uid,
)
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.messages import Container, ContainerState, ContainerUpdate, Pod, Resources
from tests.lab.runtime.adjusting import adjusted, merged
from tests.lab.runtime.cgroup_mirror import CgroupMirror
from tests.lab.runtime.cgroup_tree import V1, CgroupWriteError, CpusetFile, parent_of
from tests.lab.runtime.messages import container_message, pod_message
from tests.lab.runtime.profile import Behaviour, PodFields

# Records


@dataclass(slots=True)
class Sandbox:
    """A pod sandbox.

    Attributes:
        pause: path of the cgroup in which the sandbox itself runs.
        is_known: the runtime will report the end of this pod; False for pods older than its last start.
    """

    spec: PodSpec
    message: Pod
    names: Names
    pause: str
    is_running: bool = True
    is_known: bool = True


@dataclass(slots=True)
class Record:
    """A container the runtime has on record.

    Attributes:
        message: as plugins see it; its resources are the stored ones.
        created_with: the resources it was created with.
        is_known: the runtime will report its removal; False if it had ended before the runtime's last start.
        started_on: CPUs on which its first instruction could run; None before the start.
    """

    sandbox: Sandbox
    message: Container
    names: Names
    created_with: Resources
    started_on: CPUSet | None = None
    is_known: bool = True

    @property
    def key(self) -> str:
        """`NAMESPACE/POD/CONTAINER`."""
        return f"{self.sandbox.spec.key}/{self.message.name}"

    @property
    def has_cgroup(self) -> bool:
        """Whether a cgroup exists for it."""
        return self.message.state is ContainerState.RUNNING

    def enter(self, state: ContainerState) -> None:
        """Change the state in messages."""
        self.message = replace(self.message, state=state)

    def store(self, resources: Resources) -> None:
        """Keep resources for good."""
        self.message = replace(self.message, resources=resources)


@dataclass(frozen=True, slots=True)
class ContainerPlacement:
    """CPUs and memory nodes of a container.

    Attributes:
        stored: the cpuset the runtime would write again.
        own: `cpuset.cpus` of its cgroup.
        effective: what it runs on.
        mems: effective memory nodes.
        own_mems: `cpuset.mems` of its cgroup.
    """

    key: str
    stored: str
    own: CPUSet
    effective: CPUSet
    mems: NodeMask
    own_mems: NodeMask


class CgroupKeeper:
    """Makes, writes and removes cgroups as kubelet and runc do."""

    def __init__(self, mirror: CgroupMirror, slices: Iterable[str]) -> None:
        self.mirror = mirror
        for path in slices:
            self.make(path)

    def make(self, path: str) -> None:
        """Make a cgroup. On v1 it gets its parent's sets, because processes cannot enter a cgroup without CPUs."""
        if path in self.mirror.tree:
            return
        above = parent_of(path)
        if above:
            self.make(above)
        self.mirror.add(path)
        if self.mirror.tree.version == V1:
            for resource in CpusetFile:
                self.mirror.tree.write(path, resource, self.mirror.tree.text(above, resource))
            self.mirror.flush()

    def enter(self, path: str, resources: Resources) -> None:
        """A container's process moves into its new cgroup, which holds `resources`.

        Raises:
            CgroupWriteError: the kernel rejects the cpuset; the cgroup is removed.
        """
        self.make(path)
        try:
            self.write(path, resources)
        except CgroupWriteError:
            self.mirror.remove(path)
            raise
        self.mirror.tree.attach(path)
        self.mirror.flush()

    def write(self, path: str, resources: Resources) -> None:
        """Write the stored cpuset; an empty one is not written.

        Raises:
            CgroupWriteError: the kernel rejects it.
        """
        self.mirror.absorb()
        wanted: Mapping[CpusetFile, str] = {CpusetFile.CPUS: resources.cpus, CpusetFile.MEMS: resources.mems}
        for resource, text in wanted.items():
            if text:
                self.mirror.tree.write(path, resource, text)
        self.mirror.flush()

    def leave(self, path: str) -> None:
        """Remove the cgroup after its processes have ended."""
        if path in self.mirror.tree:
            self.mirror.tree.detach(path)
            self.mirror.remove(path)

    def placement(self, record: Record) -> ContainerPlacement:
        """The container's current placement; empty without a cgroup."""
        tree, path = self.mirror.tree, record.names.path
        exists = record.has_cgroup and path in tree
        return ContainerPlacement(
            key=record.key,
            stored=record.message.resources.cpus,
            own=tree.own_cpus(path) if exists else CPUSet(),
            effective=tree.effective_cpus(path) if exists else CPUSet(),
            mems=tree.effective_mems(path) if exists else NodeMask(),
            own_mems=tree.own_mems(path) if exists else NodeMask(),
        )


# The runtime


class PluginRefusedError(NriPinError):
    """The plugin refused; the CRI call fails with its message."""


class Plugin(Protocol):
    """The connection to a plugin."""

    def ask(self, event: events.NRIEvent) -> events.NRIResponse | None:
        """The plugin's answer; None when it is not there, has not subscribed, or does not answer in time.

        Raises:
            PluginRefusedError: it answered with an error.
        """


class Runtime:
    """One runtime on one node.

    Args:
        who: which runtime, and on which node.
        mirror: of its cgroups.

    Attributes:
        behaviour: the runtime that is simulated.
        cgroups: the cgroups of its pods and containers.
        plugin: gets the events; None while no plugin is connected.
    """

    def __init__(self, who: RuntimeIdentity, mirror: CgroupMirror) -> None:
        assert isinstance(who.kind, Behaviour)
        self.behaviour = who.kind
        self.plugin: Plugin | None = None
        self.cgroups = CgroupKeeper(mirror, _qos_slices(who.driver))
        self._failed: list[CgroupWriteError] = []
        self._who = who
        self._sandboxes: dict[str, Sandbox] = {}
        self._records: dict[str, Record] = {}
        self._serial = 0

    def run_pod(self, spec: PodSpec, uid: str = "") -> Sandbox:
        """Run a sandbox.

        Raises:
            PluginRefusedError: the plugin refused it; nothing is left.
        """
        self._serial += 1
        sandbox_id = stable_id("sandbox", spec.key, str(self._serial))
        uid = uid or stable_uid(spec.key, str(self._serial))
        message, names = pod_message(spec, uid, sandbox_id, self._who)
        pause = container_names(self._who.driver, names, self.behaviour.cgroup_prefix, sandbox_id).path
        sandbox = Sandbox(spec, message, names, pause)
        self.cgroups.make(names.path)
        self.cgroups.enter(pause, Resources())
        try:
            self._ask(events.RunPodSandbox(message))
        except PluginRefusedError:
            self._drop_cgroups(sandbox)
            raise
        self._sandboxes[spec.key] = sandbox
        return sandbox

    def stop_pod(self, key: str) -> None:
        """Stop a pod's containers, then its sandbox."""
        sandbox = self.sandbox(key)
        for record in list(self._of(sandbox)):
            self.stop(record.key)
        if not sandbox.is_running:
            return
        sandbox.is_running = False
        self.cgroups.leave(sandbox.pause)
        stopping, ended, _ = self.behaviour.pod_loses
        message, sandbox.message = sandbox.message, _without(sandbox.message, ended)
        if sandbox.is_known:
            self._tell(events.StopPodSandbox(_without(message, stopping)))

    def remove_pod(self, key: str) -> None:
        """Stop a pod where it still runs and remove everything of it."""
        self.stop_pod(key)
        sandbox = self.sandbox(key)
        for record in list(self._of(sandbox)):
            self.remove(record.key)
        if sandbox.is_known:
            self._tell(events.RemovePodSandbox(_without(sandbox.message, self.behaviour.pod_loses[2])))
        del self._sandboxes[key]
        self._drop_cgroups(sandbox)

    def create(self, key: str, spec: ContainerSpec) -> Record:
        """Create a container in the pod `key`; it has no cgroup before it is started.

        Raises:
            PluginRefusedError: the plugin refused; the container does not exist.
        """
        sandbox = self.sandbox(key)
        self._serial += 1
        container_id = stable_id("container", key, spec.name, str(self._serial))
        message, names = container_message(
            sandbox.spec, sandbox.message, sandbox.names, spec, container_id, self._who
        )
        message = self._with_adjustment(sandbox, message)
        record = Record(sandbox, message, names, message.resources)
        self._records[container_id] = record
        record.enter(ContainerState.CREATED)
        self._tell(events.PostCreateContainer(sandbox.message, record.message))
        return record

    def start(self, key: str) -> None:
        """Start a created container.

        Raises:
            PluginRefusedError: the plugin refused, and this runtime does not ignore that.
            CgroupWriteError: the kernel rejects the stored cpuset.
        """
        record = self.record(key)
        sandbox = record.sandbox
        self.cgroups.enter(record.names.path, record.message.resources)
        record.message = replace(record.message, pid=5000 + self._serial)
        try:
            # The process waits in its cgroup until the answer has come; its state is still "created".
            self._ask(events.StartContainer(sandbox.message, record.message))
        except PluginRefusedError:
            if not self.behaviour.ignores_start_errors:
                self.cgroups.leave(record.names.path)
                raise
        self.absorb()
        record.started_on = self.cgroups.mirror.tree.effective_cpus(record.names.path)
        record.enter(ContainerState.RUNNING)
        self._tell(events.PostStartContainer(sandbox.message, record.message))

    def update(self, key: str, resources: Resources) -> None:
        """Change a container's resources, as the kubelet asks.

        Raises:
            PluginRefusedError: the plugin refused; nothing changed.
            CgroupWriteError: the kernel rejects the resulting cpuset.
        """
        record = self.record(key)
        pod = record.sandbox.message
        answer = self._ask(events.UpdateContainer(pod, record.message, resources))
        updates = answer.updates if isinstance(answer, events.UpdateContainerResponse) else ()
        own = [update for update in updates if update.container_id == record.message.id]
        self.apply(tuple(update for update in updates if update.container_id != record.message.id))
        for update in own:
            resources = merged(resources, update.resources)
        self._apply(record, resources)
        self._tell(events.PostUpdateContainer(pod, record.message))

    def stop(self, key: str) -> None:
        """End the container; plugins get the event afterwards."""
        self._stop(self.record(key))

    def _stop(self, record: Record) -> None:
        if record.message.state is ContainerState.STOPPED:
            return
        self.cgroups.leave(record.names.path)
        ran = record.message.state is ContainerState.RUNNING
        record.enter(ContainerState.STOPPED)
        told = self.behaviour.stop_tells if ran else self.behaviour.end_tells
        self._tell(events.StopContainer(record.sandbox.message, replace(record.message, state=told)))

    def remove(self, key: str) -> None:
        """Remove a container, which is stopped first; of several instances the oldest one."""
        record = next((one for one in self._records.values() if one.key == key), None) or self.record(key)
        self._stop(record)
        del self._records[record.message.id]
        if record.is_known:
            message = replace(record.message, state=self.behaviour.end_tells, pid=0)
            self._tell(events.RemoveContainer(record.sandbox.message, message))

    def truth(self) -> events.Synchronize:
        """All pods and containers that the runtime reports to a plugin that connects."""
        pods = [each for each in self._sandboxes.values() if each.is_running or self.behaviour.is_containerd]
        told = (ContainerState.CREATED, ContainerState.RUNNING)
        containers = (each.message for each in self._records.values() if each.message.state in told)
        return events.Synchronize(tuple(each.message for each in pods), tuple(containers))

    def apply(self, updates: tuple[ContainerUpdate, ...]) -> tuple[str, ...]:
        """Apply a plugin's updates; returns the ids of containers where that failed."""
        failed = []
        for update in updates:
            record = self._records.get(update.container_id)
            if record is None:
                continue
            try:
                self._apply(record, update.resources)
            except CgroupWriteError as error:
                self._failed.append(error)
                if not update.ignore_failure:
                    failed.append(update.container_id)
        return tuple(failed)

    def disconnect(self) -> None:
        """The plugin is gone; calls go on without it."""
        self.plugin = None

    def restart(self) -> None:
        """Restart the runtime: it loses the plugin, and some runtimes lose the updates since creation."""
        self.disconnect()
        for record in self._records.values():
            if not self.behaviour.stores_updates:
                record.store(record.created_with)
            has_ended = record.message.state is ContainerState.STOPPED
            record.is_known = record.is_known and not (has_ended and self.behaviour.forgets_pods)
        for sandbox in self._sandboxes.values():
            sandbox.is_known = not self.behaviour.forgets_pods

    def absorb(self) -> None:
        """Apply the agent's writes to cgroups."""
        self.cgroups.mirror.absorb()

    def take_rejections(self) -> list[CgroupWriteError]:
        """Writes since the last call that a kernel would have rejected, by the plugin or on its behalf."""
        mirror = self.cgroups.mirror
        taken = [*self._failed, *mirror.rejections]
        self._failed, mirror.rejections = [], []
        return taken

    def placements(self) -> dict[str, ContainerPlacement]:
        """The placement of each container, by `NAMESPACE/POD/CONTAINER`."""
        self.absorb()
        return {record.key: self.cgroups.placement(record) for record in self._records.values()}

    def sandbox(self, key: str) -> Sandbox:
        """The pod `NAMESPACE/NAME`.

        Raises:
            LookupError: there is none.
        """
        if key not in self._sandboxes:
            raise LookupError(f"there is no pod {key}")
        return self._sandboxes[key]

    def record(self, key: str) -> Record:
        """The newest container `NAMESPACE/POD/CONTAINER`.

        Raises:
            LookupError: there is none.
        """
        for record in reversed(self._records.values()):
            if record.key == key:
                return record
        raise LookupError(f"there is no container {key}")

    def records(self) -> list[Record]:
        """All containers, oldest first."""
        return list(self._records.values())

    def containers_of(self, key: str) -> list[str]:
        """Keys of the containers that `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER` names."""
        return [
            record.key for record in self._records.values() if key in (record.key, record.sandbox.spec.key)
        ]

    def _ask(self, event: events.NRIEvent) -> events.NRIResponse | None:
        answer = None if self.plugin is None else self.plugin.ask(event)
        self.absorb()
        return answer

    def _tell(self, event: events.NRIEvent) -> None:
        """Send an event whose error is only logged."""
        try:
            answer = self._ask(event)
        except PluginRefusedError:
            return
        if isinstance(answer, events.StopContainerResponse):
            self.apply(answer.updates)

    def _with_adjustment(self, sandbox: Sandbox, message: Container) -> Container:
        """The container with the plugin's adjustment."""
        try:
            answer = self._ask(events.CreateContainer(sandbox.message, message))
        except PluginRefusedError:
            if self.behaviour.undoes_failed_creation:
                self._tell(events.StopContainer(sandbox.message, message))
                self._tell(events.RemoveContainer(sandbox.message, message))
            raise
        if not isinstance(answer, events.CreateContainerResponse):
            return message
        self.apply(answer.updates)
        return adjusted(message, answer)

    def _apply(self, record: Record, change: Resources) -> None:
        """Store a change and write all stored resources, as real runtimes do."""
        stored = merged(record.message.resources, change)
        if record.names.path in self.cgroups.mirror.tree:
            self.cgroups.write(record.names.path, stored)
        record.store(stored)

    def _of(self, sandbox: Sandbox) -> Iterator[Record]:
        return (record for record in self._records.values() if record.sandbox is sandbox)

    def _drop_cgroups(self, sandbox: Sandbox) -> None:
        self.cgroups.leave(sandbox.pause)
        self.cgroups.leave(sandbox.names.path)


def _without(pod: Pod, fields: PodFields) -> Pod:
    empty: dict[str, Any] = {"pid": 0, "cgroups_path": ""}
    return replace(pod, **{name: empty[name] for name in fields})


def _qos_slices(driver: Driver) -> list[str]:
    """The cgroups that a kubelet makes when it starts."""
    return [parent_of(pod_names(driver, qos, "x").path) for qos in QOSClass]
