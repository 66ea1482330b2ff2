"""The images of `deploy/Containerfile`, built by Debian's buildah on a base made of Debian packages.

No container registry is asked: the base is a root of packages from the machine's own mirror, Python's wheels come from
the package index that pip knows. An image is built once for each state of what goes into it.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.lab.apt import PackageLists, install_on_this_machine, mirror_of_this_machine
from tests.e2e.lab.progress import say, step
from tests.e2e.lab.ready import CHECKOUT
from tests.e2e.lab.root import unpack
from tests.e2e.lab.shell import CannotRun, run
from tests.e2e.lab.writing import write_whole

BASE_SUITE = "trixie"
_BASE = "localhost/nri-pin-base:2"
# grpcio and the fast implementation of protobuf are C++
_BASE_PACKAGES = [
    "base-files",
    "base-passwd",
    "coreutils",
    "dash",
    "libc-bin",
    "libstdc++6",
    "python3",
    "python3-venv",
]
_CONTEXT = ("deploy/Containerfile", "hack", "nri_plugin", "pyproject.toml", "README.md", "LICENSE")
_FROM_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs")
"""What pip needs to reach the index as it does on this machine; none of it stays in the image."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image in a file.

    Attributes:
        reference: its full name.
        archive: a tar file that a runtime imports.
        size_mib: of its layers, not compressed.
    """

    reference: str
    archive: Path
    size_mib: int


def check_buildah(work: Path) -> None:
    """See that buildah is there, and install it where root may.

    Raises:
        CannotRun: it is not there and cannot be installed.
    """
    if shutil.which("buildah"):
        return
    if os.geteuid() != 0:
        raise CannotRun("it builds the image with buildah; install buildah")
    mirror = mirror_of_this_machine()
    with step("installing buildah"):
        install_on_this_machine(mirror, ["buildah"], mirror.codename, work / "apt-here")


def build_image(name: str, target: str, work: Path, *, tag: str = "0.1.0", commit: str = "") -> BuiltImage:
    """The image of a target of the Containerfile, built now or kept.

    Args:
        name: as the manifests say it, `nri-pin`.
        target: stage of the Containerfile.
        work: for the base, buildah's storage and archives.
        tag: of the image.
        commit: build what was committed there, not this checkout.
    """
    work.mkdir(parents=True, exist_ok=True)
    context = _committed(commit, work / "context") if commit else CHECKOUT
    reference = f"docker.io/library/{name}:{tag}"
    key = image_key(context, target, tag)
    archive = work / f"{name}-{tag}-{key}.tar"
    if not archive.exists():
        check_buildah(work)
        _make_base(work)
        for old in work.glob(f"{name}-{tag}-*.tar"):
            old.unlink()
        with step(f"building the image {name}:{tag}"):
            _build(context, target, reference, work)
            new = archive.with_suffix(".new")
            new.unlink(missing_ok=True)
            _buildah(work, "push", *_policy(work), reference, f"docker-archive:{new}:{reference}")
            new.replace(archive)
    size_mib = archive.stat().st_size >> 20
    say(f"{reference} has {size_mib} MiB")
    return BuiltImage(reference, archive, size_mib)


def _build(context: Path, target: str, reference: str, work: Path) -> None:
    mounts = [
        word for path in _FROM_THIS_MACHINE if Path(path).exists() for word in ("-v", f"{path}:{path}:ro")
    ]
    words = ["--isolation", "chroot", "--build-arg", f"BASE={_BASE}", "--target", target, "-t", reference]
    file = ["-f", str(context / "deploy" / "Containerfile"), str(context)]
    _buildah(work, "bud", *_policy(work), *words, *mounts, *file)


def _make_base(work: Path) -> None:
    """A base image with Python and nothing that its packages do not need."""
    done = subprocess.run([*_command(work), "inspect", _BASE], capture_output=True, check=False)
    if done.returncode == 0:
        return
    with step("making the base image of Debian packages, once"):
        archives, root = work / "base-debs", work / "base"
        for path in (archives, root):
            shutil.rmtree(path, ignore_errors=True)
        mirror = mirror_of_this_machine()
        PackageLists(mirror, BASE_SUITE, work / "apt-base").fetch(_BASE_PACKAGES, archives)
        unpack(archives, root)
        _complete_base(root)
        run(["tar", "-C", root, "--numeric-owner", "-cf", work / "base.tar", "."])
        (work / "Containerfile.base").write_text(
            "FROM scratch\nADD base.tar /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n"
        )
        file = ["-f", str(work / "Containerfile.base"), str(work)]
        _buildah(work, "bud", *_policy(work), "--isolation", "chroot", "-t", _BASE, *file)
        for path in (archives, root):
            shutil.rmtree(path)
        (work / "base.tar").unlink()


def _complete_base(root: Path) -> None:
    """What maintainer scripts would have done, as far as Python needs it."""
    for name in ("proc", "sys", "dev", "run", "tmp", "root", "etc", "usr/local/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group"):
        shutil.copy(root / "usr/share/base-passwd" / f"{name}.master", root / "etc" / name)
    if not (root / "bin/sh").exists():
        (root / "bin/sh").symlink_to("dash")
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    run(["ldconfig", "-r", root])


def commit_before() -> str:
    """The commit before the last one that changed the product."""
    last = run(["git", "-C", CHECKOUT, "log", "-1", "--format=%H", "--", "nri_plugin"]).strip()
    return f"{last}~1"


def _committed(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packed = folder.with_suffix(".tar")
    run(["git", "-C", CHECKOUT, "archive", "-o", packed, commit, *_CONTEXT])
    run(["tar", "-C", folder, "-xf", packed])
    packed.unlink()
    return folder


def image_key(context: Path, target: str, tag: str) -> str:
    """A short hash over everything that goes into the image."""
    found = hashlib.sha256(f"{target} {tag} {BASE_SUITE} {_BASE_PACKAGES}".encode())
    for path in _files(context):
        found.update(str(path.relative_to(context)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:10]


def _files(context: Path) -> Iterable[Path]:
    yield from (context / name for name in ("deploy/Containerfile", "pyproject.toml", "README.md", "LICENSE"))
    yield from sorted((context / "hack").glob("requirements*.lock"))
    code = (path for path in (context / "nri_plugin").rglob("*") if path.is_file())
    yield from sorted(path for path in code if "__pycache__" not in path.parts)


def _policy(work: Path) -> tuple[str, str]:
    """Images come from this folder only, so that nothing of the machine's policy is needed."""
    file = work / "policy.json"
    write_whole(file, '{"default": [{"type": "insecureAcceptAnything"}]}')
    return "--signature-policy", str(file)


def _command(work: Path) -> list[str]:
    places = ("--root", str(work / "storage"), "--runroot", str(work / "storage-run"))
    return ["nice", "-n", "10", "buildah", *places, "--storage-driver", "vfs"]


def _buildah(work: Path, *words: str) -> None:
    run([*_command(work), *words])
