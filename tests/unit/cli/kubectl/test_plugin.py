"""`kubectl nri-pin` against a stand-in for kubectl: what it asks, what it shows, and what it says when it cannot."""

import json
import os
import pty
import shlex
import sys
import termios
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from nri_plugin import __main__ as entry
from nri_plugin.agent.observing.status_client import (
    DriftRow,
    IncompletePodRow,
    RefusedContainerRow,
    RuntimeRow,
)
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.kubectl import plugin
from nri_plugin.cli.output import render
from nri_plugin.cli.state.rows import rows_of
from nri_plugin.cli.state.source import Seen
from nri_plugin.cli.top.model import Sample, TopRow
from nri_plugin.cli.top.top import present
from nri_plugin.exporter.publication import published
from nri_plugin.kube.noderesourcetopology import to_object
from nri_plugin.model.options import Node
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests import guides
from tests.builders import node as a_node
from tests.fake_kubectl import Cluster, Object, agent_object, pod_object

NODE = a_node()
TOP = "top --once -o json"
SHAPE = "cpu=4,memory=1Gi"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Nodes a and b, each with an agent; pod shop/db-0 is on a."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("COLUMNS", raising=False)
    made = Cluster(folder)
    made.nodes = ["a", "b"]
    made.pods = [agent_object("a"), agent_object("b"), pod_object("db-0", "a")]
    made.topologies = [topology("a", held("db", "2-3")), topology("b", State())]
    made.prepared = {
        "nri-pin-a": {TOP: (0, told(held("db", "2-3")), "")},
        "nri-pin-b": {TOP: (0, told(State()), "")},
    }
    made.save()
    return made


def held(name: str, cpus: str) -> State:
    """One Guaranteed pod with these CPUs."""
    return State(
        {name: PodRecord(name, "s", f"{name}-0", "shop", QOSClass.GUARANTEED, f"/p/{name}")},
        {"id": ContainerRecord("id", name, "c", Phase.RUNNING, CgroupRef(f"/p/{name}", f"/p/{name}/id"))},
        {f"{name}/c": Allocation(CPUSet.parse(cpus), cpu_milli=2000)},
    )


def told(state: State, node: Node = NODE, *, answers: bool = True, **more: Any) -> str:
    """What `nri-pin top --once -o json` prints."""
    facts = {"runtime": RuntimeRow("containerd", "2.1.9"), "agent": "0.1.0"} if answers else {}
    sample = Sample(Seen(state, node, has_parts=True, machine=""), answers, "agent", **(facts | more))
    lines = [TopRow(row, None, None, is_fresh=False) for row in rows_of(sample.seen)]
    return render(present(sample, lines, 0.0), "json")


def topology(name: str, state: State) -> Object:
    return to_object(published(name, NODE, state))


def run(*words: str) -> int:
    return entry.main(words, entry.start_kubectl)


