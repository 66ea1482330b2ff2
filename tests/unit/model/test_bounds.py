"""What is kept of what a pod's author writes."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model import bounds
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import codec, events
from nri_plugin.wire.nri.messages import DeviceNode, Resources
from tests.builders import container, node, pod
from tests.lab.runtime import codec as runtime_codec
from tests.largest_pods import ADDRESS, TRUSTED, largest

STRICT = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)


def read(event: events.NRIEvent) -> events.CreateContainer:
    method, payload = runtime_codec.encode_event(event)
    decoded = codec.decode_request(method, payload, TRUSTED.__eq__)
    assert isinstance(decoded, events.CreateContainer)
    return decoded


def created(env: tuple[str, ...]) -> events.CreateContainer:
    of, (one,) = largest("one variable")
    return read(events.CreateContainer(of, one.__class__(**{**_fields(one), "env": env})))


def _fields(one: object) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}  # type: ignore[attr-defined]


def test_names_up_to_the_longest_are_kept_and_longer_ones_stay_different() -> None:
    assert bounds.name("n" * bounds.NAME_CHARS) == "n" * bounds.NAME_CHARS
    one, other = bounds.name("n" * 1000), bounds.name("n" * 1001)
    assert len(one) == len(other) == bounds.NAME_CHARS
    assert one != other
    assert bounds.name("\ud800" * 1000) != bounds.name("\ud801" * 1000)


def test_of_the_environment_only_variables_that_list_devices_are_read() -> None:
    event = created(("PATH=/bin", f"PCIDEVICE_X={ADDRESS}", "A=PCIDEVICE_"))
    assert (event.container.env, event.container.cut) == ((f"PCIDEVICE_X={ADDRESS}",), ())


def test_a_variable_that_does_not_fit_leaves_room_for_those_after_it() -> None:
    long, short = "PCIDEVICE_X=" + "," * bounds.ENVIRONMENT_CHARS, f"PCIDEVICE_Y={ADDRESS}"
    event = created((long, short))
    assert (event.container.env, event.container.cut) == ((short,), (bounds.Cut.ENVIRONMENT,))


@pytest.mark.parametrize(("count", "cut"), [(bounds.VARIABLES, ()), (bounds.VARIABLES + 1, ("environment",))])
def test_only_so_many_variables_are_read(count: int, cut: tuple[str, ...]) -> None:
    event = created(tuple(f"PCIDEVICE_{number}={ADDRESS}" for number in range(count)))
    assert (len(event.container.env), event.container.cut) == (bounds.VARIABLES, cut)


def test_a_variable_behind_too_many_others_is_not_looked_for() -> None:
    env = (*("A=" for _ in range(bounds.VARIABLES_SEEN)), f"PCIDEVICE_X={ADDRESS}")
    assert created(env).container.env == ()
    assert created(env[1:]).container.env == env[-1:]


def test_the_environment_is_read_at_creation_only() -> None:
    of, (one,) = largest("variables that list one device")
    method, payload = runtime_codec.encode_event(events.StartContainer(of, one))
    decoded = codec.decode_request(method, payload)
    assert isinstance(decoded, events.StartContainer)
    assert decoded.container.env == ()


def test_annotations_are_read_where_they_are_heard_and_of_those_only_ours() -> None:
    of, (one,) = largest("names")
    given = {"other/x": "1", "nri-pin/numa-node": "1", "nri-pin-not/x": "2"}
    said = of.__class__(**{**_fields(of), "annotations": given, "namespace": TRUSTED})
    assert read(events.CreateContainer(said, one)).pod.annotations == {"nri-pin/numa-node": "1"}
    elsewhere = of.__class__(**{**_fields(of), "annotations": given, "namespace": "elsewhere"})
    assert read(events.CreateContainer(elsewhere, one)).pod.annotations == {}


def test_of_too_many_annotations_the_first_by_name_are_kept_and_of_far_too_many_none() -> None:
    many = {f"nri-pin/{number:04}": "1" for number in range(bounds.ANNOTATIONS_SEEN)}
    kept, is_cut = bounds.own_annotations(many)
    assert (list(kept), is_cut) == (sorted(many)[: bounds.ANNOTATIONS], True)
    assert bounds.own_annotations({**many, "x": ""}) == ({}, True)
    assert bounds.own_annotations({"nri-pin/a": "9" * 1000}) == (
        {"nri-pin/a": "9" * bounds.ANNOTATION_VALUE_CHARS},
        False,
    )


def resources(count: int, each: int, chars: int = 1) -> tuple[DeviceResource, ...]:
    return tuple(
        DeviceResource(f"x/{r}", tuple(Device(f"{r}.{d:0{chars}}", NodeMask.of(d % 2)) for d in range(each)))
        for r in range(count)
    )


@pytest.mark.parametrize(
    ("given", "is_too_much"),
    [
        (resources(1, bounds.DEVICES), False),
        (resources(1, bounds.DEVICES + 1), True),
        (resources(bounds.DEVICE_RESOURCES, 1), False),
        (resources(bounds.DEVICE_RESOURCES + 1, 1), True),
        (resources(1, 100, 40), False),
        (resources(1, 100, 140), True),
    ],
)
def test_devices_beyond_the_bounds_make_no_hints_and_that_is_said(
    given: tuple[DeviceResource, ...], is_too_much: bool
) -> None:
    of = pod("p1", "BestEffort")
    event = InformedCreate(events.CreateContainer(of, container(of)), given)
    decision = decide(STRICT, State(), event)
    assert ("devices-not-counted" in decision.steps) is is_too_much
    spread = len(given[0].devices) > 1
    assert (decision.refusal is not None) is (spread and not is_too_much)


def test_the_reason_why_a_container_has_no_place_is_kept_in_short() -> None:
    on = node(
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE, never_refuse=frozenset({"default"})
    )
    of = pod("p1", "BestEffort")
    decision = decide(
        on, State(), InformedCreate(events.CreateContainer(of, container(of)), resources(8, 2, 200))
    )
    (record,) = decision.state.containers.values()
    assert len(str(decision.overruled)) > bounds.REASON_CHARS
    assert len(record.unplaced) == bounds.REASON_CHARS
    assert str(decision.overruled).startswith(record.unplaced.removesuffix("..."))


@pytest.mark.parametrize(
    ("kind", "of_pod", "of_container"),
    [
        ("names", [], []),
        ("names that no API server takes", ["names"], ["names"]),
        ("page sizes", ["huge page sizes"], []),
        ("annotations of ours", ["annotations"], []),
        ("one annotation", [], []),
        ("one variable", [], []),
        ("variables that list one device", [], ["environment"]),
        ("an environment of 4 MiB", [], ["environment"]),
        ("device nodes", [], ["devices"]),
        ("interfaces", [], ["devices"]),
    ],
)
def test_what_is_left_out_is_named(kind: str, of_pod: list[str], of_container: list[str]) -> None:
    of, (one, *_) = largest(kind)
    event = read(events.CreateContainer(of, one))
    assert (list(event.pod.cut), list(event.container.cut)) == (of_pod, of_container)


@pytest.mark.parametrize(
    ("limits", "cut"),
    [
        ([("2MB", 0), ("1GB", 0)] * 3, ()),  # as containerd sends them after two updates
        ([(f"{number}MB", 0) for number in range(5)], (bounds.Cut.PAGE_SIZES,)),
    ],
)
def test_page_sizes_that_repeat_are_not_left_out(
    limits: list[tuple[str, int]], cut: tuple[bounds.Cut, ...]
) -> None:
    of = pod("p1", "BestEffort")
    one = replace(container(of), resources=Resources(hugepage_limits=tuple(limits)))
    assert read(events.CreateContainer(of, one)).container.cut == cut


def test_a_privileged_container_with_many_devices_has_lost_nothing() -> None:
    of, (one,) = largest("device nodes")
    nodes = (DeviceNode(path="/dev/kmsg", type="c", major=1, minor=11), *one.devices)
    event = read(events.CreateContainer(of, one.__class__(**{**_fields(one), "devices": nodes})))
    assert (event.container.devices, event.container.cut) == ((), ())
