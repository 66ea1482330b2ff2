"""`kubectl nri-pin nodes`: a row for each node that has an agent, or an object of the exporter.

Most of a row comes from the agent itself. Where it cannot be asked, its NodeResourceTopology object still tells policy and
room, and HEALTH says why the rest is missing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from nri_plugin.cli.kubectl.agents import AgentPod, ask, ask_all, find_agents
from nri_plugin.cli.kubectl.transport import Kubectl, KubectlError
from nri_plugin.kube import noderesourcetopology as nrt
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.model.errors import KubeObjectError
from nri_plugin.model.option_rows import OWN_ATTRIBUTES
from nri_plugin.model.sets import CPUSet

OBJECTS = f"{nrt.PLURAL}.{nrt.GROUP}"
UNKNOWN = "?"
NOTHING = "-"

LEGEND = """\b
AVAILABLE    CPUs that can become exclusive, of those that are allocatable
LARGEST      most such CPUs of one NUMA node
FRAGMENTED   share of them in uncore caches that others use in part
DRIFTS       cpusets that other programs changed since the agent started
INCOMPLETE   pods that run in part, because a container was refused
OBJECT       NodeResourceTopology: as the agent says, differs, none, foreign
"""


class FittingPods(Struct, frozen=True):
    """How many more pods of a shape fit; None where nothing limits them."""

    shape: str
    fits: int | None


class NodeRow(Struct, frozen=True):
    """A node. Values that are not known are None.

    Attributes:
        node: the Kubernetes node.
        health: `OK`, or a few words for what is wrong.
        detail: the whole sentence; empty for OK.
        version: of the agent.
        policies: by their names in the configuration.
        available: CPUs that can still become exclusive.
        allocatable: CPUs that could on an empty node.
        available_by_numa_node: the same by NUMA node.
        fragmentation: share of the available CPUs in uncore caches that others use in part.
        drifts: since the agent began.
        refused: containers, since the agent began.
        unplaced: containers.
        incomplete: pods that run in part, NAMESPACE/NAME.
        runtime: name and version.
        published: the NodeResourceTopology object: `as the agent`, `differs`, `none`, `foreign` or, where the agent was not asked, `yes`.
        agent: NAMESPACE/NAME of its pod; empty without one.
        room: for the shapes that were asked about.
    """

    node: str
    health: str
    detail: str = ""
    version: str | None = None
    policies: Mapping[str, str] | None = None
    available: int | None = None
    allocatable: int | None = None
    available_by_numa_node: Mapping[str, int] | None = None
    fragmentation: float | None = None
    drifts: int | None = None
    refused: int | None = None
    unplaced: int | None = None
    incomplete: tuple[str, ...] | None = None
    runtime: str | None = None
    published: str = "none"
    agent: str = ""
    room: tuple[FittingPods, ...] = ()


class _PodAnswer(Struct, frozen=True):
    namespace: str | None
    pod: str | None
    incomplete: Any


class _ContainerAnswer(Struct, frozen=True):
    unplaced: Any


class _RuntimeAnswer(Struct, frozen=True):
    name: str
    version: str


class _FragmentationAnswer(Struct, frozen=True):
    uncore_caches: float


class TopAnswer(Struct, frozen=True):
    """What is needed of `nri-pin top --once -o json`; sets of CPUs are kernel lists."""

    agent: bool
    connected: bool
    runtime: _RuntimeAnswer | None
    available: str
    available_by_numa_node: dict[str, str]
    refused: int | None
    drifts: int | None
    pods: list[_PodAnswer]
    containers: list[_ContainerAnswer]
    version: str | None
    policies: dict[str, str] | None
    allocatable: str
    fragmentation: _FragmentationAnswer | None

    def __post_init__(self) -> None:
        for cpus in (self.available, self.allocatable, *self.available_by_numa_node.values()):
            CPUSet.parse(cpus)


class _ShapeAnswer(Struct, frozen=True):
    fits: int | None


class RoomAnswer(Struct, frozen=True):
    """What is needed of `nri-pin room -o json`."""

    shapes: list[_ShapeAnswer]


class AgentAnswer(Struct, frozen=True):
    """What an agent told, and the room for the shapes that were asked about."""

    now: TopAnswer
    room: tuple[FittingPods, ...] = ()


def node_rows(
    kubectl: Kubectl, agent_namespace: str = "", names: Sequence[str] = (), shapes: Sequence[str] = ()
) -> list[NodeRow]:
    """The rows of the nodes of these names, or of all that have an agent or an object.

    Raises:
        KubectlError: pods cannot be listed, or a node that was named has neither agent nor object.
    """
    agents, objects = find_agents(kubectl, agent_namespace), _objects(kubectl)
    known = sorted(agents.keys() | objects.keys())
    missing = sorted(set(names) - set(known))
    if missing:
        raise KubectlError(
            f"no agent and no NodeResourceTopology on {', '.join(missing)}; there are {', '.join(known) or 'none'}"
        )
    wanted = [node for node in known if not names or node in names]
    asked = {node: agents[node] for node in wanted if node in agents}
    answers = ask_all(asked, lambda agent: _asked(kubectl, agent, shapes))
    return [node_row(node, agents.get(node), answers.get(node), objects.get(node)) for node in wanted]


def node_row(
    node: str,
    agent: AgentPod | None,
    answer: AgentAnswer | KubectlError | None,
    published: NodeResourceTopology | None,
) -> NodeRow:
    """The row of a node from its agent's pod, the agent's answer, and its object."""
    pod = f"{agent.namespace}/{agent.name}" if agent else ""
    version = _tag(agent.image) if agent else None
    if agent is None or not isinstance(answer, AgentAnswer):
        health, detail = _without_answer(agent, answer)
        row = NodeRow(node, health, detail, version=version, agent=pod)
        return row if published is None else _with_object(row, published)
    now = answer.now
    health, detail = _health(agent, now)
    by_numa = {number: _count(cpus) for number, cpus in now.available_by_numa_node.items()}
    incomplete = tuple(f"{one.namespace}/{one.pod}" for one in now.pods if one.incomplete)
    return NodeRow(
        node,
        health,
        detail,
        version=now.version or version,
        policies=now.policies or _policies(published),
        available=_count(now.available),
        allocatable=_count(now.allocatable),
        available_by_numa_node=by_numa,
        fragmentation=now.fragmentation.uncore_caches if now.fragmentation else None,
        drifts=now.drifts,
        refused=now.refused,
        unplaced=sum(1 for one in now.containers if one.unplaced),
        incomplete=incomplete if now.agent else None,
        runtime=f"{now.runtime.name} {now.runtime.version}" if now.runtime else None,
        published=_compared(published, by_numa),
        agent=pod,
        room=answer.room,
    )


COLUMNS: Mapping[str, Callable[[NodeRow], str]] = {
    "NODE": lambda row: row.node,
    "HEALTH": lambda row: row.health,
    "VERSION": lambda row: row.version or UNKNOWN,
    "POLICY": lambda row: _policy(row, "cpuManagerPolicy", "topologyManagerPolicy"),
    "AVAILABLE": lambda row: f"{_known(row.available)}/{_known(row.allocatable)}",
    "LARGEST": lambda row: _known(max((row.available_by_numa_node or {}).values(), default=None)),
    "FRAGMENTED": lambda row: UNKNOWN if row.fragmentation is None else f"{row.fragmentation:.0%}",
    "DRIFTS": lambda row: _known(row.drifts),
    "INCOMPLETE": lambda row: UNKNOWN if row.incomplete is None else str(len(row.incomplete)),
}
WIDE_COLUMNS: Mapping[str, Callable[[NodeRow], str]] = {
    "SCOPE": lambda row: _policy(row, "topologyManagerScope"),
    "MEMORY": lambda row: _policy(row, "memoryManagerPolicy"),
    "RUNTIME": lambda row: row.runtime or UNKNOWN,
    "REFUSED": lambda row: _known(row.refused),
    "UNPLACED": lambda row: _known(row.unplaced),
    "BY NUMA NODE": lambda row: (
        " ".join(f"{node}:{n}" for node, n in (row.available_by_numa_node or {}).items()) or UNKNOWN
    ),
    "OBJECT": lambda row: row.published,
    "AGENT": lambda row: row.agent or NOTHING,
}


def cells(rows: Sequence[NodeRow], *, wide: bool) -> list[tuple[str, ...]]:
    """The table; a column for each shape follows the usual ones."""
    shapes = dict.fromkeys(one.shape for row in rows for one in row.room)
    more = WIDE_COLUMNS if wide else {}
    table = [(*COLUMNS, *(f"FITS {shape}" for shape in shapes), *more)]
    for row in rows:
        fits = {one.shape: "no limit" if one.fits is None else str(one.fits) for one in row.room}
        room = (fits.get(shape, UNKNOWN) for shape in shapes)
        table.append(
            (*(cell(row) for cell in COLUMNS.values()), *room, *(cell(row) for cell in more.values()))
        )
    return table


def _policy(row: NodeRow, *names: str) -> str:
    policies = row.policies or {}
    return ",".join(policies[name] for name in names if name in policies) or UNKNOWN


def _count(cpus: str) -> int:
    return len(CPUSet.parse(cpus))


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


def _asked(kubectl: Kubectl, agent: AgentPod, shapes: Sequence[str]) -> AgentAnswer:
    now = ask(kubectl, agent, ("top", "--once"), TopAnswer)
    if not shapes:
        return AgentAnswer(now)
    options = [word for shape in shapes for word in ("--shape", shape)]
    found = ask(kubectl, agent, ("room", *options), RoomAnswer).shapes
    if len(found) != len(shapes):
        raise KubectlError(f"it answered for {len(found)} shapes, and was asked for {len(shapes)}")
    return AgentAnswer(
        now, tuple(FittingPods(shape, one.fits) for shape, one in zip(shapes, found, strict=True))
    )


def _objects(kubectl: Kubectl) -> dict[str, NodeResourceTopology]:
    """The objects by node; none where the kind is not installed or may not be read."""
    try:
        found = kubectl.read(OBJECTS)["items"]
    except KubectlError as error:
        if error.is_missing or error.is_forbidden:
            return {}
        raise
    return {one.name: one for obj in found if (one := _readable(obj)) is not None}


def _readable(obj: Mapping[str, Any]) -> NodeResourceTopology | None:
    try:
        return nrt.from_object(obj)
    except KubeObjectError:
        # Another exporter's, with a field of another form: its node is shown without it.
        return None


def _without_answer(agent: AgentPod | None, answer: AgentAnswer | KubectlError | None) -> tuple[str, str]:
    if agent is None:
        return "no agent pod", "only its object is known; an agent of systemd or of the runtime has no pod"
    if agent.trouble:
        return agent.trouble, str(answer) if isinstance(answer, KubectlError) else ""
    assert isinstance(answer, KubectlError), "an agent that runs was asked"
    return ("no right to exec" if answer.is_forbidden else "no answer"), answer.message


def _health(agent: AgentPod, now: TopAnswer) -> tuple[str, str]:
    """HEALTH in a few words, and the sentence for it."""
    if not now.agent:
        return "agent away", f"no agent answers on its socket, its checkpoint was read; {agent.logs}"
    if not now.connected:
        return (
            "no runtime",
            f"containers that are created now are not placed; kubectl nri-pin doctor node/{agent.node}",
        )
    if agent.unready:
        return "not ready", f"{agent.unready}; kubectl describe pod -n {agent.namespace} {agent.name}"
    if any(one.incomplete for one in now.pods):
        return "OK, incomplete", f"pods that run in part; kubectl nri-pin show node/{agent.node}"
    return "OK", ""


def _with_object(row: NodeRow, published: NodeResourceTopology) -> NodeRow:
    by_numa = _available(published)
    return structs.replace(
        row,
        policies=_policies(published),
        available=sum(by_numa.values()),
        allocatable=sum(cpu.allocatable_milli // 1000 for _, cpu in _cpus(published)),
        available_by_numa_node=by_numa,
        published="yes" if _is_ours(published) else "foreign",
    )


def _tag(image: str) -> str | None:
    """The tag of an image; None for an image with a digest, or without a tag."""
    name = image.rpartition("/")[2]
    return name.partition(":")[2] or None if "@" not in name else None


def _is_ours(published: NodeResourceTopology) -> bool:
    return any(name.startswith(OWN_ATTRIBUTES) for name, _ in published.attributes)


def _policies(published: NodeResourceTopology | None) -> dict[str, str] | None:
    if published is None:
        return None
    pairs = ((name.removeprefix(OWN_ATTRIBUTES), value) for name, value in published.attributes)
    return {name: value for name, value in pairs if name.endswith(("Policy", "Scope"))}


def _cpus(published: NodeResourceTopology) -> Iterator[tuple[str, nrt.ZoneResource]]:
    for zone in published.zones:
        for resource in zone.resources:
            if zone.numa_id is not None and resource.name == "cpu":
                yield str(zone.numa_id), resource


def _available(published: NodeResourceTopology) -> dict[str, int]:
    return {number: cpu.available_milli // 1000 for number, cpu in _cpus(published)}


def _compared(published: NodeResourceTopology | None, by_numa: Mapping[str, int]) -> str:
    if published is None:
        return "none"
    if not _is_ours(published):
        return "foreign"
    return "as the agent" if _available(published) == dict(by_numa) else "differs"
