"""Arbitrary states: every field of every record is drawn by its type, also those that are added later."""

import types
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct

from nri_plugin.model import bounds
from nri_plugin.model.records import Allocation, ContainerRecord, PodRecord
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State

MASKS = st.just(0) | st.integers(0, (1 << 70) - 1) | st.sampled_from([1 << 4095, 1 << 65535])
NAMES = st.text("abc-./:", max_size=6) | st.text(max_size=6)
ANNOTATIONS = st.dictionaries(
    NAMES.map(bounds.OWN_ANNOTATIONS.__add__),
    NAMES | st.just("9" * bounds.ANNOTATION_VALUE_CHARS),
    max_size=3,
).map(lambda given: tuple(sorted(given.items())))
"""What a pod may be remembered with: ours, in the order of their keys."""
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    CPUSet: MASKS.map(CPUSet),
    NodeMask: MASKS.map(NodeMask),
    str: NAMES,
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    type(None): st.none(),
}
BOUNDED: dict[Any, dict[str, st.SearchStrategy[Any]]] = {PodRecord: {"annotations": ANNOTATIONS}}
"""Fields of records that hold less than their types say."""


def drawn(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that the records of a state use."""
    if hint in LEAVES:
        return LEAVES[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        fields = {name: drawn(of) for name, of in get_type_hints(hint).items()}
        return st.builds(hint, **(fields | BOUNDED.get(hint, {})))
    if isinstance(hint, types.UnionType):
        return st.one_of(*map(drawn, get_args(hint)))
    if get_origin(hint) is tuple:
        first, *rest = get_args(hint)
        is_open = rest == [...]
        return (
            st.lists(drawn(first), max_size=2).map(tuple)
            if is_open
            else st.tuples(*map(drawn, (first, *rest)))
        )
    return st.sampled_from(list(hint))


def as_state(
    pods: list[PodRecord], containers: list[ContainerRecord], allocations: dict[str, Allocation]
) -> State:
    return State({pod.uid: pod for pod in pods}, {record.id: record for record in containers}, allocations)


states = st.builds(
    as_state,
    st.lists(drawn(PodRecord), max_size=2),
    st.lists(drawn(ContainerRecord), max_size=3),
    st.dictionaries(NAMES, drawn(Allocation), max_size=2),
)
