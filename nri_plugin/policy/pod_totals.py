"""What a pod needs at its peak, from what its containers need.

Source: kubelet v1.36 cpumanager podGuaranteedCPUs and memorymanager getPodRequestedResources.
"""

from collections.abc import Iterable


def pod_total(inits: Iterable[tuple[int, bool]], apps: Iterable[int]) -> int:
    """The peak of one resource over the life of a pod.

    Args:
        inits: (amount, restartable) of each init container, in order. A plain one runs beside the
            restartable ones before it; these go on running beside the app containers.
        apps: amount of each app container.
    """
    running = peak = 0
    for amount, restartable in inits:
        peak = max(peak, running + amount)
        if restartable:
            running += amount
    return max(peak, running + sum(apps))
