"""The real agent on a node whose cgroups do not have all online CPUs: a container, a foreign partition, AllowedCPUs=."""

import pytest

from nri_plugin.model.sets import NO_CPUS, CPUSet
from tests.lab.runtime.cgroup_tree import CpusetFile
from tests.lab.scenario.faults import foreign_partition
from tests.lab.scenario.player import Player
from tests.lab.scenario.scenario import parse
from tests.lab.scenario.stage import ScenarioNode
from tests.lab.scenario.steps import PartitionKind
from tests.patient_stage import patient_stage

HEAD = """\
machine: |
  pack:1 numa:2 l3:1 core:4 pu:1
config: {{reservedSystemCPUs: "{reserved}"}}
driver: {driver}
cgroup: {version}
steps:
"""


class Scene:
    def __init__(self, node: ScenarioNode, head: str) -> None:
        self.node, self.text, self.played, self.player = node, head, 0, Player(node)

    def play(self, *steps: str) -> list[str]:
        """The problems of these steps."""
        self.text += "".join(f"  - {step}\n" for step in steps)
        every = parse(self.text, "x.yaml").steps
        made, self.played = every[self.played :], len(every)
        return [problem for step in made for problem in self.player.play(step).problems]

    def reach(self, cpus: str) -> None:
        """The root of the tree has these CPUs from now on; sysfs and its online CPUs stay."""
        gone = self.node.topology.online - CPUSet.parse(cpus)
        foreign_partition(self.node, PartitionKind.ROOT, gone)

    def log(self) -> str:
        return self.node.places.log.read_text()


def run(name: str, cpus: int) -> str:
    resources = f"cpu: {cpus}, memory: 1Gi" if cpus else "requests: {cpu: 100m}"
    return f"{{run: a/{name}, containers: {{c: {{{resources}}}}}}}"


def refused(name: str, cpus: int, why: str = "not enough cpus") -> str:
    return f'{run(name, cpus)}\n  - {{expect: a/{name}/c, refused: "{why}"}}'


def expect(name: str, cpus: str) -> str:
    return f"{{expect: a/{name}/c, cpus: {cpus!r}}}"


@pytest.mark.parametrize(
    ("driver", "version", "reserved"),
    [("systemd", 2, "0"), ("cgroupfs", 2, "0,6"), ("cgroupfs", 1, "0")],
)
def test_only_cpus_in_reach_are_allocated_and_they_are_followed(
    driver: str, version: int, reserved: str
) -> None:
    head = HEAD.format(reserved=reserved, driver=driver, version=version)
    with patient_stage(parse(head + "  - say: x\n", "x.yaml")) as node:
        scene = Scene(node, head)
        # No pod has run yet, so there is no kubepods: the root tells.
        scene.reach("0-3")
        node.start_agent()
        few = [run("shared", 0), run("own", 2), refused("second", 2), expect("shared", "0,3")]
        assert scene.play(*few, expect("own", "1-2")) == []
        scene.reach("0-7")
        second = [run("again", 2), expect("again", "3-4"), expect("own", "1-2")]
        assert scene.play(*second, expect("shared", "0,5-7")) == []
        scene.reach("0-2,4")
        lost = [expect("own", "1-2"), expect("again", "4"), expect("shared", "0"), refused("third", 1)]
        assert scene.play(*lost, "restart: agent", *lost[:3]) == []
        scene.reach("0-7")
        assert scene.play(*second[1:], expect("shared", "0,5-7")) == []
        assert "another writer" not in scene.log()
        assert node.stop_agent() == 0


def test_a_shared_container_keeps_a_cpu_where_all_reserved_ones_are_out_of_reach() -> None:
    head = HEAD.format(reserved="0-1", driver="systemd", version=2)
    with patient_stage(parse(head + "  - say: x\n", "x.yaml")) as node:
        scene = Scene(node, head)
        node.start_agent()
        assert scene.play(run("shared", 0)) == []
        # At once, before the watch looks: the creation itself finds out.
        mirror = node.runtime.cgroups.mirror
        mirror.tree.write("kubepods.slice", CpusetFile.CPUS, "2-7")
        mirror.flush()
        why = "the last CPUs of the shared pool, and the cgroup above the pods does not have the reserved CPUs 0-1"
        asked = [run("own", 4), refused("second", 2, why), run("third", 1)]
        assert scene.play(*asked, expect("own", "4-7"), expect("third", "3"), expect("shared", "2")) == []
        assert mirror.tree.own_cpus("kubepods.slice") == CPUSet.parse("2-7")
        assert node.stop_agent() == 0
        assert node.start_agent() == ()
        assert scene.play(expect("own", "4-7"), expect("shared", "2")) == []
        assert "reserved_among_them=0-1" in scene.log()
        assert node.stop_agent() == 0


@pytest.mark.parametrize("ends", [NO_CPUS, CPUSet.parse("4-7")])
def test_an_agent_starts_while_a_reserved_cpu_is_offline(ends: CPUSet) -> None:
    head = HEAD.format(reserved="0,4", driver="systemd", version=2)
    with patient_stage(parse(head + "  - say: x\n", "x.yaml")) as node:
        scene = Scene(node, head)
        node.start_agent()
        steps = [run("own", 2), '{online: "0-3"}', "{restart: agent}", run("more", 1), expect("own", "1-2")]
        assert scene.play(*steps, expect("more", "3")) == []
        assert "reserved CPUs are offline offline=4" in scene.log()
        assert node.stop_agent() == 0
