"""Hint providers: the interface, our own three, and those of other packages.

A hint provider is a function from a `Question` to hint sets (`policy.hints.HintSet`), one for each resource that it cares
about; None where it has no preference. Devices, CPU and memory are providers of our own. Others come from installed
packages, by an entry point of the group `nri_pin.hint_providers` (`nri_plugin.config.loading`):

    # pyproject.toml of the package
    [project.entry-points."nri_pin.hint_providers"]
    licences = "our_site.placement:licences"

    # our_site/placement.py: containers of one namespace belong on NUMA node 0
    from nri_plugin.policy.hints import Hint, HintSet

    def licences(question):
        if question.pod.namespace != "licensed":
            return None
        return (HintSet("our.site/licence", (Hint(0b1, True),), why="licence: the dongle is on NUMA node 0"),)

Its hints are merged with ours, for every QoS class, and refusals quote its `why`. A provider must be quick because a
runtime waits, it must not block, and it must answer the same question alike: decisions are made again to explain them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from nri_plugin.core.requests import ContainerRequest
from nri_plugin.model.errors import AdmissionError, HintProviderError
from nri_plugin.model.options import HintProvider, MemoryManagerPolicy, Node
from nri_plugin.model.records import PodRecord
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.device_hints import device_hint_sets
from nri_plugin.policy.hints import HintSet, Provider
from nri_plugin.policy.memory_assignment import memory_hint_sets
from nri_plugin.policy.memory_state import (
    MemoryMachine,
    MemoryState,
    Reuse,
    memory_machine,
    memory_state,
)


@dataclass(frozen=True)
class Question:
    """Where should this request be placed? All that is known about it, worked out once and passed on.

    Attributes:
        node: the machine and the options.
        state: the allocations so far, without one of this container.
        pod: the pod it is for.
        request: a container's request, or the pod's total under pod scope (no name then).
        exclusive_cpus: how many CPUs it gets to itself.
        memory: bytes by resource that the memory policy allocates; empty under policy None.
        donors: keys of the allocations of its pod that may pass on to it; see `nri_plugin.core.reuse`.
        reusable: their CPUs, which count as available.
        reuse: their memory, by NUMA nodes and resource.
        only_reusable: only their CPUs count as available, and only their memory where it is enough.
    """

    node: Node
    state: State
    pod: PodRecord
    request: ContainerRequest
    exclusive_cpus: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    donors: tuple[str, ...] = ()
    reusable: CPUSet = NO_CPUS
    reuse: Reuse = field(default_factory=dict)
    only_reusable: bool = False

    @cached_property
    def available(self) -> CPUSet:
        """CPUs that can still become exclusive, without the reusable ones."""
        return NO_CPUS if self.only_reusable else self.state.available(self.node)

    @property
    def is_reuse_enough(self) -> bool:
        """Whether the reusable memory of one set of nodes is all that is requested."""
        reuse, memory = self.reuse, self.memory.items()
        return any(all(reuse.get((mask, name), 0) >= size for name, size in memory) for mask, _ in reuse)

    @cached_property
    def memory_state(self) -> MemoryState:
        """The allocated memory of each NUMA node."""
        state = memory_state_of(self.node, self.state)
        return state.without_free() if self.only_reusable and self.is_reuse_enough else state


def devices(question: Question) -> Provider:
    """Near the devices the container has been given."""
    return device_hint_sets(question.node.topology.node_ids, question.request.devices)


def cpus(question: Question) -> Provider:
    """Where exclusive CPUs are available."""
    node = question.node
    return cpu_hint_sets(
        tables_of(node),
        question.exclusive_cpus,
        question.available,
        reusable=question.reusable,
        align_by_socket=node.options.align_by_socket,
    )


def memory(question: Question) -> Provider:
    """Where memory can be allocated."""
    if not question.memory:
        return None
    return memory_hint_sets(question.memory_state, question.memory, reuse=question.reuse)


OWN: tuple[HintProvider, ...] = (devices, cpus, memory)
"""In the kubelet's order."""


def ask(question: Question) -> list[Provider]:
    """The hint sets of all providers, those of other packages last.

    Raises:
        AdmissionError: one of another package failed. A container is not placed without its hints.
    """
    own = [provider(question) for provider in OWN]
    return [*own, *(_ask_outside(provider, question) for provider in question.node.hint_providers)]


def _ask_outside(provider: HintProvider, question: Question) -> Provider:
    try:
        answer: object = provider(question)
    except AdmissionError:
        raise
    except Exception as error:  # noqa: BLE001 - no error of another package may end the agent
        raise HintProviderError(
            f"hint provider {_name(provider)} failed: {type(error).__name__}: {error}"
        ) from None
    if answer is None or (isinstance(answer, tuple) and all(isinstance(one, HintSet) for one in answer)):
        return answer
    raise HintProviderError(
        f"hint provider {_name(provider)} answered with {type(answer).__name__}, expected None or a tuple of HintSet"
    )


def _name(provider: HintProvider) -> str:
    return getattr(provider, "__qualname__", type(provider).__name__)


def memory_request(node: Node, request: ContainerRequest) -> Mapping[str, int]:
    """Bytes by resource that the memory policy allocates; none under policy None."""
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return {}
    return request.memory_by_resource


@lru_cache(maxsize=16)
def tables_of(node: Node) -> CPUTables:
    """Precomputed masks of the node's machine."""
    return cpu_tables(node.topology)


@lru_cache(maxsize=16)
def memory_machine_of(node: Node) -> MemoryMachine:
    """The memory of the node's machine that containers can be allocated."""
    return memory_machine(node.topology, node.options.reserved_memory)


def memory_state_of(node: Node, state: State) -> MemoryState:
    """The allocated memory of each NUMA node."""
    blocks = (one.memory for one in state.allocations.values() if one.memory)
    return state.remember("_memory", node, lambda: memory_state(memory_machine_of(node), blocks))
