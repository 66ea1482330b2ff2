"""Reads a pod's facts as the exporter sends them; see `nri_plugin.facts` for the form."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nri_plugin import bounds
from nri_plugin.pod_facts import Amounts, ContainerFacts, Kind, PodFacts, QOSClass

_Text = Annotated[str, Meta(min_length=1, max_length=bounds.NAME_CHARS)]
_Amount = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Source: Kubernetes, quantities are signed and 64 bits wide."""


class _Amounts(Struct):
    cpu_request_milli: _Amount = 0
    cpu_limit_milli: _Amount = 0
    memory_request_bytes: _Amount = 0
    memory_limit_bytes: _Amount = 0
    hugepages: Annotated[dict[_Text, _Amount], Meta(max_length=bounds.PAGE_SIZES)] = {}

    @property
    def value(self) -> Amounts:
        return Amounts(
            self.cpu_request_milli,
            self.cpu_limit_milli,
            self.memory_request_bytes,
            self.memory_limit_bytes,
            tuple((bounds.name(size), amount) for size, amount in self.hugepages.items()),
        )


class _Container(_Amounts, kw_only=True):
    name: _Text
    kind: Kind = Kind.APP


class _Facts(Struct):
    uid: _Text
    qos: QOSClass
    containers: Annotated[list[_Container], Meta(max_length=bounds.FACTS_CONTAINERS)] = []
    pod_resources: _Amounts | None = None


def read_facts(data: bytes | msgspec.Raw) -> PodFacts:
    """The facts that `data`, a JSON object, says.

    Raises:
        ValueError: they are not of the form that is agreed on.
    """
    try:
        row = msgspec.json.decode(data, type=_Facts)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"not facts: {error}") from None
    names = [one.name for one in row.containers]
    if len(set(names)) < len(names):
        raise ValueError(f"not facts: {len(names)} containers of {len(set(names))} names")
    return PodFacts(
        row.uid,
        row.qos,
        tuple(ContainerFacts(bounds.name(one.name), one.kind, one.value) for one in row.containers),
        None if row.pod_resources is None else row.pod_resources.value,
    )
