"""What real runtime libraries sent, byte for byte, in front of our session.

`tests/vectors/nri` holds the trunks that the NRI libraries of five releases wrote to a plugin of ours; its
README says how they were recorded.
"""

import gzip
from pathlib import Path

import pytest

from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.events import ConfigureResponse, EmptyResponse, EventMask, Registered, Request
from nri_plugin.wire.nri.messages import DeviceNode, Resources
from nri_plugin.wire.nri.mux import MuxReader
from nri_plugin.wire.nri.releases import legal_mask
from nri_plugin.wire.nri.session import PluginSession
from nri_plugin.wire.ttrpc.frame import FrameReader

TRUNKS = {
    path.stem.removeprefix("trunk-"): path
    for path in (Path(__file__).parents[1] / "vectors/nri").glob("trunk-*.gz")
}
every_recording = pytest.mark.parametrize("release", sorted(TRUNKS))


def trunk(release):
    return gzip.decompress(TRUNKS[release].read_bytes())


def replay(release, step):
    """Feeds a recording and answers at once, as the plugin did; returns the events."""
    session, seen = PluginSession("nri-pin", "10", EventMask(0x1FFF)), []
    session.register(0.0)
    data = trunk(release)
    for start in range(0, len(data), step):
        for event in session.receive_data(data[start : start + step], 0.0):
            seen.append(event)
            if isinstance(event, Request):
                is_configure = isinstance(event.event, events.Configure)
                session.respond(event.call, ConfigureResponse() if is_configure else EmptyResponse(), 0.0)
    assert session.receive_data(b"", 0.0) == []
    return seen


def test_five_releases_are_recorded():
    assert sorted(TRUNKS) == ["0.10.0", "0.11.0", "0.12.2", "0.6.1", "0.8.0"]


@every_recording
@pytest.mark.parametrize("step", [1, 7])
def test_every_request_is_understood(release, step):
    seen = replay(release, step)
    assert Registered() in seen
    kinds = {type(event.event).__name__ for event in seen if isinstance(event, Request)}
    expected = {
        "Configure", "Synchronize", "CreateContainer", "RunPodSandbox", "PostCreateContainer", "StartContainer",
        "PostStartContainer", "PostUpdateContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox",
        "UpdateContainer", "StopContainer",
    }  # fmt: skip
    if release == "0.12.2":
        expected |= {"UpdatePodSandbox", "PostUpdatePodSandbox"}
    assert kinds == expected


@every_recording
def test_the_created_container_is_read_in_full(release):
    created = [
        e.event
        for e in replay(release, 1)
        if isinstance(e, Request) and isinstance(e.event, events.CreateContainer)
    ]
    pod, container = created[0].pod, created[0].container
    assert (pod.uid, pod.pid, pod.cgroup_parent) == ("u", 77, "/kubepods.slice/kubepods-podu.slice")
    assert pod.resources == Resources(cpu_shares=2048, cpu_quota_us=0, memory_limit_bytes=0)
    assert container.resources == Resources(2048, -1, 100_000, "", "", 1 << 30, (("2MB", 0),))
    assert container.devices == (DeviceNode("/dev/nvidia0", "c", 195, 0),)
    assert container.oom_score_adj == -997
    assert container.labels == {}, "nobody reads them"


@every_recording
def test_the_subscription_fits_the_release(release):
    configure = next(e.event for e in replay(release, 1) if isinstance(e, Request))
    assert bool(configure.nri_version) is (release == "0.12.2")
    assert bool(configure.request_timeout_ms) is (release != "0.6.1")
    assert legal_mask(configure) == EventMask(0x07FF if release in ("0.6.1", "0.8.0") else 0x1FFF)


@every_recording
def test_go_writes_frames_as_our_notes_say(release):
    """At most 4096 bytes in the first mux frame, requests with flags 0, odd rising stream ids."""
    frames = {1: [], 2: []}
    readers = {1: FrameReader(), 2: FrameReader()}
    for connection_id, part in MuxReader().feed(trunk(release)):
        assert len(part) <= 4096
        frames[connection_id] += readers[connection_id].feed(part)
    streams = [frame.stream_id for frame in frames[1]]
    assert streams == sorted(set(streams))
    assert all(stream % 2 for stream in streams)
    assert {(frame.type, frame.flags) for frame in frames[1]} == {(1, 0)}
    assert [(frame.type, frame.flags, frame.data) for frame in frames[2]] == [(2, 0, b"")]
