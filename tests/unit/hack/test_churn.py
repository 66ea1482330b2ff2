"""The judge of hack/churn, on small records: what holds is no violation, and each law catches the record that breaks it."""

import copy
import http.client
import json
import random
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.churn import proxy
from tests.e2e.churn.__main__ import _arguments
from tests.e2e.churn.faults import FAULTS
from tests.e2e.churn.judge import Judge, Verdict
from tests.e2e.churn.past import Past
from tests.e2e.churn.pod_kinds import KINDS, Draw, amounts, container, request_milli
from tests.e2e.churn.records import Notes, cpus, read_rows, runtime_rows, shown
from tests.e2e.churn.report import write_report

Rows = dict[str, list[dict[str, Any]]]
MACHINE = {"online": "0-15", "nodes": ["0-3,8-11", "4-7,12-15"], "cores": [f"{cpu},{cpu + 8}" for cpu in range(8)], "reserved": "0,8"}  # fmt: skip
CONFIG = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}  # fmt: skip
OLD, YOUNG, SHARED, ODD = (letter * 64 for letter in "abcd")
REFUSED = {
    "waiting": {"reason": "CreateContainerError", "message": "SMTAlignmentError: 3 CPUs are no whole cores"}
}
RUNS: dict[str, Any] = {"running": {}}


def spec(**cpus_by_name: int) -> dict[str, Any]:
    amounts = {name: {"cpu": str(count), "memory": "48Mi"} for name, count in cpus_by_name.items()}
    return {
        "containers": [
            {"name": name, "resources": {"limits": one, "requests": one}} for name, one in amounts.items()
        ]
    }


def pod_row(
    at: float, name: str, what: dict[str, Any], phase: str = "Running", state: Any = RUNS, **more: Any
) -> dict[str, Any]:
    containers = [
        {"name": one["name"], "id": "", "state": state, "restarts": 0} for one in what["containers"]
    ]
    return {"t": at, "uid": name, "cgroup": name, "name": name, "spec": what, "deleting": False, "phase": phase,
            "reason": None, "message": None, "containers": containers, **more}  # fmt: skip


def gone(at: float, name: str) -> dict[str, Any]:
    return {"t": at, "uid": name, "gone": True}


SHARING = {"containers": [{"name": "c", "resources": {}}]}


