"""Starting a command in the namespaces of a node."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nri_plugin.simulator.machine.machine import build_sysfs, is_description, load, parse
from tests.e2e.lab.oci_image import lab_images, write_image
from tests.e2e.lab.shell import DIES_WITH_US

from .cgroups import make_cgroups

IMAGE = "localhost/test:1"


@dataclass(frozen=True)
class Place:
    """What a node is made of.

    Attributes:
        name: in the cluster.
        cgroup: the name of its cgroups.
        machine: a described machine: a shipped one's name, a file or the text.
        programs: the folder of `node_programs`.
        folder: for its files.
    """

    name: str
    cgroup: str
    machine: str
    programs: Path
    folder: Path


def start_node(place: Place, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    """Run a command in a new node; all of the node ends with it, but for what runs in its cgroups."""
    machine = place.folder / "machine"
    machine.mkdir(parents=True)
    build_sysfs(parse(place.machine) if is_description(place.machine) else load(place.machine), str(machine))
    for image in lab_images(Path("/usr/bin/busybox")):
        write_image(image, place.folder / f"{image.reference.partition('/')[2].partition(':')[0]}.tar")
    enter = "".join(f"echo $$ >{shlex.quote(str(one))}/cgroup.procs; " for one in make_cgroups(place.cgroup))
    inside = [
        sys.executable,
        "-P",
        "-m",
        "tests.e2e.node_rig.inside",
        place.name,
        machine,
        place.programs,
        *command,
    ]
    words = [*DIES_WITH_US, "sh", "-ec", f'{enter}exec unshare -m -u -i -C "$@"', "_", *map(str, inside)]
    with (place.folder / "node.log").open("ab") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)
