"""`nri-pin explain`, as its users call it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_plugin.cli.explain.explain import command
from nri_plugin.model.errors import ConfigError, NriPinError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.simulator.machine.source import read_machine
from nri_plugin.wire.nri.events import CreateContainer
from tests.builders import container, node, pod
from tests.explained import creation
from tests.unit.cli.explain_cases import lived

ON = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)


def ask(*words: str, width: str = "80") -> Result:
    return CliRunner().invoke(command, [*words], env={"COLUMNS": width}, catch_exceptions=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lived(tmp_path, ON, [creation("a", cpu=4), creation("big", cpu=9), creation("web", qos="Burstable")])
    return tmp_path


def test_a_placed_container_is_explained_on_one_screen(folder: Path) -> None:
    answer = ask("default/a/c", "--state-dir", str(folder))
    assert answer.exit_code == 0
    lines = answer.output.splitlines()
    assert lines[0] == "default/a/c: exclusive CPUs 2-5"
    assert "decided 2026-01-02 03:04:00Z" in lines[1]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_a_refused_container_is_explained_and_that_is_no_failure(folder: Path) -> None:
    answer = ask("big/c", "--state-dir", str(folder))
    assert answer.exit_code == 0
    assert answer.output.startswith("default/big/c: refused, TopologyAffinityError")
    assert "would fit  8 CPUs, on NUMA node 1 (no larger number does)" in answer.output


def test_who_else_decides_is_said(tmp_path: Path) -> None:
    of = replace(pod("a", "BestEffort"), runtime_handler="kata-qemu")
    what = replace(container(of), env=("DRA_CPUSET_u1=4-5",))
    lived(tmp_path, ON, [CreateContainer(of, what)])
    text = " ".join(ask("a/c", "--state-dir", str(tmp_path)).output.split())
    assert "CPUs 4-5 come from the resource claim dra.k8s.io/cpu=claim-u1" in text
    assert "runtime handler kata-qemu runs it in a virtual machine: not supported" in text


def test_json_holds_everything(folder: Path) -> None:
    told = json.loads(ask("big/c", "--state-dir", str(folder), "-o", "json").output)
    assert told["outcome"] == "refused"
    assert told["sentence"].startswith("TopologyAffinityError: ")
    assert told["notes"][0].startswith("decided 2026-01-02")


def test_a_what_if_that_would_be_refused_tells_scripts() -> None:
    words = ("--machine", "kep3545-4-numa", "--policy", "single-numa-node")
    assert ask(*words, "--cpu", "2").exit_code == 0
    refused = ask(*words, "--cpu", "999")
    assert refused.exit_code == 1
    assert refused.output.startswith("what if: refused, TopologyAffinityError")


POD_SCOPE = (
    *("--machine", "demo", "--scope", "pod", "--policy", "restricted", "--memory-policy", "Static"),
    *("--option", "featureGates.PodLevelResourceManagers=true"),
)
IN_A_POD = ("--pod-memory", "8Gi", "--cpu", "4", "--memory", "4Gi", "--with", "nothing")


def test_a_pod_with_resources_of_its_own_can_be_asked_about() -> None:
    answer = ask(*POD_SCOPE, "--pod-cpu", "6", *IN_A_POD, width="120")
    assert answer.exit_code == 0
    text = " ".join(answer.output.split())
    assert text.startswith("what if: exclusive CPUs 1-2,33-34, memory bound to NUMA node 0")
    assert "the pod is Guaranteed and asks for 6 CPUs, 8Gi of memory as a whole (spec.resources)" in text
    assert "its containers have: container (CPUs 1-2,33-34), other-1 (pod shared pool 3,35)" in text
    full = ask(*POD_SCOPE, "--pod-cpu", "4", *IN_A_POD, "-o", "json")
    assert full.exit_code == 1
    told = json.loads(full.output)
    assert (told["subject"]["pod_cpu_milli"], told["subject"]["pod_memory"]) == (4000, [["memory", 8 << 30]])
    assert "EmptyPodSharedPoolError" in full.output


def test_a_pod_of_several_containers_is_asked_about_as_a_whole() -> None:
    words = ("--machine", "demo", "--policy", "single-numa-node", "--cpu", "4", "--with", "cpu=64")
    answer = ask(*words)
    assert answer.exit_code == 1
    assert "of container other-1, which does not fit beside those before it" in answer.output


def test_what_a_pod_as_a_whole_needs_is_noted() -> None:
    answer = ask("--machine", "demo", "--pod-cpu", "6", "--pod-memory", "1Gi", width="120")
    assert "try --option featureGates.PodLevelResourceManagers=true" in " ".join(answer.output.split())


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("a", "--cpu", "2"),
        ("a", "--with", "nothing"),
        ("a", "--pod-cpu", "2"),
        ("--machine", "laptop"),
        ("--policy", "restricted"),
    ],
)
def test_either_a_container_or_a_what_if_is_asked(words: tuple[str, ...]) -> None:
    answer = ask(*words)
    assert answer.exit_code == 2
    assert "Usage" in answer.output


def test_a_misspelt_option_is_suggested() -> None:
    answer = ask("--cpu", "2", "--machine", "laptop", "--option", "full-pcpu=true")
    assert (
        str(answer.exception)
        == "--option: full-pcpu is no option of placement; did you mean full-pcpus-only?"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--cpu", "many", "--machine", "laptop"),
        ("--cpu", "2", "--machine", "laptop", "--option", "no-such=1"),
        ("--cpu", "2", "--machine", "laptop", "--option", "smtOddCounts=maybe"),
        ("--cpu", "2", "--machine", "laptop", "--option", "full-pcpus-only"),
        ("--cpu", "2", "--machine", "laptop", "--option", "reservedSystemCPUs=999"),
        ("--cpu", "2", "--machine", "laptop", "--device", "example.com/gpu=2"),
        ("--cpu", "2", "--machine", "no-such-machine"),
        ("--cpu", "2", "--state-dir", "/no/such/place", "--config", "/no/such/file"),
    ],
)
def test_a_wrong_question_is_refused_with_what_to_do(words: tuple[str, ...]) -> None:
    answer = ask(*words)
    assert isinstance(answer.exception, ConfigError)
    assert len(str(answer.exception)) > 20


def test_without_a_state_directory_it_says_what_to_name(tmp_path: Path) -> None:
    answer = ask("a", "--state-dir", str(tmp_path / "none"))
    assert isinstance(answer.exception, NriPinError)
    assert "--state-dir" in str(answer.exception)


def test_a_name_that_means_nobody_is_answered_with_names_there_are(folder: Path) -> None:
    answer = ask("nobody", "--state-dir", str(folder))
    assert answer.exit_code == 2
    assert "such as default/a/c" in answer.output


@pytest.mark.parametrize("option", ["--state", "--state-dir"])
def test_beside_a_machine_a_directory_names_the_checkpoint_in_it(tmp_path: Path, option: str) -> None:
    on = node(read_machine("kep3545-4-numa").topology)
    lived(tmp_path, on, [creation("a", cpu=4)])
    answer = ask("--machine", "kep3545-4-numa", option, str(tmp_path), "--cpu", "2")
    assert answer.exit_code == 0
    told = " ".join(answer.output.split())
    assert f"with the allocations of {tmp_path}/state.json" in told


def test_beside_a_machine_the_agents_own_checkpoint_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nri_plugin.cli.explain.source.read_checkpoint", None)
    assert "nothing allocated" in ask("--machine", "kep3545-4-numa", "--cpu", "2").output
