"""`nri-pin simulate` as it is called."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.__main__ import main
from nri_plugin.simulator.simulate.plan import shipped_scenarios

PODS = """\
- {pod: db, count: 2, cpu: 4, memory: 1Gi}
- {pod: web, count: 3, requests: {cpu: 250m}}
- {pod: huge, cpu: 15, memory: 1Gi}
"""
MACHINE = "pack:2 numa:1(memory=16GiB) l3:1 core:4 pu:2(indexes=core)\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Calls the command in a folder with a machine and pods; answers with code, output and errors."""
    (tmp_path / "pods.yaml").write_text(PODS)
    (tmp_path / "two.txt").write_text(MACHINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["simulate", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_who_got_what_who_did_not_and_what_is_left_fit_into_80_columns(run) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("two.txt", "pods.yaml", "--policy", "single-numa-node")
    assert (code, err) == (0, "")
    assert "default/db-0/db               4: 1-2,9-10   0     0      all" in out
    assert "default/web-0/web and 2 more  shared pool" in out
    assert "1 pod refused, OutOfcpu: default/huge\n" in out
    assert "pods      5 of 6 placed, 1 refused" in out
    assert "the first core, by default" in " ".join(out.split())


@pytest.mark.parametrize("name", list(shipped_scenarios()))
def test_every_shipped_scenario_is_played_and_meets_its_expectations(run, name: str) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run(name)
    assert (code, err) == (0, "")


def test_json_is_one_object_with_every_cpu(run) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = run("two.txt", "pods.yaml", "-o", "json")
    found = json.loads(out)
    (one,) = found["simulations"]
    assert (found["format"], found["comparison"]) == (1, None)
    assert [owner["cpu"] for owner in one["owners"]] == list(range(16))
    assert one["totals"]["exclusive_cpus"] == 8


def test_two_configurations_are_compared_container_by_container_and_then_in_sums(run) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run("two.txt", "pods.yaml", "--compare", "cpuManagerPolicy=none")
    assert code == 0
    assert out.index("default/db-0/db") < out.index("SUM")
    assert "exclusive CPUs              8      0" in out


def test_a_comparison_takes_a_file_too(run) -> None:  # type: ignore[no-untyped-def]
    Path("b.yaml").write_text('reservedSystemCPUs: "0-3"\n')
    _, out, _ = run("two.txt", "pods.yaml", "--compare", "b.yaml")
    assert "B         b.yaml, reserved 0-3" in out


def test_a_report_is_written_beside_the_answer(run) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("two.txt", "pods.yaml", "--html", "report.html")
    assert (code, err) == (0, "report written to report.html\n")
    assert "default/db-0" in Path("report.html").read_text()
    assert "CONTAINER" in out


def test_an_expectation_that_is_not_met_ends_with_one(run) -> None:  # type: ignore[no-untyped-def]
    Path("steps.yaml").write_text(
        "machine: laptop\nconfig: {reservedSystemCPUs: '0'}\nsteps:\n"
        "- run: a/b\n  containers: {c: {cpu: 1, memory: 1Gi}}\n- expect: a/b/c\n  exclusive: 2\n"
    )
    code, out, _ = run("steps.yaml")
    assert code == 1
    assert "! steps.yaml:6: a/b/c should have exclusive cpus: 2, it has 1" in out


def test_pods_may_come_from_standard_input(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(PODS))
    assert run("two.txt", "-")[0] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a machine and a scenario"),
        (["a", "b", "c"], "expected MACHINE and SCENARIO, found 3 words"),
        (["-", "-"], "only one of MACHINE and SCENARIO can be standard input"),
        (["pods.yaml"], "pods.yaml names no machine; put one before it, such as laptop pods.yaml"),
        (["nowhere", "pods.yaml"], "nowhere: is neither a file nor the name of a shipped machine"),
        (["demo"], "demo: is a machine; name a scenario after it, such as nri-pin simulate demo pods.yaml"),
        (["two.txt", "nothing.yaml"], "nothing.yaml: is neither a file nor the name of a shipped scenario"),
        (["two.txt", "pods.yaml", "--set", "x"], "--set: expected KEY=VALUE"),
        (["two.txt", "pods.yaml", "--set", "numa=1"], "--set numa: unknown key"),
        (["two.txt", "pods.yaml", "--set", "reservedSystemCPUs=99"], "CPUs 99 do not exist on this machine"),
        (["two.txt", "pods.yaml", "--compare", "numa=1"], "nri-pin: --compare numa: unknown key"),
        (
            ["two.txt", "pods.yaml", "--compare", "gone"],
            "--compare gone: there is no such file; name one, or",
        ),
        (["two.txt", "pods.yaml", "--shape", "cpu"], "--shape: expected NAME=AMOUNT"),
        (["two.txt", "pods.yaml", "--shape", "cpus=1"], "--shape: cpus: unknown key; did you mean cpu?"),
        (["two.txt", "pods.yaml", "--shape", "cpu=x"], "--shape: cpu: 'x' is not a quantity"),
        (["two.txt", "pods.yaml", "--config", "gone.yaml"], "gone.yaml: cannot be read"),
        (["two.txt", "pods.yaml", "--node", "n1"], "--node: goes with Kubernetes manifests"),
    ],
)
def test_a_wrong_question_is_one_line_and_ends_with_two(run, words: list[str], told: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_report_that_cannot_be_written_is_told(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("two.txt", "pods.yaml", "--html", "gone/report.html")
    assert code == 1
    assert err == "nri-pin: gone/report.html: cannot be written: no such file or directory\n"


def test_a_machine_that_the_scenario_describes_has_no_name(run) -> None:  # type: ignore[no-untyped-def]
    assert run("telco")[1].startswith("telco on an unnamed machine: 11 pods\n")


def test_the_shipped_scenarios_are_listed_with_what_they_show(run) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = run("--list")
    assert {"telco", "hpc", "inference"} <= {line.partition(" ")[0] for line in out.splitlines()}


def test_shuffles_are_told_from_least_to_most(run) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run("two.txt", "pods.yaml", "--order", "shuffle", "--seed", "3", "--repeat", "4")
    assert code == 0
    assert "4 SHUFFLES" in out
    assert "THIS ORDER  LEAST  MIDDLE  MOST" in out
    _, out, _ = run(
        "two.txt", "pods.yaml", "--order", "shuffle", "--seed", "3", "--repeat", "4", "-o", "json"
    )
    (one,) = json.loads(out)["simulations"]
    assert [row["seed"] for row in one["orders"]] == [3, 4, 5, 6, 7]


def test_large_pods_may_come_first(run) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = run("two.txt", "pods.yaml", "--order", "large-first", "-o", "json")
    (one,) = json.loads(out)["simulations"]
    assert one["steps"][0]["target"] == "default/huge"


def test_what_needs_a_process_is_passed_over_and_said(run) -> None:  # type: ignore[no-untyped-def]
    Path("steps.yaml").write_text(
        "machine: laptop\nconfig: {reservedSystemCPUs: '0'}\nsteps:\n"
        "- say: Hello.\n"
        "- create: a/b\n  containers: {c: {cpu: 2, memory: 1Gi}}\n"
        "- start: a/b\n- restart: agent\n- update: a/b/c\n  cpu: 100\n"
        "- stop: a/b/c\n- expect: a/b/c\n  exclusive: 2\n- remove: a/b\n- update: a/b/c\n  cpu: 1\n"
        "- expect: a/b/c\n  refused: OutOfcpu\n"
    )
    code, out, _ = run("steps.yaml")
    assert code == 1
    assert "no container runs" in out
    assert "note: steps.yaml:8: restart passed over" in out
    assert "! steps.yaml:12: a/b/c should run" in out
    assert "! steps.yaml:15: a/b/c does not run and cannot be updated" in out
    assert "! steps.yaml:17: a/b/c should have been refused with OutOfcpu, it was not" in out


def test_a_resize_that_is_refused_is_told(run) -> None:  # type: ignore[no-untyped-def]
    Path("steps.yaml").write_text(
        "machine: laptop\nconfig: {reservedSystemCPUs: '0'}\nsteps:\n"
        "- run: a/b\n  containers: {c: {cpu: 2, memory: 1Gi}}\n- update: a/b/c\n  cpu: 100\n"
    )
    code, out, _ = run("steps.yaml")
    assert code == 0
    assert "  update of a/b/c: " in out


def test_several_keys_are_compared_at_once_and_a_list_is_one_value(run) -> None:  # type: ignore[no-untyped-def]
    words = "topologyManagerPolicy=restricted,neverRefuse=[a,b]"
    _, out, _ = run("two.txt", "pods.yaml", "--compare", words, "-o", "json")
    assert json.loads(out)["comparison"]["configuration"] == [
        ["topologyManagerPolicy", "default", "restricted"],
        ["neverRefuse", "default", "[a, b]"],
    ]


def test_memory_devices_and_broken_caches_are_told_where_there_are_some(run) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = run("inference")
    assert "MEMORY LEFT" in out
    assert "DEVICES" in out
    assert "fragmentation of uncore caches, by core: 14 % of 1" in out


def test_only_a_numa_node_of_several_caches_can_be_broken_up(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, one, _ = run("two.txt", "pods.yaml")
    assert "BROKEN UP" not in one
    (tmp_path / "two.txt").write_text(MACHINE.replace("l3:1 core:4", "l3:2 core:2"))
    _, two, _ = run("two.txt", "pods.yaml")
    assert "BROKEN UP" in two


def test_the_cpus_that_an_ended_init_container_keeps_have_a_row(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "build.yaml").write_text(
        "- {pod: build, initContainers: {fetch: {cpu: 4, memory: 1Gi}}, containers: {work: {cpu: 2, memory: 1Gi}}}\n"
    )
    _, out, _ = run("two.txt", "build.yaml")
    rows = [line.split() for line in out.splitlines() if line.startswith("default/build/")]
    assert rows == [
        ["default/build/work", "2:", "1,9", "0", "0", "all"],
        ["default/build/fetch", "(ended)", "2:", "2,10", "0", "0"],
    ]


def test_policy_options_may_be_named_alone(capsys) -> None:
    words = ["simulate", "inference", "-o", "json", "--set", "prefer-align-cpus-by-uncorecache=true"]
    assert main([*words, "--set", "full-pcpus-only=true"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["simulations"]
    assert (
        "prefer-align-cpus-by-uncorecache: true" in told["configuration"]["said"]["cpuManagerPolicyOptions"]
    )
    assert "full-pcpus-only: true" in told["configuration"]["said"]["cpuManagerPolicyOptions"]
    assert (
        main(["simulate", "inference", "--compare", "full-pcpus-only=true,topologyManagerPolicy=none"]) == 0
    )


def test_manifests_are_read_without_the_libraries_of_the_cluster(tmp_path: Path) -> None:
    pods = tmp_path / "pods.yaml"
    limits = "{cpu: 2, memory: 1Gi}"
    pods.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, "
        f"spec: {{containers: [{{name: c, image: x, resources: {{limits: {limits}}}}}]}}}}"
    )
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('xxhash', 'numpy', 'lightkube', 'httpx2', 'grpc')))\n"
        "from nri_plugin.__main__ import main\n"
        f"sys.exit(main(['simulate', 'laptop', {str(pods)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
