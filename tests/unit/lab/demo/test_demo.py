import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from tests.lab.demo import __main__ as demo
from tests.lab.demo.report import JSONReport, TextReport

REPOSITORY = Path(__file__).parents[4]
PROBLEM = """\
machine: laptop
config:
  reservedSystemCPUs: "0"
steps:
  - run: a/b
    containers: {c: {cpu: 2, memory: 1Gi}}
  - expect: a/b/c
    exclusive: 3
"""


def run_demo(
    *words: str, module: str = "tests.lab.demo", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"} | environment,
        check=False,
    )


@pytest.fixture(scope="module")
def told() -> str:
    done = run_demo()
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_demo_says_what_is_real_and_what_is_not(told: str) -> None:
    assert "production code  agent, protocol, decisions, checkpoint" in told
    assert "stand-ins        container runtime, hardware, cgroup tree" in told


def test_the_demo_shows_a_placement_a_refusal_and_a_restart(told: str) -> None:
    assert re.search(r"\+ shop/db/db +1-2,33-34 +4 own +NUMA 0 L3 0 mem 0", told)
    assert "x ml/train/train refused: TopologyAffinityError: " in told
    assert "cpu: 20 wanted" in told
    assert re.search(r"SIGKILL sent, back after .* s: 5 containers compared, 0 cpusets changed", told)
    assert re.search(r"~ shop/web/web .* 42 shared +was 38", told)


def test_the_demo_ends_with_picture_checkpoint_and_verdict(told: str) -> None:
    assert "C shop/queue/queue: 3,35 (2 cpus)" in told
    assert "  exclusive    3-13,35-45" in told
    assert re.search(r"^ok after \d+\.\d s$", told, re.MULTILINE)


def test_the_demo_fits_80_columns_and_is_plain_when_nobody_watches(told: str) -> None:
    assert max(map(len, told.splitlines())) <= 80
    assert "\x1b" not in told


