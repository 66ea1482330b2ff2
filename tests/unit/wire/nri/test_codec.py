"""The table of methods: every request is read, every answer is written or refused."""

import pytest

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import codec, events
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.messages import (
    Container,
    ContainerUpdate,
    Pod,
    Resources,
)

POD, CONTAINER = Pod("p"), Container("c")
BOTH = pb.CreateContainerRequest(
    pod=pb.PodSandbox(id="p"), container=pb.Container(id="c")
).SerializeToString()

OF_POD = [
    events.RunPodSandbox, events.PostUpdatePodSandbox, events.StopPodSandbox, events.RemovePodSandbox,
]  # fmt: skip
OF_CONTAINER = [
    events.CreateContainer, events.PostCreateContainer, events.StartContainer, events.PostStartContainer,
    events.PostUpdateContainer, events.StopContainer, events.RemoveContainer,
]  # fmt: skip
STATE_CHANGES = {
    pb.RUN_POD_SANDBOX: events.RunPodSandbox(POD),
    pb.STOP_POD_SANDBOX: events.StopPodSandbox(POD),
    pb.REMOVE_POD_SANDBOX: events.RemovePodSandbox(POD),
    pb.POST_UPDATE_POD_SANDBOX: events.PostUpdatePodSandbox(POD),
    pb.POST_CREATE_CONTAINER: events.PostCreateContainer(POD, CONTAINER),
    pb.START_CONTAINER: events.StartContainer(POD, CONTAINER),
    pb.POST_START_CONTAINER: events.PostStartContainer(POD, CONTAINER),
    pb.POST_UPDATE_CONTAINER: events.PostUpdateContainer(POD, CONTAINER),
    pb.REMOVE_CONTAINER: events.RemoveContainer(POD, CONTAINER),
}


def test_every_method_of_the_service_is_read():
    methods = pb.DESCRIPTOR.services_by_name["Plugin"].methods_by_name
    for name in set(methods) - {"ValidateContainerAdjustment"}:
        assert codec.decode_request(name, b"") is not None, name


@pytest.mark.parametrize("kind", OF_POD)
def test_requests_of_a_pod(kind):
    assert codec.decode_request(kind.__name__, BOTH) == kind(POD)


@pytest.mark.parametrize("kind", OF_CONTAINER)
def test_requests_of_a_container(kind):
    assert codec.decode_request(kind.__name__, BOTH) == kind(POD, CONTAINER)


@pytest.mark.parametrize("kind", [*OF_POD, *OF_CONTAINER])
def test_the_message_used_to_read_is_the_methods_own_on_the_wire(kind):
    own = getattr(pb, f"{kind.__name__}Request").DESCRIPTOR
    assert own.fields_by_name["pod"].number == 1
    if kind in OF_CONTAINER:
        assert own.fields_by_name["container"].number == 2


@pytest.mark.parametrize(("number", "event"), STATE_CHANGES.items())
def test_state_change_gives_the_same_event_as_its_own_method(number, event):
    message = pb.StateChangeEvent(event=number, pod=pb.PodSandbox(id="p"), container=pb.Container(id="c"))
    assert codec.decode_request("StateChange", message.SerializeToString()) == event
    assert codec.decode_request(type(event).__name__, BOTH) == event


@pytest.mark.parametrize("number", [0, pb.CREATE_CONTAINER, 15, 99])
def test_a_state_change_nobody_sends_is_unknown(number):
    payload = b"\x08" + bytes([number])
    assert codec.decode_request("StateChange", payload) == codec.UnknownEvent(number)


def test_configure():
    message = pb.ConfigureRequest(
        config="x: 1", runtime_name="containerd", runtime_version="v2", registration_timeout=5000, request_timeout=2000,
        NRI_version="v0.12.2",
    )  # fmt: skip
    assert codec.decode_request("Configure", message.SerializeToString()) == events.Configure(
        "x: 1", "containerd", "v2", 5000, 2000, "v0.12.2"
    )


def test_update_container_carries_the_requested_resources():
    message = pb.UpdateContainerRequest(pod=pb.PodSandbox(id="p"), container=pb.Container(id="c"))
    message.linux_resources.cpu.shares.value = 0
    assert codec.decode_request("UpdateContainer", message.SerializeToString()) == events.UpdateContainer(
        POD, CONTAINER, Resources(cpu_shares=0)
    )


def test_update_pod_sandbox_tells_absent_from_empty():
    message = pb.UpdatePodSandboxRequest(pod=pb.PodSandbox(id="p"), linux_resources=pb.LinuxResources())
    assert codec.decode_request("UpdatePodSandbox", message.SerializeToString()) == events.UpdatePodSandbox(
        POD, None, Resources()
    )


