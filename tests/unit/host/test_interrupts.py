"""The files of interrupts and masks, as plain files; errnos come from an injected writer."""

import errno
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from nri_plugin.core.quiet import SettingKind
from nri_plugin.host import irqbalance
from nri_plugin.host.interrupts import KernelSettingFiles, RefusedError, mask_text
from nri_plugin.host.irqbalance import IRQBalanceProcess, running
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet


def put(root: Path, name: str, text: str, mode: int = 0o644) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "proc/irq/default_smp_affinity", "ff,ffffffff\n")
    for number, name, cpus, mode in (
        (24, "virtio1-input", "0-3", 0o644),
        (27, "nvme0q1", "1", 0o444),
        (16, "eth0,uhci_hcd", "0", 0o644),
        (5, "", "0-3", 0o644),
    ):
        put(tmp_path, f"proc/irq/{number}/smp_affinity_list", f"{cpus}\n", mode)
        put(tmp_path, f"proc/irq/{number}/effective_affinity_list", "3\n")
        put(tmp_path, f"proc/irq/{number}/node", "-1\n")
        put(tmp_path, f"sys/kernel/irq/{number}/actions", f"{name}\n")
        put(tmp_path, f"sys/kernel/irq/{number}/chip_name", "PCI-MSIX-0000:00:02.0\n")
        put(tmp_path, f"sys/kernel/irq/{number}/hwirq", "1\n")
    put(tmp_path, "sys/devices/virtual/workqueue/cpumask", "f\n")
    put(tmp_path, "sys/devices/virtual/workqueue/cpumask_requested", "ff\n")
    put(tmp_path, "sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", "n/a\n")
    put(tmp_path, "sys/bus/pci/devices/0000:00:02.0/irq", "16\n")
    put(tmp_path, "sys/bus/pci/devices/0000:00:02.0/msi_irqs/24", "msix\n")
    put(tmp_path, "sys/bus/pci/devices/0000:00:03.0/irq", "16\n")
    return tmp_path


def test_lines_without_a_handler_are_passed_over_and_the_mode_tells_fixed_ones(root: Path) -> None:
    listed = KernelSettingFiles(str(root)).interrupts(with_devices=True)
    assert [(one.number, one.actions, one.device) for one in listed.movable] == [
        (16, ("eth0", "uhci_hcd"), "0000:00:03.0"),
        (24, ("virtio1-input",), "0000:00:02.0"),
    ]
    assert [one.number for one in listed.fixed] == [27]
    assert (listed.movable[1].cpus, listed.movable[1].effective) == (CPUSet.parse("0-3"), CPUSet.parse("3"))
    assert [one.number for one in KernelSettingFiles(str(root)).interrupts(only=[24]).movable] == [24]


def test_values_are_lists_whatever_the_file_has(root: Path) -> None:
    files = KernelSettingFiles(str(root))
    assert files.read(SettingKind.DEFAULT) == "0-39"
    assert files.read("workqueue/") == "0-7"  # as asked for: the other has isolated partitions taken out
    assert files.read("latency/0") == "n/a"
    assert files.read("irq/24") == "0-3"
    assert files.read("irq/99") is None
    assert files.workqueues() == ("workqueue/",)


def test_receive_queues_are_those_of_devices_with_hardware_behind_them(root: Path) -> None:
    for device, queue in (("eth0", "rx-0"), ("eth0", "tx-0"), ("veth1", "rx-0"), ("eth1", "rx-0")):
        put(root, f"sys/class/net/{device}/queues/{queue}/rps_cpus", "00000000,0000000f\n")
    put(root, "sys/class/net/eth0/device/vendor", "0x1af4\n")
    put(root, "sys/class/net/dead0/device/vendor", "0x1af4\n")
    files = KernelSettingFiles(str(root))
    assert files.receive_queues() == ("rps/eth0/queues/rx-0",)
    assert files.read("rps/eth0/queues/rx-0") == "0-3"
    files.write("rps/eth0/queues/rx-0", "")
    assert (root / "sys/class/net/eth0/queues/rx-0/rps_cpus").read_text().startswith("0")
    assert KernelSettingFiles(str(root / "proc")).receive_queues() == ()


