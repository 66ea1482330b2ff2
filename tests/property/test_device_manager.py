"""Whatever pods come and go: no device belongs to two of them, and nobody is refused what could be given."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.machine import parse
from nri_plugin.simulator.simulate.device_manager import DeviceManager, NotAdmittedError
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec

TEXT = """\
topology: pack:2 numa:1 l3:1 core:2 pu:1
devices:
  - {resource: a/x, count: 3, nodes: 0}
  - {resource: a/x, count: 3, nodes: 1}
  - {resource: a/x, count: 1}
  - {resource: a/y, count: 2, nodes: "0,1"}
links:
  - {resource: a/x, weight: nvlink, groups: [[0, 2], [1, 3], [4, 5]]}
"""
MACHINE = parse(TEXT)
COUNTS = {"a/x": 7, "a/y": 2}
ASKED = st.dictionaries(st.sampled_from(sorted(COUNTS)), st.integers(1, 4)).map(
    lambda asked: tuple(asked.items())
)
SPECS = st.lists(ASKED, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("free"), st.integers(0, 3)),
        st.tuples(st.integers(0, 3), SPECS, SPECS, st.sampled_from([None, 0, 1, 2, 3])),
    ),
    max_size=12,
)


def pod(
    number: int, init: list[tuple[tuple[str, int], ...]], apps: list[tuple[tuple[str, int], ...]]
) -> PodSpec:
    return PodSpec(
        f"p{number}",
        containers=tuple(ContainerSpec(f"c{i}", devices_asked=asked) for i, asked in enumerate(apps)),
        init_containers=tuple(ContainerSpec(f"i{i}", devices_asked=asked) for i, asked in enumerate(init)),
    )


def needed(spec: PodSpec, resource: str) -> int:
    """At most so many at once: what init containers had passes on."""
    init = max((dict(each.devices_asked).get(resource, 0) for each in spec.init_containers), default=0)
    return max(init, sum(dict(each.devices_asked).get(resource, 0) for each in spec.containers))


def check(manager: DeviceManager, pods: dict[str, PodSpec]) -> None:
    for resource, count in COUNTS.items():
        held = []
        for key, spec in pods.items():
            given_to = {name: each.get(resource, ()) for name, each in manager.containers(key).items()}
            for each in (*spec.init_containers, *spec.containers):
                assert len(set(given_to[each.name])) == dict(each.devices_asked).get(resource, 0)
            apps = [name for each in spec.containers for name in given_to[each.name]]
            assert len(set(apps)) == len(apps)
            mine = {name for ids in given_to.values() for name in ids}
            assert len(mine) == needed(spec, resource)
            held += mine
        assert len(set(held)) == len(held)
        assert len(manager.available(resource)) == count - len(held)


@given(STEPS)
def test_no_device_is_given_twice_and_nobody_is_refused_without_need(steps) -> None:
    manager = DeviceManager(MACHINE.devices, MACHINE.links)
    pods: dict[str, PodSpec] = {}
    for step in steps:
        if step[0] == "free":
            manager.free(f"default/p{step[1]}")
            pods.pop(f"default/p{step[1]}", None)
        else:
            number, init, apps, mask = step
            spec = pod(number, init, apps)
            manager.free(spec.key)
            pods.pop(spec.key, None)
            fits = all(needed(spec, resource) <= len(manager.available(resource)) for resource in COUNTS)
            if fits:
                manager.admit(spec, None if mask is None else NodeMask(mask))
                pods[spec.key] = spec
            else:
                with pytest.raises(NotAdmittedError, match="Requested: "):
                    manager.admit(spec, None if mask is None else NodeMask(mask))
        check(manager, pods)


@given(st.text("0123 resouchdviclnkgpwt:,/ab{}[]\n", max_size=50))
def test_any_text_behind_devices_is_a_machine_or_a_configuration_error(text: str) -> None:
    for start in (
        "devices: [{resource: a/b, ",
        "devices: [{resource: a/b, count: 3}]\nlinks: [{resource: a/b, ",
    ):
        with contextlib.suppress(ConfigError):
            assert parse(f"topology: pu:1\n{start}{text}}}]").devices
