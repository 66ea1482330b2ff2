from pathlib import Path

import pytest

from nri_plugin.cli.doctor.evidence import Kernel, boot_options, free_bytes, is_admin, read_kernel
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.model.sets import CPUSet


@pytest.mark.parametrize(
    ("line", "known", "unread"),
    [
        ("quiet", {}, {}),
        (
            "isolcpus=2-3 nohz_full=2-3 rcu_nocbs=2,3",
            {"isolcpus": "2-3", "nohz_full": "2-3", "rcu_nocbs": "2-3"},
            {},
        ),
        ("isolcpus=managed_irq,domain,4-5", {"isolcpus": "4-5"}, {}),
        ("isolcpus=1-7/2", {}, {"isolcpus": "1-7/2"}),
        ("isolcpus=", {}, {}),
    ],
)
def test_isolation_is_read_off_the_command_line(
    line: str, known: dict[str, str], unread: dict[str, str]
) -> None:
    found, odd = boot_options(line)
    assert ({name: str(cpus) for name, cpus in found.items()}, odd) == (known, unread)


def test_the_kernel_is_read_from_its_own_files(tmp_path: Path) -> None:
    for name, text in {
        "proc/cmdline": "isolcpus=3\n",
        "proc/sys/kernel/osrelease": "6.1.0\n",
        "proc/sys/kernel/numa_balancing": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_kernel(NodeView(str(tmp_path), [])) == Kernel(
        "6.1.0", {"isolcpus": CPUSet.parse("3")}, {}, numa_balancing=True
    )


def test_a_copy_without_those_files_says_nothing(tmp_path: Path) -> None:
    assert isinstance(read_kernel(NodeView(str(tmp_path), [])), Hidden)
    (tmp_path / "proc").mkdir()
    assert isinstance(read_kernel(NodeView(str(tmp_path), [])), Hidden)
    (tmp_path / "proc/cmdline").write_text("quiet\n")
    found = read_kernel(NodeView(str(tmp_path), []))
    assert isinstance(found, Kernel)
    assert isinstance(found.numa_balancing, Hidden)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.1.0\n")
    assert read_kernel(NodeView(str(tmp_path), [])) == Kernel("6.1.0")


def test_this_kernel_has_a_release() -> None:
    found = read_kernel(NodeView("/"))
    assert not isinstance(found, Hidden)
    assert found.release


def test_room_is_told_where_it_can_be(tmp_path: Path) -> None:
    assert (free_bytes(str(tmp_path)) or 0) > 0
    assert free_bytes(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("CapEff:\t000001ffffffffff", True),
        ("CapEff:\t0000000000200000", True),
        ("CapEff:\t000001ffffdfffff", False),
        ("CapEff:\t0000000000000000", False),
        ("Name:\tnri-pin", None),
    ],
)
def test_a_process_may_be_an_admin_of_the_system(tmp_path: Path, line: str, answer: bool | None) -> None:
    (tmp_path / "proc/9").mkdir(parents=True)
    (tmp_path / "proc/9/status").write_text(f"State:\tS\n{line}\nSeccomp:\t0\n")
    assert is_admin(NodeView(str(tmp_path), []), 9) is answer
    assert is_admin(NodeView(str(tmp_path), []), 10) is None
