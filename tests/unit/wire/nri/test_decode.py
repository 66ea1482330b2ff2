"""Messages become plain values; presence survives, what we do not hold is skipped."""

from nri_plugin.wire.nri import decode
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.decode import WITH_ENVIRONMENT, WITHOUT_ENVIRONMENT
from nri_plugin.wire.nri.messages import (
    Container,
    ContainerState,
    DeviceNode,
    Pod,
    Resources,
)


def lean_pod(message):
    payload = pb.RunPodSandboxRequest(pod=message).SerializeToString()
    return WITHOUT_ENVIRONMENT.RunPodSandboxRequest.FromString(payload).pod


def lean_container(message):
    payload = pb.CreateContainerRequest(container=message).SerializeToString()
    return WITH_ENVIRONMENT.CreateContainerRequest.FromString(payload).container


def test_an_empty_message_is_all_defaults():
    assert decode.pod(lean_pod(pb.PodSandbox())) == Pod("")
    assert decode.container(lean_container(pb.Container())) == Container("")
    assert decode.resources(pb.LinuxResources()) == Resources()


def test_a_wrapper_of_zero_is_zero_and_an_absent_one_is_none():
    message = pb.LinuxResources()
    message.cpu.shares.SetInParent()
    message.cpu.quota.value = 0
    message.memory.limit.SetInParent()
    message.cpu.quota.SetInParent()
    assert decode.resources(message) == Resources(cpu_shares=0, cpu_quota_us=0, memory_limit_bytes=0)


def test_every_field_of_a_pod():
    message = pb.PodSandbox(
        id="i",
        name="n",
        uid="u",
        namespace="ns",
        labels={"l": "1"},
        annotations={"a": "2"},
        runtime_handler="h",
        pid=9,
    )
    message.linux.cgroup_parent = "/kubepods.slice"
    message.linux.cgroups_path = "/kubepods.slice/x"
    message.linux.pod_resources.cpu.shares.value = 4
    message.linux.pod_overhead.memory.limit.value = 5
    message.annotations["nri-pin/a"] = "3"
    assert decode.pod(lean_pod(message), "ns".__eq__) == Pod(
        "i", "n", "u", "ns", {}, {"nri-pin/a": "3"}, "h", "/kubepods.slice", "/kubepods.slice/x",
        Resources(cpu_shares=4), Resources(memory_limit_bytes=5), 9,
    )  # fmt: skip


def test_every_field_of_a_container():
    message = pb.Container(
        id="i", pod_sandbox_id="p", name="n", state=pb.CONTAINER_RUNNING, labels={"l": "1"}, annotations={"a": "2"},
        env=["A=1", "PCIDEVICE_X=a", "PCIDEVICE_X=b"], pid=7, CDI_devices=[pb.CDIDevice(name="vendor.com/gpu=0")],
    )  # fmt: skip
    message.linux.devices.add(path="/dev/x", type="c", major=195, minor=255)
    message.linux.net_devices["ens2f1"].name, message.linux.net_devices["ens2f0"].name = "net1", "net0"
    message.linux.oom_score_adj.value = -997
    message.linux.cgroups_path = "/leaf"
    cpu = message.linux.resources.cpu
    cpu.quota.value, cpu.period.value, cpu.cpus, cpu.mems = -1, 100_000, "0-3", "0,1"
    message.linux.resources.hugepage_limits.add(page_size="2MB", limit=1 << 63)
    assert decode.container(lean_container(message)) == Container(
        id="i", pod_id="p", name="n", state=ContainerState.RUNNING, env=("PCIDEVICE_X=a", "PCIDEVICE_X=b"), devices=(DeviceNode("/dev/x", "c", 195, 255),), cdi_devices=("vendor.com/gpu=0",),
        net_devices=("ens2f0", "ens2f1"),
        resources=Resources(None, -1, 100_000, "0-3", "0,1", None, (("2MB", 1 << 63),)),
        oom_score_adj=-997, cgroups_path="/leaf", pid=7,
    )  # fmt: skip


def test_a_state_nobody_knows_is_unknown():
    message = pb.Container.FromString(b"\x20\x63")  # field 4, value 99
    assert decode.container(lean_container(message)).state is ContainerState.UNKNOWN


def test_fields_of_the_future_are_skipped():
    future = b"".join([b"\xc0\x3e\x01", b"\xc2\x3e\x02hi", b"\xc5\x3e\0\0\0\0", b"\xc1\x3e" + b"\0" * 8])
    message = pb.Container.FromString(pb.Container(id="i").SerializeToString() + future)
    assert decode.container(lean_container(message)) == Container("i")


def test_a_message_that_comes_in_pieces_is_merged():
    one, two = pb.Container(id="old"), pb.Container(id="new", name="n")
    one.linux.resources.cpu.cpus = "0"
    two.linux.resources.cpu.mems = "1"
    message = pb.Container.FromString(one.SerializeToString() + two.SerializeToString())
    assert decode.container(lean_container(message)) == Container(
        "new", name="n", resources=Resources(cpus="0", mems="1")
    )
