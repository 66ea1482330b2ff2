"""What can be read of a damaged checkpoint."""

from nri_plugin.checkpoint.format import Encoder
from nri_plugin.checkpoint.repair import salvage
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.records import Allocation, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import node

STATE = State(
    {"u1": PodRecord("u1", "sb", "db-0", "shop")},
    allocations={"u1/a": Allocation(CPUSet.of(2)), "u1/b": Allocation(CPUSet.of(3))},
)
DATA = b"".join(Encoder().encode(STATE, 7, NodeFacts.of(node())))


def test_of_a_whole_one_everything_is_read() -> None:
    found = salvage(DATA)
    assert (found.state, found.generation, found.facts) == (STATE, 7, NodeFacts.of(node()))
    assert found.unreadable == []


def test_a_line_that_cannot_be_read_is_named_and_the_others_are_read() -> None:
    found = salvage(DATA.replace(b'"cpus":"2"', b'"cpus":2'))
    assert list(found.allocations) == ["u1/b"]
    (said,) = found.unreadable
    assert said.startswith('line 10 cannot be read: {"key":"u1/a","cpus":2')


def test_a_promise_that_stands_there_twice_is_none() -> None:
    found = salvage(DATA.replace(b'"key":"u1/b"', b'"key":"u1/a"'))
    assert found.allocations == {}
    assert "says something else of u1/a than a line before it" in found.unreadable[0]


def test_nothing_is_read_of_a_version_that_is_not_known() -> None:
    found = salvage(DATA.replace(b'"version":3', b'"version":9'))
    assert (found.state, found.unreadable) == (State(), [])


def test_what_is_not_text_is_shown_in_letters() -> None:
    (said,) = salvage(b"\x1b[31m\xff\n").unreadable
    assert said == "line 1 cannot be read: ?[31m\\xff"
