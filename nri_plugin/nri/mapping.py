"""Plain values to and from messages by table: one column for each field, so none can be forgotten in one way.

Writing gives nested dicts, which the constructors of messages take; reading takes a message. Neither needs to
know the message's class. What equals its default is not written; a default is what an absent field reads as.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any

from nri_plugin.nri.messages import EMPTY


@dataclass(frozen=True, slots=True)
class Kind:
    """How the value of one field looks on both sides.

    Attributes:
        write: value -> what the message's constructor takes.
        read: the message's attribute -> value.
        has_presence: absent reads as None; "set to zero" is something else.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    has_presence: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One field: its name in the value, where it is in the message (from the outside in), and how it looks."""

    name: str
    path: tuple[str, ...]
    kind: Kind


def _same(value: Any) -> Any:
    return value


PLAIN = Kind(_same, _same)
TEXTS = Kind(list, tuple)
TEXT_MAP = Kind(dict, lambda found: dict(found) if found else EMPTY)
WRAPPED_TEXTS = Kind(
    lambda value: {"value": list(value)}, lambda found: tuple(found.value), has_presence=True
)
NAMES = Kind(
    lambda value: [{"name": name} for name in value], lambda found: tuple([entry.name for entry in found])
)
NAME_BY_KEY = Kind(
    lambda value: {key: {"name": name} for key, name in value.items()},
    lambda found: {key: entry.name for key, entry in found.items()} or EMPTY,
)
KEY_VALUES = Kind(
    lambda value: [{"key": key, "value": text} for key, text in value.items()],
    lambda found: {entry.key: entry.value for entry in found} or EMPTY,
)
PAGE_LIMITS = Kind(
    lambda value: [{"page_size": size, "limit": limit} for size, limit in value],
    lambda found: tuple([(entry.page_size, entry.limit) for entry in found]),
)


def wrapped(inner: str = "value") -> Kind:
    """Returns the kind of a number or text in a message of its own: absent is None."""
    return Kind(lambda value: {inner: value}, lambda found: getattr(found, inner), has_presence=True)


def number_of(numbers: type[IntEnum]) -> Kind:
    """Returns the kind of an enumeration; a number it does not know stays one."""
    known = {member.value: member for member in numbers}
    return Kind(int, lambda found: known.get(found, found))


def numbers_of(numbers: type[IntEnum]) -> Kind:
    """Returns the kind of a list of an enumeration."""
    one = number_of(numbers)
    return Kind(lambda value: [one.write(each) for each in value], lambda found: tuple(map(one.read, found)))


@dataclass(frozen=True)
class Table:
    """All of a message that a plain value holds.

    Attributes:
        message: name of the message.
        make: class of the value.
        columns: one for each of its fields.
    """

    message: str
    make: type
    columns: tuple[Column, ...]
    _unset: tuple[Any, ...] = field(init=False, repr=False)
    _contents: Callable[[Any], tuple[Any, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        defaults = _defaults(self.make)
        object.__setattr__(self, "_unset", tuple(defaults[name] for name in names))
        object.__setattr__(self, "_contents", attrgetter(*names))

    def write(self, value: Any) -> dict[str, Any]:
        """Returns what is set of `value`, as the message's constructor takes it."""
        written: dict[str, Any] = {}
        for column, content in self.set_fields(value):
            inner = written
            for step in column.path[:-1]:
                inner = inner.setdefault(step, {})
            inner[column.path[-1]] = column.kind.write(content)
        return written

    def set_fields(self, value: Any) -> Iterator[tuple[Column, Any]]:
        """Yields the columns in which `value` differs from what is absent, with the content."""
        for column, unset, content in zip(self.columns, self._unset, self._contents(value), strict=True):
            # Mostly nothing is set, and then the content is the default itself.
            if content is not unset and content != unset:
                yield column, content

    def read(self, message: Any) -> Any:
        """Returns the value a message holds."""
        return self.make(**self.values(message))

    def values(self, message: Any) -> dict[str, Any]:
        """Returns the fields of that value by name."""
        return {column.name: _read(message, column) for column in self.columns}

    def part(self) -> Kind:
        """Returns the kind of such a value that may be absent."""
        return Kind(self.write, self.read, has_presence=True)

    def whole(self) -> Kind:
        """Returns the kind of such a value that is empty when absent."""
        return Kind(self.write, self.read)

    def parts(self) -> Kind:
        """Returns the kind of a list of such values."""
        return Kind(
            lambda value: [self.write(each) for each in value],
            lambda found: tuple([self.read(each) for each in found]),
        )


def _read(message: Any, column: Column) -> Any:
    for step in column.path[:-1]:
        message = getattr(message, step)
    last = column.path[-1]
    if column.kind.has_presence and not message.HasField(last):
        return None
    return column.kind.read(getattr(message, last))


def _defaults(make: type) -> dict[str, Any]:
    """Returns each field's default; one without a default is always written."""
    return {
        each.name: each.default_factory() if each.default_factory is not MISSING else each.default
        for each in fields(make)
    }
