"""What a runtime has on record: sandboxes and containers, and the cgroups it keeps for them.

A runtime never reads a cgroup back. It keeps the resources it was last told, and whenever it updates a
container for any reason it writes all of them again: that is how an old cpuset comes back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nri_plugin.cpuset import CPUSet
from nri_plugin.nodemask import NodeMask
from nri_plugin.nri.messages import Container, ContainerState, Pod, Resources
from nri_plugin.simulator.cgroup_mirror import CgroupMirror
from nri_plugin.simulator.cgroup_names import Names
from nri_plugin.simulator.cgroup_rules import V1
from nri_plugin.simulator.cgroup_tree import CgroupWriteError, Resource, parent_of
from nri_plugin.simulator.pods import PodSpec


@dataclass(slots=True)
class Sandbox:
    """A pod sandbox.

    Attributes:
        pause: path of the cgroup in which the sandbox itself runs.
        is_known: the runtime will tell the end of this pod; False for pods older than itself.
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
        started_on: CPUs its first instruction could run on; None before the start.
    """

    sandbox: Sandbox
    message: Container
    names: Names
    created_with: Resources
    started_on: CPUSet | None = None

    @property
    def key(self) -> str:
        """`NAMESPACE/POD/CONTAINER`."""
        return f"{self.sandbox.spec.key}/{self.message.name}"

    @property
    def has_cgroup(self) -> bool:
        """Whether a cgroup exists for it."""
        return self.message.state is ContainerState.RUNNING

    def enter(self, state: ContainerState) -> None:
        """Change the state that is told."""
        self.message = replace(self.message, state=state)

    def store(self, resources: Resources) -> None:
        """Keep resources for good."""
        self.message = replace(self.message, resources=resources)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a container has.

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
    """Makes, fills and removes cgroups the way kubelet and runc do."""

    def __init__(self, mirror: CgroupMirror, slices: Iterable[str]) -> None:
        self.mirror = mirror
        for path in slices:
            self.make(path)

    def make(self, path: str) -> None:
        """Make a cgroup; on v1 it starts with what its parent has, or nothing could live in it."""
        if path in self.mirror.tree:
            return
        above = parent_of(path)
        if above:
            self.make(above)
        self.mirror.add(path)
        if self.mirror.tree.version == V1:
            for resource in Resource:
                self.mirror.tree.write(path, resource, self.mirror.tree.text(above, resource))
            self.mirror.flush()

    def enter(self, path: str, resources: Resources) -> None:
        """A container's process moves into its new cgroup, which holds `resources`.

        Raises:
            CgroupWriteError: the kernel takes no such cpuset; there is no cgroup then.
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
        """Write the cpuset that is stored; an empty one is not written.

        Raises:
            CgroupWriteError: the kernel does not take it.
        """
        self.mirror.absorb()
        wanted: Mapping[Resource, str] = {Resource.CPUS: resources.cpus, Resource.MEMS: resources.mems}
        for resource, text in wanted.items():
            if text:
                self.mirror.tree.write(path, resource, text)
        self.mirror.flush()

    def leave(self, path: str) -> None:
        """The processes are gone and the cgroup with them."""
        if path in self.mirror.tree:
            self.mirror.tree.detach(path)
            self.mirror.remove(path)

    def placement(self, record: Record) -> Placement:
        """What the container has now; all empty without a cgroup."""
        tree, path = self.mirror.tree, record.names.path
        exists = record.has_cgroup and path in tree
        return Placement(
            key=record.key,
            stored=record.message.resources.cpus,
            own=tree.own_cpus(path) if exists else CPUSet(),
            effective=tree.effective_cpus(path) if exists else CPUSet(),
            mems=tree.effective_mems(path) if exists else NodeMask(),
            own_mems=tree.own_mems(path) if exists else NodeMask(),
        )
