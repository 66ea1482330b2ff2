"""What the lab takes for a fact, and what it lets an agent complain of."""

import os
from pathlib import Path

import pytest

from tests.e2e.inside.complaints import complaints
from tests.e2e.inside.write_watch import WriteWatch
from tests.e2e.lab import embedded
from tests.e2e.lab.embedded import NO_KERNEL, play_embedded
from tests.lab.scenario.scenario import parse

MACHINE = "pack:1 numa:1 l3:1 core:4 pu:1\n"
HEAD = """\
machine: one
config: {reservedSystemCPUs: "0"}
steps:
  - run: a/db
    containers: {c: {cpu: 2, memory: 1Gi}}
"""
DRIFT = "2026-01-01T00:00:00.000Z WARNING cpuset drifted and was repaired name=a/db/c cause=all-cpus"
REFUSED = '2026-01-01T00:00:00.000Z WARNING refused op=1 event=CreateContainer pod=a/db container=c steps="x"'


def test_what_only_a_kernel_can_tell_is_no_fact_on_the_embedded_runtime() -> None:
    plain = play_embedded(parse(HEAD, "x.yaml"), MACHINE)
    asked = HEAD + "  - expect: a/db/c\n    kernel: {partition: root}\n  - spin: a/db/c\n"
    asked += "  - logged: not permitted\n    only: kernel\n  - measure: a/db/c\n    load: disk\n"
    with_kernel = play_embedded(parse(asked, "x.yaml"), MACHINE)
    assert (plain.problems, with_kernel.problems) == ((), ())
    assert (plain.facts, plain.limitation) == (2, "")
    assert (with_kernel.facts, with_kernel.limitation) == (2, NO_KERNEL)
    judged = HEAD + "  - expect: a/db/c\n    cpus: 1-2\n    kernel: {partition: root}\n"
    assert play_embedded(parse(judged, "x.yaml"), MACHINE).facts == 3


def test_a_complaint_that_no_step_explains_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "complaints", lambda lines, _steps, _refused: list(lines)[:1])
    (said,) = play_embedded(parse(HEAD, "x.yaml"), MACHINE).problems
    assert said.startswith("x.yaml: the agent complained: ")


def test_a_complaint_is_explained_by_its_step_only() -> None:
    assert complaints([DRIFT], [{"do": "drift", "cpus": "0-3"}], []) == []
    assert complaints([DRIFT], [{"do": "online"}], []) == [DRIFT]
    assert complaints([DRIFT], [{"do": "logged", "text": "name=a/db/c"}], []) == []
    assert complaints([DRIFT], [{"do": "update", "resources": {"cpuset_cpus": "0"}}], []) == []
    changed = "x WARNING the machine changed cpus_gone=3"
    assert complaints([changed], [{"do": "measure", "load": "hotplug"}], []) == []
    assert complaints([changed], [{"do": "measure", "load": "disk"}], []) == [changed]
    ended = "x WARNING connection to the container runtime ended"
    assert complaints([ended], [{"do": "restart", "part": "runtime"}], []) == []
    assert complaints([ended], [{"do": "restart", "part": "agent"}], []) == [ended]
    late = "x WARNING the runtime did not report a container that runs container=5a9b pod=uid"
    assert complaints([late], [], [], ["5a9b"]) == []
    assert complaints([late], [], [], ["77"]) == [late]


def test_an_agent_that_looks_late_at_what_it_wrote_may_find_what_was_written_since() -> None:
    found = "x WARNING effective cpuset differs from the desired one container=1 desired=4-7 observed=0-15"
    assert complaints([found], [{"do": "drift", "cpus": "0-15"}], []) == []
    assert complaints([found], [{"do": "online", "cpus": "0-3"}], []) == []
    for cpus in ("5", "0-1"):
        assert complaints([found], [{"do": "drift", "cpus": cpus}], []) == [found]
    assert complaints([found], [], []) == [found]


def test_a_partition_whose_sibling_is_drifted_may_be_looked_at_first() -> None:
    lost = 'x WARNING no partition, it has an ordinary cpuset err="the kernel says root invalid ({})"'
    shared = lost.format("Cpu list in cpuset.cpus not exclusive")
    assert complaints([shared], [{"do": "drift", "cpus": "2-5"}], []) == []
    assert complaints([shared], [], []) == [shared]
    other = lost.format("Parent is not a partition root")
    assert complaints([other], [{"do": "drift", "cpus": "2-5"}], []) == [other]


def test_a_refusal_is_explained_by_the_container_that_was_refused() -> None:
    assert complaints([REFUSED], [], ["a/db/c"]) == []
    assert complaints([REFUSED], [], ["a/db/other"]) == [REFUSED]


def test_a_slice_that_systemd_took_the_controller_from_is_no_complaint_but_a_container_is() -> None:
    gone = "x WARNING cpuset drifted and was repaired name={} desired=0-3 cause=files-gone noticed_by=watch"
    assert complaints([gone.format("kubepods-burstable.slice")], [], []) == []
    assert complaints([gone.format("a/db/c")], [], []) == [gone.format("a/db/c")]


def test_writes_to_cpusets_and_quotas_are_counted_and_others_are_not(tmp_path: Path) -> None:
    for name in ("cpuset.cpus", "cpu.max", "memory.max"):
        (tmp_path / name).write_text("\n")
    watch = WriteWatch(tmp_path)
    try:
        for name in ("cpuset.cpus", "cpu.max", "memory.max"):
            descriptor = os.open(tmp_path / name, os.O_WRONLY)
            os.write(descriptor, b"0\n")
            os.close(descriptor)
        assert watch.writes() == [f"{tmp_path}/cpuset.cpus", f"{tmp_path}/cpu.max"]
        assert watch.writes() == []
    finally:
        watch.close()


def test_writes_to_settings_are_counted_beside_files_that_say_so(tmp_path: Path) -> None:
    (tmp_path / "24").mkdir()
    files = [tmp_path / "default_smp_affinity", tmp_path / "24/smp_affinity", tmp_path / "24/spurious"]
    for file in files:
        file.write_text("f\n")
    names = ("default_smp_affinity", "smp_affinity")
    watch = WriteWatch(tmp_path, having=names, counts=names.__contains__)
    try:
        watch.wait(0)
        for file in files:
            descriptor = os.open(file, os.O_WRONLY)
            os.write(descriptor, b"3\n")
            os.close(descriptor)
        watch.wait(60)
        assert watch.writes() == list(map(str, files[:2]))
    finally:
        watch.close()


def test_writes_that_the_kernel_could_not_keep_are_writes(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("\n")
    watch = WriteWatch(tmp_path)
    try:
        with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
            most = int(file.read())
        if most > 1 << 17:
            pytest.skip(f"this kernel keeps {most} events")
        one, other = (
            os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("cpuset.cpus", "cpu.max")
        )
        for _ in range(most):  # equal events that follow each other are one
            os.write(one, b"0")
            os.write(other, b"0")
        os.close(one)
        os.close(other)
        assert watch.writes()[-1] == "more writes than the kernel keeps"
    finally:
        watch.close()
