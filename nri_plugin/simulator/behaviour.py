"""How the runtimes differ around their plugins; `runtime_profile` has how they differ on the wire.

Source: what containerd 1.7.24 and 2.1.9 did when watched; the others are written after their code.
"""

from dataclasses import dataclass

from nri_plugin.simulator.runtime_profile import (
    CONTAINERD_1_7,
    CONTAINERD_2_1,
    CONTAINERD_2_4,
    CRIO_1_36,
    RuntimeProfile,
)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one runtime does around its plugins.

    Attributes:
        name: as a scenario names it.
        profile: what it is on the wire.
        cgroup_prefix: first part of a container's scope.
        undoes_failed_creation: a refused container is followed by StopContainer and RemoveContainer.
        stores_updates: an update survives the runtime's own restart.
        forgets_pods: after its own restart it no longer tells the end of older pods.
        zero_resources: absent times and limits are sent as 0 rather than left out.
        ignores_start_errors: an error in StartContainer is only a warning.
        was_watched: this was seen on the real thing; False: written after its code.
    """

    name: str
    profile: RuntimeProfile
    cgroup_prefix: str = "cri-containerd"
    undoes_failed_creation: bool = True
    stores_updates: bool = True
    forgets_pods: bool = True
    zero_resources: bool = False
    ignores_start_errors: bool = False
    was_watched: bool = True

    @property
    def is_containerd(self) -> bool:
        """Whether annotations are containerd's, else CRI-O's."""
        return self.profile.runtime_name == "containerd"


BEHAVIOURS = {
    each.name: each
    for each in (
        Behaviour("containerd-1.7", CONTAINERD_1_7),
        Behaviour("containerd-2.1", CONTAINERD_2_1),
        Behaviour("containerd-2.4", CONTAINERD_2_4, was_watched=False),
        Behaviour(
            "cri-o",
            CRIO_1_36,
            cgroup_prefix="crio",
            undoes_failed_creation=False,
            stores_updates=False,
            forgets_pods=False,
            zero_resources=True,
            ignores_start_errors=True,
            was_watched=False,
        ),
    )
}
