"""Interrupts and kernel threads, as their files tell them."""

from pathlib import Path

from nri_plugin.host.kernel_work import KernelThread, ReachingInterrupt, read_interrupts, read_kernel_threads
from nri_plugin.model.sets import CPUSet


def interrupt(
    top: Path, number: int, allowed: str, *handlers: str, mode: int = 0o644, effective: str = "0"
) -> None:
    folder = top / str(number)
    for name in handlers:
        (folder / name).mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    (folder / "smp_affinity_list").write_text(f"{allowed}\n")
    (folder / "smp_affinity_list").chmod(mode)
    (folder / "effective_affinity_list").write_text(f"{effective}\n")
    (folder / "affinity_hint").write_text("0\n")


def test_interrupts_are_told_apart_by_the_mode_of_their_file(tmp_path: Path) -> None:
    interrupt(tmp_path, 24, "0-3", "virtio1-input", effective="2")
    interrupt(tmp_path, 9, "1", "nvme0q2", mode=0o444, effective="")
    (tmp_path / "default_smp_affinity").write_text("f\n")
    assert read_interrupts(str(tmp_path)) == [
        ReachingInterrupt(9, ("nvme0q2",), CPUSet.of(1), CPUSet(), is_movable=False),
        ReachingInterrupt(24, ("virtio1-input",), CPUSet.parse("0-3"), CPUSet.of(2), is_movable=True),
    ]


def test_shared_lines_have_several_handlers(tmp_path: Path) -> None:
    interrupt(tmp_path, 16, "0-3", "usb1", "PCIe PME")
    found = read_interrupts(str(tmp_path))
    assert found is not None
    assert found[0].name == "PCIe PME, usb1"


def test_a_line_that_nobody_uses_or_that_went_away_is_left_out(tmp_path: Path) -> None:
    interrupt(tmp_path, 24, "0-3")
    (tmp_path / "25").mkdir()
    interrupt(tmp_path, 26, "x", "broken")
    assert read_interrupts(str(tmp_path)) == []


def test_without_the_directory_nothing_is_known(tmp_path: Path) -> None:
    assert read_interrupts(str(tmp_path / "none")) is None


def process(proc: Path, pid: int, name: str, flags: int, allowed: str = "0-3") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S 2 0 0 0 -1 {flags} 0 0 0\n")
    (folder / "status").write_text(f"Name:\t{name}\nCpus_allowed:\tf\nCpus_allowed_list:\t{allowed}\n")


def test_kernel_threads_are_told_by_their_flags(tmp_path: Path) -> None:
    process(tmp_path, 1, "systemd", 0x400100)
    process(tmp_path, 15, "ksoftirqd/0", 0x04208040, "0")
    process(tmp_path, 30, "kswapd0 (odd)", 0x00220840)
    (tmp_path / "31").mkdir()  # it ended
    (tmp_path / "self").mkdir()
    assert read_kernel_threads(str(tmp_path)) == [
        KernelThread(15, "ksoftirqd/0", CPUSet.of(0), is_bound=True),
        KernelThread(30, "kswapd0 (odd)", CPUSet.parse("0-3"), is_bound=False),
    ]
