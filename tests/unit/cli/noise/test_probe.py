"""The probe: gaps by a played clock, where it may run, its manifest, and how its result is read."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.noise import noise as module
from nri_plugin.cli.noise import probe
from nri_plugin.cli.noise.noise import command
from nri_plugin.cli.noise.probe import Gaps, checked_cpus, gaps, gaps_of, histogram, read_result, upper_end_us
from nri_plugin.cli.state.source import FailedError, WrongUsageError
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State


def clock_with(*steps_ns: int) -> Callable[[], int]:
    """A clock that goes on by these steps, then by 100 ns."""
    left, now = list(steps_ns), [0]

    def clock() -> int:
        now[0] += left.pop(0) if left else 100
        return now[0]

    return clock


@pytest.mark.parametrize(
    ("gap_ns", "end_us"), [(1, 1), (1000, 1), (1001, 2), (2000, 2), (2001, 4), (5000, 8), (1_000_000, 1024)]
)
def test_buckets_are_powers_of_two(gap_ns: int, end_us: int) -> None:
    assert upper_end_us(gap_ns) == end_us


def test_gaps_above_the_threshold_are_counted() -> None:
    found = gaps(1_000_000, 5000, clock_with(100, 100, 6000, 100, 5000, 70_000))
    assert (found.count, found.longest_ns, found.total_ns) == (2, 70_000, 76_000)
    assert found.buckets == {8: 1, 128: 1}
    assert found.reads > 1000
    assert found.seconds == pytest.approx(0.001, rel=0.01)


def test_a_quiet_cpu_has_no_gaps() -> None:
    found = gaps(100_000, 5000, clock_with())
    assert (found.count, found.buckets) == (0, {})


def test_a_probe_of_this_machine_measures_each_cpu_on_itself() -> None:
    cpus = CPUSet.from_ids(os.sched_getaffinity(0))
    found = probe.probe(cpus, 0.02, 1)
    assert CPUSet.from_ids(found) == cpus
    assert all(one.reads > 0 and one.seconds >= 0.02 for one in found.values())
    assert all(sum(one.buckets.values()) == one.count for one in found.values())


def test_a_cpu_that_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(FailedError, match="CPUs 4095 could not be measured"):
        probe.probe(CPUSet.of(4095), 0.01, 1)


@pytest.fixture
def online(tmp_path: Path) -> Path:
    path = tmp_path / "online"
    path.write_text("0-4095\n")
    return path


def test_it_runs_only_on_cpus_that_can_be_its_own(online: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert checked_cpus(2, in_pod=True, online=str(online)) == CPUSet.parse("2-3")
    assert checked_cpus(None, in_pod=True, online=str(online)) == CPUSet.parse("2-3")
    with pytest.raises(WrongUsageError, match="only in a pod"):
        checked_cpus(2, in_pod=False, online=str(online))
    with pytest.raises(WrongUsageError, match="requested 4 CPUs and may run on 2"):
        checked_cpus(4, in_pod=True, online=str(online))
    online.write_text("2-3\n")
    with pytest.raises(WrongUsageError, match="may run on all CPUs 2-3 of the machine"):
        checked_cpus(2, in_pod=True, online=str(online))
    with pytest.raises(FailedError, match="cannot be read"):
        checked_cpus(2, in_pod=True, online=str(online.parent))


def test_on_a_node_nothing_is_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(probe, "probe", pytest.fail)
    result = CliRunner().invoke(command, ["--probe"])
    assert result.exit_code == 2
    assert "--probe-manifest prints one" in result.output


def test_the_manifest_is_a_guaranteed_pod_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--probe-manifest", "--cpus", "3", "--for", "20s", "--image", "registry/nri-pin:1"]
    pod = yaml.safe_load(CliRunner().invoke(command, words).stdout)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"]["cpu"] == "3"
    assert container["image"] == "registry/nri-pin:1"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["automountServiceAccountToken"] is False
    # Its command line is one that this program takes.
    assert container["args"][0] == "noise"
    asked: list[object] = []
    monkeypatch.setattr(module, "_probe", lambda *words: asked.extend(words))
    done = CliRunner().invoke(command, container["args"][1:])
    assert done.exit_code == 0, done.output
    assert asked == [20.0, 5, 3, "json"]


RESULT = {
    "probe": "0.1.0",
    "threshold_us": 5,
    "cpus": {
        "2": {"seconds": 10.0, "reads": 9, "count": 3, "total_ns": 30_000, "longest_ns": 20_000, "buckets": {"8": 2, "32": 1}, "switches": 0},
        "3": {"seconds": 10.0, "reads": 9, "count": 0, "total_ns": 0, "longest_ns": 0, "buckets": {}, "switches": None},
    },
}  # fmt: skip


def test_a_result_is_shown_as_a_histogram() -> None:
    found, threshold_us = read_result(f"a line of the runtime\n{json.dumps(RESULT)}\n", "log")
    lines = [" ".join(line.split()) for line in histogram(found, threshold_us)]
    assert lines == [
        "gaps longer than 5 us in 10.0 s",
        "",
        "GAPS CPU2 CPU3",
        "up to 8 us 2 0",
        "up to 32 us 1 0",
        "gaps 3 0",
        "longest 20.0 us 0.0 us",
        "lost 30.0 us 0.0 us",
        "share lost 0.0003 % 0.0000 %",
        "preempted 0 ?",
    ]


def test_a_result_goes_through_json_and_back() -> None:
    found = {7: Gaps(1.0, 5, 1, 9000, 9000, {16: 1}, 4)}
    told = json.loads(json.dumps(probe.result_facts(found, 8)))
    assert read_result(json.dumps(told), "log") == (found, 8)
    assert gaps_of(told["cpus"]["7"]) == found[7]


@pytest.mark.parametrize(
    "text", ["", "no JSON\n", "[1]\n", '{"cpus": 3}\n', '{"cpus": {"x": 1}, "threshold_us": 1}\n', "null\n"]
)
def test_a_log_without_a_result_is_refused(text: str) -> None:
    with pytest.raises(FailedError, match="log: holds no result of a probe"):
        read_result(text, "log")


def test_the_owner_of_the_cpus_is_told_where_a_state_is_here(tmp_path: Path) -> None:
    pod = PodRecord("u1", "s1", "probe", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")
    record = ContainerRecord(
        "c1", "u1", "probe", Phase.RUNNING, CgroupRef("/kubepods/podu1", "/kubepods/podu1/c1")
    )
    words = ["--probe-result", str(tmp_path / "log"), "--state-dir", str(tmp_path)]
    (tmp_path / "log").write_text(json.dumps(RESULT))
    nothing = CliRunner().invoke(command, words)
    assert nothing.exit_code == 0
    assert "exclusive" not in nothing.output
    for cpus, text in (
        ("2-3", "are exclusive CPUs of shop/probe/probe"),
        ("2", "are exclusive CPUs of no container"),
    ):
        state = State({"u1": pod}, {"c1": record}, {"u1/probe": Allocation(CPUSet.parse(cpus))})
        CheckpointFile(str(tmp_path), durable=False).save(state)
        assert text in CliRunner().invoke(command, words).output
    told = json.loads(CliRunner().invoke(command, [*words, "-o", "json"]).output)
    assert told["exclusive_of"] == ""
    assert told["cpus"] == RESULT["cpus"]


def test_a_log_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--probe-result", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "name the log of the pod" in result.output
