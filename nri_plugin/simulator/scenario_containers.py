"""Containers of a scenario file: what they ask for, as in a pod manifest but for the shorter form.

`cpu`, `memory`, huge pages and devices, as `nvidia.com/gpu: 2`, are request and limit at once, or stand in `limits`.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

import yaml

from nri_plugin.app import config_yaml as source
from nri_plugin.app.config_values import amount, one_of, unknown, whole_bytes
from nri_plugin.errors import ConfigError
from nri_plugin.simulator.pods import ContainerSpec

CONTAINER_KEYS = ("cpu", "memory", "requests", "limits", "env")
SIDECAR_KEY, SIDECAR = "restartPolicy", "Always"
AMOUNT_KEYS = ("cpu", "memory")
HUGEPAGES = "hugepages-"

_DEVICE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9_.-]+\Z")


def read_container(name: str, value: source.Value, *, is_init: bool = False) -> ContainerSpec:
    """A container; a request that is not given equals the limit, as the Kubernetes API makes it.

    Raises:
        ConfigError: something in it is wrong.
    """
    section = source.section(value)
    known = (*CONTAINER_KEYS, SIDECAR_KEY) if is_init else CONTAINER_KEYS
    for key, place in section.keys.items():
        if key not in known and not is_amount(key):
            raise unknown(place, key, known)
    limits = _amounts(section, "limits")
    requests = limits | _amounts(section, "requests")
    return ContainerSpec(
        name=name,
        cpu_request_milli=_milli(requests),
        cpu_limit_milli=_milli(limits),
        memory_request_bytes=int(requests.get("memory", 0)),
        memory_limit_bytes=int(limits.get("memory", 0)),
        hugepages=tuple(
            (_page_size(key), int(size)) for key, size in limits.items() if key.startswith(HUGEPAGES)
        ),
        devices_asked=_devices(section, limits),
        env=tuple(f"{key}={text}" for key, text in texts(section.entries, "env").items()),
        is_sidecar=is_init and SIDECAR_KEY in section.entries and _is_sidecar(section.entries[SIDECAR_KEY]),
    )


def is_amount(key: str) -> bool:
    """Whether it names something a container can ask for an amount of."""
    return key in AMOUNT_KEYS or key.startswith(HUGEPAGES) or _is_device(key)


def _is_sidecar(value: source.Value) -> bool:
    return one_of(SIDECAR)(value) == SIDECAR


def _amounts(section: source.Section, key: str) -> dict[str, Fraction]:
    """`limits` or `requests`, with what stands beside them and says it for both."""
    given: dict[str, source.Value] = {
        name: value for name, value in section.entries.items() if is_amount(name)
    }
    if key in section.entries:
        inner = source.section(section.entries[key])
        for name, place in inner.keys.items():
            if name in given:
                raise _twice(place, name)
            if not is_amount(name):
                raise unknown(place, name, AMOUNT_KEYS)
        given |= inner.entries
    return {
        name: amount(value) if name == "cpu" else Fraction(whole_bytes(value))
        for name, value in given.items()
    }


def _twice(place: source.Place, name: str) -> ConfigError:
    return place.error(f"{name} is also given for requests and limits at once; keep one of them")


def _devices(section: source.Section, limits: Mapping[str, Fraction]) -> tuple[tuple[str, int], ...]:
    """Counts by resource; as in a pod manifest a request without the same limit is refused."""
    if "requests" in section.entries:
        inner = source.section(section.entries["requests"])
        for name, value in inner.entries.items():
            if _is_device(name) and whole_bytes(value) != limits.get(name):
                raise value.place.error(
                    f"{name} must be the same in limits, where it is {limits.get(name, 0)}"
                )
    return tuple((name, int(count)) for name, count in limits.items() if _is_device(name) and count)


def _is_device(name: str) -> bool:
    """Whether this is what Kubernetes calls an extended resource."""
    return bool(_DEVICE.match(name))


def _milli(amounts: Mapping[str, Fraction]) -> int:
    return ceil(amounts.get("cpu", 0) * 1000)


def _page_size(key: str) -> str:
    """`hugepages-2Mi` is `2MB` to runtimes."""
    return key.removeprefix(HUGEPAGES).replace("i", "B")


def texts(given: Mapping[str, source.Value], key: str) -> dict[str, str]:
    """Words by key; none where the section is left out.

    Raises:
        ConfigError: something in it is no word.
    """
    if key not in given:
        return {}
    return {name: source.text(value) for name, value in source.section(given[key]).entries.items()}


def plain(value: source.Value) -> Any:
    """What was written as plain values, numbers and booleans as YAML takes them."""
    if isinstance(value, source.Section):
        return {key: plain(entry) for key, entry in value.entries.items()}
    if isinstance(value, source.Sequence):
        return [plain(item) for item in value.items]
    return value.text if value.kind == "str" else yaml.safe_load(value.text)
