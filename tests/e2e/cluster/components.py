"""The programs of Kubernetes, built from their released source and kept.

Everything comes through Go's module proxy: `k8s.io/kubernetes` is a module, and the modules of its staging folder are
published under the same number (`v1.35.3` and `v0.35.3`). etcd is in its list of requirements, so the versions fit.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.e2e.lab.progress import step
from tests.e2e.lab.shell import CannotRun, LabError
from tests.e2e.lab.writing import write_whole

DEFAULT_VERSION = "1.35.3"
"""The version whose answers the tests' API server is checked against (`tests/kube_api_rules.json.gz`)."""

PACKAGES = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
}
CONTROL_PLANE = tuple(name for name in PACKAGES if name != "kubelet")
LEAN = ("kube-apiserver", "etcd", "kube-scheduler", "kubectl")
"""Without controllers: what is built in a few minutes, and suffices for exporter, events and extender."""

PLUGINS = ("sigs.k8s.io/scheduler-plugins", "0.34.7", "cmd/scheduler")
"""The scheduler that has NodeResourceTopologyMatch: the newest that the module proxy has."""

UPDATER = ("sigs.k8s.io/node-feature-discovery", "0.17.3", "cmd/nfd-topology-updater")
"""An exporter of NodeResourceTopology that reads the kubelet's PodResources."""

_INSTEAD = {"k8s.io/csi-translation-lib v0.34.7": "k8s.io/csi-translation-lib v0.34.5"}
"""A release that the proxy does not give, and the nearest that it gives; it is about volumes only."""

_REPLACED = re.compile(r"^(?:replace|\t)\s*(k8s\.io/\S+ => \S+ v\S+)$", re.MULTILINE)

_PARTS = re.compile(r"^\t(\S+) => \./", re.MULTILINE)
"""Modules of the same repository, which are published under the same number."""

_OLDEST_GO = (1, 21)
"""The first that fetches the compiler that a module asks for."""

_STAGED = re.compile(r"^\s*(k8s\.io/\S+) => \./staging/src/", re.MULTILINE)
_GO_LINE = re.compile(r"^go \S+$", re.MULTILINE)
_VERSION = re.compile(r"1\.\d+\.\d+")
_LOG_PART = 2000


def programs_work() -> Path:
    """Where the programs are kept unless a command says otherwise."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NRI_PIN_CLUSTER_WORK") or cache / "nri-pin" / "cluster")


def programs(version: str, names: tuple[str, ...], work: Path) -> Path:
    """Return the folder with these programs; builds those that are missing, which takes minutes.

    Raises:
        CannotRun: there is no Go compiler.
        LabError: one could not be built, or there is no such version.
    """
    if _VERSION.fullmatch(version) is None:
        raise LabError(f"{version} is no version of Kubernetes like {DEFAULT_VERSION}")
    folder = work / f"kubernetes-{version}"
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        check_tools()
        source = kubernetes_module(version, folder / "source")
        for name in missing:
            with step(f"building {name} {version}, once"):
                run_go(
                    source,
                    "build",
                    "-ldflags",
                    version_flags(version),
                    "-o",
                    f"{folder}/{name}.new",
                    PACKAGES[name],
                )
            (folder / f"{name}.new").replace(folder / name)
    return folder


def foreign_program(about: tuple[str, str, str], work: Path) -> Path:
    """A program of another project, unmodified; built when it is missing.

    Args:
        about: its module, version and package, such as `PLUGINS`.
        work: for what is kept from run to run.

    Raises:
        CannotRun: there is no Go compiler, or the proxy does not give the module.
        LabError: it could not be built.
    """
    module, version, package = about
    folder = work / f"{module.rpartition('/')[2]}-{version}"
    program = folder / package.rpartition("/")[2]
    if not program.exists():
        check_tools()
        source = folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        with step(f"building {program.name} {version}, once"):
            told = _downloaded(source, f"{module}@v{version}")
            write_whole(source / "go.mod", _requiring(module, version, Path(told["GoMod"]).read_text()))
            run_go(source, "build", "-ldflags", "-s -w", "-o", f"{program}.new", f"{module}/{package}")
        program.with_name(f"{program.name}.new").replace(program)
    return program


def _requiring(module: str, version: str, theirs: str) -> str:
    """A go.mod that requires a module, and replaces what that module's own replaces: go heeds only the outermost."""
    go = _GO_LINE.search(theirs)
    replaced = _REPLACED.findall(theirs)
    for words, instead in _INSTEAD.items():
        replaced = [line.replace(f"=> {words}", f"=> {instead}") for line in replaced]
    parts = [f"{name} => {name} v{version}" for name in _PARTS.findall(theirs)]
    lines = [f"replace {words}" for words in (*replaced, *parts)]
    return "\n".join(["module cluster", go[0] if go else "", f"require {module} v{version}", *lines, ""])


