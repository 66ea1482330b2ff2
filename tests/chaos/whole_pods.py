"""Pods whose object may be known: init containers, sidecars, resources of the pod as a whole."""

from random import Random

from nri_plugin.model.records import Amounts, Kind
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec, Telling

MIB = 1 << 20
TELLINGS = (Telling.KNOWN, Telling.KNOWN, Telling.ONCE, Telling.LATE, Telling.LOST)


def whole_pod(rng: Random, name: str) -> PodSpec:
    """A Guaranteed pod of up to two init containers, two sidecars and two app containers; half have own resources."""
    inits = [
        *(_claim(rng, f"init-{number}") for number in range(rng.randint(0, 2))),
        *(_claim(rng, f"side-{number}", is_sidecar=True) for number in range(rng.randint(0, 2))),
    ]
    apps = [_claim(rng, f"app-{number}") for number in range(rng.randint(1, 2))]
    if rng.random() < 0.5:
        return PodSpec(name, containers=tuple(apps), init_containers=tuple(inits))
    running = [*apps, *(one for one in inits if one.is_sidecar)]
    milli = sum(one.cpu_request_milli for one in running) + rng.choice([0, 1000, 2000])
    size = sum(one.memory_limit_bytes for one in running) + rng.choice([0, 64 * MIB])
    # The API server gives it at least as much as its largest init container.
    milli = max(milli, *(one.cpu_request_milli for one in (*inits, *apps)))
    shared = [ContainerSpec(f"shared-{number}", is_sidecar=True) for number in range(rng.randint(0, 2))]
    return PodSpec(
        name,
        containers=tuple(apps),
        init_containers=(*inits, *shared),
        whole=Amounts(milli, milli, size, size),
    )


def _claim(rng: Random, name: str, *, is_sidecar: bool = False) -> ContainerSpec:
    milli = rng.choice([500, 1000, 1000, 2000, 3000])
    return ContainerSpec(name, milli, milli, 64 * MIB, 64 * MIB, is_sidecar=is_sidecar)


def is_plain_init(pod: PodSpec, name: str) -> bool:
    """Whether the container ends before the next one is created."""
    return any(spec.name == name and kind is Kind.INIT for spec, kind in pod.members)


def may_run_together(pod: PodSpec, one: str, other: str) -> bool:
    """Whether two containers of the pod may run on the same CPUs, by the pod's specification alone.

    Containers of a pod with resources of its own that own no whole CPUs share what the others leave.
    """
    shared = {spec.name for spec, _ in pod.members if not spec.cpu_limit_milli or spec.cpu_limit_milli % 1000}
    return pod.whole is not None and {one, other} <= shared
