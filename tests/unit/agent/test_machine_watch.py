"""CPUs and memory nodes that come and go: cgroups follow, promises stay, who lost something is named."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.agent.repair.watches import LOOK_PAUSE_S, MachineWatch
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import MemoryManagerPolicy, Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, MemoryBlock, Phase, PodRecord
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.process.loop import Loop
from tests.agent_fakes import Bench
from tests.topology_rows import topology_of_rows


def machine(cpus: str = "0-7", nodes: int = 1, memory_bytes: int = 1 << 30) -> Topology:
    rows = [(cpu, cpu // 2, 0, 0, 0) for cpu in CPUSet.parse(cpus)]
    return topology_of_rows(rows, memory_bytes=dict.fromkeys(range(nodes), memory_bytes))


def record(name: str) -> ContainerRecord:
    return ContainerRecord(name, "u", name, Phase.RUNNING, CgroupRef("/pod", f"/pod/{name}"))


STATE = State(
    {"u": PodRecord("u", "s", "web", "shop", cgroup_parent="/pod")},
    {"own": record("own"), "shared": record("shared")},
    {"u/own": Allocation(CPUSet.parse("4-5"), cpu_milli=2000)},
)


class Scene:
    def __init__(self) -> None:
        self.topology = machine()
        node = Node(self.topology, Options(pool_floor=False), CPUSet.of(0))
        self.bench = Bench(node, STATE)
        self.trouble: Exception | None = None
        self.reads = 0
        self.told = 0
        self.watch = MachineWatch(
            self.bench.handler,
            self,  # type: ignore[arg-type]
            self.bench.log,
            self.bench.clock,
            self.tell,
        )
        self.bench.cgroups.values = {"/pod/own": CPUSet.parse("4-5"), "/pod/shared": CPUSet.parse("0-3,6-7")}
        assert self.watch.moved() is False

    def outline(self) -> int:
        return self.topology.online.mask | len(self.topology.nodes) << 64

    def seen(self) -> None:
        return None

    def discover(self) -> Topology:
        self.reads += 1
        if self.trouble:
            raise self.trouble
        return self.topology

    def tell(self) -> None:
        self.told += 1

    def shrink_memory(self, size: int) -> None:
        self.topology = machine("0-6", memory_bytes=size)
        self.watch.moved()

    def becomes(self, cpus: str, nodes: int = 1) -> bool:
        self.topology = machine(cpus, nodes)
        return self.watch.moved()

    def values(self) -> dict[str, str]:
        return {name[5:]: str(cpus) for name, cpus in self.bench.cgroups.values.items()}

    def fields(self, text: str) -> dict[str, str]:
        return {key: str(value) for key, value in self.bench.lines.fields(text).items() if value is not None}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_unchanged_machine_costs_one_look_and_no_discovery(scene: Scene) -> None:
    for _ in range(5):
        assert scene.watch.moved() is False
    assert (scene.reads, scene.told) == (1, 0)
    assert "write" not in "".join(scene.bench.journal)


def test_shared_pool_follows_at_once_and_the_promise_stays(scene: Scene) -> None:
    assert scene.becomes("0-2,4-7")
    assert scene.values() == {"own": "4-5", "shared": "0-2,6-7"}
    assert scene.bench.handler.state is STATE
    assert scene.told == 1


def test_one_lost_sibling_is_flagged_and_nobody_is_shuffled(scene: Scene) -> None:
    assert scene.becomes("0-4,6-7")
    assert scene.values() == {"own": "4", "shared": "0-3,6-7"}
    text = "a container lost exclusive CPUs; they stay allocated to it"
    assert scene.fields(text) == {"name": "shop/web/own", "lost": "5", "runs_on": "4"}


def test_who_lost_all_is_confined_to_the_pool_until_they_return(scene: Scene) -> None:
    scene.becomes("0-3,6-7")
    assert scene.values() == {"own": "0-3,6-7", "shared": "0-3,6-7"}
    text = "a container lost exclusive CPUs; they stay allocated to it"
    assert scene.fields(text)["confined"] == "shared pool"
    scene.becomes("0-7")
    assert scene.values() == {"own": "4-5", "shared": "0-3,6-7"}
    assert scene.fields("a container has all its exclusive CPUs again")["cpus"] == "4-5"


def test_checkpoint_tells_the_machine_as_it_is(scene: Scene) -> None:
    scene.bench.handler._describe = lambda node: None
    scene.becomes("0-3")
    assert scene.bench.journal[0] == "save"


def test_memory_node_that_appears_can_be_used(scene: Scene) -> None:
    assert scene.becomes("0-7", nodes=2)
    assert len(scene.bench.handler.node.topology.nodes_with_memory) == 2
    assert scene.fields("the machine changed")["memory_nodes_come"] == "1"


def test_what_is_reserved_stays_as_it_was_chosen(scene: Scene) -> None:
    scene.becomes("1-7")
    assert scene.bench.handler.node.reserved == CPUSet.of(0)


def test_change_that_cannot_be_read_is_said_once_and_tried_again(scene: Scene) -> None:
    scene.trouble = HostError("/sys/x", "cannot be read")
    assert scene.becomes("0-3") is False
    assert scene.watch.moved() is False
    assert scene.bench.lines.texts("ERROR") == ["a change of the machine cannot be followed"]
    scene.trouble = None
    assert scene.watch.moved() is True


def test_mistake_of_ours_harms_nobody(scene: Scene) -> None:
    scene.trouble = ZeroDivisionError("x")
    assert scene.becomes("0-3") is False
    assert scene.values()["own"] == "4-5"


def test_refused_write_is_said(scene: Scene) -> None:
    scene.bench.cgroups.failing.add("/pod/shared")
    scene.becomes("0-2,4-7")
    assert "cpuset not written" in scene.bench.lines.texts("ERROR")


def test_another_machine_at_a_reload_is_no_change(scene: Scene) -> None:
    scene.topology = machine("0-3")
    scene.bench.handler.change_node(dataclasses.replace(scene.bench.handler.node, topology=scene.topology))
    assert scene.watch.moved() is False


def test_it_is_looked_at_by_the_clock(scene: Scene) -> None:
    loop = Loop(scene.bench.clock)
    scene.watch.start(loop)
    scene.topology = machine("0-3")
    scene.bench.clock.now += LOOK_PAUSE_S
    loop.run_once()
    assert scene.told == 1
    loop.close()


def test_memory_that_is_too_little_now_is_said_once(scene: Scene) -> None:
    block = MemoryBlock(NodeMask.of(0), "memory", 1 << 30)
    handler = scene.bench.handler
    handler.node = dataclasses.replace(
        handler.node, options=Options(memory_manager_policy=MemoryManagerPolicy.STATIC)
    )
    handler.state = replace(STATE, allocations={"u/own": Allocation(memory=(block,))})
    scene.shrink_memory(1 << 29)
    scene.becomes("0-6")
    text = "more memory is allocated than there is, and is kept"
    assert scene.bench.lines.texts("WARNING").count(text) == 1
    assert (
        f"{1 << 30} bytes of memory are allocated and {1 << 29} are allocatable"
        in scene.fields(text)["which"]
    )
