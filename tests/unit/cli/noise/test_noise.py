"""`nri-pin noise` on a node of files, whose counters rise while the command waits."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.noise.causes import CAUSES, UNSEEN, cause_of, of_device
from nri_plugin.cli.noise.noise import command
from nri_plugin.cli.noise.text import LABELS
from nri_plugin.host.cpu_noise import NoiseKind, NoiseRow, Unseen
from nri_plugin.host.kernel_counters import TICK_US
from nri_plugin.host.kernel_work import ReachingInterrupt
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import node as a_node
from tests.terminal import Terminal

NODE = a_node()


def record(uid: str, name: str, phase: Phase = Phase.RUNNING) -> ContainerRecord:
    path = f"/kubepods/pod{uid}"
    return ContainerRecord(f"id-{uid}-{name}", uid, name, phase, CgroupRef(path, f"{path}/id-{uid}-{name}"))


def state() -> State:
    """Two pods with exclusive CPUs, and a container beside one of them that shares."""
    pods = {
        uid: PodRecord(uid, f"s-{uid}", f"{uid}-0", "shop", QOSClass.GUARANTEED, f"/kubepods/pod{uid}")
        for uid in ("web", "db")
    }
    records = [
        record("web", "app"),
        record("db", "app"),
        record("db", "log"),
        record("db", "done", Phase.STOPPED),
    ]
    allocations = {
        "web/app": Allocation(CPUSet.parse("2-3")),
        "db/app": Allocation(CPUSet.parse("4")),
        "db/done": Allocation(CPUSet.parse("5")),
    }
    return State(pods, {one.id: one for one in records}, allocations)


class FakeNode:
    """The files of a node; every counter of CPU n is n times `count`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.waited: list[float] = []
        self.count = 100
        self.online = [0, 1, 2, 3, 4]
        self.has_threads = False
        (root / "cgroup").mkdir()
        (root / "cgroup/cgroup.controllers").write_text("cpuset cpu memory\n")
        (root / "state").mkdir()
        CheckpointFile(str(root / "state"), NODE, durable=False).save(state())
        for number, mode in ((24, 0o644), (25, 0o444)):
            folder = root / f"proc/irq/{number}"
            (folder / "dev").mkdir(parents=True)
            (folder / "smp_affinity_list").write_text("2-3\n" if number == 25 else "0-7\n")
            (folder / "smp_affinity_list").chmod(mode)
        self.write()

    def write(self) -> None:
        head = " ".join(f"CPU{cpu}" for cpu in self.online)
        cells = " ".join(str(cpu * self.count) for cpu in self.online)
        self.put(
            "proc/interrupts",
            f"  {head}\n24: {cells} PCI-MSIX-0000:00:05.0 1-edge      virtio1-input\n25: {cells} PCI-MSI 2-edge  nvme0q1\n"
            f"LOC: {cells}  Local timer interrupts\nRES: {cells}  Rescheduling interrupts\nERR: 0\n",
        )
        self.put("proc/softirqs", f"  {head}\nTIMER: {cells}\nNET_RX: {cells}\n")
        self.put("proc/stat", "".join(f"cpu{cpu} {self.count} 0 0 9 0 0 0 0 0 0\n" for cpu in self.online))
        for uid, name in (("web", "app"), ("db", "app")):
            self.put(
                f"cgroup/kubepods/pod{uid}/id-{uid}-{name}/cpu.stat",
                f"usage_usec {self.count * TICK_US}\nnr_throttled 0\nthrottled_usec {self.count}\n",
            )
        if self.has_threads:
            self.put("proc/1/cgroup", "0::/init.scope\n")
            self.put("proc/70/cgroup", "0::/kubepods/podweb/id-web-app\n")
            self.put("proc/70/task/70/status", f"nonvoluntary_ctxt_switches:\t{self.count}\n")
            self.put("proc/70/task/70/schedstat", f"1 {self.count * 1000} 1\n")

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def wait(self, seconds: float) -> None:
        """Instead of sleeping: every counter rises by 10 for each number of its CPU."""
        self.waited.append(seconds)
        self.count += 10
        self.write()

    def words(self, *words: str) -> list[str]:
        places = ["--state-dir", "state", "--root", "cgroup/..", "--cgroup-root", "cgroup"]
        return [*words, *(str(self.root / one) if not one.startswith("--") else one for one in places)]

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(command, self.words(*words))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    found = FakeNode(tmp_path)
    monkeypatch.setattr("nri_plugin.cli.noise.noise.time.sleep", found.wait)
    monkeypatch.setenv("COLUMNS", "100")
    return found


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_without_a_name_each_container_with_exclusive_cpus_has_a_row(fake: FakeNode) -> None:
    result = fake.run()
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    head, row = (
        next(one.split() for one in lines if one.startswith(word)) for word in ("CONTAINER", "  app")
    )
    assert head[:6] == ["CONTAINER", "CPUS", "DEVICE", "TICKS", "IPIS", "SOFTIRQ"]
    assert row[:6] == ["app", "4", "80", "40", "40", "80"]
    assert row[-4:] == ["?", "?", "0.0", "ms"]
    assert "shop/db-0" in lines
    assert "shop/web-0" in lines
    assert fake.waited == [10.0]


