"""Agent and runtime come and go; containers do not notice. Every scenario finds containers running and leaves them."""

from pathlib import Path

from .laws import check_laws
from .node import Node
from .observe import CGROUPS, Observed, capabilities
from .pods import burstable
from .promises import promises
from .waiting import wait_for
from .write_watch import WriteWatch


def the_runtime_has_its_default_limit(node: Node) -> None:
    """Whatever else is shown here is shown with two seconds for a request."""
    node.equal("a plugin has two seconds for a request", node.runtime.request_limit(), "2s")


def restarting_the_agent_changes_nothing(node: Node) -> None:
    """A stop and a start: not one write to a cpuset file, and the same checkpoint."""
    _unchanged_by(node, node.agent.stop)


def killing_the_agent_changes_nothing(node: Node) -> None:
    """The same for kill -9."""
    _unchanged_by(node, node.agent.kill)


def a_container_born_while_the_agent_is_away_is_put_right(node: Node) -> None:
    """The runtime creates it without asking anybody; the next start of the agent finds it."""
    others = [node.observe(identity).allowed_cpus for identity in node.running().values()]
    exclusive = [cpus for cpus in others if sum(bool(cpus & other) for other in others) == 1]
    node.agent.kill()
    orphan = node.run(burstable("orphan"))
    if not (CGROUPS / "cpuset").is_dir():  # on cgroup v2 the slice above it bounds it
        seen = node.observe(orphan.id).allowed_cpus
        node.expect(
            "it stays off exclusive CPUs even before", not any(seen & cpus for cpus in exclusive), seen
        )
    node.agent.start()
    check_laws(node)
    node.remove(orphan)


def restarting_the_runtime_changes_nothing(node: Node) -> None:
    """containerd goes and comes back; the agent reconnects by itself."""
    before = _observe_all(node)
    joined = node.agent.times_joined()
    node.runtime.stop()
    node.runtime.start()
    node.agent.wait_until_joined(joined)
    node.equal("every container runs where it ran", _observe_all(node), before)
    check_laws(node)


def the_agent_needs_no_capability(node: Node) -> None:
    """It runs as uid 0 with every capability dropped, and can never get one back."""
    held = capabilities(node.agent.pid)
    node.equal(
        "it holds no capability",
        {name: held[name] for name in held if name.startswith("Cap")},
        dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0),
    )
    node.equal("no_new_privs is set", held["NoNewPrivs"], 1)


def the_last_pods_give_everything_back(node: Node) -> None:
    """All pods go, those too that are older than the runtime, for which some events never come."""
    node.remove_all()
    # A runtime that restarted does not tell the end of pods from before; the agent then goes by their cgroups.
    wait_for(lambda: not node.agent.state()["exclusive"], 120, "no CPU is exclusive")
    shown = node.agent.state()
    node.equal("the checkpoint holds no container", shown["containers"], [])
    node.equal("no CPU stays exclusive", shown["exclusive"], "")
    node.equal("nothing waits for a container to come back", shown["waiting"], [])


def the_agent_had_nothing_to_complain_of(node: Node) -> None:
    """No warning and no error in its log but those that the scenarios meant."""
    node.equal("its log holds no other complaint", node.agent.complaints(), [])


def _unchanged_by(node: Node, end: object) -> None:
    before, promised = _observe_all(node), promises(node.agent.state())
    watch = WriteWatch(*_tops())
    node.expect("the watch sees the containers' cgroups", len(watch) > len(before), len(watch))
    assert callable(end)
    end()
    seconds = node.agent.start()
    check_laws(node)
    node.equal("no cpuset file was written", watch.writes(), [])
    watch.close()
    node.equal("every container runs where it ran", _observe_all(node), before)
    node.equal("the checkpoint says the same", promises(node.agent.state()), promised)
    node.figure("seconds from start to plugin", round(seconds, 2))


def _observe_all(node: Node) -> dict[str, Observed]:
    return {name: node.observe(identity) for name, identity in node.running().items()}


def _tops() -> list[Path]:
    """The pods' cgroups and nobody else's."""
    return list((CGROUPS / "cpuset" if (CGROUPS / "cpuset").is_dir() else CGROUPS).glob("kubepods*"))
