"""Values become messages: only what is set, and nothing that breaks a runtime."""

import pytest

from nri_plugin.model.errors import LocalProtocolError
from nri_plugin.wire.nri import encode
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.messages import ContainerUpdate, Resources


def update(container_id="c1", *, ignore_failure=False, **resources):
    return ContainerUpdate(container_id, Resources(**resources), ignore_failure)


def test_unset_resources_are_no_bytes():
    assert encode.resource_fields(Resources()) == {}


def test_zero_is_sent_and_none_is_not():
    message = pb.LinuxResources(**encode.resource_fields(Resources(cpu_shares=0, memory_limit_bytes=0)))
    assert message.cpu.HasField("shares")
    assert message.memory.HasField("limit")
    assert not message.cpu.HasField("quota")


def test_every_field_of_resources():
    message = pb.LinuxResources(**encode.resource_fields(Resources(1, -1, 3, "0-1", "0", 4, (("1GB", 5),))))
    assert message == pb.LinuxResources(
        cpu=pb.LinuxCPU(
            shares=pb.OptionalUInt64(value=1), quota=pb.OptionalInt64(value=-1), period=pb.OptionalUInt64(value=3),
            cpus="0-1", mems="0",
        ),
        memory=pb.LinuxMemory(limit=pb.OptionalInt64(value=4)),
        hugepage_limits=[pb.HugepageLimit(page_size="1GB", limit=5)],
    )  # fmt: skip


def test_an_update_always_has_an_id_resources_and_memory():
    (message,) = encode.updates([update(cpus="0")])
    assert message.container_id == "c1"
    assert message.linux.resources.HasField("memory")
    assert message.linux.resources.memory.SerializeToString() == b""
    (empty,) = encode.updates([update()])
    assert empty.linux.HasField("resources")


def test_updates_of_one_container_become_one():
    messages = encode.updates([update(cpus="0"), update("c2", cpus="1"), update(mems="0"), update(cpus="0")])
    assert [message.container_id for message in messages] == ["c1", "c2"]
    assert (messages[0].linux.resources.cpu.cpus, messages[0].linux.resources.cpu.mems) == ("0", "0")


def test_updates_of_one_container_that_disagree_are_refused():
    with pytest.raises(LocalProtocolError, match="two updates of container c1 set cpus to '0' and to '1'"):
        encode.updates([update(cpus="0"), update(cpus="1")])


@pytest.mark.parametrize(
    ("one", "other", "both"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_merged_update_may_fail_only_if_both_may(one, other, both):
    (message,) = encode.updates(
        [update(cpus="0", ignore_failure=one), update(mems="0", ignore_failure=other)]
    )
    assert message.ignore_failure is both


def test_an_update_without_container_is_refused():
    with pytest.raises(LocalProtocolError, match="names no container"):
        encode.updates([update("")])


def test_an_update_of_the_container_being_created_is_refused():
    with pytest.raises(LocalProtocolError, match="container c1 is being created"):
        encode.updates([update("c2", cpus="0"), update("c1", cpus="0")], created_id="c1")
