"""The programs of a node: Debian's packages, and what Go builds once from released source and keeps."""

import os
import shutil
from pathlib import Path

from tests.e2e.cluster.components import (
    PACKAGES,
    check_tools,
    kubernetes_module,
    module_folder,
    run_go,
    version_flags,
)
from tests.e2e.lab.apt import install_on_this_machine
from tests.e2e.lab.built_runtimes import built
from tests.e2e.lab.progress import step
from tests.e2e.lab.setting_up import check_machine
from tests.e2e.lab.shell import LabError

CONTAINERD = "2.1.9"
KUBELET = "1.37.2"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

_DEBIAN = {
    "busybox": "busybox-static",
    "runc": "runc",
    "ip": "iproute2",
    "openssl": "openssl",
    str(FAKETIME): "libfaketime",
}

_EDITS = {
    # without a CPU policy the kubelet writes all CPUs of the machine, here the described one, into the real cgroup
    "pkg/kubelet/cm/node_container_manager_linux.go": (
        "\t\trc.CPUSet = cm.cpuManager.GetAllCPUs()\n",
        "\t\t_ = rc.CPUSet\n",
    ),
    # dead containers are collected once a minute, for which a round has no time
    "pkg/kubelet/kubelet.go": (
        "\tContainerGCPeriod = time.Minute\n",
        "\tContainerGCPeriod = 3 * time.Second\n",
    ),
}
_UNUSED = shutil.ignore_patterns("test", "openapi-spec", "CHANGELOG", "*_test.go", ".git")


def prepare_machine(work: Path) -> None:
    """See that a node can run here, and install Debian's packages that are missing.

    Raises:
        CannotRun: it cannot.
    """
    mirror = check_machine()
    missing = [
        package for program, package in _DEBIAN.items() if not Path(shutil.which(program) or program).exists()
    ]
    if missing:
        with step(f"installing {', '.join(missing)}"):
            install_on_this_machine(mirror, missing, mirror.codename, work / "apt-here")
    check_tools()


def node_programs(version: str, work: Path) -> Path:
    """A folder for PATH with kubelet, containerd and the rig's helper.

    Args:
        version: of the kubelet.
        work: for what is kept from run to run.

    Raises:
        CannotRun: the module proxy does not give one.
        LabError: one could not be built.
    """
    folder = work / f"node-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    _build_helper(folder)
    for program in [*built("containerd", CONTAINERD, work, more=("ctr",)), edited_kubelet(version, work)]:
        name = folder / program.name.removesuffix("-edited")
        if not name.exists():
            name.symlink_to(program)
    return folder


def edited_kubelet(version: str, work: Path) -> Path:
    """A kubelet of which two lines differ, as `_EDITS` says."""
    folder = work / f"kubernetes-{version}"
    program = folder / "kubelet-edited"
    if program.exists():
        return program
    ours, copy = folder / "edited-source", folder / "edited"
    module = kubernetes_module(version, folder / "source")
    with step(f"building the kubelet {version}, once"):
        for path in (ours, copy):
            shutil.rmtree(path, ignore_errors=True)
        # Go lays no overlay over its module cache, so a copy of the module is edited
        shutil.copytree(
            module_folder(module, f"k8s.io/kubernetes@v{version}"), copy, ignore=_UNUSED, copy_function=_copy
        )
        for name, (line, instead) in _EDITS.items():
            text = (copy / name).read_text()
            if text.count(line) != 1:
                raise LabError(f"kubelet {version}: {name} does not have the line {line.strip()!r} once")
            (copy / name).write_text(text.replace(line, instead))
        ours.mkdir()
        (ours / "go.mod").write_text(
            f"{(module / 'go.mod').read_text()}replace k8s.io/kubernetes => {copy}\n"
        )
        if (module / "go.sum").exists():
            shutil.copy(module / "go.sum", ours)
        run_go(ours, "build", "-ldflags", version_flags(version), "-o", f"{program}.new", PACKAGES["kubelet"])
        program.with_name(f"{program.name}.new").replace(program)
        shutil.rmtree(copy)
    return program


def _copy(source: str, target: str) -> None:
    """Copy a file of Go's module cache, where all is read-only."""
    shutil.copyfile(source, target)
    os.chmod(os.path.dirname(target), 0o755)


def _build_helper(folder: Path) -> None:
    source = Path(__file__).with_name("helper")
    program = folder / "rig"
    newest = max(file.stat().st_mtime for file in source.iterdir())
    if not program.exists() or program.stat().st_mtime < newest:
        run_go(source, "build", "-o", f"{program}.new", ".")
        program.with_name("rig.new").replace(program)
    oci = folder / "rig-oci"
    if not oci.exists():
        oci.symlink_to("rig")
