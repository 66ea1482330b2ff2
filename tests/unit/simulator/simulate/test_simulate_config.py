"""Which configuration a simulation decides by."""

from pathlib import Path

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy
from nri_plugin.simulator.simulate.config import choose, parse_set, parse_sets
from tests.builders import machine

TWO = machine(nodes=2, cores=2, threads=2)


def test_without_any_the_defaults_decide_and_the_first_core_is_kept() -> None:
    found = choose(TWO)
    assert str(found.node.reserved) == str(TWO.first_core) == "0-1"
    assert found.node.options.topology_manager_policy is TopologyManagerPolicy.NONE
    assert found.shown.name == "defaults"
    assert "the first core, by default" in found.shown.why_reserved


def test_a_word_of_the_command_line_wins_and_is_shown() -> None:
    found = choose(TWO, sets={"reservedSystemCPUs": "2", "topologyManagerPolicy": "restricted"})
    assert str(found.node.reserved) == "2"
    assert found.shown.name == "defaults, reservedSystemCPUs=2, topologyManagerPolicy=restricted"
    assert found.shown.why_reserved == "as --set says"
    assert found.shown.said["topologyManagerPolicy"] == "restricted"


def test_a_value_is_written_as_in_the_file() -> None:
    found = choose(
        TWO, sets={"cpuManagerPolicyOptions": "{full-pcpus-only: 'true'}", "neverRefuse": "[a, b]"}
    )
    assert found.node.options.full_pcpus_only
    assert found.node.options.never_refuse == {"a", "b"}


def test_a_feature_gate_is_named_as_in_what_ifs() -> None:
    found = choose(TWO, sets=parse_sets(["featureGates.PodLevelResourceManagers=true"]))
    assert found.node.options.pod_level_managers
    assert parse_sets(["numa.x=1"]) == {"numa.x": "1"}
    with pytest.raises(ConfigError, match="expected true or false, found maybe"):
        choose(TWO, sets=parse_sets(["featureGates.PodLevelResourceManagers=maybe"]))


def test_static_memory_comes_with_the_least_that_goes_with_it() -> None:
    found = choose(TWO, sets={"memoryManagerPolicy": "Static"})
    assert found.node.options.memory_manager_policy is MemoryManagerPolicy.STATIC
    (kept,) = found.node.options.reserved_memory
    assert (kept.node, kept.size_bytes) == (0, 100 << 20)


def test_policy_none_keeps_the_first_core_out_of_what_pods_may_request() -> None:
    found = choose(TWO, sets={"cpuManagerPolicy": "none"})
    assert found.node.options.cpu_manager_policy is CPUManagerPolicy.NONE
    assert found.config.reserved_cpu_count == 2
    assert found.shown.reserved == "0-1"


def test_what_a_scenario_says_needs_no_reserved_cpus_and_keeps_its_place() -> None:
    found = choose(TWO, said="topologyManagerPolicy: restricted", said_in="s.yaml")
    assert str(found.node.reserved) == "0-1"
    with pytest.raises(ConfigError, match=r"s\.yaml:3:1: numa: unknown key"):
        choose(TWO, said="\n\nnuma: 1", said_in="s.yaml")


def test_a_file_is_taken_as_the_agent_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text('reservedSystemCPUs: "3"\nlogLevel: debug\n')
    found = choose(TWO, str(file), said="topologyManagerPolicy: restricted")
    assert str(found.node.reserved) == "3"
    assert found.shown.said == {"reservedSystemCPUs": "3"}
    file.write_text("topologyManagerPolicy: restricted\n")
    with pytest.raises(ConfigError, match="static needs CPUs kept for the system"):
        choose(TWO, str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 0"):
        choose(TWO, str(file))


def test_a_share_of_memory_is_one_of_the_simulated_machine() -> None:
    size = sum(node.memory_bytes or 0 for node in TWO.nodes)
    found = choose(TWO, said="evictionHard: {memory.available: 5%, nodefs.available: 10%}")
    assert size == 32 << 30
    assert found.node.options.kept_memory_bytes == 1717986944  # as the kubelet's 32-bit float has it


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        ({"topologyManagerPolicy": "best"}, "--set topologyManagerPolicy: expected none"),
        ({"reservedSystemCPUs": "90"}, "CPUs 90 do not exist on this machine"),
        ({"neverRefuse": "["}, "--set neverRefuse"),
        ({"foo": "1"}, "--set foo: unknown key; deploy/guide/configure.md lists the keys there are"),
        ({"topologyPolicy": "x"}, "unknown key; did you mean topologyManager"),
        (
            {"memoryManagerPolicy": "static"},
            "--set memoryManagerPolicy: expected None or Static, found static",
        ),
    ],
)
def test_a_wrong_word_is_told_with_its_option(sets: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(TWO, sets=sets)
    assert told in str(caught.value)


@pytest.mark.parametrize("word", ["x", "=1", " =1"])
def test_a_pair_has_both_parts(word: str) -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        parse_set(word)
    assert parse_set("a = b=c") == ("a", "b=c")
