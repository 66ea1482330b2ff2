"""Many pods at once: the runtime asks faster than anybody types."""

from concurrent.futures import ThreadPoolExecutor

from .laws import check_laws
from .node import Node
from .pods import PodSpec, best_effort, burstable, guaranteed

_THREADS, _ROUNDS = 4, 5


def many_pods_come_and_go_at_once(node: Node, cpus: int) -> None:
    """Pods from several threads while one exclusive pod comes and goes; nothing is lost and nobody was late."""
    shared = [node.run(spec) for spec in (burstable("rock"), best_effort("sand"))]
    joined = node.agent.times_joined()
    with ThreadPoolExecutor(_THREADS + 1) as pool:
        work = [pool.submit(_come_and_go, node, thread) for thread in range(_THREADS)]
        work.append(pool.submit(_exclusive_comes_and_goes, node, cpus))
        for future in work:
            future.result()
    node.equal("the runtime never dropped the agent", node.agent.times_joined(), joined)
    late = node.runtime.log_lines("nri", "deadline exceeded")
    node.equal("the runtime never found it late", late, [])
    check_laws(node)
    for pod in shared:
        node.remove(pod)
    shown = node.agent.state()
    node.equal("nothing is left behind", [shown["containers"], shown["waiting"]], [[], []])


def _come_and_go(node: Node, thread: int) -> None:
    for number in range(_ROUNDS):
        name = f"crowd-{thread}-{number}"
        spec: PodSpec = burstable(name) if number % 2 else best_effort(name)
        node.remove(node.run(spec))


def _exclusive_comes_and_goes(node: Node, cpus: int) -> None:
    for number in range(_ROUNDS):
        node.remove(node.run(guaranteed(f"alone-{number}", cpus)))
