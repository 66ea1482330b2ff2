"""Who is asked where a container should go: one small interface, and the providers behind it.

A hint provider is a function from a question to hint sets (`policy.hints.HintSet`), one for each resource it cares
about; None where it does not care. Devices, CPU and memory are providers of our own. Others come from installed
packages, by an entry point of the group `nri_pin.hint_providers` (`app/outside_providers.py`):

    # pyproject.toml of the package
    [project.entry-points."nri_pin.hint_providers"]
    licences = "our_site.placement:licences"

    # our_site/placement.py: containers of one namespace belong on NUMA node 0
    from nri_plugin.policy.hints import Hint, HintSet

    def licences(question):
        if question.pod.namespace != "licensed":
            return None
        return (HintSet("our.site/licence", (Hint(0b1, True),), why="licence: the dongle is on NUMA node 0"),)

Its hint sets are merged with ours, whatever the QoS class, and its `why` stands in refusals. A provider must be quick
(a runtime waits), must not block, and must answer the same question alike: decisions are made again to explain them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from nri_plugin.core.requests import ContainerRequest
from nri_plugin.model.errors import AdmissionError, HintProviderError
from nri_plugin.model.options import HintProvider, MemoryManagerPolicy, Node
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import PodRecord, State
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.device_hints import device_hint_sets
from nri_plugin.policy.hints import HintSet, Provider
from nri_plugin.policy.memory_assignment import memory_hint_sets
from nri_plugin.policy.memory_state import MemoryMachine, MemoryState, Reuse, memory_machine, memory_state


@dataclass(frozen=True, slots=True)
class Question:
    """Where should this go?

    Attributes:
        node: the machine and the options.
        state: what has been promised so far.
        pod: the pod it is for.
        request: what is asked for: a container's request, or the pod's total under pod scope (no name then).
        exclusive_cpus: how many CPUs it gets to itself.
        reusable: CPUs of the pod's ended containers, on offer too.
        reuse: memory of the same, by NUMA nodes and resource.
    """

    node: Node
    state: State
    pod: PodRecord
    request: ContainerRequest
    exclusive_cpus: int = 0
    reusable: CPUSet = NO_CPUS
    reuse: Reuse = field(default_factory=dict)


def devices(question: Question) -> Provider:
    """Near the devices the container has been given."""
    return device_hint_sets(question.node.topology.node_ids, question.request.devices)


def cpus(question: Question) -> Provider:
    """Where exclusive CPUs are available."""
    node = question.node
    return cpu_hint_sets(
        tables_of(node),
        question.exclusive_cpus,
        question.state.available(node),
        reusable=question.reusable,
        align_by_socket=node.options.align_by_socket,
    )


def memory(question: Question) -> Provider:
    """Where memory can be promised."""
    request = memory_request(question.node, question.request)
    state = memory_state_of(question.node, question.state)
    return memory_hint_sets(state, request, reuse=question.reuse) if request else None


OWN: tuple[HintProvider, ...] = (devices, cpus, memory)
"""In the kubelet's order."""


def ask(question: Question) -> list[Provider]:
    """The hint sets of all providers, those from outside last.

    Raises:
        AdmissionError: one from outside failed; a container is not placed on half the truth.
    """
    own = [provider(question) for provider in OWN]
    return [*own, *(_ask_outside(provider, question) for provider in question.node.hint_providers)]


def _ask_outside(provider: HintProvider, question: Question) -> Provider:
    try:
        hint_sets: object = provider(question)
    except AdmissionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the agent
        raise HintProviderError(
            f"hint provider {_name(provider)} failed: {type(error).__name__}: {error}"
        ) from None
    if hint_sets is None or (
        isinstance(hint_sets, tuple) and all(isinstance(hint_set, HintSet) for hint_set in hint_sets)
    ):
        return hint_sets
    raise HintProviderError(
        f"hint provider {_name(provider)} answered with {type(hint_sets).__name__}, expected None or a tuple of HintSet"
    )


def _name(provider: HintProvider) -> str:
    return getattr(provider, "__qualname__", type(provider).__name__)


def memory_request(node: Node, request: ContainerRequest) -> Mapping[str, int]:
    """Bytes by resource that the memory policy promises; none under policy None."""
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return {}
    return request.memory_by_resource


@lru_cache(maxsize=16)
def tables_of(node: Node) -> CPUTables:
    """Precomputed masks of the node's machine."""
    return cpu_tables(node.topology)


@lru_cache(maxsize=16)
def _memory_machine_of(node: Node) -> MemoryMachine:
    return memory_machine(node.topology, node.options.reserved_memory)


def memory_state_of(node: Node, state: State) -> MemoryState:
    """What is promised of each NUMA node's memory."""
    blocks = (allocation.memory for allocation in state.allocations.values() if allocation.memory)
    return memory_state(_memory_machine_of(node), blocks)
