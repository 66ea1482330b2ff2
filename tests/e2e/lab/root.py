"""Root file systems: a closure of Debian packages, unpacked without running any maintainer script.

That takes seconds where a real installation takes a minute, and it gives roots of releases that this machine does not
run. What the scripts would have done and the lab needs is done here, each with its reason.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from .apt import Mirror, PackageLists
from .progress import step
from .shell import run

_TOOLS = [
    "bash",
    "coreutils",
    "sed",
    "grep",
    "mount",
    "util-linux",
    "procps",
    "iproute2",
    "kmod",
    "tar",
    "gzip",
]
_ALWAYS = [
    "base-files",
    "base-passwd",
    "dash",
    *_TOOLS,
    "containerd",
    "runc",
    "python3",
    "busybox-static",
    "libstdc++6",
]
_UNWANTED = ["doc", "man", "locale", "info", "i18n"]
KERNEL_PACKAGE = "linux-image-cloud-amd64"
_BUILDER_VERSION = 4  # part of every cache key: count up when a root is built in another way


@dataclass(frozen=True, slots=True)
class RootRecipe:
    """One root: a release and what it holds beside the container runtime; `name` where the release has several roots."""

    suite: str
    extra: tuple[str, ...] = ()
    name: str = ""

    @property
    def key(self) -> str:
        """Short hash over everything that decides what the root holds, the day's packages excepted."""
        text = f"{_BUILDER_VERSION} {self.suite} {_ALWAYS} {self.extra}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]


RECIPES = {
    "trixie": RootRecipe(
        "trixie", (KERNEL_PACKAGE, "dbus", "systemd-sysv")
    ),  # containerd 1.7; the kernel of all guests that name no other
    "sid": RootRecipe("sid", ("crun", "dbus", "irqbalance", "systemd-sysv")),  # containerd 2.1 or later
    "crio": RootRecipe("sid", ("conmon", "skopeo"), "crio"),  # what CRI-O needs; it is built from source
}


def build_root(recipe: RootRecipe, mirror: Mirror, work: Path) -> Path:
    """Return the directory of the root, built now or kept from an earlier run."""
    name = recipe.name or recipe.suite
    root = work / f"root-{name}-{recipe.key}"
    done = root.with_suffix(".done")
    if done.exists():
        return root
    for leftover in work.glob(f"root-{name}-*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    with step(f"building the {name} root"):
        archives = work / f"debs-{name}"
        shutil.rmtree(archives, ignore_errors=True)
        PackageLists(mirror, recipe.suite, work / f"apt-{recipe.suite}").fetch(
            [*_ALWAYS, *recipe.extra], archives
        )
        unpack(archives, root)
        _complete(root)
        shutil.rmtree(archives)
    done.touch()
    return root


def build_kernel(suite: str, mirror: Mirror, work: Path) -> Path:
    """Return a directory with the kernel of a suite and its modules, made now or kept from an earlier run."""
    top = work / f"kernel-{suite}"
    done = top.with_suffix(".done")
    if done.exists():
        return top
    shutil.rmtree(top, ignore_errors=True)
    with step(f"fetching the kernel of {suite}"):
        archives = work / f"debs-kernel-{suite}"
        shutil.rmtree(archives, ignore_errors=True)
        PackageLists(mirror, suite, work / f"apt-{suite}").fetch([KERNEL_PACKAGE], archives)
        for package in archives.glob("*.deb"):
            if not package.name.startswith("linux-"):
                package.unlink()
        unpack(archives, top)
        shutil.rmtree(archives)
    done.touch()
    return top


def python_of(root: Path) -> str:
    """Version of the root's Python as `3.13`."""
    return (root / "usr/bin/python3").readlink().name.removeprefix("python")


def unpack(archives: Path, root: Path) -> None:
    """Unpack every package of a directory into a root that does not exist yet; no script runs."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    excluded = " ".join(f"--exclude=./usr/share/{name}" for name in _UNWANTED)
    script = f'for d in "$0"/*.deb; do dpkg-deb --fsys-tarfile "$d" | tar -C "$1" -x --keep-directory-symlink {excluded}; done'
    run(["bash", "-o", "pipefail", "-e", "-c", script, archives, root])


def _complete(root: Path) -> None:
    for name in ("proc", "sys", "dev", "run", "tmp", "root", "out", "etc", "opt", "var/lib/containerd"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root / "var/run", ignore_errors=True)
    (root / "var/run").unlink(missing_ok=True)
    (root / "var/run").symlink_to("/run")
    for name in ("passwd", "group"):
        if not (root / "etc" / name).exists():
            shutil.copy(root / "usr/share/base-passwd" / f"{name}.master", root / "etc" / name)
    _add_line(
        root / "etc/passwd", "messagebus:x:100:100::/nonexistent:/usr/sbin/nologin"
    )  # dbus refuses without it
    _add_line(root / "etc/group", "messagebus:x:100:")
    if not (root / "bin/sh").exists():
        (root / "bin/sh").symlink_to("dash")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")  # a sandbox cannot be made without one
    for name in ("resolv.conf", "machine-id"):
        (root / "etc" / name).write_text("")
    (root / "etc/hostname").write_text("lab\n")
    run(["ldconfig", "-r", root])
    run(
        [
            "chroot",
            root,
            "/usr/bin/python3",
            "-m",
            "compileall",
            "-q",
            "/usr/lib/" + (root / "usr/bin/python3").readlink().name,
        ]
    )


def _add_line(path: Path, line: str) -> None:
    text = path.read_text()
    if line.partition(":")[0] + ":" not in text:
        path.write_text(text + line + "\n")
