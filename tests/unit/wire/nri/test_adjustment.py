"""What one plugin may put into one adjustment."""

import pytest

from nri_plugin.model.errors import LocalProtocolError
from nri_plugin.wire.nri import spec
from nri_plugin.wire.nri.events import (
    NOTHING,
    Adjustment,
    CreateContainerResponse,
    check,
    is_removal,
    overriding,
    removed,
)
from nri_plugin.wire.nri.messages import DeviceNode, Resources

A = spec.MountSpec("/a", "bind", "/x")


def test_a_leading_dash_removes():
    assert removed("/a") == "-/a"
    assert is_removal("-/a")
    assert not is_removal("/a")


def test_an_empty_first_element_overrides_the_command():
    assert overriding(["sh", "-c"]) == ("", "sh", "-c")


@pytest.mark.parametrize(
    "fine",
    [
        NOTHING,
        Adjustment(mounts=(spec.MountSpec(removed("/a")), A)),
        Adjustment(env={removed("A"): "", "A": "1"}, annotations={removed("k"): ""}),
        Adjustment(devices=(DeviceNode(removed("/dev/a")), DeviceNode("/dev/a", "c"))),
        Adjustment(args=overriding(["sh"])),
        Adjustment(resources=Resources(hugepage_limits=(("2MB", 1), ("1GB", 1)))),
    ],
)
def test_removing_and_setting_in_one_adjustment_is_fine(fine):
    check(fine)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Adjustment(mounts=(A, A)), "mount '/a' is set twice"),
        (Adjustment(devices=(DeviceNode("/dev/a"), DeviceNode("/dev/a"))), "device '/dev/a' is set twice"),
        (Adjustment(rlimits=(spec.Rlimit("RLIMIT_CORE"),) * 2), "rlimit 'RLIMIT_CORE' is set twice"),
        (Adjustment(namespaces=(spec.Namespace("pid"),) * 2), "namespace 'pid' is set twice"),
        (Adjustment(cdi_devices=("v/c=0", "v/c=0")), "CDI device 'v/c=0' is set twice"),
        (
            Adjustment(resources=Resources(hugepage_limits=(("2MB", 1), ("2MB", 2)))),
            "hugepage limit '2MB' is set twice",
        ),
        (Adjustment(env={"": "x"}), "environment variable has the key '', which names nothing"),
        (Adjustment(annotations={"-": ""}), "annotation has the key '-'"),
        (Adjustment(sysctl={"": ""}), "sysctl has the key ''"),
        (Adjustment(net_devices={"-": ""}), "network device has the key '-'"),
        (Adjustment(mounts=(spec.MountSpec(""),)), "mount has the key ''"),
        (Adjustment(cdi_devices=("-v/c=0",)), "CDI device '-v/c=0' cannot be removed"),
        (Adjustment(rlimits=(spec.Rlimit("-RLIMIT_CORE"),)), "rlimit '-RLIMIT_CORE' cannot be removed"),
        (Adjustment(args=("",)), "override the command with nothing"),
    ],
)
def test_what_a_runtime_would_drop_or_fail_is_refused(wrong, why):
    with pytest.raises(LocalProtocolError, match=why):
        check(wrong)


def test_the_resources_of_a_response_join_its_adjustment():
    response = CreateContainerResponse(Resources(cpus="0"), adjustment=Adjustment(mounts=(A,)))
    assert response.whole() == Adjustment(mounts=(A,), resources=Resources(cpus="0"))
    assert CreateContainerResponse(Resources(cpus="0")).whole() == Adjustment(resources=Resources(cpus="0"))
    assert CreateContainerResponse().whole() == NOTHING


def test_resources_in_two_places_are_refused():
    response = CreateContainerResponse(
        Resources(cpus="0"), adjustment=Adjustment(resources=Resources(mems="0"))
    )
    with pytest.raises(LocalProtocolError, match="set in the response and in its adjustment"):
        response.whole()