def rows(text: str) -> list[list[str]]:
    """The cells of a table."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


# nodes


def test_nodes_shows_policy_version_health_and_room_of_each(cluster: Cluster, capsys) -> None:
    assert run("nodes", "-o", "wide") == 0
    head, a, b = rows(capsys.readouterr().out)
    shown = dict(zip(head, a, strict=True))
    assert shown["NODE"] == "a"
    assert shown["HEALTH"] == "OK"
    assert shown["VERSION"] == "0.1.0"
    assert shown["POLICY"] == "static,none"
    assert shown["AVAILABLE"] == "12/14"
    assert shown["LARGEST"] == "8"
    assert shown["FRAGMENTED"] == "33%"
    assert (shown["DRIFTS"], shown["INCOMPLETE"], shown["REFUSED"], shown["UNPLACED"]) == ("0", "0", "0", "0")
    assert shown["RUNTIME"] == "containerd 2.1.9"
    assert shown["BY NUMA NODE"] == "0:4 1:8"
    assert shown["OBJECT"] == "as the agent"
    assert shown["AGENT"] == "nri-pin/nri-pin-a"
    assert dict(zip(head, b, strict=True))["AVAILABLE"] == "14/14"


def test_the_container_of_the_agent_is_asked_not_that_of_the_exporter(cluster: Cluster) -> None:
    run("nodes", "--context", "prod", "--kubeconfig=/k")
    asked = [words for words in cluster.asked() if words[0] == "exec"]
    assert len(asked) == 2
    for words in asked:
        assert words[1:3] == ["--context=prod", "--kubeconfig=/k"]
        assert words[words.index("--container") + 1] == "agent"


def test_options_of_kubectl_may_stand_before_the_command(cluster: Cluster) -> None:
    run("--context", "prod", "--agent-namespace", "nri-pin", "nodes", "a")
    first, *_ = cluster.asked()
    assert first[:5] == ["get", "--context=prod", "pods", "--namespace", "nri-pin"]


def test_a_node_can_be_named(cluster: Cluster, capsys) -> None:
    assert run("nodes", "node/b", "-o", "name") == 0
    assert capsys.readouterr().out == "node/b\n"
    assert next(words for words in cluster.asked() if words[0] == "exec")[3] == "nri-pin-b"
    assert run("nodes", "c") == 1
    assert capsys.readouterr().err == (
        "kubectl nri-pin: no agent and no NodeResourceTopology on c; there are a, b\n"
    )


def test_programs_get_json_or_yaml(cluster: Cluster, capsys) -> None:
    run("nodes", "-o", "json")
    as_json = json.loads(capsys.readouterr().out)
    run("nodes", "--output=yaml")
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    first = as_json["items"][0]
    assert (first["node"], first["health"], first["available"]) == ("a", "OK", 12)
    assert first["policies"]["topologyManagerPolicy"] == "none"


def test_drifts_and_incomplete_pods_are_counted(cluster: Cluster, capsys) -> None:
    drift = DriftRow(7, "/c", "id", "shop/db-0/c", "0-3", "0-3", "2-3", "all-cpus", "watch", 1, False)
    refused = (RefusedContainerRow("d", "TopologyAffinityError", ""),)
    part = IncompletePodRow("db", "shop", "db-0", refused, ())
    answer = told(held("db", "2-3"), drifts=(drift,), incomplete=(part,))
    cluster.prepared["nri-pin-a"] = {TOP: (0, answer, "")}
    cluster.save()
    assert run("nodes", "a", "-o", "wide") == 0
    head, a, note = rows(capsys.readouterr().out)
    shown = dict(zip(head, a, strict=True))
    assert (shown["HEALTH"], shown["DRIFTS"], shown["INCOMPLETE"]) == ("OK, incomplete", "7", "1")
    assert note == ["a: pods that run in part; kubectl nri-pin show node/a"]


@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (told(State(), answers=False), "agent away"),
        (told(State(), runtime=None), "no runtime"),
    ],
)
def test_health_says_what_is_wrong(cluster: Cluster, answer: str, health: str, capsys) -> None:
    cluster.prepared["nri-pin-a"] = {TOP: (0, answer, "")}
    cluster.save()
    run("nodes", "a", "-o", "json")
    (row,) = json.loads(capsys.readouterr().out)["items"]
    assert row["health"] == health
    assert row["detail"]


def test_an_agent_that_is_not_ready_is_asked_all_the_same(cluster: Cluster, capsys) -> None:
    cluster.pods[0] = agent_object("a", ready=False)
    cluster.save()
    assert run("nodes", "a", "-o", "wide") == 0
    head, a, note = rows(capsys.readouterr().out)
    assert dict(zip(head, a, strict=True))["HEALTH"] == "not ready"
    assert note[0].startswith("a: its readiness probe fails")


def test_a_node_that_cannot_be_asked_is_shown_by_its_object(cluster: Cluster, capsys) -> None:
    cluster.pods[0] = agent_object("a", waiting={"reason": "CrashLoopBackOff"}, ready=False)
    cluster.unreachable = ["nri-pin-b"]
    cluster.save()
    assert run("nodes", "-o", "json") == 1
    a, b = json.loads(capsys.readouterr().out)["items"]
    assert a["health"] == "CrashLoopBackOff"
    assert "kubectl logs -n nri-pin nri-pin-a -c agent --previous" in a["detail"]
    assert (a["available"], a["allocatable"], a["published"]) == (12, 14, "yes")
    assert a["policies"]["cpuManagerPolicy"] == "static"
    assert b["health"] == "no answer"
    assert "i/o timeout" in b["detail"]
    assert not [words for words in cluster.asked() if words[0] == "exec" and "nri-pin-a" in words]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        json.dumps(json.loads(told(State())) | {"available": "3-x"}),
        json.dumps(json.loads(told(State())) | {"drifts": "many"}),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_that_node_only(
    cluster: Cluster, answer: str, capsys
) -> None:
    cluster.prepared["nri-pin-a"] = {TOP: (0, answer, ""), "state show -o json": (0, answer, "")}
    cluster.prepared["nri-pin-b"]["state show -o json"] = (0, '{"pods": []}', "")
    cluster.save()
    assert run("nodes", "-o", "json") == 1
    a, b = json.loads(capsys.readouterr().out)["items"]
    assert (a["health"], a["available"], b["health"]) == ("no answer", 12, "OK")
    assert "cannot read its answer" in a["detail"]
    assert run("nodes", "-o", "wide") == 1
    assert "kubectl nri-pin version --all-nodes tells the versions" in " ".join(
        capsys.readouterr().out.split()
    )
    if not answer.startswith("{"):
        assert run("show", "--all-nodes", "-o", "json") == (1 if answer else 0)
        assert json.loads(capsys.readouterr().out)["items"][1]["answer"] == {"pods": []}


def test_an_answer_about_another_number_of_shapes_is_an_error_of_that_node_only(
    cluster: Cluster, capsys
) -> None:
    for pod, answer in (("nri-pin-a", '{"shapes": []}'), ("nri-pin-b", '{"shapes": [{"fits": 2}]}')):
        cluster.prepared[pod][f"room --shape {SHAPE} -o json"] = (0, answer, "")
    cluster.save()
    assert run("nodes", "--shape", SHAPE, "-o", "json") == 1
    a, b = json.loads(capsys.readouterr().out)["items"]
    assert a["detail"] == "it answered for 0 shapes, and was asked for 1"
    assert b["room"] == [{"shape": SHAPE, "fits": 2}]


def test_without_the_right_to_exec_there_are_the_objects(cluster: Cluster, capsys) -> None:
    cluster.forbidden = ["exec"]
    cluster.save()
    assert run("nodes", "a", "-o", "wide") == 1
    out = capsys.readouterr().out
    assert "no right to exec" in out
    assert 'cannot create resource "pods/exec"' in " ".join(out.split())
    assert "12/14" in out


def test_without_the_objects_the_agents_tell(cluster: Cluster, capsys) -> None:
    for topologies, forbidden in ((None, []), ([], ["noderesourcetopologies.topology.node.k8s.io"])):
        cluster.topologies, cluster.forbidden = topologies, forbidden
        cluster.save()
        assert run("nodes", "-o", "json") == 0
        assert [one["published"] for one in json.loads(capsys.readouterr().out)["items"]] == ["none", "none"]


def test_an_object_without_a_pod_and_one_that_differs_are_told_apart(cluster: Cluster, capsys) -> None:
    foreign = topology("c", State()) | {"attributes": []}
    cluster.topologies = [topology("a", State()), topology("b", State()), foreign, {"metadata": {"name": 7}}]
    cluster.save()
    run("nodes", "-o", "json")
    found = {one["node"]: one for one in json.loads(capsys.readouterr().out)["items"]}
    assert {name: one["published"] for name, one in found.items()} == {
        "a": "differs",
        "b": "as the agent",
        "c": "foreign",
    }
    assert found["c"]["health"] == "no agent pod"


def test_during_a_rollout_the_agent_that_works_is_asked(cluster: Cluster) -> None:
    old = agent_object("a", name="old")
    old["metadata"]["deletionTimestamp"] = "2026-11-24T10:00:00Z"
    starting = agent_object("a", name="new", waiting={"reason": "ContainerCreating"}, ready=False)
    cluster.pods = [old, starting, agent_object("a")]
    cluster.save()
    run("nodes")
    assert [words[3] for words in cluster.asked() if words[0] == "exec"] == ["nri-pin-a"]


def test_a_shape_is_counted_on_each_node(cluster: Cluster, capsys) -> None:
    for pod, fits in (("nri-pin-a", 2), ("nri-pin-b", None)):
        answer = json.dumps({"shapes": [{"shape": "x", "fits": fits}]})
        cluster.prepared[pod][f"room --shape {SHAPE} -o json"] = (0, answer, "")
    cluster.save()
    assert run("nodes", "--shape", SHAPE, "-o", "wide") == 0
    head, a, b = rows(capsys.readouterr().out)
    at = head.index(f"FITS {SHAPE}")
    assert (a[at], b[at]) == ("2", "no limit")


def test_a_wrong_shape_is_said_by_the_agent(cluster: Cluster, capsys) -> None:
    for pod in ("nri-pin-a", "nri-pin-b"):
        cluster.prepared[pod]["room --shape cpu=x -o json"] = (
            2,
            "",
            "nri-pin: --shape: 'cpu=x' is no amount\n",
        )
    cluster.save()
    assert run("nodes", "--shape", "cpu=x") == 1
    assert "--shape: 'cpu=x' is no amount" in capsys.readouterr().out


def test_watch_prints_rows_that_changed(cluster: Cluster, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt
        cluster.prepared["nri-pin-b"] = {TOP: (0, told(held("web", "2-5")), "")}
        cluster.save()

    monkeypatch.setattr(plugin, "sleep", pause)
    assert run("nodes", "-w") == 130
    _head, *lines = rows(capsys.readouterr().out)
    assert [(line[0], line[4]) for line in lines] == [("a", "12/14"), ("b", "14/14"), ("b", "10/14")]


def test_an_empty_cluster_is_said(cluster: Cluster, capsys) -> None:
    cluster.pods, cluster.topologies = [], []
    cluster.save()
    assert run("nodes") == 0
    assert capsys.readouterr().out == "no node has an agent or a NodeResourceTopology object\n"
    assert run("doctor", "--all-nodes") == 1
    assert "no node has a pod of the agent" in capsys.readouterr().err


# commands on a node


def words_on_node(cluster: Cluster) -> list[str]:
    """The words of nri-pin in the only exec."""
    (words,) = [words for words in cluster.asked() if words[0] == "exec"]
    return words[words.index("nri-pin", words.index("--")) + 1 :]


@pytest.mark.parametrize(
    ("words", "on_node"),
    [
        (["show", "db-0", "-n", "shop"], "state show shop/db-0/c"),
        (["show", "shop/db-0"], "state show shop/db-0/c"),
        (["show", "pod/db-0", "-n", "shop", "-o", "wide"], "state show shop/db-0/c -o wide"),
        (["state", "show", "shop/db-0"], "state show shop/db-0/c"),
        (["show", "node/a"], "state show"),
        (["show", "a"], "state show"),
        (["explain", "shop/db-0"], "explain shop/db-0/c"),
        (["explain", "node/a", "--cpu", "4"], "explain --cpu 4"),
        (["who", "shop/db-0"], "who shop/db-0/c"),
        (["who", "node/a", "cache", "3"], "who cache 3"),
        (["noise", "db-0", "-n", "shop", "--for", "30s", "-o", "wide"], "noise shop/db-0/c --for 30s -o wide"),
        (["room", "node/a", "--shape", SHAPE], f"room --shape {SHAPE}"),
        (["topology", "shop/db-0", "-o", "svg"], "topology -o svg"),
        (["doctor", "shop/db-0", "--strict"], "doctor --strict"),
        (["top", "node/a", "--once"], "top --once"),
        (["history", "node/a", "--since", "1h"], "state history --since 1h"),
        (["history", "shop/db-0"], "state history --container shop/db-0/c"),
        (["verify", "node/a", "--no-live"], "state verify --no-live"),
        (["replay", "node/a", "/run/nri-pin", "-o", "yaml"], "replay /run/nri-pin -o yaml"),
    ],
)  # fmt: skip
def test_the_command_of_that_name_runs_in_the_pod_of_the_agent(
    cluster: Cluster, words: list[str], on_node: str
) -> None:
    cluster.prepared["nri-pin-a"] = {on_node: (0, "", "")}
    cluster.save()
    assert run(*words) == 0
    assert " ".join(words_on_node(cluster)) == on_node


def test_exit_code_and_errors_are_those_of_the_node(cluster: Cluster, capfd) -> None:
    cluster.prepared["nri-pin-a"] = {"doctor": (1, "TO DO nri: off\n", "nri-pin: a word\n")}
    cluster.save()
    assert run("doctor", "node/a") == 1
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("TO DO nri: off\n", "nri-pin: a word\n")


def test_a_container_is_named_where_a_pod_has_several(cluster: Cluster, capsys) -> None:
    cluster.pods.append(pod_object("two", "a", containers=("x", "y")))
    cluster.prepared["nri-pin-a"] = {
        f"{word}": (0, "", "") for word in ("who shop/two/y", "explain shop/two")
    }
    cluster.save()
    assert run("who", "shop/two", "-c", "z") == 1
    assert "pod shop/two has no container z; it has x, y" in capsys.readouterr().err
    assert run("who", "shop/two", "-c", "y") == 0
    assert run("who", "shop/two/y") == 0
    assert run("explain", "shop/two") == 0


def test_all_nodes_are_asked_and_one_that_fails_is_named(cluster: Cluster, capsys) -> None:
    cluster.prepared["nri-pin-a"] = {"doctor": (0, "OK     all\n", "")}
    cluster.unreachable = ["nri-pin-b"]
    cluster.save()
    assert run("doctor", "--all-nodes") == 1
    assert capsys.readouterr().out == (
        "node/a\nOK     all\n\nnode/b\nerror: error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout\n"
    )


def test_all_nodes_for_programs(cluster: Cluster, capsys) -> None:
    answer = {"pods": [{"pod": "db-0"}]}
    command = "state show shop/*"
    cluster.prepared["nri-pin-a"] = {
        f"{command} -o json": (0, json.dumps(answer), ""),
        f"{command} -o name": (0, "pod/db-0\n", ""),
    }
    none = (1, "", "nri-pin: none of them\n")
    cluster.prepared["nri-pin-b"] = {f"{command}{form}": none for form in ("", " -o json", " -o name")}
    cluster.save()
    assert run("show", "-A", "-n", "shop", "-o", "json") == 1
    assert json.loads(capsys.readouterr().out)["items"] == [
        {"node": "a", "exit_code": 0, "answer": answer},
        {"node": "b", "exit_code": 1, "error": "nri-pin: none of them"},
    ]
    assert run("show", "--all-nodes", "-n", "shop", "-o", "name") == 1
    assert capsys.readouterr().out == "pod/db-0\nnri-pin: none of them\n"
    assert run("show", "-A", "-n", "shop") == 1
    assert "node/b\nnri-pin: none of them" in capsys.readouterr().out


# errors


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["show", "nobody", "-n", "shop"], 'pods "nobody" not found'),
        (["show", "waits", "-n", "shop"],
         "pod shop/waits is on no node yet (Pending); kubectl describe pod -n shop waits tells why"),
        (["show", "node/none"], "node none has no pod of the agent"),
        (["show", "node/broken"], "the agent of node broken does not run (ImagePullBackOff)"),
        (["show"], "name a pod, node/NODE, or --all-nodes"),
        (["show", "-o", "wide"], "name a pod, node/NODE, or --all-nodes"),
        (["show", "a/b/c/d"], "expected node/NODE, pod/POD, POD or NAMESPACE/POD, found a/b/c/d"),
        (["history", "-A", "-f"], "an answer without an end needs one node"),
        (["shwo"], "no such command 'shwo', did you mean 'show'"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_the_next_step(
    cluster: Cluster, words: list[str], error: str, capsys
) -> None:
    broken = agent_object("broken", waiting={"reason": "ImagePullBackOff"}, ready=False)
    cluster.pods += [pod_object("waits"), broken]
    cluster.save()
    assert run(*words) in (1, 2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith(f"kubectl nri-pin: {error}")


def test_a_missing_right_is_said_with_the_next_step(cluster: Cluster, capsys) -> None:
    cluster.forbidden = ["exec"]
    cluster.save()
    assert run("show", "node/a") == 1
    told = capsys.readouterr().err
    assert 'cannot create resource "pods/exec"' in told
    assert "kubectl auth can-i --list shows your rights" in told
    cluster.forbidden = ["pods everywhere"]
    cluster.save()
    assert run("nodes") == 0
    cluster.forbidden = ["nodes"]
    cluster.save()
    assert run("show", "nobody") == 1
    assert 'pods "nobody" not found' in capsys.readouterr().err


HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mall is well\x1b[0m \x9b2J \u202e\u2066 \x08over\n"
SPELLED = "\\x1b]0;title\\x07\\x1b[2J\\x1b[31mall is well\\x1b[0m \\u009b2J \\u202e\\u2066 \\x08over\n"


def spoof(namespace: str, node: str = "a") -> Object:
    """A pod that a tenant made to look like an agent, owner and readiness included."""
    pod = agent_object(node, name="x")
    owner = {"kind": "DaemonSet", "name": "nri-pin", "controller": True}
    pod["metadata"] |= {"namespace": namespace, "ownerReferences": [owner]}
    return pod


@pytest.mark.parametrize(
    "words",
    [
        ("show", "db-0", "-n", "shop"),
        ("explain", "node/a", "--cpu", "1"),
        ("doctor", "--all-nodes"),
        ("nodes",),
        ("version", "-A"),
    ],
)
@pytest.mark.parametrize("real", ["ready", "unready", "elsewhere", "absent"])
def test_a_pod_of_another_namespace_is_never_asked(
    cluster: Cluster, words: tuple[str, ...], real: str, capsys
) -> None:
    agents = {"ready": [agent_object("a")], "unready": [agent_object("a", ready=False)]}
    agents["elsewhere"], agents["absent"] = [spoof("platform")], []
    cluster.pods = [spoof("aaa"), *agents[real], spoof("zzz"), pod_object("db-0", "a")]
    cluster.prepared["x"] = {}
    cluster.save()
    run(*words)
    executed = [one for one in cluster.asked() if one[0] == "exec"]
    assert all(one[one.index("--namespace") + 1] == "nri-pin" for one in executed)
    assert bool(executed) == (real in agents and bool(agents[real]) and real != "elsewhere")
    if not executed:
        shown = capsys.readouterr().err
        assert "aaa, platform, zzz" in shown if real == "elsewhere" else "aaa, zzz" in shown
        assert "--agent-namespace" in shown


def test_agents_of_a_named_namespace_are_asked(cluster: Cluster, capsys) -> None:
    cluster.pods = [spoof("aaa"), spoof("platform")]
    cluster.prepared["x"] = {"room": (0, "62 of 62\n", "")}
    cluster.save()
    assert run("room", "node/a", "--agent-namespace", "platform") == 0
    assert capsys.readouterr().out == "62 of 62\n"
    (executed,) = (one for one in cluster.asked() if one[0] == "exec")
    assert executed[1:3] == ["--namespace", "platform"]


@pytest.mark.parametrize(
    "words", [("doctor", "node/a"), ("doctor", "--all-nodes"), ("doctor", "-A", "-o", "json")]
)
def test_control_characters_of_a_node_are_spelled(cluster: Cluster, words: tuple[str, ...], capfd) -> None:
    form = " -o json" if "json" in words else ""
    cluster.pods = [agent_object("a")]
    cluster.prepared["nri-pin-a"] = {f"doctor{form}": (3, HOSTILE, HOSTILE)}
    cluster.save()
    run(*words)
    shown = capfd.readouterr()
    text = shown.out + shown.err
    assert text.isprintable() or set(text) - set("\n") == {one for one in text if one.isprintable()}
    if not form:
        assert SPELLED.strip() in shown.out
        assert text.count("all is well") == 2


def test_a_screen_of_a_node_draws_and_does_nothing_else(cluster: Cluster) -> None:
    cluster.pods = [agent_object("a")]
    drawn = "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[1;1H\x1b[1;36mtop\x1b[0m\x1b[K"
    cluster.prepared["nri-pin-a"] = {"top": (0, drawn + HOSTILE, "")}
    cluster.save()
    shown = on_terminal("top", "node/a")
    assert drawn in shown
    assert not {"\x1b]", "\x9b", "\u202e", "\x07"} & {*shown, *map("".join, pairwise(shown))}
    assert "\\x1b]0;title\\x07" in shown
    assert "rows 31 columns 97" in shown


def on_terminal(*words: str) -> str:
    """What `kubectl nri-pin` prints on a terminal of 97 columns."""
    pid, master = pty.fork()
    if not pid:
        termios.tcsetwinsize(0, (31, 97))
        run_it = "import sys; from nri_plugin.__main__ import kubectl; sys.exit(kubectl())"
        os.execv(sys.executable, [sys.executable, "-c", run_it, *words])
    shown = b""
    with suppress(OSError):
        while piece := os.read(master, 1 << 16):
            shown += piece
    os.close(master)
    assert os.waitpid(pid, 0)[1] == 0
    return shown.decode()


def test_an_agent_that_is_not_ready_is_said(cluster: Cluster, capsys) -> None:
    cluster.pods[0] = agent_object("a", ready=False)
    cluster.prepared["nri-pin-a"] = {"room": (0, "", "")}
    cluster.save()
    assert run("room", "node/a") == 0
    assert "the agent of node a is not ready: its readiness probe fails" in capsys.readouterr().err


def test_a_missing_kubectl_is_said(cluster: Cluster, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run("nodes") == 1
    assert "kubectl is not on the PATH" in capsys.readouterr().err


# help, completion


def test_help_is_that_of_the_command(capsys) -> None:
    assert run("help", "nodes") == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl nri-pin nodes")
    assert run("help") == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("name", plugin.group.list_commands(click.Context(plugin.group)))
def test_every_help_ends_in_examples_and_every_option_says_what_it_is_for(name: str, capsys) -> None:
    assert run(name, "--help") == 0
    assert f"kubectl nri-pin {name}" in capsys.readouterr().out.partition("Examples:")[2]
    command = plugin.group.get_command(click.Context(plugin.group), name)
    assert command is not None
    assert [one.name for one in command.params if isinstance(one, click.Option) and not one.help] == []


def test_completion_speaks_as_kubectl_wants(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def completed(*words: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["kubectl_complete-nri_pin", *words])
        assert entry.kubectl_complete() == 0
        *found, directive = capsys.readouterr().out.splitlines()
        assert directive == ":4"
        return [line.partition("\t")[0] for line in found]

    assert {"nodes", "history", "verify", "who", "help"} <= set(completed(""))
    assert not {"run", "install", "release", "state"} & set(completed(""))
    assert completed("no") == ["nodes", "noise"]
    assert completed("nodes", "--sh") == ["--shape"]
    assert completed("nodes", "") == ["a", "b"]
    assert completed("show", "-n", "shop", "d") == ["db-0"]
    assert completed("show", "node/") == ["node/a", "node/b"]
    cluster.forbidden = ["pods"]
    cluster.save()
    assert completed("nodes", "") == []
    assert completed("show", "") == []


def test_a_command_of_all_nodes_ends(cluster: Cluster, capsys) -> None:
    for words in ((), ("--once",)):
        assert run("top", "--all-nodes", *words, "-o", "json") == 0
        assert [one["node"] for one in json.loads(capsys.readouterr().out)["items"]] == ["a", "b"]


def test_what_a_node_recommends_can_be_typed_here(cluster: Cluster) -> None:
    cluster.prepared["nri-pin-a"] = {"room": (0, "", "")}
    cluster.save()
    run("room", "node/a", "--context", "far away", "--agent-namespace", "nri-pin")
    (executed,) = (one for one in cluster.asked() if one[0] == "exec")
    assert executed[executed.index("env") + 1 : executed.index("nri-pin", executed.index("env"))] == [
        "NRI_PIN_CALLED_AS=kubectl nri-pin '--context=far away' --agent-namespace=nri-pin",
        "NRI_PIN_CALLED_ON=node/a",
    ]


def test_a_completion_moves_no_cursor(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    cluster.pods.append(pod_object("db\x1b[2J", "a"))
    cluster.save()
    monkeypatch.setattr("sys.argv", ["kubectl_complete-nri_pin", "show", "-n", "shop", "db"])
    assert entry.kubectl_complete() == 0
    assert capsys.readouterr().out == "db-0\ndb\\x1b[2J\n:4\n"


def test_the_words_reach_the_real_program(cluster: Cluster, tmp_path: Path, capfd) -> None:
    """The options that are passed on exist in `nri-pin`: each command really runs, on a saved checkpoint."""
    state = tmp_path / "state"
    machine = tmp_path / "machine.yaml"
    machine.write_text("topology: pack:1 numa:2(memory=8GiB) l3:1 core:4 pu:2\n")
    CheckpointFile(str(state)).save(held("db", "2-3"))
    cluster.options["nri-pin-a"] = ["--state-dir", str(state)]
    cluster.save()
    assert run("show", "shop/db-0", "--machine", str(machine)) == 0
    assert "exclusive" in capfd.readouterr().out
    assert run("show", "node/a", "--machine", str(machine), "-o", "wide") == 0
    assert "NAMESPACE" in capfd.readouterr().out
    assert run("show", "node/a", "-o", "name", "--machine", str(machine)) == 0
    assert capfd.readouterr().out == "pod/db-0\n"
    assert run("who", "shop/db-0", "--machine", str(machine)) == 0
    assert "shop/db-0/c" in capfd.readouterr().out
    assert run("explain", "shop/db-0", "-c", "c", "--no-such-option") == 2
    assert "see kubectl nri-pin explain --help" in capfd.readouterr().err
    assert run("who", "node/a", "nobody", "--machine", str(machine)) == 1
    assert "kubectl nri-pin state show node/a lists them" in capfd.readouterr().err
    assert run("history", "node/a") == 0
    assert "CHECKPOINT" in capfd.readouterr().out


QUOTED = [one.line for one in guides.quoted_commands() if one.line.startswith(plugin.PROGRAM)]


@pytest.mark.parametrize("line", QUOTED)
def test_every_line_that_a_guide_quotes_is_understood(line: str) -> None:
    name, *words = shlex.split(line.partition("|")[0].removeprefix(plugin.PROGRAM))
    command = plugin.group.get_command(click.Context(plugin.group), name)
    assert command is not None
    command.make_context(name, words)