def test_an_ascii_terminal_gets_ascii() -> None:
    done = run_demo("--machine", "laptop", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_json_has_every_step_and_the_last_placements() -> None:
    done = run_demo("--runtime", "cri-o", "-o", "json", "--machine", "kep3545-4-numa")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["problems"] == []
    assert answer["standIns"] == ["container runtime", "hardware", "cgroup tree"]
    assert answer["runtime"] == "cri-o"
    restart = next(step for step in answer["steps"] if step.get("step") == "restart")
    assert (restart["compared"], restart["changed"]) == (5, [])
    assert any(placement["exclusive"] for placement in answer["placements"])


def test_the_example_scenario_plays() -> None:
    example = REPOSITORY / "nri_plugin" / "simulator" / "scenarios" / "example.yaml"
    assert run_demo("--scenario", str(example)).returncode == 0


def test_a_container_that_is_never_refused_may_run_in_the_shared_pool(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "machine: laptop\nconfig: {reservedSystemCPUs: '0,4', neverRefuse: [ml]}\nsteps:\n"
        "- run: ml/large\n  containers: {c: {cpu: 20, memory: 1Gi}}\n"
        "- run: ml/small\n  containers: {c: {cpu: 2, memory: 1Gi}}\n"
        "- expect: ml/small/c\n  exclusive: 2\n"
    )
    done = run_demo("--scenario", str(tmp_path / "x.yaml"))
    assert done.returncode == 0, done.stderr
    assert "unplaced: ml/large/c" in done.stdout


def test_the_devices_scenario_is_shipped_and_shows_who_has_which() -> None:
    done = run_demo("--scenario", "devices")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\+ ml/tune/tune +3,19 .*\n      nvidia\.com/gpu 1,2 on NUMA 0\n", done.stdout)
    assert "x ml/late/late refused: UnexpectedAdmissionError: Allocate failed" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_has_the_devices_of_every_container() -> None:
    answer = json.loads(run_demo("--scenario", "devices", "-o", "json").stdout)
    assert {each["container"]: each["devices"] for each in answer["placements"]} == {
        "ml/infer/infer": {"nvidia.com/gpu": ["0", "3"]},
        "ml/tune/tune": {"nvidia.com/gpu": ["1", "2"]},
        "net/router/router": {"example.com/nic": ["0", "1", "2", "3"]},
        "ml/next/next": {"nvidia.com/gpu": ["4", "7"]},
    }


def test_what_was_expected_and_did_not_happen_is_exit_1_and_the_log_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(PROBLEM)
    done = run_demo("--scenario", str(tmp_path / "x.yaml"), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    complaint = "x.yaml:7: a/b/c should have exclusive cpus: 3, it has 2; the agent's log is kept in "
    assert complaint in done.stderr
    assert "decided" in Path(done.stderr.strip().rpartition(" ")[2]).read_text()


@pytest.mark.parametrize(("agent_pid", "found"), [(1, []), (0, ["a is not written"])])
def test_contradictions_count_where_the_agent_will_not_write_any_more(
    agent_pid: int, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([["a is not written"], ["a is not written"], []])
    monkeypatch.setattr(demo, "contradictions", lambda _node: next(looks))
    assert demo.lasting_contradictions(SimpleNamespace(agent_pid=agent_pid)) == found  # type: ignore[arg-type]


def test_a_contradiction_that_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "contradictions", lambda _node: ["a is not written"])
    monkeypatch.setattr(demo, "LATE_S", 0.0)
    assert demo.lasting_contradictions(SimpleNamespace(agent_pid=1)) == ["a is not written"]  # type: ignore[arg-type]


def test_an_agent_that_cannot_start_is_exit_1_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(PROBLEM.replace('"0"', '"0-99"'))
    done = run_demo("--scenario", str(tmp_path / "x.yaml"), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "the agent failed: it ended with code 2" in done.stderr
    assert "reservedSystemCPUs" in done.stderr


def test_kept_files_are_a_node_that_can_be_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    assert run_demo("--machine", "laptop", "--keep", str(folder)).returncode == 0
    assert (folder / "machine" / "sys").is_dir()
    assert (folder / "cgroup" / "kubepods.slice" / "cpuset.cpus.effective").is_file()
    verified = run_demo("state", "verify", "--state-dir", str(folder / "state"), module="nri_plugin")
    assert verified.returncode == 0
    again = run_demo("--machine", "laptop", "--keep", str(folder))
    assert again.returncode == 2
    assert "is not empty; name a new folder" in again.stderr


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("--machine", "nowhere"), 2, "nowhere: is neither a file nor the name of a shipped machine"),
        (("--scenario", "/nowhere"), 2, "/nowhere: cannot be read: no such file"),
        (("--scenario", "nope"), 2, "nope: is neither a file nor a scenario that comes with nri-pin; "),
        (("--scenario", "nope"), 2, "name one of devices, example\n"),
        (("--scenario", "a", "--machine", "b"), 2, "--scenario names machine and runtime itself"),
        (("--runtime", "docker"), 2, "'docker' is not one of"),
    ],
)
def test_a_wrong_option_is_one_line(words: tuple[str, ...], code: int, complaint: str) -> None:
    done = run_demo(*words)
    assert done.returncode == code
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_sigterm_ends_the_agent_too(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.lab.demo"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1", "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    line = next(line for line in process.stdout if "the agent, process" in line)
    agent = int(re.findall(r"process (\d+)", line)[0])
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    process.stdout.close()
    assert process.wait() == 130
    with pytest.raises(ProcessLookupError):
        os.kill(agent, 0)


def test_the_default_is_the_day_on_the_demo_machine() -> None:
    scenario = demo.chosen(None, None, None)
    assert (scenario.machine, scenario.runtime) == ("demo", "containerd-2.1")


def test_a_scenario_file_and_a_machine_exclude_each_other() -> None:
    with pytest.raises(click.UsageError):
        demo.chosen("laptop", Path("x"), None)


def test_the_report_follows_the_format() -> None:
    scenario = demo.chosen("laptop", None, None)
    assert isinstance(demo.new_report(scenario, "json", fast=True, no_color=True), JSONReport)
    assert isinstance(demo.new_report(scenario, "text", fast=True, no_color=True), TextReport)


def test_piped_its_rows_are_whole_and_none_is_coloured() -> None:
    done = run_demo("--fast", COLUMNS="60", TERM="xterm-256color")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "+ shop/db/db 1-2,33-34 4 own NUMA 0 L3 0 mem 0" in done.stdout


WHOLE_POD = """\
machine: demo
config:
  reservedSystemCPUs: "0"
  topologyManagerPolicy: restricted
  topologyManagerScope: pod
  featureGates: {PodLevelResourceManagers: true}
steps:
  - run: a/train
    facts: known
    resources: {cpu: 4, memory: 1Gi}
    initContainers:
      mesh: {restartPolicy: Always}
      log: {restartPolicy: Always}
    containers:
      work: {cpu: 2, memory: 64Mi}
"""


def test_the_block_of_a_pod_is_drawn_once_with_who_shares_in_it(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(WHOLE_POD)
    told = run_demo("--scenario", str(tmp_path / "x.yaml")).stdout
    assert re.search(r"\+ a/train/mesh +2,34 +2 in pod +Guaranteed", told)
    assert re.search(r"\+ a/train/log +2,34 +2 in pod +Guaranteed", told)
    assert "L3 0: =· AA BB ··" in told
    assert "B a/train: 2,34 (2 cpus), pod shared pool, of the pod's CPUs 1-2,33-34: mesh," in told
    assert "· shared pool: 0,3-32,35-63 (60 cpus)" in told


def test_the_cpus_that_an_ended_init_container_keeps_are_not_drawn_as_shared(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        """\
machine: demo
config: {reservedSystemCPUs: "0"}
steps:
  - run: a/build
    facts: known
    initContainers: {fetch: {cpu: 6, memory: 1Gi}}
    containers: {work: {cpu: 2, memory: 64Mi}}
"""
    )
    told = run_demo("--scenario", str(tmp_path / "x.yaml")).stdout
    assert "B a/build/fetch: 2-3,34-35 (4 cpus), ended, kept until its pod ends" in told
    assert "· shared pool: 0,4-32,36-63 (58 cpus)" in told


def test_a_pod_that_runs_in_part_is_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        """\
machine: demo
config: {reservedSystemCPUs: "0", topologyManagerPolicy: single-numa-node}
steps:
  - run: a/part
    containers:
      first: {cpu: 10, memory: 1Gi}
      second: {cpu: 17, memory: 1Gi}
"""
    )
    told = " ".join(run_demo("--scenario", str(tmp_path / "x.yaml")).stdout.split())
    refused = "a/part: incomplete: refused: second (TopologyAffinityError)"
    assert f"{refused}; other containers of the pod: first (CPUs 1-5,33-37)" in told