def records() -> Rows:
    """Two exclusive pods, a shared one, and one that is refused and fails; an agent that was away; quiet, and the end."""
    owned = {"/podold/" + OLD: ["1,9", "0", True], "/podyoung/" + YOUNG: ["4-5,12-13", "1", True]}
    pool = "0,2-3,6-8,10-11,14-15"
    slices = {"": ["", "", None], "/besteffort": [pool, "", None], "/podold": ["", "", None], "/podyoung": ["", "", None], "/besteffort/podshared": ["", "", None]}  # fmt: skip
    tree = {**slices, **owned, "/besteffort/podshared/" + SHARED: ["", "", True]}
    zones = [
        {"name": f"node-{node}", "resources": [{"name": "cpu", "available": count}]}
        for node, count in ((0, "4"), (1, "4"))
    ]
    full = [
        {"name": f"node-{node}", "resources": [{"name": "cpu", "available": count}]}
        for node, count in ((0, "6"), (1, "8"))
    ]
    state = {
        "exclusive": "1,4-5,9,12-13", "shared_pool": pool, "pods": [], "waiting": [], "kept": [],
        "containers": [
            {"pod": "old", "pod_uid": "old", "container": "a", "phase": "running", "cpus": "1,9", "kept_cpus": "", "cpuset": "1,9"},
            {"pod": "young", "pod_uid": "young", "container": "b", "phase": "running", "cpus": "4-5,12-13", "kept_cpus": "", "cpuset": "4-5,12-13"},
        ],
    }  # fmt: skip
    said = {"old": {"a": [1, 9]}, "young": {"b": [4, 5, 12, 13]}, "shared": {"c": []}}
    alive = [pod_row(0, "old", spec(a=2)), pod_row(0, "young", spec(b=4)), pod_row(0, "shared", SHARING)]
    usage = {"agent": {"rss_kib": 1, "descriptors": 20}, "exporter": {"rss_kib": 1, "descriptors": 20}}
    about = {"verify": [0, ""], "usage": usage}
    empty = {"exclusive": "", "shared_pool": "0-15", "pods": [], "waiting": [], "kept": [], "containers": []}
    return {
        "rounds": [{"t": 0.0, "round": 0, "kind": "agent-kill", "config": copy.deepcopy(CONFIG), "machine": MACHINE}],
        "oci": [
            {"t": 1, "call": "create", "id": id_, "pod": pod, "name": name}
            for id_, pod, name in ((OLD, "old", "a"), (YOUNG, "young", "b"), (SHARED, "shared", "c"), (ODD, "odd", "d"))
        ],
        "pods": [
            pod_row(1, "old", spec(a=2)), pod_row(1, "shared", SHARING), pod_row(2, "young", spec(b=4)),
            pod_row(10, "odd", spec(d=3), "Pending", REFUSED),
            pod_row(11, "odd", spec(d=3), "Failed", {}, reason="SMTAlignmentError", message="no whole cores"),
            gone(40, "odd"), gone(62, "old"), gone(62, "young"), gone(62, "shared"),
        ],
        "tree": [
            {"t": 1.0, "set": {**slices, "/podold/" + OLD: owned["/podold/" + OLD]}, "gone": []},
            {"t": 2.0, "set": tree, "gone": []},
            {"t": 30.0, "set": {"/podold/" + OLD: ["1,9", "0", False]}, "gone": []},
            {"t": 31.0, "set": {"/podold/" + OLD: ["1,9", "0", True]}, "gone": []},
            {"t": 62.0, "set": {"": ["", "", None], "/besteffort": ["0-15", "", None]}, "gone": [path for path in tree if "/pod" in path]},
            {"t": 163.0, "set": {"": ["", "", None]}, "gone": []},
        ],
        "did": [],
        "runtime": [{"t": 20.0, "what": "drops"}, {"t": 21.9, "what": "serves"}],
        "faults": [
            {"t": 20.0, "part": "agent", "what": "ends", "signal": "SIGKILL", "had": None},
            {"t": 20.1, "part": "agent", "what": "ended", "status": -9, "had": None},
            {"t": 22.0, "part": "agent", "what": "up", "ready": True},
        ],
        "dumps": [
            {"t": 60.0, "round": 0, "what": "quiet", "state": state, "topology": {"zones": zones}, "pods": alive, "exporter": said,
             "kubelet": said, "tree": tree, **about},
            {"t": 63.0, "round": 0, "what": "empty", "state": empty, "topology": {"zones": full}, "pods": [], "exporter": {}, "kubelet": {},
             "tree": {"": ["", "", None], "/besteffort": ["0-15", "", None]}, **about},
        ],
    }  # fmt: skip


def judged(rows: Rows, **logs: str) -> Verdict:
    rows = {name: sorted(found, key=lambda row: row["t"]) for name, found in copy.deepcopy(rows).items()}
    return Judge("node-0", Past(rows), logs).verdict


def laws(rows: Rows, **logs: str) -> list[str]:
    return sorted({one.law for one in judged(rows, **logs).violations})


def test_records_in_which_all_holds_have_no_violation() -> None:
    verdict = judged(records(), agent="decided\n")
    assert verdict.violations == []
    assert verdict.figures["refused pods"] == 1


def put(path: str, value: list[Any], begin: float = 40.0, end: float = 50.0) -> Callable[[Rows], None]:
    """A cpuset that is so for a while."""

    def change(rows: Rows) -> None:
        before = next(
            row["set"][path] for row in reversed(rows["tree"]) if row["t"] < begin and path in row["set"]
        )
        rows["tree"] += [
            {"t": begin, "set": {path: value}, "gone": []},
            {"t": end, "set": {path: before}, "gone": []},
        ]

    return change


