"""One column for each field, read and written by the same table."""

from dataclasses import dataclass

from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.tables import PLAIN, TEXTS, Column, Table, wrapped


@dataclass(frozen=True, slots=True)
class Some:
    limit: int | None = None
    cpus: str = ""


@dataclass(frozen=True, slots=True)
class Needed:
    destination: str
    options: tuple[str, ...] = ()


SOME = Table(
    "LinuxResources",
    Some,
    (Column("limit", ("memory", "limit"), wrapped()), Column("cpus", ("cpu", "cpus"), PLAIN)),
)
NEEDED = Table(
    "Mount",
    Needed,
    (Column("destination", ("destination",), PLAIN), Column("options", ("options",), TEXTS)),
)


def test_what_is_not_set_is_not_written():
    assert SOME.write(Some()) == {}
    assert SOME.write(Some(cpus="0")) == {"cpu": {"cpus": "0"}}


def test_zero_is_written_where_absent_is_none():
    assert SOME.write(Some(limit=0)) == {"memory": {"limit": {"value": 0}}}


def test_a_field_without_default_is_always_written():
    assert NEEDED.write(Needed("")) == {"destination": ""}


def test_a_message_of_its_own_may_be_absent_a_whole_one_is_empty():
    update = pb.LinuxContainerUpdate()
    assert SOME.read(update.resources) == Some()
    assert SOME.part().has_presence
    assert not SOME.whole().has_presence
    assert SOME.parts().read([]) == ()
