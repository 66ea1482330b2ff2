"""`nri-pin replay`: what it prints, what it counts, how it ends."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_plugin.cli.replay.replay import command
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import MemoryManagerPolicy
from nri_plugin.model.records import Kind
from nri_plugin.model.state import State
from nri_plugin.recording.file import head_lines, line_of, outcome_of
from nri_plugin.wire.nri.events import CreateContainer, RunPodSandbox, StartContainer, UpdateContainer
from tests.builders import GIB, container, cpu_resources, machine, node, pod
from tests.whole_pods import PodLife, part, pod_scope, whole

BEGIN = datetime(2026, 1, 31, 8, tzinfo=UTC)
NODE = node(machine())
STRICT = """\
reservedSystemCPUs: "0-1"
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
"""


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """Three pods: 1, 2 and 99 CPUs; the last one is refused twice."""
    state, at, pieces = State(), BEGIN, [head_lines(NODE, State(), BEGIN)]
    for name, cpu, tries in (("odd", 1, 1), ("even", 2, 1), ("huge", 99, 2)):
        one = pod(name, cpu=cpu)
        tried = [container(one, cpu=cpu, memory=GIB, number=number) for number in range(tries)]
        events: list[object] = [RunPodSandbox(one), *(CreateContainer(one, each) for each in tried)]
        for event in events:
            decision = decide(NODE, state, event)  # type: ignore[arg-type]
            at += timedelta(minutes=10)
            pieces.append(line_of(event, at, "", outcome_of(decision, str(decision.refusal or ""))))  # type: ignore[arg-type]
            state = decision.state
    path = tmp_path / "day.jsonl"
    path.write_bytes(b"".join(pieces))
    return path


def replay(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False)


def other(day: Path, text: str = STRICT) -> Path:
    path = day.with_name("other.yaml")
    path.write_text(text)
    return path


def test_what_the_configurations_differ_in_has_the_names_of_the_configuration(day: Path) -> None:
    text = """\
