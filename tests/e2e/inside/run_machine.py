"""Runs (a) and (e): the agent on the machine itself, whatever it has, at least two CPUs.

One CPU is reserved, one becomes exclusive: that is all a machine with two CPUs can give. With the word `crio` the runtime
is CRI-O.
"""

import sys
from pathlib import Path

from . import containerd, crio
from .agent import Agent
from .kubepods import make_kubepods
from .laws import check_exclusive, check_laws
from .node import Node
from .observe import CGROUPS
from .pods import best_effort, burstable, guaranteed
from .report import play, tell
from .scenarios_beside import (
    a_second_plugin_that_sets_cpusets_fails_the_creation_and_nothing_stays_allocated,
    a_stuck_agent_is_dropped_and_its_return_puts_everything_right,
    has_validator,
    without_the_agent_the_validator_lets_no_container_start_but_tolerant_ones,
)
from .scenarios_crowd import many_pods_come_and_go_at_once
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
from .scenarios_memory import (
    a_damaged_checkpoint_moves_nobody,
    a_lost_checkpoint_moves_nobody,
    the_shared_pool_is_never_emptied,
)
from .scenarios_pool import (
    a_container_is_pinned_from_its_first_instruction,
    a_crashed_container_finds_its_cpus_again,
    a_pod_that_ends_gives_its_cpus_back,
    a_shares_only_update_after_a_shrink_leaves_no_overlap,
    created_before_the_pool_shrank_and_started_after,
    created_before_the_pool_shrank_updated_and_started,
)
from .scenarios_prelaunched import (
    a_killed_plugin_comes_back,
    a_late_plugin_comes_back,
    a_plugin_takes_over_from_an_ordinary_agent_that_is_stuck,
    a_restarted_runtime_starts_a_new_plugin_and_the_old_one_yields,
    a_stuck_plugin_comes_back_although_nobody_asks_it,
    the_runtime_starts_the_plugin_itself,
)

_CPUS = 1


def one_exclusive_and_several_shared_containers_equal_the_checkpoint(node: Node) -> None:
    """Shared ones before and after the exclusive one; they stay for the next scenarios."""
    node.run(burstable("web"))
    node.run(best_effort("batch"))
    check_laws(node)
    node.run(guaranteed("db", _CPUS))
    check_laws(node)
    node.run(burstable("late"))
    check_exclusive(node, "db/main", _CPUS)
    check_laws(node)
    node.equal("nri-pin state verify finds nothing", node.agent.verdict(), "")


def a_pod_that_cannot_fit_is_refused_with_the_numbers(node: Node) -> None:
    """The CRI error is what the kubelet shows in the pod's events."""
    said = node.refusal_of(guaranteed("too-big", 4096))
    node.expect("the creation was refused", bool(said))
    node.expect("the reason names what was asked", "4096" in said, said)
    check_laws(node)


_STORY = (
    the_runtime_has_its_default_limit,
    one_exclusive_and_several_shared_containers_equal_the_checkpoint,
    the_agent_needs_no_capability,
    a_pod_that_cannot_fit_is_refused_with_the_numbers,
    restarting_the_agent_changes_nothing,
    killing_the_agent_changes_nothing,
    a_container_born_while_the_agent_is_away_is_put_right,
    restarting_the_runtime_changes_nothing,
    a_lost_checkpoint_moves_nobody,
    a_damaged_checkpoint_moves_nobody,
    the_shared_pool_is_never_emptied,
    the_last_pods_give_everything_back,
)
_SIZED = (
    a_pod_that_ends_gives_its_cpus_back,
    a_container_is_pinned_from_its_first_instruction,
    created_before_the_pool_shrank_and_started_after,
    created_before_the_pool_shrank_updated_and_started,
    a_crashed_container_finds_its_cpus_again,
    a_shares_only_update_after_a_shrink_leaves_no_overlap,
    many_pods_come_and_go_at_once,
    a_second_plugin_that_sets_cpusets_fails_the_creation_and_nothing_stays_allocated,
    the_runtime_starts_the_plugin_itself,
    a_killed_plugin_comes_back,
    a_late_plugin_comes_back,
    a_stuck_plugin_comes_back_although_nobody_asks_it,
    a_restarted_runtime_starts_a_new_plugin_and_the_old_one_yields,
    a_plugin_takes_over_from_an_ordinary_agent_that_is_stuck,
    the_daemonset_s_pod_serves_the_node,
)

_VALIDATED = (
    without_the_agent_the_validator_lets_no_container_start_but_tolerant_ones,
    a_stuck_agent_is_dropped_and_its_return_puts_everything_right,
)

if __name__ == "__main__":
    of = crio if sys.argv[1:] == ["crio"] else containerd
    tell("runtime", version=of.version())
    if not (CGROUPS / "cpuset").is_dir():
        make_kubepods()
    runtime = crio.Crio() if of is crio else containerd.Containerd()
    if of is crio:
        crio.import_images(Path("/opt/e2e/images"))
    runtime.start()
    agent = Agent(runtime, {"reservedSystemCPUs": "0"})
    node = Node(runtime, agent)
    agent.start()
    play(node, _STORY, node)
    play(node, _SIZED, node, _CPUS)
    if of is containerd and has_validator(of.version()):
        play(node, _VALIDATED, node, _CPUS)
    play(node, (the_agent_had_nothing_to_complain_of,), node)
    agent.stop()
    runtime.stop()
