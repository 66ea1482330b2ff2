"""What is to be simulated: steps in order, and what was found out while reading them.

Three forms of a scenario become one plan: steps as `nri-pin demo` plays them, a list of pods in a few words, and
plain Kubernetes manifests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nri_plugin.simulator.cgroup_names import Driver
from nri_plugin.simulator.scenario import DEFAULT_RUNTIME
from nri_plugin.simulator.steps import Step


@dataclass(frozen=True, slots=True)
class Plan:
    """A scenario, read and checked.

    Attributes:
        file: where it came from, for complaints.
        name: what it shows.
        steps: what happens, in order.
        workloads: what a pod `NAMESPACE/NAME` comes from, where that is no pod of its own.
        machine: the machine the scenario itself names; empty for none.
        config: the configuration it brings, as text at the lines where it stands; None for none.
        runtime: whose messages are played.
        driver: of cgroups.
        has_objects: whether there are pod objects, which the exporter tells the agent of and the scheduler counts. Not
            so in a scenario of steps: as in `nri-pin demo`.
        notes: what was passed over, a sentence each.
    """

    file: str
    name: str
    steps: tuple[Step, ...]
    workloads: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    config: str | None = None
    runtime: str = DEFAULT_RUNTIME
    driver: Driver = Driver.SYSTEMD
    has_objects: bool = True
    notes: tuple[str, ...] = ()