reservedSystemCPUs: "0-1"
cpuManagerPolicyOptions: {prefer-align-cpus-by-uncorecache: "true"}
memoryManagerPolicy: Static
featureGates: {DisableCPUQuotaWithExclusiveCPUs: false}
evictionHard: {memory.available: 100Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
"""
    lines = replay(day, "--config", other(day, text)).output.splitlines()
    told = dict(line.split(": ", 1) for line in (line.strip() for line in lines) if " -> " in line)
    assert told["prefer-align-cpus-by-uncorecache"] == "false -> true"
    assert told["featureGates.DisableCPUQuotaWithExclusiveCPUs"] == "true -> false"
    assert told["reservedMemory"] == "- -> memory 100Mi on NUMA node 0"


def test_the_same_program_decides_the_same(day: Path) -> None:
    result = replay(day)
    assert result.return_value == 0
    assert result.output.splitlines() == [
        f"recording  {day}: 7 events, 2026-01-31 08:10:00 to 09:10:00Z",
        "today's program decides the same",
    ]


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (b'"cpus":"2","', b'"cpus":"5","', "cpus"),
        (b'"outcome":{"refusal":"', b'"outcome":{"cpus":"3","x":"', "admission"),
        (b'"outcome":{', b'"outcome":{"writes":7,', "writes"),
    ],
)
def test_what_is_decided_otherwise_is_shown_and_fails(
    day: Path, before: bytes, after: bytes, what: str
) -> None:
    data = day.read_bytes()
    if what == "admission":
        data = data.replace(b'"reason":"UnexpectedAdmissionError",', b"")
    assert before in data
    day.write_bytes(data.replace(before, after))
    result = replay(day)
    assert result.return_value == 1
    assert what in result.output
    assert "today's program decides differently, first at" in result.output


def test_another_configuration_is_no_failure(day: Path) -> None:
    result = replay(day, "--config", other(day))
    assert result.return_value == 0
    assert "full-pcpus-only: false -> true" in result.output
    assert "default/odd/c   2         SMTAlignment  refused" in result.output
    assert "default/even/c  4-5       2-3           elsewhere" in result.output
    assert "2 differences: 1 refused instead of admitted, 1 placed otherwise" in result.output


def test_everything_is_in_the_json(day: Path) -> None:
    found = json.loads(replay(day, "--config", other(day), "-o", "json").output)
    assert [one["kind"] for one in found["differences"]] == [
        "refused instead of admitted",
        "placed otherwise",
    ]
    assert found["differences"][0]["replayed"]["refused"] == "SMTAlignmentError"
    assert found["recorded"]["containers"] == found["replayed"]["containers"] == 3
    assert (found["recorded"]["refused"], found["replayed"]["refused"]) == (1, 2)
    assert (found["recorded"]["refused_tries"], found["replayed"]["refused_tries"]) == (2, 3)
    assert (found["recorded"]["peak_exclusive_cpus"], found["replayed"]["peak_exclusive_cpus"]) == (3, 2)
    assert found["recorded"]["aligned"]["whole_cores"] == 1
    assert found["recorded"]["refused_by_reason"] == {"UnexpectedAdmissionError": 1}


def test_no_policy_shares_what_was_exclusive(day: Path) -> None:
    result = replay(day, "--config", other(day, "cpuManagerPolicy: none\n"))
    assert "shared pool  shared" in result.output
    assert "2 shared instead of exclusive" in result.output
    assert "1 admitted instead of refused" in result.output


def test_the_same_configuration_gives_everybody_the_same(day: Path) -> None:
    result = replay(day, "--config", other(day, 'reservedSystemCPUs: "0-1"\n'))
    assert "every container gets the same" in result.output


def test_it_ends_where_it_is_told_to(day: Path) -> None:
    for until in ("08:25", "2026-01-31T08:25", "2026-01-31T09:25+01:00"):
        assert json.loads(replay(day, "--until", until, "-o", "json").output)["events"] == 2


def test_one_pod_can_be_looked_at_alone(day: Path) -> None:
    found = json.loads(replay(day, "--config", other(day), "--only", "default/odd", "-o", "json").output)
    assert [one["container"] for one in found["differences"]] == ["default/odd/c"]
    assert found["recorded"]["containers"] == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--until", "soon"), "--until needs a time such as 14:30"),
        (("--only", "web"), "--only needs NAMESPACE/POD"),
    ],
)
def test_wrong_usage_is_said(day: Path, words: tuple[str, ...], text: str) -> None:
    result = replay(day, *words)
    assert text in str(result.exception)


def test_damage_is_said_with_file_and_line(day: Path) -> None:
    lines = day.read_bytes().splitlines(keepends=True)
    lines[4] = b"garbage\n"
    day.write_bytes(b"".join(lines))
    result = replay(day)
    assert f"{day}:5: is damaged" in result.output
    assert result.return_value == 0


def test_nothing_to_decide_again_is_no_success(day: Path) -> None:
    day.write_bytes(day.read_bytes().splitlines(keepends=True)[0])
    result = replay(day)
    assert result.return_value == 1
    assert "nothing in it can be decided again" in result.output


def test_a_resize_that_would_be_refused_is_a_difference(tmp_path: Path) -> None:
    one = pod("p", cpu=2)
    made = container(one, cpu=2, memory=GIB)
    known = replace(made, resources=replace(made.resources, cpus="2-3"))
    state, pieces = State(), [head_lines(NODE, State(), BEGIN)]
    for event in (
        RunPodSandbox(one),
        CreateContainer(one, made),
        StartContainer(one, known),
        UpdateContainer(one, known, cpu_resources(3, GIB)),
    ):
        decision = decide(NODE, state, event)
        pieces.append(line_of(event, BEGIN, "", outcome_of(decision)))
        state = decision.state
    path = tmp_path / "day.jsonl"
    path.write_bytes(b"".join(pieces))
    result = replay(path, "--config", other(path))
    assert "1 difference: 1 resize refused instead of done" in result.output


def test_an_end_before_the_beginning_is_said(day: Path) -> None:
    result = replay(day, "--until", "08:00")
    assert result.return_value == 1
    assert "nothing in it is before --until: it begins 2026-01-31 08:10:00Z" in result.output


@pytest.mark.parametrize("config", [False, True])
def test_a_pod_that_is_not_in_it_is_no_pod_that_fares_the_same(day: Path, *, config: bool) -> None:
    words = ["--config", other(day)] if config else []
    result = replay(day, "--only", "default/gone", *words)
    assert result.return_value == 1
    assert "--only default/gone: none of these events is of such a pod" in result.stderr
    assert replay(day, "--only", "default/even", *words).return_value == 0


def test_what_was_only_observed_is_said_to_be(day: Path) -> None:
    lines = day.read_bytes().splitlines(keepends=True)
    day.write_bytes(head_lines(NODE, State(), BEGIN, observing=True) + b"".join(lines[2:]))
    assert "the agent only observed" in replay(day).output
    assert json.loads(replay(day, "--config", other(day), "-o", "json").output)["observed"] is True


def test_what_is_no_recording_is_wrong_usage_and_says_what_is(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("nothing\n")
    for name in ("text", "absent"):
        result = CliRunner().invoke(command, [str(tmp_path / name)])
        assert (result.exit_code, "run --record" in result.output) == (2, True), result.output


@pytest.fixture
def day_of_a_pod(tmp_path: Path) -> Path:
    """A pod that owns CPUs as a whole: `app` has some of them, two others share the rest."""
    on = pod_scope(memory_manager_policy=MemoryManagerPolicy.NONE)
    parts = part("mesh", 0.5, Kind.SIDECAR), part("app", 4), part("log", 0.5)
    life = PodLife(on, *parts, resources=whole(6))
    state, pieces = State(), [head_lines(on, State(), BEGIN)]
    for name in ("mesh", "app", "log"):
        event = InformedCreate(CreateContainer(life.of, life.message(name)), facts=life.facts)
        decision = decide(on, state, event)
        pieces.append(line_of(event, BEGIN, "", outcome_of(decision, "")))
        state = decision.state
    path = tmp_path / "day.jsonl"
    path.write_bytes(b"".join(pieces))
    return path


def test_containers_that_share_the_cpus_of_their_pod_are_not_counted_as_exclusive(day_of_a_pod: Path) -> None:
    text = """\
reservedSystemCPUs: "0-1"
topologyManagerPolicy: best-effort
topologyManagerScope: %s
featureGates: {PodLevelResourceManagers: true}
"""
    told = json.loads(
        replay(day_of_a_pod, "--config", other(day_of_a_pod, text % "pod"), "-o", "json").output
    )
    counts = {key: told["recorded"][key] for key in ("exclusive", "pod_shared", "shared", "aligned")}
    assert counts == {
        "exclusive": 1,
        "pod_shared": 2,
        "shared": 0,
        "aligned": {"numa_node": 1, "socket": 1, "uncore_cache": 1, "whole_cores": 1},
    }
    assert told["replayed"] == told["recorded"]
    result = replay(day_of_a_pod, "--config", other(day_of_a_pod, text % "container"))
    assert "2 differences: 2 shared instead of pod shared" in result.output
    assert re.search(r"default/p1/mesh +6-7 in pod +shared pool +shared", result.output)
    assert re.search(r"  pod shared pool +2 +0", result.output)
