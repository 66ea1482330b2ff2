"""Readers of the kernel's counters, by texts of several kernels.

Those below `6.18` are of a real machine; the others follow samples of real ones, with the differences of their kernels.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from nri_plugin.host.cgroup import Cgroups
from nri_plugin.host.kernel_counters import (
    MOST_THREADS,
    PAGE_BYTES,
    TICK_US,
    ContainerCounters,
    ContainerFiles,
    CounterFiles,
    LineID,
    ThreadCounters,
    handlers,
    parse_interrupts,
    parse_numa_stat,
    parse_pressure,
    parse_schedstat,
    parse_softirqs,
    parse_stat,
    read_threads,
)
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet

TEXTS = Path(__file__).parents[2] / "vectors/kernel/proc"
REF = CgroupRef("/kubepods/podu1", "/kubepods/podu1/c1")


def text(kernel: str, name: str = "interrupts") -> str:
    return (TEXTS / kernel / name).read_text("ascii")


def by_label(kernel: str, cpus: str = "0-3") -> dict[str, tuple[LineID, Mapping[int, int]]]:
    found = parse_interrupts(text(kernel), CPUSet.parse(cpus))
    assert found is not None
    return {line.label: (line, counts) for line, counts in found.items()}


@pytest.mark.parametrize("kernel", ["6.1", "6.12", "7.2"])
def test_lines_of_each_kernel_have_the_same_names_and_counts(kernel: str) -> None:
    found = by_label(kernel)
    assert {label: line.name for label, (line, _) in found.items() if label.isdecimal()}.items() >= {
        "1": "i8042",
        "24": "nvme0q0",
        "31": "virtio1-input",
    }.items()
    assert found["31"][1][3] == 202
    assert found["25"][1][0] == 120
    assert found["TLB"][1][1] == 10
    assert "ERR" not in found


def test_columns_are_those_of_the_header_so_that_an_offline_cpu_has_no_count() -> None:
    assert set(by_label("6.12")["LOC"][1]) == {0, 1, 3}
    assert by_label("6.12", "2-3")["4"][1] == {3: 211}
    assert by_label("6.12", "2")["4"][1] == {}


def test_a_line_without_a_handler_has_no_name() -> None:
    assert by_label("6.1")["30"][0].name == ""
    assert by_label("6.1")["30"][1] == {0: 7, 1: 0, 2: 0, 3: 0}


def test_handlers_that_share_a_line_and_have_blanks_are_one_name() -> None:
    assert by_label("6.12")["16"][0].name == "ehci_hcd:usb1, PCIe PME"


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ("GICv3  27 Level     arch_timer", "arch_timer"),
        ("GICv3  30 Level   ", ""),
        ("IO-APIC   9-fasteoi ", ""),
        ("ITS-MSI-0000:01:00.0   0 Edge      nvme0q0", "nvme0q0"),
        ("XT-PIC      cascade", "cascade"),
        ("", ""),
    ],
)
def test_handlers_of_other_chips(about: str, name: str) -> None:
    assert handlers(about) == name


def test_a_device_is_known_by_its_address_where_the_chip_has_it() -> None:
    assert by_label("6.12")["25"][0].device == "0000:00:02.0"
    assert by_label("6.1")["25"][0].device == ""


def test_a_number_that_is_used_again_is_another_line() -> None:
    again = text("6.12").replace("virtio1-input", "virtio9-input")
    one = parse_interrupts(text("6.12"), CPUSet.of(0))
    other = parse_interrupts(again, CPUSet.of(0))
    assert one
    assert other
    assert len(set(one) ^ set(other)) == 2


def test_texts_of_this_kernel_are_read_whole() -> None:
    found = by_label("6.18", "0-1")
    lines = [line for line in text("6.18").splitlines()[1:] if not line.startswith(("ERR", "MIS"))]
    assert len(found) == len(lines)
    softirqs = parse_softirqs(text("6.18", "softirqs"), CPUSet.parse("0-1"))
    assert softirqs is not None
    assert list(softirqs) == [
        "HI",
        "TIMER",
        "NET_TX",
        "NET_RX",
        "BLOCK",
        "IRQ_POLL",
        "TASKLET",
        "SCHED",
        "HRTIMER",
        "RCU",
    ]
    assert set(parse_stat(text("6.18", "stat"), CPUSet.parse("0-1"))) == {0, 1}


@pytest.mark.parametrize("broken", ["", "nothing here\n", "\n\n", "CPU0 CPUx\n 1: 2 3\n"])
def test_a_text_without_a_header_is_not_seen(broken: str) -> None:
    assert parse_interrupts(broken, CPUSet.of(0)) is None


def test_a_malformed_line_is_left_out_and_the_others_are_not() -> None:
    broken = "  CPU0 CPU1\n 1: x 2 a\n no colon\n 2: 3\n 3: 4 5  chip  name\n"
    found = parse_interrupts(broken, CPUSet.parse("0-1"))
    assert found is not None
    assert [line.label for line in found] == ["3"]


def test_busy_time_is_neither_idle_nor_stolen() -> None:
    found = parse_stat(
        "cpu  9 9 9 9\ncpu1 1 2 4 1000 1000 8 16 32 1 1\ncpu2 1\n\ncpu3 x\n", CPUSet.parse("1-3")
    )
    assert set(found) == {1}
    assert found[1].busy_us == 31 * TICK_US
    assert found[1].steal_us == 32 * TICK_US


@pytest.mark.parametrize("kernel", ["6.1", "6.12", "7.2"])
def test_waits_in_the_run_queue_are_in_one_place_in_every_version(kernel: str) -> None:
    assert parse_schedstat(text(kernel, "schedstat"), CPUSet.parse("0-1")) == {0: 13253138, 1: 2253138}


def test_pressure_is_told_by_kind() -> None:
    lines = (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=4\n"
    )
    assert parse_pressure(lines) == {"some": 123, "full": 4}


def test_memory_by_node_of_both_versions() -> None:
    v2 = "anon N0=100 N1=8\nfile N0=20 N1=0\nfile_mapped N0=20 N1=0\nkernel_stack N0=1 N1=1\n"
    assert parse_numa_stat(v2) == {0: 121, 1: 9}
    v1 = "total=3 N0=1 N1=2\nfile=1 N0=1 N1=0\nhierarchical_total=5 N0=2 N1=3\n"
    assert parse_numa_stat(v1) == {0: 2 * PAGE_BYTES, 1: 3 * PAGE_BYTES}
    assert parse_numa_stat("") is None


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


V2 = {
    "cgroup.controllers": "cpuset cpu memory\n",
    "kubepods/podu1/c1/cpu.stat": "usage_usec 5000\nnr_throttled 2\nthrottled_usec 70\n",
    "kubepods/podu1/c1/cpu.stat.local": "throttled_usec 90\n",
    "kubepods/podu1/c1/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\n",
    "kubepods/podu1/c1/irq.pressure": "full avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
    "kubepods/podu1/c1/memory.stat": "anon 5\nnuma_pages_migrated 3\nnuma_hint_faults 4\n",
    "kubepods/podu1/c1/memory.numa_stat": "anon N0=7\n",
}
FULL = ContainerCounters(5000, 90, 2, 11, 12, 4, 3, {0: 7})


def test_counters_of_a_container_of_version_2(tmp_path: Path) -> None:
    write(tmp_path, V2)
    assert ContainerFiles(Cgroups.open(str(tmp_path))).read(REF) == FULL


def test_a_kernel_without_some_files_leaves_their_values_unknown(tmp_path: Path) -> None:
    write(
        tmp_path,
        {name: content for name, content in V2.items() if name.endswith(("controllers", "cpu.stat"))},
    )
    assert ContainerFiles(Cgroups.open(str(tmp_path))).read(REF) == ContainerCounters(5000, 70, 2)


def test_counters_of_a_container_of_version_1(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "cpuset/kubepods/podu1/c1/cpuset.cpus": "1\n",
            "cpuset/cpuset.cpus": "0-1\n",
            "cpu,cpuacct/kubepods/podu1/c1/cpuacct.usage": "5000000\n",
            "cpu,cpuacct/kubepods/podu1/c1/cpu.stat": "nr_periods 1\nnr_throttled 2\nthrottled_time 90000\n",
            "memory/kubepods/podu1/c1/memory.numa_stat": "total=3 N0=1 N1=2\n",
        },
    )
    found = ContainerFiles(Cgroups.open(str(tmp_path))).read(REF)
    assert found == ContainerCounters(5000, 90, 2, memory_bytes={0: PAGE_BYTES, 1: 2 * PAGE_BYTES})


def test_a_container_without_a_cgroup_has_no_counters(tmp_path: Path) -> None:
    write(tmp_path, {"cgroup.controllers": "cpuset\n"})
    files = ContainerFiles(Cgroups.open(str(tmp_path)))
    assert files.read(REF) is None
    assert files.read(CgroupRef("/", "/../..")) is None


def test_a_masked_file_is_read_from_the_next_root(tmp_path: Path) -> None:
    masked, node = tmp_path / "masked", tmp_path / "node"
    write(masked, {"proc/interrupts": "", "proc/softirqs": text("6.18", "softirqs")})
    write(node, {"proc/interrupts": text("6.18"), "proc/stat": text("6.18", "stat")})
    cpus = CPUSet.parse("0-1")
    hidden = CounterFiles([str(masked)], lambda: 1.0).read(cpus)
    assert (hidden.interrupts, hidden.times, hidden.queue_us) == (None, None, None)
    found = CounterFiles([str(masked), str(node)], lambda: 1.0).read(cpus)
    assert found.interrupts is not None
    assert found.softirqs is not None
    assert found.times is not None


def process(proc: Path, pid: int, cgroup: str, *tids: int) -> None:
    for tid in tids:
        write(
            proc / str(pid),
            {
                "cgroup": cgroup,
                f"task/{tid}/schedstat": f"1 {tid}000 3\n",
                f"task/{tid}/status": "voluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t5\n",
                f"task/{tid}/sched": "c1 (7, #threads: 1)\nse.nr_migrations       :     3\n",
            },
        )


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/kubepods/podu1/c1\n",
        "0::/../../podu1/c1/below\n",
        "3:cpu:/elsewhere\n2:cpuset:/kubepods/podu1/c1\n",
    ],
)
def test_threads_are_found_by_the_cgroup_of_their_process(tmp_path: Path, cgroup: str) -> None:
    process(tmp_path, 7, cgroup, 7, 8)
    process(tmp_path, 9, "0::/kubepods/podu1/c10\n", 9)
    (tmp_path / "self").mkdir()
    expected = {tid: ThreadCounters(tid, 5, 3) for tid in (7, 8)}
    assert read_threads(str(tmp_path), [REF]) == {REF: expected}


def test_a_kernel_without_schedstat_and_sched_leaves_them_unknown(tmp_path: Path) -> None:
    process(tmp_path, 7, "0::/c1\n", 7, 8)
    for name in ("schedstat", "sched"):
        os.remove(tmp_path / f"7/task/7/{name}")
    os.remove(tmp_path / "7/task/8/status")  # it ended between two reads
    assert read_threads(str(tmp_path), [REF]) == {REF: {7: ThreadCounters(None, 5, None)}}


def test_so_many_threads_are_read_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_THREADS >= 10_000
    monkeypatch.setattr("nri_plugin.host.kernel_counters.MOST_THREADS", 2)
    process(tmp_path, 7, "0::/c1\n", 7, 8, 9)
    assert len(read_threads(str(tmp_path), [REF])[REF]) == 2


def test_nothing_is_read_where_there_is_no_proc(tmp_path: Path) -> None:
    assert read_threads(str(tmp_path / "none"), [REF]) == {REF: {}}
