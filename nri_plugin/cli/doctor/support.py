"""What this project runs, follows by its source, or has not tried: the one table of the guides and of `doctor`.

A row that says `RUN` has the command that runs it. The date is that of the last time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.cli.doctor.runtime_files import CONTAINERD, CRIO

Version = tuple[int, int, int]


class Basis(StrEnum):
    """What is known of a release."""

    RUN = "run here"
    SOURCE = "by its source"
    """Played runtimes and rules follow the source of the release, and no test of this project has run it."""
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Support:
    """One row.

    Attributes:
        subject: such as `containerd`.
        which: its releases or kinds.
        basis: what is known.
        how: what ran it, and the exact release; or what it rests on.
        date: of that, as `2026-11-24`; empty where nothing was done.
        since: the first release of the row, for subjects that are judged by version.
    """

    subject: str
    which: str
    basis: Basis
    how: str = ""
    date: str = ""
    since: Version | None = None


LINUX = "Linux"
_RUN, _SOURCE, _NOT_TRIED = Basis

SUPPORT: Sequence[Support] = (
    Support(CONTAINERD, "2.5 and later", _NOT_TRIED, since=(2, 5, 0)),
    Support(CONTAINERD, "2.4", _SOURCE, "played by the embedded runtime", "2026-08-22", (2, 4, 0)),
    Support(CONTAINERD, "2.3", _RUN, "2.3.4: `hack/e2e e`", "2026-11-24", (2, 3, 0)),
    Support(CONTAINERD, "2.2", _RUN, "2.2.7: `hack/e2e e`", "2026-11-24", (2, 2, 0)),
    Support(
        CONTAINERD,
        "2.0, 2.1",
        _RUN,
        "2.1.9: `hack/e2e a`, `b`, `c`, `hack/lab`, under the kubelet by `hack/cluster`",
        "2026-11-24",
        (2, 0, 0),
    ),
    Support(
        CONTAINERD,
        "1.7.16 and later 1.7",
        _RUN,
        "1.7.24: `hack/e2e a`, `b`, `c`, `hack/lab`",
        "2026-11-21",
        (1, 7, 16),
    ),
    Support(CONTAINERD, "1.7.0 to 1.7.15", _NOT_TRIED, since=(1, 7, 0)),
    Support(CRIO, "1.37 and later", _NOT_TRIED, since=(1, 37, 0)),
    Support(CRIO, "1.35, 1.36", _SOURCE, "played by the embedded runtime", "2026-08-21", (1, 35, 0)),
    Support(
        CRIO,
        "1.34",
        _RUN,
        "1.34.0: `hack/e2e e`, cgroup v1 with the cgroupfs driver",
        "2026-11-24",
        (1, 34, 0),
    ),
    Support(CRIO, "1.31 to 1.33", _SOURCE, "played by the embedded runtime", "2026-08-21", (1, 31, 0)),
    Support(CRIO, "1.26 to 1.30", _NOT_TRIED, since=(1, 26, 0)),
    Support(
        "NRI",
        "0.6, 0.8, 0.10, 0.11, 0.12",
        _RUN,
        "recordings of the Go library: `tests/vectors/nri`",
        "2026-11-24",
    ),
    Support(
        "Kubernetes",
        "1.37",
        _RUN,
        "1.37.2: API server, scheduler, controllers and kubelet by `hack/cluster run --kubernetes 1.37.2`, 20 scenarios",
        "2026-11-26",
    ),
    Support(
        "Kubernetes",
        "1.36",
        _SOURCE,
        "recorded answers of the kubelet: `hack/conformance`",
        "2026-11-24",
    ),
    Support(
        "Kubernetes",
        "1.35",
        _RUN,
        "1.35.3: API server, scheduler, controllers and kubelet by `hack/cluster run`",
        "2026-11-26",
    ),
    Support("Kubernetes", "1.34 and earlier", _NOT_TRIED),
    Support(
        LINUX,
        "6.12 and later",
        _RUN,
        "6.12 and 7.2 in guests, 6.18 on the machine: `hack/e2e`, `hack/cluster`",
        "2026-11-24",
        (6, 12, 0),
    ),
    Support(LINUX, "6.2 to 6.11", _NOT_TRIED, since=(6, 2, 0)),
    Support(LINUX, "6.1", _RUN, "quiet CPUs in a guest: `hack/e2e d`", "2026-11-24", (6, 1, 0)),
    Support(LINUX, "5.0 to 6.0", _NOT_TRIED, since=(5, 0, 0)),
    Support("cgroups", "v1, cgroupfs driver", _RUN, "`hack/e2e a`, `e`", "2026-11-24"),
    Support("cgroups", "v2, cgroupfs driver", _RUN, "`hack/e2e c`, `hack/lab`, `hack/cluster`", "2026-11-24"),
    Support("cgroups", "v2, systemd driver", _RUN, "`hack/e2e c`, `f`, `g`, `hack/lab`", "2026-11-24"),
    Support("cgroups", "v1, systemd driver", _NOT_TRIED),
    Support("OCI runtime", "runc", _RUN, "`hack/lab`, `hack/cluster`", "2026-11-24"),
    Support("OCI runtime", "crun", _RUN, "`hack/lab`", "2026-11-21"),
    Support("OCI runtime", "Kata Containers and others with a virtual machine", _NOT_TRIED, "not supported"),
    Support("architecture", "x86-64", _RUN, "everything", "2026-11-24"),
    Support(
        "architecture",
        "arm64",
        _SOURCE,
        "recorded machines: `tests/machines`; package, image and `hack/demo` by hand on an emulated CPU, no node",
        "2026-11-24",
    ),
    Support(
        "architecture",
        "ppc64le, s390x, riscv64, loongarch64",
        _SOURCE,
        "recorded machines: `tests/machines`; nothing was run",
        "2026-11-24",
    ),
    Support("host", "Debian", _RUN, "everything", "2026-11-24"),
    Support("host", "SELinux enforcing", _NOT_TRIED, "the chart's `agent.seLinuxOptions` is for it"),
    Support(
        "host",
        "immutable hosts (Flatcar, Talos, Bottlerocket, Fedora CoreOS)",
        _NOT_TRIED,
        "the agent writes only below `/run`",
    ),
)


def support_of(subject: str, version: Version) -> Support | None:
    """The row for a release; None below the oldest one."""
    rows = (
        row for row in SUPPORT if row.subject == subject and row.since is not None and row.since <= version
    )
    return next(rows, None)


def caveat(subject: str, version: Version) -> str:
    """What a reader should know of a release that was not run, as an end of a sentence; empty for one that was."""
    row = support_of(subject, version)
    match row.basis if row else Basis.NOT_TRIED:
        case Basis.RUN:
            return ""
        case Basis.SOURCE:
            return "nri-pin follows its source, and was not run with it"
    return "nri-pin was not tried with it"


def support_table() -> str:
    """The table in Markdown."""
    lines = ["| | | tried | how | last |", "|---|---|---|---|---|"]
    lines += [f"| {one.subject} | {one.which} | {one.basis} | {one.how} | {one.date} |" for one in SUPPORT]
    return "\n".join(lines) + "\n"
