"""systemd as a guest's first process: one target that holds the command server, and nothing that the tests do not need.

Under emulation every unit costs a noticeable part of a second, so whatever a node without users, disks or a network of
its own can miss is masked.
"""

from pathlib import Path

INIT = "/lib/systemd/systemd systemd.unit=lab.target systemd.show_status=0"

_TARGET = """[Unit]
Requires=basic.target dbus.service lab.service
After=basic.target
AllowIsolate=yes
"""
_SERVICE = """[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service
[Service]
ExecStartPre=-/sbin/modprobe -a overlay virtio_pci virtio_console
ExecStart=/usr/bin/python3 -S /sbin/lab-server
Environment=HOME=/root PATH=/usr/sbin:/usr/bin
KillMode=process
Delegate=yes
"""
_SERVICES = (
    "apparmor kmod-static-nodes ldconfig modprobe@configfs modprobe@fuse modprobe@efi_pstore systemd-binfmt "
    "systemd-firstboot systemd-hwdb-update systemd-journal-catalog-update systemd-journal-flush systemd-journald "
    "systemd-machine-id-commit systemd-modules-load systemd-random-seed systemd-sysctl systemd-sysusers "
    "systemd-tmpfiles-setup systemd-tmpfiles-setup-dev systemd-tmpfiles-setup-dev-early systemd-udev-load-credentials "
    "systemd-udev-trigger systemd-udevd systemd-update-done systemd-update-utmp systemd-pcrphase "
    "systemd-pcrphase-sysinit systemd-userdbd systemd-networkd systemd-resolved"
)
_OTHERS = (
    "getty.target sys-fs-fuse-connections.mount sys-kernel-config.mount sys-kernel-debug.mount "
    "sys-kernel-tracing.mount systemd-tmpfiles-clean.timer systemd-journald.socket systemd-journald-audit.socket "
    "systemd-journald-dev-log.socket systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-userdbd.socket"
)


def write_units(root: Path) -> None:
    """Put target, service and masks into a root; a root without systemd does not mind."""
    directory = root / "etc/systemd/system"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lab.target").write_text(_TARGET)
    (directory / "lab.service").write_text(_SERVICE)
    for name in [*(f"{service}.service" for service in _SERVICES.split()), *_OTHERS.split()]:
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to("/dev/null")
