"""Debian packages through package lists of our own, so that the machine's configuration stays as it is."""

import fcntl
import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .progress import say
from .shell import CannotRun, LabError, run

SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
DPKG_LOCK = Path("/var/lib/dpkg/lock-frontend")
DPKG_LOCK_S = 600
"""Another apt may be installing something large; whoever waits is told for whom."""

_FLOCK = struct.Struct("hhqqi")
"""`struct flock` on 64-bit Linux. Source: fcntl(2), F_GETLK."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where this machine itself gets its packages, and the key ring it trusts for them."""

    address: str
    keyring: str
    codename: str


def mirror_of_this_machine() -> Mirror:
    """Read the mirror from the machine's own sources.

    Raises:
        CannotRun: the machine does not describe its sources the way Debian 12 and later do.
    """
    try:
        stanza = SOURCES.read_text().split("\n\n")[0]
        release = Path("/etc/os-release").read_text()
    except OSError as error:
        raise CannotRun(f"needs a Debian machine with {SOURCES}: {error}") from error
    fields = dict(
        line.split(":", 1) for line in stanza.splitlines() if ":" in line and not line.startswith("#")
    )
    codename = next(
        (line.split("=")[1] for line in release.splitlines() if line.startswith("VERSION_CODENAME=")), ""
    )
    try:
        return Mirror(fields["URIs"].split()[0], fields["Signed-By"].strip(), codename.strip('"'))
    except KeyError as error:
        raise CannotRun(f"{SOURCES} has no {error} in its first stanza") from error


class PackageLists:
    """apt on one suite, with state, cache and sources in a directory of its own."""

    def __init__(self, mirror: Mirror, suite: str, directory: Path) -> None:
        self._directory = directory
        for name in ("lists/partial", "cache/archives/partial", "parts"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "status").touch()
        self._sources = directory / "parts" / f"{suite}.list"
        self._sources.write_text(f"deb [signed-by={mirror.keyring}] {mirror.address} {suite} main\n")

    def fetch(self, packages: list[str], into: Path) -> None:
        """Download `packages` and everything they depend on, for a system that has nothing installed."""
        (into / "partial").mkdir(parents=True, exist_ok=True)
        own = [
            *("-o", f"Dir::State={self._directory}"),
            *("-o", f"Dir::State::status={self._directory}/status"),
            *("-o", f"Dir::Etc::sourcelist={self._sources}"),
            *("-o", "Dir::Etc::sourceparts=/dev/null"),
            *("-o", "Dir::Etc::preferences=/dev/null"),
            *("-o", "Dir::Etc::preferencesparts=/dev/null"),
            *("-o", f"Dir::Cache={self._directory}/cache"),
            *("-o", "Debug::NoLocking=true"),
        ]
        _update(own)
        _apt([*own, "-o", f"Dir::Cache::archives={into}", "--download-only", "install", *packages])


def install_on_this_machine(mirror: Mirror, packages: list[str], suite: str, directory: Path) -> None:
    """Install `packages` here, from `suite`, without adding a source to the machine's configuration.

    Raises:
        CannotRun: the packages could not be fetched or installed.
    """
    parts = directory / "parts"
    archives = directory / "archives"
    for path in (parts, directory / "lists" / "partial", archives / "partial"):
        path.mkdir(parents=True, exist_ok=True)
    (parts / "debian.sources").write_text(SOURCES.read_text())
    (parts / "extra.list").write_text(f"deb [signed-by={mirror.keyring}] {mirror.address} {suite} main\n")
    own = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}"]
    own += ["-o", f"Dir::State::Lists={directory}/lists"]
    own += [
        "-o",
        f"Dir::Cache::archives={archives}",
    ]  # another apt locks the machine's own while it downloads
    try:
        _update(own)
        if holder := lock_holder(DPKG_LOCK):
            say(f"waiting up to {DPKG_LOCK_S} s for {holder}, which holds {DPKG_LOCK}")
        _apt([*own, "-o", f"DPkg::Lock::Timeout={DPKG_LOCK_S}", "-t", suite, "install", *packages])
    except LabError as error:
        raise CannotRun(f"could not install {', '.join(packages)}: {error}") from error


def lock_holder(path: Path) -> str:
    """The process that holds the lock of a file, as `process 12 (apt-get)`; empty where nobody does."""
    try:
        with path.open("rb") as file:
            asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
        name = Path(f"/proc/{pid}/comm").read_text().strip() if kind != fcntl.F_UNLCK else ""
    except OSError:
        return ""
    return f"process {pid} ({name})" if name else ""


def upstream_version(command: list[str]) -> int:
    """First number of the version that a program prints, 0 where it is not installed."""
    try:
        printed = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return 0
    after = printed.partition("version ")[2]
    return int(after.split(".")[0]) if after[:1].isdigit() else 0


def _update(options: list[str]) -> None:
    """Fetch the package lists.

    Raises:
        CannotRun: no mirror answers, so this machine can build nothing.
    """
    try:
        _apt([*options, "-o", "APT::Update::Error-Mode=any", "update"])
    except LabError as error:
        raise CannotRun(f"the package mirror does not answer: {error}") from error


def _apt(arguments: list[str]) -> None:
    quiet = [
        "-q",
        "-y",
        "-o",
        "APT::Install-Recommends=false",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        "Acquire::Retries=3",
    ]
    run(["apt-get", *quiet, *arguments], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
