"""The check of `nri-pin doctor` on the CPU affinity of the container runtime, which its containers may have as well."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nri_plugin.cli.doctor.findings import Finding, advice, fine, named
from nri_plugin.cli.doctor.runtime_files import DISTRIBUTIONS, NOWHERE, UNITS, FileLine
from nri_plugin.cli.doctor.view import NodeView, Process
from nri_plugin.model.sets import NO_CPUS, CPUSet

STARTERS = (*UNITS.values(), "containerd-shim", "conmon")
"""Programs that containers inherit from; 15 characters of a name are kept by the kernel."""

MANAGER = "/etc/systemd/system.conf"
FOLDERS = tuple(f"{top}/systemd/system" for top in ("/usr/lib", "/lib", "/run", "/etc"))
FIRST_TO_KEEP = (6, 2)
"""Source: Linux 6.2, commit da019032819a. Before it, a process that joins a cpuset loses its mask."""

_AFFINITY = re.compile(r"\s*CPUAffinity\s*=(.*)")
_RANGES = re.compile(r"\d+(?:-\d+)?")


@dataclass(frozen=True, slots=True)
class AffinityEvidence:
    """The CPU affinity of the runtime.

    Attributes:
        who: the process or unit that has it.
        cpus: the mask; None for none.
        setting: the place that sets it, where it was found.
        pool: the CPUs of shared containers; all online ones where the agent does not tell.
    """

    who: str = ""
    cpus: CPUSet | None = None
    setting: FileLine = NOWHERE
    pool: CPUSet = NO_CPUS


def read(
    view: NodeView, processes: Sequence[Process], runtime: Process | None, unit: str, pool: CPUSet
) -> AffinityEvidence:
    """Read the masks of the runtime and of its shims, and the settings of systemd; nothing on a kernel that drops masks.

    Args:
        view: the node.
        processes: of the node.
        runtime: its process; None where that cannot be seen.
        unit: of the runtime, where its process does not tell.
        pool: the CPUs of shared containers.
    """
    release = view.kernel_text("/proc/sys/kernel/osrelease")
    version = re.match(r"(\d+)\.(\d+)", release) if isinstance(release, str) else None
    if version and (int(version[1]), int(version[2])) < FIRST_TO_KEEP:
        return AffinityEvidence()
    own = view.unit_of(runtime.pid) if runtime else ""
    units = (
        [own]
        if own
        else [
            f"{name}.service"
            for name in (unit, *(name for one in DISTRIBUTIONS for name in one.runtime_units))
        ]
    )
    settings = [(name, *_setting(view, name)) for name in units]
    unit, mask, place = next((one for one in settings if one[1]), settings[0])
    shims, _ = view.services(processes, lambda process: process.name in STARTERS[-2:], in_containers=True)
    seen = False
    for process in (*filter(None, [runtime]), *shims):
        cpus = _allowed(view, process.pid)
        seen = seen or cpus is not None
        if cpus and not pool <= cpus and cpus != _cpuset(view, process.pid):
            return AffinityEvidence(process.name, cpus, place, pool)
    if mask and not seen:
        return AffinityEvidence(unit, mask, place, pool)
    return AffinityEvidence()


def _allowed(view: NodeView, pid: int) -> CPUSet | None:
    text = view.text(f"/proc/{pid}/status")
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.MULTILINE) if isinstance(text, str) else None
    return _parsed(found[1]) if found else None


def _cpuset(view: NodeView, pid: int) -> CPUSet | None:
    """The CPUs of the process's cgroup, which its containers do not have from it; None where no file tells."""
    text = view.text(f"/proc/{pid}/cgroup")
    for line in text.splitlines() if isinstance(text, str) else ():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "cpuset"):
            continue
        top, name = (
            ("/sys/fs/cgroup/cpuset", "cpuset.effective_cpus")
            if controllers
            else ("/sys/fs/cgroup", "cpuset.cpus.effective")
        )
        while path.strip("/"):
            found = view.text(f"{top}{path}/{name}")
            if isinstance(found, str):
                return _parsed(found.strip())
            path = os.path.dirname(path)
    return None


def _setting(view: NodeView, unit: str) -> tuple[CPUSet, FileLine]:
    """The mask that systemd gives the unit, and the last place that sets it."""
    drop_ins = [f"{folder}/{name}.d" for name in ("service", unit) for folder in FOLDERS]
    files = [
        MANAGER,
        *_below(view, f"{MANAGER}.d"),
        *(f"{folder}/{unit}" for folder in FOLDERS),
        *(path for folder in drop_ins for path in _below(view, folder)),
    ]
    mask, place = NO_CPUS, NOWHERE
    for path in files:
        text = view.text(path)
        for number, line in enumerate(text.splitlines() if isinstance(text, str) else (), 1):
            if found := _AFFINITY.match(line):
                cpus = _parsed(",".join(_RANGES.findall(found[1]))) or NO_CPUS
                # Several lines add up, and an empty one begins again.
                mask = mask | cpus if found[1].strip() else NO_CPUS
                place = FileLine(path, number) if mask else NOWHERE
    return mask, place


def _below(view: NodeView, folder: str) -> list[str]:
    names = view.names(folder)
    return [
        f"{folder}/{name}" for name in (names if isinstance(names, tuple) else ()) if name.endswith(".conf")
    ]


def _parsed(text: str) -> CPUSet | None:
    try:
        return CPUSet.parse(text)
    except ValueError:
        return None


def judge(seen: AffinityEvidence) -> Iterator[Finding]:
    """The finding; none where the runtime has no mask."""
    if seen.cpus is None:
        return
    by = f", by {seen.setting}" if seen.setting.path else ""
    says = f"{seen.who} has a CPU affinity of CPUs {seen.cpus}{by}"
    if seen.pool.isdisjoint(seen.cpus):
        yield from named(
            "runtime-affinity",
            fine(f"{says}, which are not in the shared pool, so containers have all their CPUs"),
        )
        return
    yield from named(
        "runtime-affinity",
        advice(
            f"{says}; a runc before 1.3.1 (1.2: before 1.2.7) or crun before 1.9.1 gives it to containers, which then run on "
            f"{seen.pool & seen.cpus} of {seen.pool} alone",
            "use such a release, or take CPUAffinity= away; then restart the runtime and these containers. nri-pin state verify, as "
            "root on the node, names the containers",
        ),
    )
