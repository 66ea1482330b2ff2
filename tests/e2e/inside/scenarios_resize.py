"""Exclusive CPUs change while the container runs."""

from .cri import CRIError
from .laws import check_exclusive, check_laws
from .node import Node, Pod
from .observe import format_list
from .pods import burstable, guaranteed


def an_exclusive_container_grows_and_shrinks_in_place(node: Node, cpus: int) -> None:
    """It keeps what it has, others leave what it grows by, and what it gives back is theirs again."""
    shared = node.run(burstable("beside"))
    pod = node.run(guaranteed("resized", cpus))
    own, pool = node.observe(pod.id).allowed_cpus, node.observe(shared.id).allowed_cpus
    node.update(pod, cpu_shares=1024 * (cpus + 1))
    grown = node.observe(pod.id).allowed_cpus
    node.equal("what it had it still has", format_list(own - grown), "")
    check_exclusive(node, "resized/main", cpus + 1)
    check_laws(node)
    node.update(pod, cpu_shares=1024 * cpus)
    node.equal("it gives back what it grew by", node.observe(pod.id).allowed_cpus, own)
    node.equal("the pool is what it was", node.observe(shared.id).allowed_cpus, pool)
    check_laws(node)
    said = _refusal(node, pod, 1024 * 200)
    node.expect("too much is refused with the numbers", "not enough cpus available" in said, said)
    said = _refusal(node, pod, 512)
    node.expect("a fraction is refused", "whole number" in said, said)
    node.equal("a refusal moves nobody", node.observe(pod.id).allowed_cpus, own)
    check_laws(node)
    node.remove(pod)
    node.remove(shared)


def _refusal(node: Node, pod: Pod, cpu_shares: int) -> str:
    try:
        node.update(pod, cpu_shares=cpu_shares)
    except CRIError as error:
        return error.reason
    return ""
