"""Where an explanation comes from: a machine, an agent, a configuration, a checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.cli.explain import source
from nri_plugin.cli.explain.source import checkpoint_path, created_by_today, ground, known_containers
from nri_plugin.cli.state.source import NO_RUNTIME, SOCKET
from nri_plugin.core.engine import creation_context, decide
from nri_plugin.core.hint_providers import Question
from nri_plugin.model.errors import CheckpointError, ConfigError
from nri_plugin.model.options import MemoryManagerPolicy, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.state import State
from nri_plugin.policy.hints import Hint, HintSet, Provider
from nri_plugin.simulator.machine.machine import build_sysfs, load
from nri_plugin.simulator.machine.source import read_machine
from tests.builders import GIB, node
from tests.explained import after, creation
from tests.unit.cli.explain_cases import lived

ON = node(
    topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
    memory_manager_policy=MemoryManagerPolicy.STATIC,
)


def test_a_machine_alone_has_nothing_promised_and_default_options(tmp_path: Path) -> None:
    found = ground(str(tmp_path), None, "kep693-8-gpus", None)
    assert found.state == State()
    assert found.description
    assert str(found.node.reserved) == "0,16"  # as nri-pin simulate has it
    assert found.notes == (
        "on the machine kep693-8-gpus, with default options and the first core (0,16) reserved, nothing allocated",
    )


def test_a_machine_may_have_the_promises_of_a_checkpoint(tmp_path: Path) -> None:
    like = node(read_machine("kep3545-4-numa").topology, reserved="0")
    state = lived(tmp_path, like, [creation("a", cpu=4)])
    found = ground("/nowhere", None, "kep3545-4-numa", checkpoint_path(str(tmp_path)))
    assert (found.state, str(found.node.reserved)) == (state, "0")


def test_a_checkpoint_of_another_machine_is_refused(tmp_path: Path) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)])
    with pytest.raises(ConfigError, match="is about another machine than kep3545-4-numa"):
        ground("/nowhere", None, "kep3545-4-numa", checkpoint_path(str(tmp_path)))


def test_a_checkpoint_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        ground("/nowhere", None, "kep3545-4-numa", str(tmp_path / "none"))


def test_the_agent_itself_is_asked_first(tmp_path: Path) -> None:
    state = after(ON, creation("a", cpu=4))
    agent = StatusSocket(tmp_path / SOCKET, lambda: (ON, state), StatusFeed())
    try:
        found = ground(str(tmp_path), None, None, None)
    finally:
        agent.close()
    assert found.state == state
    assert (found.node.options, found.node.reserved) == (ON.options, ON.reserved)
    assert found.notes == (NO_RUNTIME,)


def test_a_dead_agents_socket_is_no_agent(tmp_path: Path) -> None:
    (tmp_path / SOCKET).touch()
    with pytest.raises(
        ConfigError, match=r"no agent answers in .*; (run as root, or )?name the agent's --state-dir"
    ):
        ground(str(tmp_path), None, None, None)


def test_without_a_configuration_machine_and_options_are_those_of_the_history(tmp_path: Path) -> None:
    state = lived(tmp_path, ON, [creation("a", cpu=4)])
    found = ground(str(tmp_path), None, None, None)
    assert (found.state, found.node.options, found.node.reserved) == (state, ON.options, ON.reserved)
    assert found.node.topology == ON.topology
    (note,) = found.notes
    assert note == (
        f"no agent answers: by the machine and the configuration of {tmp_path}/history and the checkpoint {tmp_path}/state.json"
    )
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        ground(str(tmp_path), None, None, str(tmp_path / "none"))


def test_a_state_directory_that_was_named_goes_by_its_own_history_before_the_nodes_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)])
    config = tmp_path / "config.yaml"
    config.write_text("cpuManagerPolicy: sttic\n")
    monkeypatch.setattr("nri_plugin.cli.explain.source.DEFAULT_PATH", str(config))
    assert ground(str(tmp_path), None, None, None).node.reserved == ON.reserved
    with pytest.raises(ConfigError, match="sttic"):
        ground(str(tmp_path), str(config), None, None)
    monkeypatch.setattr("nri_plugin.cli.explain.source.DEFAULT_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="sttic"):
        ground(str(tmp_path), None, None, None)


def test_a_history_that_cannot_be_read_is_no_ground(tmp_path: Path) -> None:
    lived(tmp_path, ON, [])
    (tmp_path / "history/recording.jsonl").write_text("nothing\n")
    with pytest.raises(ConfigError, match=r"no agent answers"):
        ground(str(tmp_path), None, None, None)


def test_a_configuration_stands_for_an_agent_that_is_away(tmp_path: Path) -> None:
    build_sysfs(load("demo"), str(tmp_path / "machine"))
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"reservedSystemCPUs": "0,32"}))
    found = ground(str(tmp_path), str(config), None, None, str(tmp_path / "machine"))
    assert str(found.node.reserved) == "0,32"
    assert found.notes == (f"by {config} and nothing allocated",)


def test_every_container_of_history_and_checkpoint_is_known_once(tmp_path: Path) -> None:
    state = lived(tmp_path, ON, [creation("a", cpu=4), creation("a", cpu=4), creation("big", cpu=99)])
    found = {one.path: one for one in known_containers(str(tmp_path), state)[0]}
    assert sorted(found) == ["default/a/c", "default/big/c"]
    assert found["default/a/c"].record
    assert found["default/big/c"].record is None


def elsewhere(question: Question) -> Provider:
    """A hint provider of another package: nothing but NUMA node 1 will do."""
    return (HintSet("x", (Hint(0b10, preferred=True),)),)


def test_installed_hint_providers_are_asked_again_and_about_what_ifs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "load_hint_providers", lambda: (elsewhere,))
    known = replace(ON, hint_providers=(elsewhere,))
    state = lived(tmp_path, known, [creation("a", cpu=4)])
    (found,), problems = known_containers(str(tmp_path), state)
    assert found.created
    assert found.created.node.hint_providers == (elsewhere,)
    assert problems == ()
    assert ground(str(tmp_path), None, "kep3545-4-numa", None).node.hint_providers == (elsewhere,)


def test_hint_providers_that_are_not_installed_here_are_told(tmp_path: Path) -> None:
    state = lived(tmp_path, replace(ON, hint_providers=(elsewhere,)), [creation("a", cpu=4)])
    _, (problem,) = known_containers(str(tmp_path), state)
    assert "hint providers elsewhere were asked" in problem


def test_a_promise_asks_for_itself_again() -> None:
    on = node(
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        topology_manager_scope=TopologyManagerScope.POD,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
    )
    state = after(on, creation("b", cpu=2), creation("a", cpu=4, memory=GIB, total=4))
    record = next(one for one in state.containers.values() if one.pod_uid == "a")
    before, event = created_by_today(state, record)
    assert record.key not in before.allocations
    assert before.pods["a"].affinity is None
    _, pod, request = creation_context(on, before, event)
    assert (request.cpu_milli, request.memory_bytes, pod.cpu_milli) == (4000, GIB, 4000)
    assert decide(on, before, event).state.allocations[record.key] == state.allocations[record.key]
