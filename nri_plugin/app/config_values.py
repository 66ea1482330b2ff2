"""How single values of the configuration are read; each reader says what it expected and where."""

import difflib
import re
from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

from nri_plugin.app import config_yaml as source
from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import ConfigError
from nri_plugin.policy.option_checks import option_flag
from nri_plugin.quantity import format_bytes, parse_quantity

Word = TypeVar("Word", bound=StrEnum)

_NAMESPACE = re.compile(
    r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z"
)  # Source: RFC 1123 label, as Kubernetes has it
LARGEST_PORT = 65535
LEAST_HISTORY_BYTES = 256 << 10
"""Two segments, each of which begins with the machine and all that is promised."""
_PLUGIN_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}\Z")


KNOWN_ARE = "known are"
"""Begins the list of all names, which is long enough to be told once."""


def either(*words: str) -> str:
    """The words as a reader is offered them: a, b or c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def unknown(place: source.Place, name: str, known: tuple[str, ...], what: str = "unknown key") -> ConfigError:
    """The error for a name that is not in `known`, with the closest one that is."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"{KNOWN_ARE} {either(*known)}"
    return place.error(f"{what}; {hint}")


def choice(words: type[Word]) -> Callable[[source.Value], Word]:
    """A reader of one of the words of an enumeration."""
    read = one_of(*words)
    return lambda value: words(read(value))


def one_of(*words: str, later: tuple[str, ...] = ()) -> Callable[[source.Value], str]:
    """A reader of one of some words; those of `later` are known but refused."""

    def read(value: source.Value) -> str:
        found = source.scalar(value)
        if found.kind == "str" and found.text in words:
            return found.text
        if found.text in later:
            raise value.place.error(f"{found.text} is not yet supported; use {either(*words)}")
        raise value.place.error(f"expected {either(*words)}, found {source.as_read(found)}")

    return read


def not_yet(value: source.Value) -> bool:
    """A flag whose `true` is known but refused."""
    if source.flag(value):
        raise value.place.error("true is not yet supported by this version; set it to false or remove it")
    return False


def cpu_list(value: source.Value) -> CPUSet:
    """A kernel list such as `0-3,8`; the empty text is the empty set."""
    found = source.text_or_number(value)
    try:
        return CPUSet.parse(found)
    except ValueError as error:
        raise value.place.error(f"expected a CPU list such as 0-3,8: {error}") from None


def amount(value: source.Value) -> Fraction:
    """A Kubernetes quantity that is not negative, exact."""
    read = source.scalar(value)
    if read.kind not in ("str", "int", "float") and read.text:
        raise value.place.error(f"expected a quantity such as 500m or 2, found {source.as_read(read)}")
    found = source.text_or_number(value)
    try:
        size = parse_quantity(found)
    except ValueError as error:
        raise value.place.error(str(error)) from None
    if size < 0:
        raise value.place.error(f"{found} is negative; expected an amount such as 500m or 1Gi")
    return size


def whole_bytes(value: source.Value) -> int:
    """A Kubernetes quantity that is a whole number."""
    size = amount(value)
    if size.denominator != 1:
        raise value.place.error(f"{source.scalar(value).text} is no whole number of bytes")
    return int(size)


def history_bytes(value: source.Value) -> int:
    """0, or at least as much as a small node needs to begin with."""
    size = whole_bytes(value)
    if 0 < size < LEAST_HISTORY_BYTES:
        raise value.place.error(
            f"expected 0 for no history or at least {format_bytes(LEAST_HISTORY_BYTES)}, found {format_bytes(size)}"
        )
    return size


def check_option_flag(name: str, value: source.Value) -> None:
    """Refuse the value of a policy's option that is no boolean of Go's, quoted or not, as the kubelet does."""
    try:
        option_flag(name, source.scalar(value).text)
    except ConfigError as error:
        raise value.place.error(error.detail) from None


def absolute_path(value: source.Value) -> str:
    """A path from the root."""
    found = source.text(value)
    if not found.startswith("/") or "\0" in found:
        raise value.place.error(f"expected an absolute path, found {found or 'nothing'}")
    return found


def bind_address(value: source.Value) -> tuple[str, int] | None:
    """`HOST:PORT`, `:PORT` for every address, `[::1]:PORT`; the empty text is none. Names are not looked up here."""
    found = source.text(value)
    if not found:
        return None
    try:
        return host_and_port(found)
    except ValueError as error:
        raise value.place.error(str(error)) from None


def host_and_port(found: str) -> tuple[str, int]:
    """The host without brackets, and the port.

    Raises:
        ValueError: it is none; says what was expected.
    """
    host, colon, port = found.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isdecimal() or int(port) > LARGEST_PORT or (":" in bare) != (bare != host):
        raise ValueError(f"expected an address such as 127.0.0.1:9465 or :9465, found {found}")
    return bare, int(port)


def plugin_name(value: source.Value) -> str:
    """The name the runtime logs; part of a file name."""
    found = source.text(value)
    if not _PLUGIN_NAME.match(found):
        raise value.place.error(
            f"expected up to 63 letters, digits, dashes, dots, underscores, found {found}"
        )
    return found


def plugin_index(value: source.Value) -> str:
    """Two digits that order plugins. Source: NRI, api.CheckPluginIndex."""
    found = source.scalar(value).text
    if not re.fullmatch(r"[0-9][0-9]", found):
        raise value.place.error(f'expected two digits such as "90", found {found or "nothing"}')
    return found


def namespaces(value: source.Value) -> frozenset[str]:
    """Names of Kubernetes namespaces."""
    names = set()
    for item in source.items(value):
        name = source.text(item)
        if not _NAMESPACE.match(name):
            raise item.place.error(f"{name or 'nothing'} is no name of a namespace")
        names.add(name)
    return frozenset(names)