def check_tools() -> None:
    """See that there are a compiler and openssl.

    Raises:
        CannotRun: one is not there, or the compiler is too old.
    """
    if shutil.which("openssl") is None:
        raise CannotRun("it makes certificates with openssl; install openssl")
    go = shutil.which("go")
    said = (
        subprocess.run([go, "env", "GOVERSION"], check=False, capture_output=True, text=True) if go else None
    )
    found = re.match(r"go(\d+)\.(\d+)", said.stdout) if said else None
    if found is None or (int(found[1]), int(found[2])) < _OLDEST_GO:
        have = f", and this machine has {found[0]}" if found else ""
        wanted = ".".join(map(str, _OLDEST_GO))
        raise CannotRun(f"it builds Kubernetes with Go {wanted} or newer{have}; install golang")


def version_flags(version: str) -> str:
    """Flags of the linker with which a program of Kubernetes knows its version."""
    words = [f"gitVersion=v{version}", "gitMajor=1", f"gitMinor={version.split('.')[1]}"]
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{word}" for word in words)])


def module_folder(folder: Path, module: str) -> Path:
    """Where Go keeps the source of a module, as `k8s.io/kubernetes@v1.35.3`."""
    return Path(_downloaded(folder, module)["Dir"])


def kubernetes_module(version: str, folder: Path) -> Path:
    """A module that requires Kubernetes as its own repository does, with the published staging modules."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "go.mod").exists():
        return folder
    with step(f"fetching the source of Kubernetes {version}, once"):
        told = _downloaded(folder, f"k8s.io/kubernetes@v{version}")
    theirs = Path(told["GoMod"]).read_text()
    staged = "0" + version[1:]
    go = _GO_LINE.search(theirs)
    lines = ["module cluster", go[0] if go else "", f"require k8s.io/kubernetes v{version}"]
    lines += [f"replace {name} => {name} v{staged}" for name in _STAGED.findall(theirs)]
    write_whole(folder / "go.mod", "\n".join([*lines, ""]))
    return folder


def _downloaded(folder: Path, module: str) -> dict[str, str]:
    """What go says about a module that it has fetched.

    Raises:
        CannotRun: the module proxy does not give it, so this machine can build nothing.
    """
    try:
        told: dict[str, str] = json.loads(run_go(folder, "mod", "download", "-json", module))
    except LabError as error:
        raise CannotRun(f"the Go module proxy does not give {module}: {error}") from error
    return told


def run_go(folder: Path, *words: str) -> str:
    """Run go with little priority; return what it printed.

    Raises:
        LabError: it failed.
    """
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=mod -buildvcs=false",
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "auto",
    }
    done = subprocess.run(
        ["nice", "-n", "10", "go", *words],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise LabError(
            f"go {' '.join(words[:2])} failed: {(done.stderr or done.stdout).strip()[-_LOG_PART:]}"
        )
    return done.stdout