def test_each_value_is_one_write_in_the_form_of_its_file(root: Path) -> None:
    seen: list[tuple[str, str]] = []
    files = KernelSettingFiles(str(root), lambda path, text: seen.append((os.path.relpath(path, root), text)))
    for name, value in (
        (SettingKind.DEFAULT, "0-1,32"),
        ("irq/24", "0-1"),
        ("workqueue/", "0"),
        ("latency/0", "20"),
    ):
        files.write(name, value)
    assert seen == [
        ("proc/irq/default_smp_affinity", "1,00000003"),
        ("proc/irq/24/smp_affinity_list", "0-1"),
        ("sys/devices/virtual/workqueue/cpumask", "1"),
        ("sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", "20"),
    ]


def test_a_refused_write_keeps_its_errno(root: Path) -> None:
    def refuse(_path: str, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        RefusedError, match=r"smp_affinity_list: no space left on device \(ENOSPC\)"
    ) as refused:
        KernelSettingFiles(str(root), refuse).write("irq/24", "0")
    assert refused.value.word == "ENOSPC"


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    files = KernelSettingFiles(str(root))
    assert files.missing({SettingKind.DEFAULT, SettingKind.WORKQUEUE, SettingKind.LATENCY}) == ""
    nothing = KernelSettingFiles(str(tmp_path / "empty"))
    assert nothing.missing({SettingKind.DEFAULT}).endswith("proc/irq/default_smp_affinity is not there")
    assert nothing.missing(()) == ""
    with pytest.raises(HostError):
        nothing.interrupts()


@pytest.mark.parametrize(
    ("cpus", "text"), [("0-3", "f"), ("0-13", "3fff"), ("0-39", "ff,ffffffff"), ("64", "1,00000000,00000000")]
)
def test_masks_have_words_of_32_bits(cpus: str, text: str) -> None:
    assert mask_text(CPUSet.parse(cpus)) == text


class PlayedIRQBalance:
    """Answers as irqbalance 1.9 does: one command on a connection, the sender's credentials with it."""

    def __init__(self, path: Path, own: str) -> None:
        self.own, self.banned = int(own, 16), int(own, 16)
        self.uids: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                data, ancillary, _, _ = peer.recvmsg(4096, 1024)
                self.uids.append(struct.unpack("iII", ancillary[0][2])[1])
                self._do(peer, data.decode())

    def _do(self, peer: socket.socket, command: str) -> None:
        if command == "setup":
            peer.sendall(f"SLEEP 10 IRQ 24 LOAD 5 BANNED 00000000,{self.banned:08x}".encode())
        elif command.startswith("settings cpus "):
            given = command.removeprefix("settings cpus ")
            self.banned = self.own if given == "NULL" else CPUSet.parse(given).mask

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def test_irqbalance_is_asked_and_told_by_its_socket(tmp_path: Path) -> None:
    played = PlayedIRQBalance(tmp_path / "run/irqbalance/irqbalance123.sock", "8")
    (one,) = running(str(tmp_path))
    assert one.banned() == CPUSet.parse("3")
    one.ban(CPUSet.parse("1-3"))
    assert one.banned() == CPUSet.parse("1-3")
    one.ban(CPUSet())
    assert one.banned() == CPUSet.parse("3")  # those of its configuration
    assert set(played.uids) == {os.geteuid()}
    played.close()


def test_no_irqbalance_and_one_that_has_ended(tmp_path: Path) -> None:
    assert running(str(tmp_path)) == ()
    with pytest.raises(HostError, match="irqbalance does not answer"):
        IRQBalanceProcess(str(tmp_path / "irqbalance1.sock")).banned()


def test_the_cpus_that_are_online_are_told_or_not(tmp_path: Path) -> None:
    files = KernelSettingFiles(str(tmp_path))
    assert files.online_cpus() is None
    place = tmp_path / "sys/devices/system/cpu"
    place.mkdir(parents=True)
    (place / "online").write_text("0-2,5\n")
    assert files.online_cpus() == CPUSet.parse("0-2,5")


def test_a_socket_of_another_user_is_no_irqbalance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "irqbalance1.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        monkeypatch.setattr(irqbalance, "peer_of", lambda _: (1, os.geteuid() + 4242))
        with pytest.raises(HostError, match="belongs to another user than root"):
            IRQBalanceProcess(path).ban(CPUSet.parse("1"))