@pytest.mark.parametrize("method", ["", "Nothing", "createContainer", "CreateContainer "])
def test_an_unknown_method_is_none(method):
    assert codec.decode_request(method, b"") is None


@pytest.mark.parametrize("method", ["Configure", "Synchronize", "CreateContainer", "StateChange"])
@pytest.mark.parametrize("payload", [b"\xff", b"\x0a\x05abc", b"\x12\x03\xff\xff\xff"])
def test_garbage_is_refused(method, payload):
    with pytest.raises(
        RemoteProtocolError, match=f"{method} request of {len(payload)} bytes cannot be decoded"
    ):
        codec.decode_request(method, payload)


def created(response):
    return pb.CreateContainerResponse.FromString(
        codec.encode_response(events.CreateContainer(POD, CONTAINER), response)
    )


def test_the_adjustment_of_a_new_container():
    message = created(
        events.CreateContainerResponse(
            Resources(cpus="0-3", mems="0"),
            (ContainerUpdate("d", Resources(cpus="4")),),
            {"A": "1"},
        )
    )
    assert message.adjust.linux.resources.cpu == pb.LinuxCPU(cpus="0-3", mems="0")
    assert [(entry.key, entry.value) for entry in message.adjust.env] == [("A", "1")]
    assert [update.container_id for update in message.update] == ["d"]


def test_nothing_to_change_is_an_empty_message():
    assert created(events.CreateContainerResponse()) == pb.CreateContainerResponse()
    assert created(events.EmptyResponse()) == pb.CreateContainerResponse()


def test_updates_travel_in_all_three_answers_that_may_have_them():
    updates = (ContainerUpdate("d", Resources(cpus="4"), ignore_failure=True),)
    for event, response, message in [
        (
            events.UpdateContainer(POD, CONTAINER, Resources()),
            events.UpdateContainerResponse(updates),
            pb.UpdateContainerResponse,
        ),
        (
            events.StopContainer(POD, CONTAINER),
            events.StopContainerResponse(updates),
            pb.StopContainerResponse,
        ),
        (events.Synchronize(), events.SynchronizeResponse(updates), pb.SynchronizeResponse),
    ]:
        read = message.FromString(codec.encode_response(event, response))
        assert [update.container_id for update in read.update] == ["d"]
        assert read.update[0].ignore_failure


def test_a_container_may_update_itself_when_it_is_updated():
    event = events.UpdateContainer(POD, CONTAINER, Resources())
    codec.encode_response(event, events.UpdateContainerResponse((ContainerUpdate("c", Resources(cpus="1")),)))


@pytest.mark.parametrize(
    ("event", "response"),
    [
        (events.StartContainer(POD, CONTAINER), events.CreateContainerResponse()),
        (events.CreateContainer(POD, CONTAINER), events.SynchronizeResponse()),
        (events.Configure(), events.EmptyResponse()),
    ],
)
def test_an_answer_of_another_kind_is_refused(event, response):
    with pytest.raises(LocalProtocolError, match="cannot be answered with"):
        codec.encode_response(event, response)


def test_an_empty_subscription_is_refused():
    with pytest.raises(LocalProtocolError, match="would mean every event"):
        codec.encode_response(events.Configure(), events.ConfigureResponse())


@pytest.mark.parametrize(
    "resources", [Resources(cpus="\udcff"), Resources(cpu_shares=-1), Resources(cpu_shares=1 << 64)]
)
def test_a_value_that_does_not_fit_its_field_is_refused(resources):
    with pytest.raises(LocalProtocolError, match="answer to CreateContainer cannot be encoded"):
        created(events.CreateContainerResponse(resources))


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (pb.CreateContainerResponse, {"adjust", "update", "evict"}),
        (pb.UpdateContainerResponse, {"update", "evict"}),
        (pb.StopContainerResponse, {"update"}),
        (pb.SynchronizeResponse, {"update", "more"}),
        (pb.ConfigureResponse, {"events"}),
        (pb.ContainerUpdate, {"container_id", "linux", "ignore_failure"}),
        (pb.LinuxContainerUpdate, {"resources"}),
        (pb.UpdatePodSandboxRequest, {"pod", "overhead_linux_resources", "linux_resources"}),
        (pb.UpdateContainerRequest, {"pod", "container", "linux_resources"}),
    ],
    ids=lambda value: getattr(getattr(value, "DESCRIPTOR", None), "name", ""),
)
def test_nothing_but_evictions_which_no_runtime_heeds_is_left_out(message, fields):
    assert set(message.DESCRIPTOR.fields_by_name) == fields
