"""Run (c): a guest with four NUMA nodes of four CPUs each, cgroup v2 and a kernel of its own.

What scenario files say as well is not told here: run (c) plays those of the lab in the same boot.
"""

import sys

from .agent import Agent
from .containerd import Containerd, version
from .kubepods import make_kubepods
from .laws import check_exclusive, check_laws, check_memory_follows_cpus
from .node import Node
from .pods import best_effort, burstable, guaranteed
from .report import play, tell
from .scenarios_drift import (
    a_foreign_write_is_put_right,
    a_narrowed_pod_is_widened_again,
    cpus_go_offline_and_come_back,
    files_taken_away_come_back,
    release_gives_everything_back,
    systemd_sets_a_property,
    the_cpu_affinity_of_the_runtime_is_found,
)
from .scenarios_life import (
    a_container_born_while_the_agent_is_away_is_put_right,
    killing_the_agent_changes_nothing,
    restarting_the_agent_changes_nothing,
    restarting_the_runtime_changes_nothing,
    the_agent_had_nothing_to_complain_of,
    the_agent_needs_no_capability,
    the_last_pods_give_everything_back,
    the_runtime_has_its_default_limit,
)
from .scenarios_manifest import the_daemonset_s_pod_serves_the_node
from .scenarios_memory import a_new_policy_moves_nobody
from .scenarios_pool import (
    a_container_is_pinned_from_its_first_instruction,
    a_shares_only_update_after_a_shrink_leaves_no_overlap,
)
from .scenarios_prelaunched import the_runtime_starts_the_plugin_itself
from .scenarios_resize import an_exclusive_container_grows_and_shrinks_in_place

CONFIG = {
    "reservedSystemCPUs": "0",
    "topologyManagerPolicy": "single-numa-node",
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
}
_NODE_CPUS = 4
# sixteen emulated CPUs share one real one: idle Go threads would spin on it
FEW_THREADS = {"GOMAXPROCS": "2"}
# a plugin started by the runtime has 5 s to register, which an emulated Python may need; a request has its usual 2 s
EMULATED = {"plugin_registration_timeout": "60s"}


def exclusive_containers_on_four_numa_nodes(node: Node) -> None:
    """A whole node, two halves and a part of the node with the reserved CPU, between shared containers."""
    node.run(burstable("web"))
    sizes = {"db": _NODE_CPUS, "cache": 2, "queue": 2, "search": 3}
    for name, cpus in sizes.items():
        node.run(guaranteed(name, cpus))
    node.run(best_effort("batch"))
    check_laws(node)
    node.equal("nri-pin state verify finds nothing", node.agent.verdict(), "")
    for name, cpus in sizes.items():
        check_exclusive(node, f"{name}/main", cpus)
    check_memory_follows_cpus(node, [f"{name}/main" for name in sizes])


_STORY = (
    the_runtime_has_its_default_limit,
    exclusive_containers_on_four_numa_nodes,
    the_agent_needs_no_capability,
    restarting_the_agent_changes_nothing,
    killing_the_agent_changes_nothing,
    a_container_born_while_the_agent_is_away_is_put_right,
    restarting_the_runtime_changes_nothing,
)
_SIZED = (
    a_container_is_pinned_from_its_first_instruction,
    a_shares_only_update_after_a_shrink_leaves_no_overlap,
    an_exclusive_container_grows_and_shrinks_in_place,
    the_runtime_starts_the_plugin_itself,
    the_daemonset_s_pod_serves_the_node,
)

_DRIFT = (
    a_foreign_write_is_put_right,
    a_narrowed_pod_is_widened_again,
    files_taken_away_come_back,
    cpus_go_offline_and_come_back,
    release_gives_everything_back,
    the_cpu_affinity_of_the_runtime_is_found,
)

if __name__ == "__main__":
    tell("runtime", version=version())
    with_systemd = "--systemd" in sys.argv
    if not with_systemd:
        make_kubepods()
    runtime = Containerd(systemd=with_systemd, nri=EMULATED, environment=FEW_THREADS)
    runtime.start()
    agent = Agent(runtime, dict(CONFIG))
    node = Node(runtime, agent)
    agent.start()
    play(node, _STORY, node)
    play(node, (a_new_policy_moves_nobody,), node, "best-effort", "0-1")
    play(node, (the_last_pods_give_everything_back,), node)
    play(node, _DRIFT, node, 2)
    if with_systemd:
        play(node, (systemd_sets_a_property,), node, 2)
    play(node, _SIZED, node, 2)
    play(node, (the_agent_had_nothing_to_complain_of,), node)
    agent.stop()
    runtime.stop()
