"""What each release knows: read off the protocol's own file, and told in a sentence."""

import re
from pathlib import Path

import pytest

from nri_plugin.wire.nri import spec, tables
from nri_plugin.wire.nri.events import (
    ACKNOWLEDGED,
    Adjustment,
    Configure,
    CreateContainer,
    CreateContainerResponse,
    StopContainer,
    StopContainerResponse,
    UpdateContainer,
    UpdateContainerResponse,
)
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources
from nri_plugin.wire.nri.releases import LOST_IN_UPDATES, OLDEST, SINCE, fields_since, release_of, unheeded

PROTO = Path(__file__).parents[4] / "proto" / "nri.proto"
CREATE = CreateContainer(Pod("p"), Container("c1"))
NEW = Configure("", "containerd", "v2.4.0", 5000, 2000, "v0.12.2")
OLD = Configure("", "containerd", "v2.1.9", 5000, 2000)
ANCIENT = Configure("", "containerd", "1.7.24~ds1")


def since_in_proto(message):
    """Returns field -> release for one message, as the comments of the protocol's file tell it."""
    body = re.search(rf"^message {message} {{\n(.*?)^}}", PROTO.read_text(), re.DOTALL | re.MULTILINE)[1]
    found = re.findall(r"(\w+) = \d+;(?:  // since ([\d.]+))?$", body, re.MULTILINE)
    return {name: tuple(map(int, since.split("."))) if since else OLDEST for name, since in found}


def test_the_table_says_what_the_protocols_file_says():
    for prefix, table in (("", tables.ADJUSTMENT), ("resources.", tables.RESOURCES)):
        outer = since_in_proto(table.message)
        inner = since_in_proto("LinuxContainerAdjustment")
        for column in table.columns:
            is_inner = column.path[0] == "linux"
            expected = inner[column.path[1]] if is_inner else outer[column.path[0]]
            assert SINCE.get(prefix + column.name, OLDEST) == expected, column.name


@pytest.mark.parametrize(
    ("name", "version", "tells", "nri_version", "release"),
    [
        ("containerd", "1.7.24~ds1", False, "", (0, 6, 1)),
        ("containerd", "1.7.26", True, "", (0, 8, 0)),
        ("containerd", "v2.1.9", True, "", (0, 8, 0)),
        ("containerd", "v2.2.0", True, "", (0, 10, 0)),
        ("containerd", "v2.2.0-rc.1", True, "", (0, 8, 0)),
        ("containerd", "v2.2.1", True, "", (0, 11, 0)),
        ("containerd", "v2.3.0", True, "v0.12.0", (0, 12, 0)),
        ("containerd", "v2.4.0", True, "v0.12.2", (0, 12, 2)),
        ("containerd", "v2.4.0", True, "(devel)", (0, 12, 0)),
        ("cri-o", "1.32.1", True, "", (0, 9, 0)),
        ("cri-o", "1.34.0", True, "", (0, 10, 0)),
        ("cri-o", "1.36.3", True, "", (0, 11, 0)),
        ("other", "9.9.9", True, "", (0, 7, 0)),
        ("containerd", "unknown", True, "", (0, 7, 0)),
    ],
)
def test_the_release_is_the_oldest_the_runtime_can_have(name, version, tells, nri_version, release):
    told = 2000 if tells else 0
    assert release_of(Configure("", name, version, told, told, nri_version)) == release


@pytest.mark.parametrize("name", SINCE)
def test_every_newer_field_is_noticed_when_set(name):
    values = {
        "rlimits": (spec.Rlimit("RLIMIT_CORE"),), "cdi_devices": ("v/c=0",), "oom_score_adj": 0, "args": ("sh",),
        "io_priority": spec.IOPriority(), "seccomp_policy": spec.Seccomp(), "namespaces": (spec.Namespace("pid"),),
        "sysctl": {"a": "1"}, "net_devices": {"eth0": "a"}, "scheduler": spec.Scheduler(), "rdt": spec.RDT(),
        "memory_policy": spec.MemoryPolicy(), "resources": Resources(pids_limit=0),
    }  # fmt: skip
    field = name.partition(".")[0]
    adjustment = Adjustment(**{field: values[field]})
    assert fields_since(adjustment) == {name: SINCE[name]}
    response = CreateContainerResponse(adjustment=adjustment)
    assert unheeded(NEW, CREATE, response) == ""
    assert (unheeded(ANCIENT, CREATE, response) == "") is (SINCE[name] <= (0, 6, 1))


def test_what_the_release_does_not_know_is_one_sentence():
    response = CreateContainerResponse(adjustment=Adjustment(args=("sh",), rdt=spec.RDT(clos_id="gold")))
    assert unheeded(OLD, CREATE, response) == (
        "the answer was sent, but containerd v2.1.9 does not heed args, known since NRI 0.10.0 while it has 0.8.0; "
        "rdt, known since NRI 0.11.0 while it has 0.8.0"
    )


def test_placement_is_heeded_by_all():
    response = CreateContainerResponse(
        Resources(cpus="0", mems="0"), updates=(ContainerUpdate("c2", Resources(cpus="1")),)
    )
    assert unheeded(ANCIENT, CREATE, response) == unheeded(ANCIENT, CREATE, ACKNOWLEDGED) == ""


def test_what_updates_lose_is_told():
    update = ContainerUpdate("c2", Resources(cpus="1", memory_swap_bytes=1, pids_limit=5))
    text = "the answer was sent, but containerd v2.4.0 does not heed memory_swap_bytes, pids_limit in the update of c2"
    assert unheeded(NEW, CREATE, CreateContainerResponse(updates=(update,))) == text
    assert unheeded(NEW, StopContainer(Pod("p"), Container("c1")), StopContainerResponse((update,))) == text


def test_crio_loses_more_when_a_container_answers_for_itself():
    crio = Configure("", "cri-o", "1.36.0", 5000, 2000)
    change = Resources(hugepage_limits=(("2MB", 1),), rdt_class="gold")
    event = UpdateContainer(Pod("p"), Container("c1"), Resources())
    own = unheeded(crio, event, UpdateContainerResponse((ContainerUpdate("c1", change),)))
    other = unheeded(crio, event, UpdateContainerResponse((ContainerUpdate("c2", change),)))
    assert "hugepage_limits, rdt_class in the update of c1" in own
    assert "heed rdt_class in the update of c2" in other


def test_lost_fields_are_fields_of_resources():
    names = set().union(*LOST_IN_UPDATES.values())
    assert names <= set(Resources.__dataclass_fields__)
