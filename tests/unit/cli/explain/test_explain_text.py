"""The screen: plain words, 80 columns, no colour where there is no terminal."""

import pytest

from nri_plugin.cli.explain import text as explain_text
from nri_plugin.cli.explain.text import explanation_text
from nri_plugin.core.decision import InformedCreate
from nri_plugin.explain.explanation import explain
from nri_plugin.model.options import MemoryManagerPolicy, Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.source import read_machine
from tests import guides
from tests.builders import GIB, machine, node
from tests.explained import after, creation

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE


def screen(on: Node, event: InformedCreate, state: State | None = None, width: int = 80) -> list[str]:
    return explanation_text(explain(on, state or State(), event), width, ("by a test",)).splitlines()


def test_labels_stand_before_what_they_name_once() -> None:
    lines = screen(node(topology_manager_policy=SINGLE), creation(cpu=4))
    labels = [line[:10].strip() for line in lines[1:] if line[:1] not in {"", " "} and line[10:11] == " "]
    assert labels == ["note", "asks for", "policy", "why", "hints", "merge", "taken", "pool", "NUMA nodes"]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("cpu", [4, 99])
def test_no_line_is_wider_than_the_screen(width: int, cpu: int) -> None:
    on = node(machine(8), topology_manager_policy=SINGLE, memory_manager_policy=MemoryManagerPolicy.STATIC)
    state = after(on, *(creation(f"pod-{number}", cpu=3, memory=GIB) for number in range(8)))
    lines = screen(on, creation(cpu=cpu, memory=GIB, gpus=(0, 1)), state, width)
    assert max(map(len, lines)) <= width
    assert width < 80 or len(lines) <= 40


def test_a_machine_of_34_numa_nodes_fits_one_screen() -> None:
    on = Node(
        read_machine("gb200-34-numa").topology,
        node(
            topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
            memory_manager_policy=MemoryManagerPolicy.STATIC,
        ).options,
        node(reserved="").reserved,
    )
    lines = screen(on, creation(cpu=80, memory=GIB))
    assert len(lines) <= 40
    assert "any set of 2 or more of NUMA nodes 0-33" in " ".join(" ".join(lines).split())


def test_numa_nodes_with_the_same_to_say_are_told_in_one_line() -> None:
    lines = screen(node(machine(8), reserved="0-1"), creation(cpu=2))
    assert lines[-2:] == [
        "  0        6 of 8 CPUs available, 2 reserved",
        "  1-7      each 8 of 8 CPUs available",
    ]


def test_the_numbers_of_the_hints_are_not_said_again_in_the_reason() -> None:
    text = " ".join(" ".join(screen(node(topology_manager_policy=SINGLE), creation(cpu=9))).split())
    assert text.count("cpu: 9 wanted") == 1
    assert "in the way no other pod holds anything" in text


def test_who_holds_what_is_in_the_way() -> None:
    on = node(topology_manager_policy=SINGLE)
    text = "\n".join(screen(on, creation(cpu=8), after(on, creation("a", cpu=6), creation("b", cpu=2))))
    assert "in the way default/a/c (6 CPUs 2-7), default/b/c (2 CPUs 8-9)" in text
    assert "once default/b has ended" in text


def test_a_container_after_the_first_is_told_that_its_pod_was_decided() -> None:
    on = node(topology_manager_policy=SINGLE, topology_manager_scope=TopologyManagerScope.POD)
    lines = screen(on, creation(cpu=4, total=4))
    assert any("for the whole pod: NUMA node 0" in line for line in lines)


def test_devices_are_told_with_their_places() -> None:
    text = " ".join(screen(node(topology_manager_policy=SINGLE), creation(cpu=2, gpus=(0, 0, 1))))
    assert "3 example.com/gpu (2 on NUMA 0, 1 on NUMA 1)" in " ".join(text.split())


@pytest.mark.parametrize(("cpu", "colour"), [(4, "32"), (9, "31")])
def test_on_a_terminal_the_headline_has_a_colour(
    cpu: int, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = node(topology_manager_policy=SINGLE)
    assert "\x1b" not in screen(on, creation(cpu=cpu))[0]
    monkeypatch.setattr(explain_text, "wants_colour", lambda: True)
    assert screen(on, creation(cpu=cpu))[0].startswith(f"\x1b[{colour}m\x1b[1m")


def test_the_guide_shows_what_is_printed() -> None:
    shown = guides.section(guides.GUIDE / "simulate.md", "Explain a decision")
    for words in (
        "hints      cpu: 20 wanted",
        "merge      container by container",
        "in the way without other pods",
    ):
        assert words in shown
