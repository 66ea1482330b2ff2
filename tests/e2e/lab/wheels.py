"""The product's runtime dependencies, from the lock, for the Python of a root (not the one that runs this).

Two trees: `product` is what the agent gets and nothing else, `client` is what the scenarios need to speak CRI.
"""

import hashlib
import shutil
import sys
from pathlib import Path

from .progress import step
from .shell import run

_CLIENT = ("grpcio", "typing-extensions", "protobuf")
_BUILT_HERE = (
    "cgroupspy",
)  # published as source only; pure Python, so the checkout's build serves any Python


def build_wheelhouse(checkout: Path, python: str, work: Path) -> Path:
    """Return a directory with `product` and `client`, installed now or kept from an earlier run."""
    locks = [(checkout / "hack" / f"requirements{kind}.lock").read_text() for kind in ("", "-dev")]
    key = hashlib.sha256("".join(["2", python, *locks]).encode()).hexdigest()[:10]
    house = work / f"wheels-{python}-{key}"
    done = house.with_suffix(f"{house.suffix}.done")
    if done.exists():
        return house
    for leftover in work.glob(f"wheels-{python}-*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    product, everything = (_requirements(text) for text in locks)
    with step(f"fetching the locked dependencies for Python {python}"):
        wanted = {name: text for name, text in product.items() if name not in _BUILT_HERE}
        _install(wanted, python, house / "product")
        _install({name: everything[name] for name in _CLIENT}, python, house / "client")
        for name in _BUILT_HERE:
            _copy_installed(name, house / "product")
    done.touch()
    return house


def _requirements(lock: str) -> dict[str, str]:
    """Cut a lock into its requirements, each with its hashes."""
    found: dict[str, str] = {}
    name = ""
    for line in lock.splitlines(keepends=True):
        if line[:1].isalnum():
            name = line.split("==")[0].split("[")[0].lower().replace("_", "-")
            found[name] = line
        elif name and not line.lstrip().startswith("#"):
            found[name] += line
    return found


def _install(requirements: dict[str, str], python: str, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    listing = target.with_suffix(".txt")
    listing.write_text("".join(requirements.values()))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--require-hashes",
    ]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for libc in ("2_28", "2_17", "2014"):
        command += ["--platform", f"manylinux{'' if libc == '2014' else '_'}{libc}_x86_64"]
    run([*command, "--target", target, "-r", listing])


def _copy_installed(name: str, target: Path) -> None:
    for site in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for path in site.glob(f"{name}*"):
            shutil.copytree(path, target / path.name, dirs_exist_ok=True)