def test_one_container_is_told_by_source_with_causes(fake: FakeNode) -> None:
    result = fake.run("web-0/app", "--for", "500ms")
    assert result.exit_code == 0, result.output
    assert fake.waited == [0.5]
    text = result.stdout
    assert "shop/web-0/app  CPUs 2-3" in text
    assert "virtio1-input (IRQ 24)  50" in text
    words = " ".join(text.split())
    assert "the interrupt may be delivered to CPUs 0-7" in words
    assert "kernel-managed, fires only for I/O of CPUs 2-3" in words
    assert "nohz_full=2-3" in words
    assert "not visible: waits, involuntary switches and migrations of threads" in words
    assert max(map(len, text.splitlines())) <= 100


def test_programs_get_every_figure_with_its_cause(fake: FakeNode) -> None:
    (found,) = told(fake.run("web-0/app", "-o", "json"))["containers"]
    assert (found["namespace"], found["pod"], found["container"], found["cpus"]) == (
        "shop",
        "web-0",
        "app",
        "2-3",
    )
    assert found["totals"]["device-interrupt"] == 100
    assert found["totals"]["timer-tick"] == 50
    assert found["totals"]["foreign-run-time"] == 10 * TICK_US
    assert found["totals"]["throttled"] == 10
    assert "thread-wait" not in found["totals"]
    (device,) = [one for one in found["sources"] if one["interrupt"] == 24]
    assert device["by_cpu"] == {"2": 20, "3": 30}
    assert device["device"] == "0000:00:05.0"
    assert device["command"] == "echo CPUS > /proc/irq/24/smp_affinity_list"
    assert {"threads", "run-queue"} <= {one["what"] for one in found["not_visible"]}


def test_threads_are_told_where_the_nodes_processes_are_seen(fake: FakeNode) -> None:
    fake.has_threads = True
    fake.write()
    (found,) = told(fake.run("web-0/app", "-o", "json"))["containers"]
    assert found["totals"]["involuntary-switch"] == 10
    assert found["totals"]["thread-wait"] == 10
    assert "threads" not in {one["what"] for one in found["not_visible"]}
    (other,) = told(fake.run("db-0/app", "-o", "json"))["containers"]
    assert "thread-wait" not in other["totals"]  # it has no process there
    assert "threads" in {one["what"] for one in other["not_visible"]}