def runs(id_: str, pod: str, own: str, begin: float = 40.0, end: float = 50.0) -> Callable[[Rows], None]:
    """A container of a pod that lives for a while."""

    def change(rows: Rows) -> None:
        path = f"/pod{pod}/{id_}"
        new = {f"/pod{pod}": ["", "", None], path: [own, "", True]}
        rows["tree"] += [{"t": begin, "set": new, "gone": []}, {"t": end, "set": {}, "gone": [path]}]

    return change


def add(name: str, *rows: dict[str, Any]) -> Callable[[Rows], None]:
    return lambda found: found[name].extend(rows)


def edit(name: str, index: int, *keys: Any, to: Any) -> Callable[[Rows], None]:
    """Another value somewhere in a row."""

    def change(rows: Rows) -> None:
        place = rows[name][index]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return change


NEW = "e" * 64
CRASHED = {"t": 1, "call": "create", "id": NEW, "pod": "old", "name": "a"}
WHOLE = {
    "containers": [{"name": "a", "resources": {}}],
    "resources": {"limits": {"cpu": "2", "memory": "96Mi"}},
}
HAS_A_BLOCK = edit("pods", 0, "spec", to=WHOLE)
BROKEN = [
    ("CPUs of the pod", [HAS_A_BLOCK, put("/podold/" + OLD, ["1-2,9-10", "", True])]),
    ("nobody shares CPUs of a pod", [HAS_A_BLOCK, put("/besteffort", ["0-3,6-11,14-15", "", None])]),
    ("no two own a CPU", put("/podyoung/" + YOUNG, ["1,5,9,13", "", True])),
    ("nobody shares exclusive CPUs", put("/besteffort", ["0-15", "", None])),
    ("its number of CPUs", put("/podyoung/" + YOUNG, ["4,12", "", True])),
    ("its number of CPUs", put("/podyoung/" + YOUNG, ["", "", True])),
    ("whole cores", put("/podyoung/" + YOUNG, ["4-7", "", True])),
    ("one NUMA node", put("/podyoung/" + YOUNG, ["3-4,11-12", "", True])),
    ("nobody is moved", put("/podold/" + OLD, ["2,10", "", True], 40, 50)),
    ("a restart keeps CPUs", [add("oci", CRASHED), put("/podold/" + OLD, ["1,9", "", False]), runs(NEW, "old", "2,10")]),
    ("an ended pod stays ended", add("pods", pod_row(14, "odd", spec(d=3), "Pending", REFUSED))),
    ("no container of a refused pod runs", [runs(ODD, "odd", "2-3,10", 10.2, 11), edit("rounds", 0, "config", "cpuManagerPolicyOptions", to={})]),
    ("a failed pod ends", [runs(ODD, "odd", "2-3,10", 10.2, 35), edit("rounds", 0, "config", "cpuManagerPolicyOptions", to={})]),
    ("a refused pod is soon Failed", [edit("pods", 4, "phase", to="Pending"), edit("pods", 4, "reason", to=None), edit("pods", 4, "containers", 0, "state", to=REFUSED), edit("pods", 5, "t", to=50)]),
    ("what fits is not refused", edit("rounds", 0, "config", "cpuManagerPolicyOptions", to={})),
    ("no pod waits long", [add("pods", pod_row(10, "slow", SHARING, "Pending", {"waiting": {"reason": "ContainerCreating"}}), gone(75, "slow"))]),
    ("a deletion ends", [edit("pods", 7, "t", to=110), add("pods", pod_row(12, "young", spec(b=4), deleting=True))]),
    ("all agree in quiet", edit("dumps", 0, "state", "exclusive", to="1,9")),
    ("all agree in quiet", edit("dumps", 0, "state", "containers", 0, "cpuset", to="2,10")),
    ("all agree in quiet", edit("dumps", 0, "exporter", "old", "a", to=[2, 10])),
    ("all agree in quiet", edit("dumps", 0, "exporter", to={})),
    ("all agree in quiet", edit("dumps", 0, "topology", "zones", 0, "resources", 0, "available", to="6")),
    ("all agree in quiet", edit("dumps", 0, "verify", to=[1, "drift"])),
    ("all agree in quiet", edit("dumps", 0, "topology", to=None)),
    ("nothing is left", edit("dumps", 1, "tree", "/besteffort", to=["0,2-15", "", None])),
    ("nothing is left", edit("dumps", 1, "state", "containers", to=[{"pod": "old"}])),
    ("nothing is left", edit("dumps", 1, "topology", "zones", 0, "resources", 0, "available", to="4")),
    ("nothing is left", edit("dumps", 1, "pods", to=[pod_row(0, "old", spec(a=2))])),
    ("nothing is left", edit("dumps", 1, "usage", "agent", "descriptors", to=900)),
    ("nothing ends by itself", edit("faults", 1, "had", to=70)),
    ("parts start and end", edit("faults", 2, "ready", to=False)),
    ("parts start and end", add("rounds", {"t": 60, "round": 0, "quiet": True, "failures": ["reboot: OSError"]})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("law", "changes"), BROKEN, ids=[f"{number}-{law}" for number, (law, _) in enumerate(BROKEN)]
)
def test_a_law_that_is_broken_is_named(law: str, changes: Any) -> None:
    rows = records()
    for change in changes if isinstance(changes, list) else [changes]:
        change(rows)
    assert law in laws(rows)
    for one in judged(rows).violations:
        assert one.what
        assert one.seen
        assert str(one.law) in str(one)


def test_a_traceback_in_a_log_is_a_violation() -> None:
    assert laws(records(), agent="Traceback (most recent call last):\n") == ["no traceback"]


BORN_AWAY = [add("oci", CRASHED), put("/podold/" + OLD, ["1,9", "", False], 20.5, 29.9)]


@pytest.mark.parametrize(
    "changes",
    [
        put("/podyoung/" + YOUNG, ["4,12", "", True], 40.0, 40.1),
        [*BORN_AWAY, runs(NEW, "old", "", 20.6, 26)],
        [add("oci", CRASHED), put("/podold/" + OLD, ["1,9", "", False]), runs(NEW, "old", "1,9")],
        [put("/besteffort", ["0,2,6-8,10,14-15", "", None]), put("/podold/" + OLD, ["1,3,9,11", "", True]), add("did", {"t": 39, "do": "resize", "name": "old", "container": "a", "was": "2", "to": "4", "status": 200})],
    ],
    ids=["a-blink", "the-agent-was-away", "a-restart", "a-resize"],
)  # fmt: skip
def test_what_is_allowed_is_no_violation(changes: Any) -> None:
    rows = records()
    for change in changes if isinstance(changes, list) else [changes]:
        change(rows)
    assert laws(rows) == []


def test_what_was_not_mended_after_the_return_of_the_agent_is_a_violation() -> None:
    rows = records()
    for change in [*BORN_AWAY, runs(NEW, "old", "", 20.6, 29)]:
        change(rows)
    assert "its number of CPUs" in laws(rows)


def test_a_violation_says_pod_container_time_and_what_was_wanted() -> None:
    rows = records()
    put("/podyoung/" + YOUNG, ["4,12", "", True])(rows)
    assert str(judged(rows).violations[0]) == (
        "00:00:40.000 its number of CPUs: young/b: seen 4,12 for 10.00 s, wanted 4 of its own [round 0, agent-kill]"
    )


def test_records_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    Notes(tmp_path).add("did", do="create")
    with (tmp_path / "did.jsonl").open("a") as file:
        file.write('{"t": 1, "do')
    assert [row["do"] for row in read_rows(tmp_path)["did"]] == ["create"]


def test_the_report_lists_rounds_figures_and_violations(tmp_path: Path) -> None:
    rows = records()
    put("/besteffort", ["0-15", "", None])(rows)
    plan = {"seed": 7, "commit": "abc", "kubelet": "1.37.2", "nodes": 1, "machine": "m"}
    text = write_report(plan, [judged(rows)], tmp_path / "report.md")
    assert "`hack/churn --seed 7`, commit abc" in text
    assert "| node-0 | agent-kill: single-numa-node, pod, full-pcpus-only |" in text
    assert "nobody shares exclusive CPUs: old/a and shared/c: seen 1,9 in both" in text
    assert (tmp_path / "report.md").read_text() == text


def test_cpu_lists_are_read_and_written() -> None:
    assert shown(cpus("0-3,8,10-11")) == "0-3,8,10-11"
    assert cpus("") == cpus(None) == frozenset()


@pytest.mark.parametrize(
    "words", ["--faults nothing", "--machine nowhere", "--minutes 0", "--nodes 0", "--config {"]
)
def test_wrong_arguments_end_with_status_2(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["hack/churn", *words.split()])
    with pytest.raises(SystemExit) as ended:
        _arguments()
    assert ended.value.code == 2


def test_every_fault_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv",
        [
            "hack/churn",
            "--faults",
            ",".join(FAULTS),
            "--config",
            json.dumps({"memoryManagerPolicy": "Static"}),
        ],
    )
    assert _arguments().faults == list(FAULTS)


