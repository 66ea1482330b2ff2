"""The message of a refused pod begins with the words that the kubelet has for it, and ours are behind them."""

import pytest

from nri_plugin.model.refusals import (
    AdmissionRefusal,
    CPUShortage,
    EmptyPodSharedPool,
    HintNotAdmitted,
    MemoryNotPreferred,
    MemoryShortage,
    MixedMemory,
    PartialCore,
    PodMemoryShortage,
    RefusalKind,
    WholeCoreShortage,
    kind_of,
)

KIND = RefusalKind
MEMORY = "Allocate failed due to [memorymanager] "
ANY = (
    MEMORY
    + "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected; "
)


@pytest.mark.parametrize(
    ("kind", "detail", "words"),
    [
        (
            KIND.TOPOLOGY_AFFINITY,
            HintNotAdmitted("restricted", False, "0-1"),
            "Resources cannot be allocated with Topology locality; resources ",
        ),
        (
            KIND.TOPOLOGY_AFFINITY,
            HintNotAdmitted("restricted", False, "", "pod"),
            "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager; ",
        ),
        (
            KIND.TOPOLOGY_AFFINITY,
            HintNotAdmitted("restricted", False, "", "container"),
            "Pod Scope pod with pod-level resources failed admission with a container-level topology manager; ",
        ),
        (
            KIND.SMT_ALIGNMENT,
            PartialCore(3, 2),
            "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2; requested 3 cpus is ",
        ),
        (
            KIND.SMT_ALIGNMENT,
            WholeCoreShortage(8, 6, 2),
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2; ",
        ),
        (
            KIND.CPUS,
            CPUShortage(8, 6),
            "Allocate failed due to not enough cpus available to satisfy request: requested=8, available=6, which is unexpected; ",
        ),
        (KIND.MEMORY, MemoryShortage("", (), None), ANY),
        (KIND.MEMORY, PodMemoryShortage("web", "memory", 2, 1), ANY),
        (
            KIND.MEMORY,
            MemoryShortage("0", (), None),
            f"{MEMORY}failed to find NUMA nodes to extend the current topology hint, which is unexpected; no NUMA ",
        ),
        (
            KIND.MEMORY,
            MixedMemory("0-1", ("0",)),
            f"{MEMORY}preferred hint violates NUMA node allocation, which is unexpected; memory on ",
        ),
        (
            KIND.MEMORY,
            MemoryNotPreferred("0", "0-1", ()),
            f"{MEMORY}failed to find the extended preferred hint, which is unexpected; memory has ",
        ),
        (
            KIND.MEMORY,
            MemoryNotPreferred("", "0-1", ()),
            f"{MEMORY}failed to find the default preferred hint, which is unexpected; memory has ",
        ),
        (
            KIND.EMPTY_POD_SHARED_POOL,
            EmptyPodSharedPool("cpu", "b", 2, 2, is_init=False),
            "pod rejected, sum of exclusive container cpu requests equals pod budget",
        ),
        (KIND.OTHER, "the disk is full", "Allocate failed due to the disk is full, which is unexpected"),
    ],
)
def test_the_message_begins_with_the_words_of_the_kubelet(
    kind: RefusalKind, detail: object, words: str
) -> None:
    refusal = AdmissionRefusal(kind, detail)  # type: ignore[arg-type]
    assert refusal.message.startswith(words)
    assert kind_of(refusal.reason) in (kind, RefusalKind.OTHER)
