"""A node moves to the agent and back, with every failure."""

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import yaml
from msgspec.structs import replace

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.migrate import migrate as module
from nri_plugin.cli.migrate.host import MigrationRecord, RecordFile
from nri_plugin.cli.migrate.planning import Choices
from nri_plugin.cli.migrate.steps import Step
from nri_plugin.cli.state.import_export import bring_back
from nri_plugin.config.keys import flag_of
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from tests.played_migration import AGENT, CONFIG, FOLDER, KUBELET, PlayedNode, copy_of, played_node


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedNode:
    return played_node(tmp_path / "node", monkeypatch)


def config(node: PlayedNode) -> str:
    return node.read(f"{FOLDER}/config.yaml")


def test_there_and_back(node: PlayedNode) -> None:
    before = node.cpusets()
    assert node.migrate("to-plugin") == ""
    assert node.cpusets() == before
    assert node.units[KUBELET].active
    assert node.units[AGENT].active
    assert node.units[AGENT].enabled
    assert yaml.safe_load(config(node))["cpuManagerPolicy"] == "none"
    assert node.read(f"{FOLDER}/config.yaml.before-nri-pin") == CONFIG
    assert node.migrate("to-kubelet") == ""
    assert node.cpusets() == before
    assert not node.units[AGENT].active
    assert not node.units[AGENT].enabled
    assert yaml.safe_load(config(node)) == yaml.safe_load(CONFIG)


def test_a_node_whose_memory_manager_is_off_goes_there_and_back_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, _, end = CONFIG.partition("memoryManagerPolicy: Static\n")
    plain = begin + end.partition("reservedMemory:")[0] + "kubeReserved:\n  memory: 512Mi\n"
    node = played_node(tmp_path / "node", monkeypatch, plain)
    before = node.cpusets()
    for _ in range(2):
        assert node.migrate("to-plugin") == ""
        assert node.cpusets() == before
        assert node.migrate("to-kubelet") == ""
    assert node.cpusets() == before
    assert yaml.safe_load(config(node)) == yaml.safe_load(plain)


def test_a_node_of_a_daemonset_goes_there_and_back_twice(node: PlayedNode) -> None:
    before = node.cpusets()
    for _ in range(2):
        assert node.migrate("to-plugin", in_pod=True) == ""
        assert node.kubelet_settings()["cpuManagerPolicy"] == "none"
        assert node.migrate("to-kubelet", in_pod=True) == ""
        assert yaml.safe_load(config(node)) == yaml.safe_load(CONFIG)
    assert node.cpusets() == before


