"""The row of an option: what the registry in `model/options.py` says about each one."""

from dataclasses import field
from enum import StrEnum
from typing import Any, NamedTuple

OWN_ATTRIBUTES = "nri-pin/"
"""Prefix of NodeResourceTopology attributes of our own."""


class Level(StrEnum):
    """How mature Kubernetes 1.36 calls an option; OWN is an option that the kubelet does not have."""

    GA = "GA"
    BETA = "Beta"
    ALPHA = "Alpha"
    OWN = "nri-pin"


class Affects(StrEnum):
    """The area that an option affects; `explain` shows the options that affect CPUs and NUMA nodes."""

    CPUS = "exclusive CPUs"
    NUMA_NODES = "NUMA nodes"
    MEMORY = "memory nodes"
    SHARED_POOL = "shared pool"
    ADMISSION = "admission"
    KERNEL = "cgroups and kernel settings"
    MACHINE = "accepted machines"


class Manager(NamedTuple):
    """A manager of the kubelet that has policy options.

    Attributes:
        name: in errors.
        key: of the section that holds its options.
        policy: the field of `Options` that holds its policy; under the policy none its options have no effect.
        gate: how the names of its feature gates begin.
        published: the NodeResourceTopology attribute that lists its options which are on.
    """

    name: str
    key: str
    policy: str
    gate: str
    published: str

    @property
    def options_gate(self) -> str:
        """The feature gate without which it has no options at all."""
        return f"{self.gate}PolicyOptions"


CPU_MANAGER = Manager(
    "CPU Manager",
    "cpuManagerPolicyOptions",
    "cpu_manager_policy",
    "CPUManager",
    f"{OWN_ATTRIBUTES}cpuManagerPolicyOptions",
)
TOPOLOGY_MANAGER = Manager(
    "Topology Manager",
    "topologyManagerPolicyOptions",
    "topology_manager_policy",
    "TopologyManager",
    f"{OWN_ATTRIBUTES}topologyManagerPolicyOptions",
)
MANAGERS = (CPU_MANAGER, TOPOLOGY_MANAGER)


class Option(NamedTuple):
    """The row of one option.

    Attributes:
        name: in the configuration.
        affects: what it affects.
        level: how mature it is.
        manager: the manager among whose policy options it is; None for a key at the top of the configuration.
        own_gate: the feature gate of an option outside the sections of managers; empty for none.
        published: the NodeResourceTopology attribute that tells it; empty for none.
        excludes: names of options of the same manager that cannot be on with it.
        stages: the stages of the CPU assignment (`policy.cpu_assignment.AssignmentStage`) that are due to it.
        is_policy: whether it is the policy or the scope of a manager, which is always shown and published.
        has_flag: whether the kubelet's flag of that name stands in for the key.
        is_derived: whether it follows from keys of other names and is none itself.
        attribute: the field of `Options`.
        kind: its type.
        default: its default.
    """

    name: str
    affects: Affects
    level: Level = Level.OWN
    manager: Manager | None = None
    own_gate: str = ""
    published: str = ""
    excludes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    is_policy: bool = False
    has_flag: bool = False
    is_derived: bool = False
    attribute: str = ""
    kind: Any = None
    default: Any = None

    @property
    def gate(self) -> str:
        """The feature gate that hides it where it is off; empty for none."""
        if self.manager is None:
            return self.own_gate
        if self.level is Level.GA:
            return self.manager.options_gate
        return f"{self.manager.gate}Policy{self.level}Options"

    def value(self, options: Any) -> Any:
        """Its value in an `Options`."""
        return getattr(options, self.attribute)

    def text(self, options: Any) -> str:
        """Its value as the configuration has it."""
        text = str(self.value(options))
        return text.lower() if self.kind is bool else text

    def is_changed(self, options: Any) -> bool:
        """Whether it differs from its default."""
        return bool(self.value(options) != self.default)


def option(
    default: Any,
    name: str,
    affects: Affects,
    level: Level = Level.OWN,
    manager: Manager | None = None,
    **more: Any,
) -> Any:
    """A field of `Options` with its row; options of the CPU Manager are published."""
    if manager is CPU_MANAGER:
        more.setdefault("published", manager.published)
    return field(default=default, metadata={"option": Option(name, affects, level, manager, **more)})
