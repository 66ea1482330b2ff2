"""`nri-pin explain` of pods that were placed as a whole, that own CPUs, or that run in part."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing.status_client import IncompletePodRow, RefusedContainerRow, SiblingRow
from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.cli.explain.explain import DecisionExplained, PodListed, of_container
from nri_plugin.cli.explain.text import as_dict, explanation_text, whys
from nri_plugin.cli.output import plain
from nri_plugin.cli.state.source import SOCKET
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.explain.explanation import ContainerOutcome, Explanation, explain
from nri_plugin.model.options import Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, cpu_resources, machine, node, pod
from tests.unit.cli.explain.test_explain_answers import asked
from tests.unit.cli.explain_cases import lived

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE
FOUR_NODES = node(machine(nodes=4, cores=8), topology_manager_policy=SINGLE, reserved="0")
LEVEL = node(
    machine(nodes=2, cores=8),
    topology_manager_policy=SINGLE,
    topology_manager_scope=TopologyManagerScope.POD,
    pod_level_managers=True,
)
OF = pod()


def one(name: str, cpu: float, kind: Kind = Kind.APP, memory: int = GIB) -> ContainerFacts:
    milli = round(cpu * 1000)
    return ContainerFacts(name, kind, Amounts(milli, milli, memory, memory))


def created(
    name: str, rows: tuple[ContainerFacts, ...], resources: Amounts | None = None, *, known: bool = True
) -> InformedCreate:
    """The creation of one of these containers, with or without the facts of its pod."""
    amounts = {row.name: row.amounts for row in rows}[name]
    size = cpu_resources(amounts.cpu_request_milli / 1000, amounts.memory_limit_bytes)
    made = replace(container(OF, name), resources=size)
    facts = PodFacts(OF.uid, QOSClass.GUARANTEED, rows, resources) if known else None
    return InformedCreate(nri.CreateContainer(OF, made), facts=facts)


def text_of(told: Explanation) -> str:
    return " ".join(explanation_text(told, 4000).split())


def state_after(on: Node, *events: InformedCreate) -> State:
    state = State()
    for event in events:
        state = decide(on, state, event).state
    return state


FIVE = one("a", 10), one("b", 12), one("c", 12), one("d", 12), one("e", 12)


def test_of_a_pod_that_is_refused_as_a_whole_the_container_that_does_not_fit_is_explained() -> None:
    told = explain(FOUR_NODES, State(), created("a", FIVE))
    assert (told.outcome, told.unfit, told.subject.container) == (ContainerOutcome.REFUSED, "e", "a")
    assert "12 wanted" in told.hints[0].numbers
    text = text_of(told)
    assert "of container e, which does not fit beside those before it" in text
    assert "its containers would have: a (CPUs " in text
    assert "beside the other containers of its pod: b (12 CPUs " in text
    assert as_dict(told)["unfit"] == "e"
    assert len(as_dict(told)["siblings"]) == 3


def test_what_would_fit_is_tried_for_the_pod_as_a_whole() -> None:
    told = explain(FOUR_NODES, State(), created("a", FIVE))
    smaller = max(fit.amount for fit in told.fits if fit.kind == "cpus")
    rows = tuple(one("e", smaller) if row.name == "e" else row for row in FIVE)
    assert decide(FOUR_NODES, State(), created("a", rows)).refusal is None
    more = tuple(one("e", smaller + 1) if row.name == "e" else row for row in FIVE)
    assert decide(FOUR_NODES, State(), created("a", more)).refusal is not None


def test_siblings_that_hold_cpus_are_named_where_no_other_pod_holds_any() -> None:
    alone = [created(row.name, FIVE, known=False) for row in FIVE]
    told = explain(FOUR_NODES, state_after(FOUR_NODES, *alone[:4]), alone[4])
    assert told.outcome is ContainerOutcome.REFUSED
    text = text_of(told)
    assert (
        "no other pod holds anything; with this configuration it never fits beside the other containers"
        in text
    )
    assert "its containers have: a (CPUs " in text
    assert text.count("(CPUs ") >= 4


def test_a_container_that_was_placed_before_says_so() -> None:
    two = one("a", 2), one("b", 4)
    first = explain(FOUR_NODES, State(), created("a", two))
    later = explain(FOUR_NODES, state_after(FOUR_NODES, created("a", two)), created("b", two))
    assert "placed with its pod as a whole, at this creation, the first of the pod" in whys(first)
    assert "placed with its pod as a whole, at the creation of the pod's first container" in whys(later)
    assert "its containers have: a (CPUs 2-3), b (CPUs " in text_of(first)


ROWS = one("db", 4), one("mesh", 0, Kind.SIDECAR, 0), one("log", 0, memory=0)
WHOLE = Amounts(6000, 6000, 6 * GIB, 6 * GIB)


@pytest.mark.parametrize(
    ("name", "why", "headline"),
    [
        ("db", "exclusive: a slice of CPUs ", "default/p1/db: exclusive CPUs "),
        ("mesh", "pod shared pool: CPUs ", "default/p1/mesh: pod shared pool "),
    ],
)
def test_why_a_container_of_a_pod_with_resources_of_its_own_is_where_it_is(
    name: str, why: str, headline: str
) -> None:
    told = explain(LEVEL, State(), created(name, ROWS, WHOLE))
    assert whys(told)[0].startswith(why)
    assert text_of(told).startswith(headline)
    assert told.merged
    assert told.merged.scope == "pod-resources"
    assert "cpu: 6 wanted" in told.hints[0].numbers
    assert sum(step.count for step in told.taking) == 6
    assert told.pod
    assert len(told.pod.cpus) > 0
    assert "are the pod's; pod shared pool " in text_of(told)
    again = explain(LEVEL, state_after(LEVEL, created("db", ROWS, WHOLE)), created(name, ROWS, WHOLE))
    assert (again.cpus, again.pod) == (told.cpus, told.pod)
    assert again.taking == told.taking


def test_a_pod_with_resources_of_its_own_that_does_not_fit_is_told_a_size_that_does() -> None:
    big = Amounts(20000, 20000, GIB, GIB)
    rows = one("db", 2), one("mesh", 0, Kind.SIDECAR, 0)
    told = explain(LEVEL, State(), created("db", rows, big))
    assert told.outcome is ContainerOutcome.REFUSED
    assert "cpu: 20 wanted" in told.hints[0].numbers
    most = max(fit.amount for fit in told.fits if fit.kind == "cpus")
    assert most == 16
    fitting = Amounts(most * 1000, most * 1000, GIB, GIB)
    assert decide(LEVEL, State(), created("db", rows, fitting)).refusal is None


def test_a_pod_that_gets_nothing_for_its_resources_says_so() -> None:
    odd = Amounts(4500, 4500, GIB, GIB)
    told = explain(LEVEL, State(), created("db", ROWS, odd))
    assert "neither the pod nor this container gets CPUs" in whys(told)[0]


def test_cpus_of_a_block_are_listed_once_among_the_holders() -> None:
    before = state_after(LEVEL, created("db", ROWS, WHOLE))
    other = pod("p2")
    told = explain(LEVEL, before, InformedCreate(nri.CreateContainer(other, container(other, cpu=2))))
    holders = [holder for use in told.numa_nodes for holder in use.holders]
    assert [(holder.container, holder.count, holder.has_ended) for holder in holders] == [
        ("default/p1", 6, False)
    ]


# ----------------------------------------------------------------------------------------------------
# By the history of an agent.


def listed(folder: Path) -> PodListed:
    answer = of_container("default/p1", asked(folder))
    assert isinstance(answer, PodListed)
    return answer


def test_the_list_of_a_pod_tells_who_has_what_and_who_is_not_created(tmp_path: Path) -> None:
    lived(tmp_path, LEVEL, [created("mesh", ROWS, WHOLE)])
    lines = listed(tmp_path).text(80).splitlines()
    assert lines[0].startswith("default/p1/mesh  pod shared pool, CPUs ")
    assert [line.split()[0] for line in lines[1:3]] == ["default/p1/db", "default/p1/log"]
    assert "allocated, not created: exclusive CPUs " in lines[1]
    assert lines[1].endswith(", a slice of its pod")
    assert lines[3].startswith("the pod: CPUs ")
    assert lines[4:] == [
        "placed as a whole at the creation of mesh",
        f"next: nri-pin explain default/p1/mesh --state-dir {tmp_path}",
    ]
    found = listed(tmp_path).as_dict()
    assert (found["placed_at"], found["is_container_by_container"], found["incomplete"]) == (
        "mesh",
        False,
        None,
    )
    assert len(found["block"]["cpus"]) > 0


def test_a_later_container_names_the_one_it_was_placed_with(tmp_path: Path) -> None:
    lived(tmp_path, LEVEL, [created("mesh", ROWS, WHOLE), created("db", ROWS, WHOLE)])
    answers = {name: of_container(f"p1/{name}", asked(tmp_path)) for name in ("db", "mesh")}
    notes = {name: one.notes for name, one in answers.items() if isinstance(one, DecisionExplained)}
    assert "placed with its pod at the creation of mesh" in notes["db"]
    assert not [note for note in notes["mesh"] if note.startswith("placed with its pod")]


INCOMPLETE = IncompletePodRow(
    OF.uid,
    "default",
    "p1",
    (RefusedContainerRow("b", "TopologyAffinityError", "TopologyAffinityError: no room"),),
    (SiblingRow("a", "2-5", "", is_created=True),),
)


def test_a_pod_that_runs_in_part_is_told_as_such(tmp_path: Path) -> None:
    two = one("a", 4), one("b", 99)
    state = lived(tmp_path, FOUR_NODES, [created(name, two, known=False) for name in ("a", "b")])
    feed = StatusFeed()
    feed.incomplete.rows = lambda _state: (INCOMPLETE,)  # type: ignore[method-assign]
    socket = StatusSocket(tmp_path / SOCKET, lambda: (FOUR_NODES, state), feed)
    try:
        answer, container_told = listed(tmp_path), of_container("p1/b", asked(tmp_path))
    finally:
        socket.close()
    said = "incomplete: refused: b (TopologyAffinityError); other containers of the pod: a (CPUs 2-5)"
    assert said in answer.text(80).splitlines()
    facts: Mapping[str, object] = plain(answer.as_dict())["incomplete"]
    assert facts["pod"] == "p1"
    assert isinstance(container_told, DecisionExplained)
    assert said in container_told.notes


def test_an_ended_init_container_is_not_listed_as_owner(tmp_path: Path) -> None:
    rows = one("setup", 2, Kind.INIT), one("db", 2)
    ended = nri.StopContainer(OF, container(OF, "setup"))
    lived(tmp_path, FOUR_NODES, [created("setup", rows), ended, created("db", rows)])
    lines = listed(tmp_path).text(80).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[:2]] == [
        "ended, a later container has its CPUs 2-3",
        "exclusive CPUs 2-3",
    ]


def test_what_an_ended_init_container_keeps_is_told(tmp_path: Path) -> None:
    rows = one("setup", 4, Kind.INIT), one("db", 2)
    ended = nri.StopContainer(OF, container(OF, "setup"))
    lived(tmp_path, FOUR_NODES, [created("setup", rows), ended, created("db", rows)])
    (setup, *_) = listed(tmp_path).text(80).splitlines()
    assert setup.endswith(
        "ended, a later container has its CPUs 2-3, CPUs 4-5 stay allocated until the pod ends"
    )


def test_a_pod_of_very_many_containers_says_that_it_goes_container_by_container(tmp_path: Path) -> None:
    rows = tuple(one(f"c{number}", 0) for number in range(MOST_CONTAINERS + 1))
    lived(tmp_path, FOUR_NODES, [created("c0", rows)])
    assert "placed container by container, for the pod has more than 128" in listed(tmp_path).text(80)