@pytest.mark.parametrize(
    ("orders", "path", "status"),
    [
        ({"status": 429}, "/api/v1/pods", 429),
        ({"status": 410}, "/api/v1/pods?watch=1&resourceVersion=7", 410),
        ({"status": 410}, "/api/v1/pods?continue=abc", 410),
        ({"old": True}, "/seen", 200),
    ],
)
def test_the_proxy_answers_as_ordered(
    orders: Any, path: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.Proxy, "orders_file", tmp_path / "orders", raising=False)
    monkeypatch.setattr(proxy.Proxy, "answers", {"/seen": (200, b"{}")})
    (tmp_path / "orders").write_text(json.dumps(orders))
    with ThreadingHTTPServer(("127.0.0.1", 0), proxy.Proxy) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == status
        assert (answer.headers.get("Retry-After") is not None) is (status == 429)
        if status != 200:
            assert json.loads(answer.read())["code"] == status
        connection.close()
        serving.join()


def test_the_log_of_the_runtime_tells_when_it_had_a_plugin() -> None:
    log = (
        'time="2026-11-27T18:20:41.004201337Z" level=info msg="starting containerd"\n'
        'time="2026-11-27T18:20:42.5Z" level=info msg="plugin \\"90-nri-pin\\" connected and synchronized"\n'
        'time="2026-11-27T18:20:43.5Z" level=info msg="something else"\n'
    )
    assert [(round(row["t"] % 60, 2), row["what"]) for row in runtime_rows(log)] == [
        (41.0, "starts"),
        (42.5, "serves"),
    ]


def test_a_pod_that_was_placed_before_its_facts_came_is_told_by_the_log() -> None:
    line = "2026-11-27T18:20:{}Z INFO    decided op=1 event={} pod=default/{} steps={}\n"
    log = line.format("01.000", "CreateContainer", "late", "exclusive") + line.format(
        "02.000", "PodFactsTold", "late", "facts"
    )
    log += line.format("03.000", "CreateContainer", "known", "whole-pod") + line.format(
        "04.000", "CreateContainer", "known", "kept"
    )
    rows = records()
    rows["faults"].append({"t": 25.0, "part": "clock", "what": "set", "offset_s": 3600})
    assert list(Past(rows).facts_told_late(log)) == ["late"]


def test_pods_ask_for_what_the_scheduler_counts() -> None:
    draw = Draw(random.Random(1), {"cpuManagerPolicyOptions": {}}, 6)
    for _, kind in KINDS.values():
        assert 0 <= request_milli(kind(draw)) <= 40_000
    spec = {
        "initContainers": [container("i", amounts(3)), container("s", amounts(1), restartPolicy="Always")],
        "containers": [container("a", amounts("1500m"))],
    }
    assert request_milli(spec) == 4000