def test_a_container_that_is_kept_off_exclusive_cpus_is_noted_once(
    node: PlayedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    cgroup = next(path for path, cpus in node.cpusets().items() if len(CPUSet.parse(cpus)) > 3)
    node.pin(cgroup, "0-7")
    assert node.migrate("to-plugin") == ""
    said = [line for line in capsys.readouterr().out.splitlines() if "note: " in line and cgroup in line]
    assert len(said) == 1
    assert "ran on CPUs 0-7 and runs on " in said[0]


def test_allocations_of_the_kubelet_are_not_replaced_by_a_checkpoint_that_is_left_over(
    node: PlayedNode,
) -> None:
    assert node.migrate("to-plugin") == ""
    assert node.migrate("to-kubelet") == ""
    bring_back(str(node.path("run/nri-pin/state.json")))
    kept = node.read(f"{FOLDER}/cpu_manager_state")
    assert "has allocations of its own" in node.migrate("to-kubelet")
    assert node.read(f"{FOLDER}/cpu_manager_state") == kept
    assert node.units[KUBELET].active


def test_a_flag_of_a_kubelet_that_does_not_run_is_not_passed_over(node: PlayedNode) -> None:
    node.write("etc/default/kubelet", "KUBELET_EXTRA_ARGS=--cpu-manager-policy=static\n")
    node._stopped(KUBELET)
    assert "does not run, and --cpu-manager-policy," in node.migrate("to-plugin")
    node._started(KUBELET)
    assert node.migrate("to-plugin") == ""
    assert node.started_with["cpuManagerPolicy"] == "none"


@pytest.mark.parametrize("way", ["unit", "runtime"])
@pytest.mark.parametrize("direction", ["to-plugin", "to-kubelet"])
def test_an_agent_that_nothing_starts_is_told_before_the_kubelet_stops(
    node: PlayedNode, direction: str, way: Literal["unit", "runtime"]
) -> None:
    prepared(node, direction)
    del node.units[AGENT]
    node.calls.clear()
    assert f"nri-pin install --{'systemd' if way == 'unit' else 'plugin-dir'}" in node.migrate(
        direction, Choices(way=way)
    )
    assert node.calls == []


def test_the_list_of_containers_is_a_file_of_the_node(node: PlayedNode) -> None:
    rows = [
        {"id": uid, "labels": {"io.kubernetes.pod.uid": uid}, "metadata": {"name": name}}
        for uid, name in node.containers.values()
    ]
    node.write("var/lib/running.json", json.dumps({"containers": rows}))
    assert node.migrate("to-plugin", Choices(containers="/var/lib/running.json")) == ""


# ---- failures and kills


def prepared(node: PlayedNode, direction: str) -> None:
    """Bring the node to where the migration begins."""
    if direction == "to-kubelet":
        assert node.migrate("to-plugin") == ""
    node.effects = 0


def judge(node: PlayedNode, cpusets: dict[str, str] | None) -> str:
    """See that the node works, whichever way; returns who pins."""
    assert node.units[KUBELET].active, node.said
    assert node.kubelet_refusal() in ("", "something else is wrong")
    if cpusets is not None:
        assert node.cpusets() == cpusets
    assert not node.path("var/lib/nri-pin/migration.json").exists()
    assert node.started_with == node.kubelet_settings()
    policy = node.kubelet_settings().get("cpuManagerPolicy", "none")
    assert node.units[AGENT].active == (policy == "none")
    assert node.units[AGENT].enabled == (policy == "none")
    if policy == "static":
        assert yaml.safe_load(config(node)) == yaml.safe_load(CONFIG)
    return policy


DIRECTIONS = ("to-plugin", "to-kubelet")
STEPS = {"to-plugin": 9, "to-kubelet": 7}
BEFORE = {"to-plugin": "static", "to-kubelet": "none"}
AFTER = {"to-plugin": "none", "to-kubelet": "static"}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_failure_of_any_service_call_leaves_the_node_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    start = played_node(tmp_path / "start", monkeypatch)
    prepared(start, direction)
    clean = copy_of(start, tmp_path / "clean", monkeypatch)
    assert clean.migrate(direction) == ""
    assert len(clean.calls) >= 4
    for number, call in enumerate(clean.calls):
        node = copy_of(start, tmp_path / str(number), monkeypatch)
        before = node.cpusets()
        node.fails = call
        error = node.migrate(direction)
        assert "everything is as it was before, and the kubelet runs" in error, call
        assert judge(node, before) == BEFORE[direction]


@pytest.mark.parametrize(
    ("direction", "step"),
    [
        *(("to-plugin", step) for step in range(STEPS["to-plugin"])),
        *(("to-kubelet", step) for step in range(STEPS["to-kubelet"])),
    ],
)
def test_a_failure_of_any_step_leaves_the_node_as_it_was(
    node: PlayedNode, monkeypatch: pytest.MonkeyPatch, direction: str, step: int
) -> None:
    prepared(node, direction)
    before = node.cpusets()
    real = module.steps_of

    def failing(*args: object) -> tuple[Step, ...]:
        steps = list(real(*args))  # type: ignore[arg-type]
        assert len(steps) == STEPS[direction]
        done = steps[step].apply

        def apply() -> None:
            done()
            raise HostError("x", "no")

        steps[step] = dataclasses.replace(steps[step], apply=apply)
        return tuple(steps)

    monkeypatch.setattr(module, "steps_of", failing)
    error = node.migrate(direction)
    assert "x: no; everything is as it was before" in error
    assert judge(node, before) == BEFORE[direction]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_record_that_cannot_be_written_keeps_nothing_from_being_undone(
    node: PlayedNode, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    prepared(node, direction)
    before = node.cpusets()
    write = RecordFile.write

    def on_a_disk_that_fills(file: RecordFile, record: MigrationRecord) -> None:
        if record.undoing or "configure-kubelet" in record.begun:
            raise CheckpointError(file.path, "cannot be written: No space left on device")
        write(file, record)

    monkeypatch.setattr(RecordFile, "write", on_a_disk_that_fills)
    error = node.migrate(direction)
    assert "No space left on device; everything is as it was before" in error
    assert judge(node, before) == BEFORE[direction]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_stop_an_undo(
    node: PlayedNode, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = node.cpusets()
    sent: list[str] = []

    def signalled(call: Callable[[str], None]) -> Callable[[str], None]:
        def calls(unit: str) -> None:
            sent.append(unit)
            os.kill(os.getpid(), number)
            call(unit)

        return calls

    for name in ("stop", "start"):
        monkeypatch.setattr(node, name, signalled(getattr(node, name)))
    # A shell without job control lets the programs in its background ignore SIGINT.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert "everything is as it was before, and the kubelet runs" in node.migrate("to-plugin")
    finally:
        signal.signal(signal.SIGINT, former)
    assert sent == [KUBELET, KUBELET]
    assert judge(node, before) == "static"


def test_an_undo_brings_newer_cpus_and_keeps_memory_that_was_left_out(
    node: PlayedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write("etc/nri-pin/config.yaml", 'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\n')
    memory = node.read(f"{FOLDER}/memory_manager_state")
    real = module.steps_of

    def failing(*args: object) -> tuple[Step, ...]:
        *steps, verify = real(*args)  # type: ignore[arg-type]

        def apply() -> None:
            """A pod has come in between."""
            file = CheckpointFile(str(node.path("run/nri-pin")), durable=False)
            state = file.load().state
            assert state is not None
            file.save(
                replace(state, allocations={**state.allocations, "u3/batch": Allocation(CPUSet.parse("6"))})
            )
            raise HostError("x", "no")

        return (*steps, dataclasses.replace(verify, apply=apply))

    monkeypatch.setattr(module, "steps_of", failing)
    assert "everything is as it was before" in node.migrate("to-plugin", Choices(without_memory=True))
    assert '"batch":"6"' in node.read(f"{FOLDER}/cpu_manager_state")
    assert node.read(f"{FOLDER}/memory_manager_state") == memory


@pytest.mark.parametrize(
    ("step", "error", "stops"),
    [
        ("stop-kubelet", "was changed since the plan was made; run the command again, for a new plan", False),
        ("configure-kubelet", "was changed since the plan was made; run the command again", True),
        ("verify", "was changed meanwhile", True),
    ],
)
def test_a_file_that_another_program_edits_meanwhile_keeps_that_text(
    node: PlayedNode, monkeypatch: pytest.MonkeyPatch, step: str, error: str, stops: bool
) -> None:
    theirs = CONFIG.replace("maxPods: 110", "maxPods: 111")
    real = module.steps_of

    def edited(*args: object) -> tuple[Step, ...]:
        steps = list(real(*args))  # type: ignore[arg-type]
        (number,) = (at for at, one in enumerate(steps) if one.name == step)
        done = steps[number].apply

        def apply() -> None:
            node.write(f"{FOLDER}/config.yaml", theirs)
            done()
            raise HostError("x", "no")

        steps[number] = dataclasses.replace(steps[number], apply=apply)
        return tuple(steps)

    monkeypatch.setattr(module, "steps_of", edited)
    said = node.migrate("to-plugin")
    assert error in said
    assert config(node) == theirs
    assert (f"stop {KUBELET}" in node.calls) == stops
    if step == "verify":
        assert f"not undone: configure-kubelet: {node.path(FOLDER)}/config.yaml" in said
        assert node.read(f"{FOLDER}/config.yaml.before-nri-pin") == CONFIG
    else:
        assert "everything is as it was before, and the kubelet runs" in said
        assert node.units[KUBELET].active


def test_a_state_file_that_cannot_be_read_is_not_taken_for_an_empty_one(node: PlayedNode) -> None:
    whole = node.read(f"{FOLDER}/cpu_manager_state")
    node.write(f"{FOLDER}/cpu_manager_state", whole[:40])
    node.calls.clear()
    assert "unexpected end of JSON input" in node.migrate("to-plugin")
    assert node.calls == []


PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("is_rebooted", [False, True], ids=["killed", "powered off"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_after_a_kill_at_any_moment_running_it_again_finishes_or_undoes(
    node: PlayedNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
    is_rebooted: bool,
    part: int,
) -> None:
    prepared(node, direction)
    before = node.cpusets()
    ends = set()
    for moment in range(part + 1, 200, PARTS):
        other = copy_of(node, tmp_path / f"copy-{moment}", monkeypatch)
        other.kill_at = moment
        error = other.migrate(direction)
        if not error.startswith("killed"):
            assert error == ""
            break
        other.kill_at = -1
        if is_rebooted:
            other.reboot()
        again = other.migrate(direction) if other.path("var/lib/nri-pin/migration.json").exists() else ""
        assert again == "" or "was undone" in again, (moment, error, again, other.said)
        ends.add(judge(other, None if is_rebooted else before))
    assert moment > 15
    assert BEFORE[direction] in ends


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_migration_whose_kubelet_has_started_is_finished(
    node: PlayedNode, capsys: pytest.CaptureFixture[str], direction: str
) -> None:
    prepared(node, direction)
    before = node.cpusets()
    node.kill_when = "record of ('verify',)"
    assert node.migrate(direction) == "killed at record of ('verify',)"
    capsys.readouterr()
    assert node.migrate(direction, output_format="json") == ""
    assert json.loads(capsys.readouterr().out)["direction"] == direction
    assert judge(node, before) == AFTER[direction]
    assert node.migrate(direction) == ""


def test_a_plan_names_the_pods_by_their_log_directories(
    node: PlayedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.migrate("to-plugin", yes=False) == ""
    uid = next(
        line.split("/")[0].strip() for line in capsys.readouterr().out.splitlines() if "  CPUs " in line
    )
    node.path(f"var/log/pods/shop_db-0_{uid}").mkdir(parents=True)
    node.path("var/log/pods/lost+found").mkdir()
    assert node.migrate("to-plugin", yes=False) == ""
    said = capsys.readouterr().out
    assert "       shop/db-0/" in said
    assert f" {uid}/" not in said


def notes(node: PlayedNode, capsys: pytest.CaptureFixture[str], direction: str = "to-plugin") -> str:
    """The notes of a plan."""
    capsys.readouterr()
    assert node.migrate(direction, yes=False, output_format="json") == ""
    return "; ".join(json.loads(capsys.readouterr().out)["notes"])


LEFT_STOPPED = "a migration that is undone would leave the kubelet stopped"


def test_a_plan_says_where_an_undone_one_would_leave_the_kubelet_stopped(
    node: PlayedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert LEFT_STOPPED not in notes(node, capsys)
    more = CONFIG.replace("memory: 612Mi", "memory: 712Mi").replace("memory: 512Mi", "memory: 612Mi")
    node.write(f"{FOLDER}/config.yaml", more)
    said = notes(node, capsys)
    assert "the expected machine state is different from the real one" in said
    assert LEFT_STOPPED in said
    node.write(
        "etc/nri-pin/config.yaml", "\n".join(line for line in CONFIG.splitlines() if "110" not in line)
    )
    node.write(f"{FOLDER}/config.yaml", CONFIG.replace("memory: 612Mi", "memory: 712Mi"))
    assert "not checked whether the kubelet could start again" in notes(node, capsys)


def test_the_way_back_says_it_too(node: PlayedNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.migrate("to-plugin") == ""
    assert LEFT_STOPPED not in notes(node, capsys, "to-kubelet")
    text = node.read(f"{FOLDER}/cpu_manager_state")
    node.write(f"{FOLDER}/cpu_manager_state", text.replace('"checksum": 0', '"checksum": 7'))
    assert "checkpoint is corrupted" in notes(node, capsys, "to-kubelet")
    assert node.migrate("to-kubelet") == ""
    assert any("checkpoint is corrupted" in line for line in capsys.readouterr().out.splitlines())


PLAIN = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
"""


@pytest.mark.parametrize("key", ["kubeReservedCgroup", "systemReservedCgroup"])
@pytest.mark.parametrize("place", ["flag", "file", "drop-in"])
def test_a_kubelet_with_a_cgroup_for_the_system_never_gets_cpus_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, place: str
) -> None:
    text = f'{PLAIN}kubeReserved: {{cpu: "1"}}\n' + (f"{key}: /x.slice\n" if place == "file" else "")
    node = played_node(tmp_path / "node", monkeypatch, text)
    flags = {"flag": f"{flag_of(key)}=/x.slice", "drop-in": "--config-dir=/etc/kubelet.d"}
    node.write("etc/kubelet.d/deep/er.conf", f"{PLAIN}{key}: /x.slice\n")
    if place in flags:
        node.write(f"{FOLDER}/kubeadm-flags.env", f'KUBELET_KUBEADM_ARGS="{flags[place]}"\n')
        node._stopped(KUBELET)
        node._started(KUBELET)
    node.write("etc/nri-pin/config.yaml", 'cpuManagerPolicy: static\nreservedSystemCPUs: "0,3"\n')
    assert node.migrate("to-plugin") == ""
    assert node.started_with["reservedSystemCPUs"] == ""
    reason = node.migrate("to-kubelet")
    assert (
        "reserves other CPUs than the agent's 0,3; reservedSystemCPUs cannot be given to it beside" in reason
    )
    node.write("etc/nri-pin/config.yaml", 'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\n')
    assert node.migrate("to-kubelet") == ""
    assert (node.units[KUBELET].active, node.said) == (True, [])


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("reservedSystemCPUs: 3\n", {"reservedSystemCPUs": "3"}),
        ("reservedSystemCPUs: 0\n", {"reservedSystemCPUs": "0"}),
        (
            'reservedSystemCPUs: "0"\ncpuManagerPolicyOptions: {full-pcpus-only: true}\n',
            {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}},
        ),
        (
            'reservedSystemCPUs: "0"\nkubeReserved: {cpu: 1, memory: 536870912}\nsystemReserved: {cpu: 0.5, memory: "1e9"}\n',
            {
                "kubeReserved": {"cpu": "1", "memory": "536870912"},
                "systemReserved": {"cpu": "0.5", "memory": "1e9"},
            },
        ),
        (
            """\
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
topologyManagerPolicyOptions: {max-allowable-numa-nodes: 12}
evictionHard: {memory.available: 104857600}
""",
            {
                "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "12"},
                "evictionHard": {"memory.available": "104857600"},
            },
        ),
    ],
)
def test_the_kubelet_gets_texts_where_the_agent_takes_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, expected: dict[str, object]
) -> None:
    node = played_node(tmp_path / "node", monkeypatch, f'{PLAIN}kubeReserved: {{cpu: "1"}}\n')
    node.write("etc/nri-pin/config.yaml", f"cpuManagerPolicy: static\n{agent}")
    assert node.migrate("to-plugin") == ""
    assert node.migrate("to-kubelet") == ""
    assert {key: node.started_with[key] for key in expected} == expected
