"""Whom a name means, and by which state it is explained."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.checkpoint.file import FILE_NAME, CheckpointFile
from nri_plugin.cli.explain.explain import DecisionExplained, NotOneError, PodListed, of_container, of_what_if
from nri_plugin.cli.state.source import NO_RUNTIME, SOCKET
from nri_plugin.explain.explanation import ContainerOutcome
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.recording.file import CURRENT, DIRECTORY
from nri_plugin.simulator.machine.machine import build_sysfs, load
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import Configure
from tests.builders import container, cpus, node, pod
from tests.explained import creation
from tests.unit.cli.explain_cases import forget, lived

ON = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
ASKED: dict[str, Any] = {
    "cpu": "",
    "memory": "",
    "small_pages": "",
    "large_pages": "",
    "devices": (),
    "pod_cpu": "",
    "pod_memory": "",
    "pod_small_pages": "",
    "pod_large_pages": "",
    "others": (),
    "qos": "Guaranteed",
    "namespace": "default",
    "policy": None,
    "scope": None,
    "memory_policy": None,
    "given": (),
    "machine": None,
    "config": None,
    "state_file": None,
    "root": None,
}


def asked(folder: Path, **words: Any) -> dict[str, Any]:
    return {**ASKED, "state_dir": str(folder), **words}


def told(word: str, folder: Path, **words: Any) -> DecisionExplained:
    answer = of_container(word, asked(folder, **words))
    assert isinstance(answer, DecisionExplained)
    return answer


@pytest.mark.parametrize("word", ["default/a/c", "a/c", "a-c-0", "a-c-"])
def test_a_container_is_known_by_its_path_the_end_of_it_and_its_id(word: str, tmp_path: Path) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4), creation("b", cpu=2)])
    assert told(word, tmp_path).explanation.subject.pod == "a"


def test_a_short_name_must_be_the_only_one(tmp_path: Path) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4), creation("b", cpu=2)])
    with pytest.raises(NotOneError, match="c may be default/a/c, default/b/c; give one of these names"):
        of_container("c", asked(tmp_path))


def test_a_pod_lists_its_containers_and_what_became_of_them(tmp_path: Path) -> None:
    of = pod("a")
    again = nri.CreateContainer(of, container(of, "big", cpu=99))
    lived(tmp_path, ON, [creation("a", cpu=4), again, creation("b", cpu=2)])
    answer = of_container("default/a", asked(tmp_path))
    assert isinstance(answer, PodListed)
    assert answer.text(80).splitlines() == [
        "default/a/c    exclusive CPUs 2-5",
        "default/a/big  refused: TopologyAffinityError",
        f"next: nri-pin explain default/a/big --state-dir {tmp_path}",
    ]
    assert [row["what"] for row in answer.as_dict()["containers"]] == [
        "exclusive CPUs 2-5",
        "refused: TopologyAffinityError",
    ]


def test_a_further_command_names_the_same_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)])
    answer = of_container("default/a", asked(tmp_path, config="./my config.yaml", root="/host"))
    assert answer.text(80).endswith(
        f"explain default/a/c --state-dir {tmp_path} --config './my config.yaml' --root /host"
    )
    with pytest.raises(NotOneError, match=f"; nri-pin state show --state-dir {tmp_path} lists them"):
        of_container("b", asked(tmp_path, config="./config.yaml"))
    monkeypatch.setattr("nri_plugin.cli.explain.explain.DEFAULT_DIR", str(tmp_path))
    assert of_container("default/a", asked(tmp_path)).text(80).endswith("next: nri-pin explain default/a/c")


def test_of_two_pods_of_one_name_the_later_is_meant_and_the_earlier_named(tmp_path: Path) -> None:
    def named(uid: str, cpu: int) -> nri.CreateContainer:
        of = pod(uid)
        of = type(of)(**{name: getattr(of, name) for name in of.__slots__} | {"name": "train"})
        return nri.CreateContainer(of, container(of, cpu=cpu))

    lived(tmp_path, ON, [named("first", 9), named("second", 4)])
    answer = told("train/c", tmp_path)
    assert answer.explanation.outcome is ContainerOutcome.EXCLUSIVE
    assert (
        answer.notes[-1]
        == f"an earlier pod of that name was refused: nri-pin explain first-c-0 --state-dir {tmp_path}"
    )
    assert told("first-c-0", tmp_path).explanation.outcome is ContainerOutcome.REFUSED


def test_it_is_explained_by_the_state_of_its_time_not_by_todays(tmp_path: Path) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4), creation("b", cpu=6), creation("d", cpu=2)])
    answer = told("a/c", tmp_path)
    assert all(one.holders == () for one in answer.explanation.numa_nodes)
    assert answer.explanation.cpus == "2-5"


def test_a_restart_does_not_hide_how_it_got_its_cpus(tmp_path: Path) -> None:
    of = pod("a")
    again = nri.CreateContainer(of, container(of, cpu=4, number=1))
    lived(tmp_path, ON, [creation("a", cpu=4), creation("b", cpu=2), again])
    answer = told("a/c", tmp_path)
    assert answer.explanation.steps == ("container-scope", "exclusive")
    assert told("a-c-1", tmp_path).explanation.cpus == "2-5"


def test_what_was_only_observed_is_said_to_be(tmp_path: Path) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)], observing=True)
    assert "only observed" in told("a/c", tmp_path).notes[1]


@pytest.fixture
def described(tmp_path: Path) -> dict[str, str]:
    """A configuration and a machine to explain by when the history is gone."""
    build_sysfs(load("demo"), str(tmp_path / "machine"))
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump({"reservedSystemCPUs": "0,32", "topologyManagerPolicy": "single-numa-node"})
    )
    return {"config": str(config), "root": str(tmp_path / "machine")}


def test_without_a_history_it_is_explained_by_todays_state_and_that_is_said(
    tmp_path: Path, described: dict[str, str]
) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4), creation("b", cpu=2), creation("web", qos="Burstable")])
    forget(tmp_path)
    placed = told("a/c", tmp_path, **described)
    assert placed.notes[0].startswith("its creation is no longer in the agent's history")
    assert placed.explanation.subject.exclusive_cpus == 4
    assert placed.explanation.outcome is ContainerOutcome.EXCLUSIVE
    assert "it holds CPUs 2-5" in placed.notes[1]
    shared = told("web/c", tmp_path, **described)
    assert shared.explanation.outcome is ContainerOutcome.SHARED
    assert "amounts are taken as none" in shared.notes[1]


def test_a_what_if_stands_beside_the_promises_of_the_checkpoint(
    tmp_path: Path, described: dict[str, str]
) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)])
    answer = of_what_if(asked(tmp_path, cpu="2", **described))
    assert answer.explanation.outcome is ContainerOutcome.EXCLUSIVE
    holders = [one.container for node in answer.explanation.numa_nodes for one in node.holders]
    assert holders == ["default/a/c"]


def test_what_ended_otherwise_at_the_time_is_said_to_have(tmp_path: Path) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)])
    recording = tmp_path / DIRECTORY / CURRENT
    recording.write_bytes(recording.read_bytes().replace(b'"cpus":"2-5"', b'"cpus":"6-9"'))
    assert "decided again it ends differently" in told("a/c", tmp_path).notes[1]
    assert "at the time: CPUs 6-9" in told("a/c", tmp_path).notes[1]


def test_a_container_that_was_resized_since_is_said_to_be(tmp_path: Path) -> None:
    state = lived(tmp_path, ON, [creation("a", cpu=4)])
    key = next(iter(state.allocations))
    grown = replace(state.allocations[key], cpus=cpus("2-7"))
    CheckpointFile(str(tmp_path), ON).save(state.with_allocation(key, grown))
    assert told("a/c", tmp_path).notes[1:] == ("resized since: it holds CPUs 2-7 today",)


def test_a_damaged_checkpoint_leaves_the_history_to_ask(tmp_path: Path) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)])
    (tmp_path / FILE_NAME).write_text("no checkpoint\n")
    answer = told("a/c", tmp_path)
    assert answer.explanation.cpus == "2-5"
    assert answer.notes[-1].startswith(f"{tmp_path}/{FILE_NAME}: cannot be used: ")
    assert answer.notes[-1].count("cannot be used") == 1


@pytest.mark.parametrize("runtime", [None, Configure("", "containerd", "v2.1.9")])
def test_an_agent_that_no_runtime_asks_is_pointed_out(tmp_path: Path, runtime: Configure | None) -> None:
    state = lived(tmp_path, ON, [creation("a", cpu=4)])
    socket = StatusSocket(tmp_path / SOCKET, lambda: (ON, state), StatusFeed(), lambda: runtime)
    try:
        decided = told("a/c", tmp_path).notes
        what_if = of_what_if(asked(tmp_path, cpu="2")).notes
    finally:
        socket.close()
    assert [NO_RUNTIME in notes for notes in (decided, what_if)] == [runtime is None] * 2


def test_a_damaged_history_leaves_the_checkpoint_to_ask(tmp_path: Path, described: dict[str, str]) -> None:
    lived(tmp_path, ON, [creation("a", cpu=4)])
    (tmp_path / DIRECTORY / CURRENT).write_text("no recording\n")
    answer = told("a/c", tmp_path, **described)
    assert answer.explanation.outcome is ContainerOutcome.EXCLUSIVE
    assert answer.notes[-1].startswith("the history cannot be read: ")


def test_without_either_nothing_can_be_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        of_container("a/c", asked(tmp_path))


def test_the_claim_of_a_container_is_told_without_a_history_too(
    tmp_path: Path, described: dict[str, str]
) -> None:
    of = pod("a")
    lived(tmp_path, ON, [nri.CreateContainer(of, replace(container(of), env=("DRA_CPUSET_u1=4-5",)))])
    forget(tmp_path)
    assert "resource claim dra.k8s.io/cpu=claim-u1" in " ".join(told("a/c", tmp_path, **described).notes)
