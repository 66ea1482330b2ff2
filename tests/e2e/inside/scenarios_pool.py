"""The shared pool shrinks and grows while containers are in every state of their lives."""

from pathlib import Path

from .laws import check_exclusive, check_laws
from .node import Node, Pod, content_of
from .observe import cpu_weight, format_list, memory_limit, parse_mask
from .pods import burstable, guaranteed
from .waiting import wait_for

_LIMIT_BYTES = 96 << 20


def created_before_the_pool_shrank_and_started_after(node: Node, cpus: int) -> None:
    """Create B (shared), create A (exclusive), start B: B has none of A's CPUs, not for its first instruction.

    B's program asks for its CPUs with its first instruction, so that is what is compared.
    """
    b, answer = _with_witness(node, "created-early")
    a = node.run(guaranteed("exclusive-late", cpus))
    node.start(b)
    own = node.observe(a.id).allowed_cpus
    first = parse_mask(content_of(answer))
    node.equal("A has its CPUs", len(own), cpus)
    node.equal("the first instruction of B had none of A's CPUs", format_list(first & own), "")
    node.equal("B had its final CPUs from the first instruction", first, node.observe(b.id).allowed_cpus)
    check_laws(node)
    node.remove(a)
    node.remove(b)


def created_before_the_pool_shrank_updated_and_started(node: Node, cpus: int) -> None:
    """The same, with an update by the kubelet while B waits to be started."""
    b, answer = _with_witness(node, "updated-early")
    a = node.run(guaranteed("exclusive-between", cpus))
    node.update(b, cpu_shares=2048)
    node.start(b)
    own = node.observe(a.id).allowed_cpus
    node.equal(
        "the first instruction of B had none of A's CPUs",
        format_list(parse_mask(content_of(answer)) & own),
        "",
    )
    check_laws(node)
    node.remove(a)
    node.remove(b)


def a_crashed_container_finds_its_cpus_again(node: Node, cpus: int) -> None:
    """It ends, its CPUs are kept from others, and the next attempt of the same name gets them."""
    pod = node.run(guaranteed("crashing", cpus))
    shared = node.run(burstable("onlooker"))
    own, pool = node.observe(pod.id).allowed_cpus, node.observe(shared.id).allowed_cpus
    node.end(pod)
    node.equal("nobody gets its CPUs meanwhile", node.observe(shared.id).allowed_cpus, pool)
    node.create(pod, pod.spec.containers[0], attempt=1)
    node.start(pod)
    node.equal("the next attempt runs on the same CPUs", node.observe(pod.id).allowed_cpus, own)
    check_laws(node)
    node.remove(pod)
    node.remove(shared)


def a_container_is_pinned_from_its_first_instruction(node: Node, cpus: int) -> None:
    """The same witness in a container with exclusive CPUs."""
    place = Path("/run/lab/pinned")
    place.mkdir(parents=True)
    pod = node.run(guaranteed("pinned", cpus, command=("/bin/witness",), mounts={"/out": str(place)}))
    first = parse_mask(content_of(place / "affinity"))
    node.equal("its first instruction had its own CPUs only", first, node.observe(pod.id).allowed_cpus)
    check_exclusive(node, "pinned/main", cpus)
    node.remove(pod)


def a_shares_only_update_after_a_shrink_leaves_no_overlap(node: Node, cpus: int) -> None:
    """The runtime re-applies the cpuset it stored at creation; the agent must not let it."""
    shared = node.run(burstable("updated"))
    exclusive = node.run(guaranteed("exclusive-next", cpus))
    own = node.observe(exclusive.id).allowed_cpus
    before = cpu_weight(node.pid(shared.id))
    node.update(shared, cpu_shares=2048)
    node.expect("the runtime applied the shares", cpu_weight(node.pid(shared.id)) > before, f"still {before}")
    both = node.observe(shared.id).allowed_cpus & own
    node.equal("the updated container has none of the exclusive CPUs", format_list(both), "")
    node.update(shared, memory_limit_in_bytes=_LIMIT_BYTES)
    node.equal("the runtime applied a memory limit", memory_limit(node.pid(shared.id)), _LIMIT_BYTES)
    check_laws(node)
    node.update(exclusive, cpu_shares=1024 * cpus)
    node.equal(
        "the exclusive one keeps its own through an update", node.observe(exclusive.id).allowed_cpus, own
    )
    node.remove(exclusive)
    node.remove(shared)


def a_pod_that_ends_gives_its_cpus_back(node: Node, cpus: int) -> None:
    """The pool is what it was before the exclusive pod came."""
    shared = node.run(burstable("stays"))
    before = node.observe(shared.id).allowed_cpus
    exclusive = node.run(guaranteed("ends", cpus))
    own = node.observe(exclusive.id).allowed_cpus
    node.equal("the pool lost the exclusive CPUs", node.observe(shared.id).allowed_cpus, before - own)
    node.remove(exclusive)
    wait_for(lambda: node.observe(shared.id).allowed_cpus == before, 120, "the pool is whole again")
    node.equal("the pool is whole again", node.observe(shared.id).allowed_cpus, before)
    check_laws(node)
    node.remove(shared)


def _with_witness(node: Node, name: str) -> tuple[Pod, Path]:
    place = Path("/run/lab") / name
    place.mkdir(parents=True)
    spec = burstable(name, command=("/bin/witness",), mounts={"/out": str(place)})
    pod = node.sandbox(spec)
    node.create(pod, spec.containers[0])
    return pod, place / "affinity"
