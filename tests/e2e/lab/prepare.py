"""From nothing to something that can be started: a root with product, dependencies, images and runtime store."""

import hashlib
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from .apt import Mirror
from .direct import run_in_root
from .disk import build_disk
from .payload import LAB, lay_base, pack_checkout
from .progress import step
from .root import RECIPES, build_kernel, build_root, python_of
from .shell import LabError
from .wheels import build_wheelhouse

_wheels = threading.Lock()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A root ready to be started, and what is laid over it for this run."""

    name: str
    root: Path
    payload: Path
    key: str


def inside(module: str, *arguments: str, python: str = "/usr/bin/python3") -> list[str]:
    """Command that runs a module of the inner half, in a root or a guest."""
    return [
        "env",
        f"PYTHONPATH=/{LAB}/src:/{LAB}/client",
        python,
        "-m",
        f"e2e.inside.{module}",
        *arguments,
    ]


def prepare_root(name: str, mirror: Mirror, checkout: Path, work: Path) -> Prepared:
    """Build what is missing in `work` and pack the checkout for this run."""
    root = build_root(RECIPES[name], mirror, work)
    python = python_of(root)
    with _wheels:  # two roots may want the same wheels
        house = build_wheelhouse(checkout, python, work)
    key = hashlib.sha256(f"{root.name} {house.name} {_lab_code()}".encode()).hexdigest()[:10]
    stamp = root.with_suffix(".base")
    fresh = not stamp.exists() or stamp.read_text() != key
    if fresh:
        stamp.unlink(missing_ok=True)
        lay_base(root, house, python)
    payload = pack_checkout(checkout, root, python, work / f"payload-{name}")
    if fresh:
        with step(f"loading the images into {name}'s containerd"):
            _bake_store(name, root, payload, work)
        stamp.write_text(key)
    return Prepared(name, root, payload, key)


def prepare_guest(prepared: Prepared, kernel_from: Prepared, work: Path) -> tuple[Path, Path]:
    """Return the disk and the kernel of a guest that runs `prepared`."""
    return _disk(prepared, prepared.name, kernel_from.root, work)


def prepare_guest_with(suite: str, prepared: Prepared, mirror: Mirror, work: Path) -> tuple[Path, Path]:
    """The same with the kernel of another suite."""
    return _disk(prepared, f"linux-{suite}-{prepared.name}", build_kernel(suite, mirror, work), work)


def _disk(prepared: Prepared, name: str, kernel_root: Path, work: Path) -> tuple[Path, Path]:
    key = hashlib.sha256(f"{prepared.key} {kernel_root.name}".encode()).hexdigest()[:10]
    return build_disk(name, prepared.root, kernel_root, key, work)


def _bake_store(name: str, root: Path, payload: Path, work: Path) -> None:
    out = work / f"bake-{name}"
    shutil.rmtree(out, ignore_errors=True)
    heard: list[str] = []
    if run_in_root(root, payload, out, inside("bake", f"/{LAB}/images"), heard.append):
        raise LabError(f"containerd did not take the images: {heard[-5:]}; its log is {out}/containerd.log")
    store = root / "var/lib/containerd"
    shutil.rmtree(store)
    shutil.copytree(out / "store", store, symlinks=True)
    shutil.rmtree(out)


def _lab_code() -> str:
    """Everything of the lab that ends up in a cached root or disk."""
    names = (
        "payload.py",
        "oci_image.py",
        "tiny_elf.py",
        "disk.py",
        "guest_init.sh",
        "guest_server.py",
        "guest_units.py",
    )
    return "".join((Path(__file__).parent / name).read_text() for name in names)