def test_a_cpu_that_goes_offline_meanwhile_is_named(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> None:
        fake.online.remove(3)
        fake.wait(seconds)

    monkeypatch.setattr("nri_plugin.cli.noise.noise.time.sleep", wait)
    (found,) = told(fake.run("web-0/app", "-o", "json"))["containers"]
    assert found["uncounted"] == "3"
    assert found["totals"]["timer-tick"] == 20
    assert "foreign-run-time" not in found["totals"]
    fake.online.append(3)
    assert "CPUs 3 were offline at one end" in fake.run("web-0/app").stdout


def test_cpus_of_which_none_was_online_are_not_called_quiet(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_plugin.cli.noise.noise.time.sleep", fake.waited.append)
    fake.online.remove(4)
    fake.write()
    told_of_it = fake.run("db-0/app").stdout
    assert "CPUs 4 were offline" in told_of_it
    assert "none of these CPUs was counted" in told_of_it
    assert "nothing disturbed" not in told_of_it


def test_wide_shows_every_cpu_however_narrow_the_terminal(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    narrow = fake.run("web-0/app").stdout
    assert "CPU2" not in narrow.splitlines()[2]
    assert "quieter CPUs are left out; -o wide shows all" in narrow
    wide = fake.run("-o", "wide").stdout
    heads = [line.split()[-2:] for line in wide.splitlines() if line.startswith("SOURCE")]
    assert heads == [["CPU", "CPU4"], ["CPU2", "CPU3"]]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nobody"], 1, "nobody: no container has this name"),
        (["app"], 1, "several containers have this name: shop/db-0/app, shop/web-0/app"),
        (["log"], 1, "shop/db-0/log has no exclusive CPUs but runs on"),
        (["db-0/done"], 1, "has no exclusive CPUs"),
        (["--for", "fast"], 2, "expected a time between 0.1s and 24h"),
        (["--for", "0s"], 2, "expected a time between 0.1s and 24h"),
        (["--live"], 2, "there is no terminal to draw on"),
    ],
)
def test_what_cannot_be_measured_is_refused(fake: FakeNode, words: list[str], code: int, text: str) -> None:
    result = fake.run(*words)
    assert (result.exit_code, text in result.output) == (code, True), result.output
    assert fake.waited == []


@pytest.mark.parametrize("word", ["shop/web-0/app", "web-0/app", "id-web-app", "id-we"])
def test_a_container_is_named_by_its_path_or_id(fake: FakeNode, word: str) -> None:
    assert fake.run(word).exit_code == 0


@pytest.mark.parametrize(
    ("text", "seconds"), {"2": 2.0, "2s": 2.0, "1.5s": 1.5, "250ms": 0.25, "2m": 120.0}.items()
)
def test_times_have_units(fake: FakeNode, text: str, seconds: float) -> None:
    assert fake.run("--for", text).exit_code == 0
    assert fake.waited == [seconds]


def test_a_node_without_exclusive_cpus_says_so(fake: FakeNode) -> None:
    CheckpointFile(str(fake.root / "state"), NODE, durable=False).save(replace(state(), allocations={}))
    assert fake.run().stdout.strip() == "no container runs on exclusive CPUs"
    assert told(fake.run("-o", "json"))["containers"] == []


def test_without_agent_and_checkpoint_it_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--state-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "no agent answers, and there is no checkpoint" in result.output


def test_live_in_json_writes_a_line_for_each_interval(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EnoughError(Exception):
        pass

    def wait(seconds: float) -> None:
        if len(fake.waited) == 2:
            raise EnoughError
        fake.wait(seconds)

    monkeypatch.setattr("nri_plugin.cli.noise.noise.time.sleep", wait)
    result = fake.run("web-0/app", "--live", "-o", "json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["containers"][0]["totals"]["timer-tick"] for one in lines] == [50, 50]


def test_live_draws_scrolls_and_ends(fake: FakeNode) -> None:
    screen = Terminal("noise", *fake.words("web-0/app", "--live", "--for", "200ms"), rows=12)
    try:
        screen.wait_for("device interrupts")
        screen.press("\x1b[F")
        screen.wait_for("not visible")
        screen.press("\x1b[H")
        screen.wait_for("SOURCE")
        screen.press("q")
        assert screen.wait() == 0
    finally:
        screen.close()


def test_every_kind_has_words_and_a_cause() -> None:
    assert set(LABELS) == set(NoiseKind)
    assert {kind for kind, _ in CAUSES} | {NoiseKind.DEVICE} == set(NoiseKind)
    assert all((kind, "") in CAUSES for kind in NoiseKind if kind is not NoiseKind.DEVICE)
    assert set(UNSEEN) == set(Unseen)


OWN = CPUSet.parse("2-3")
BY_INTERRUPT: Mapping[str, tuple[ReachingInterrupt | None, str, str]] = {
    "movable": (
        ReachingInterrupt(24, ("rng",), CPUSet.parse("0-7"), CPUSet.of(2), is_movable=True),
        "may be delivered to CPUs 0-7",
        "echo CPUS > /proc/irq/24/smp_affinity_list",
    ),
    "own queue": (
        ReachingInterrupt(24, ("nvme",), OWN, OWN, is_movable=False),
        "fires only for I/O of CPUs 2-3",
        "",
    ),
    "shared queue": (
        ReachingInterrupt(24, ("nvme",), CPUSet.parse("1-2"), OWN, is_movable=False),
        "of which 1 are not the container's",
        "isolcpus=managed_irq,2-3",
    ),
    "unknown": (None, "a device, or its driver", "echo CPUS > /proc/irq/24/smp_affinity_list"),
}


@pytest.mark.parametrize(("interrupt", "says", "line"), BY_INTERRUPT.values(), ids=BY_INTERRUPT)
def test_a_devices_interrupt_is_explained_by_its_affinity(
    interrupt: ReachingInterrupt | None, says: str, line: str
) -> None:
    found = of_device(interrupt, OWN, 24)
    assert says in found.says
    assert found.command == line


def test_names_that_are_not_in_the_table_have_the_cause_of_their_kind() -> None:
    found: Callable[[str], object] = lambda name: cause_of(NoiseRow(NoiseKind.SOFTIRQ, name, 1), OWN, {})  # noqa: E731
    assert found("TASKLET") == CAUSES[NoiseKind.SOFTIRQ, ""]
    assert found("RCU") != found("TASKLET")
