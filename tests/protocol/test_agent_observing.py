"""An agent that observes: on the wire a plugin that does nothing, in the cgroups nobody at all."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_plugin.agent.agent import SUBSCRIPTION
from nri_plugin.agent.observing.status_client import read_status
from nri_plugin.agent.serving.handler import DEFAULT_SAVE_S, Handler
from nri_plugin.agent.serving.observe_only import CpusetReader, ObservingHandler
from nri_plugin.cli.state.state import command as state
from nri_plugin.core.engine import decide
from nri_plugin.recording.reader import read
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import NRIEvent, NRIResponse, Request
from nri_plugin.wire.nri.messages import ContainerState
from nri_plugin.wire.nri.session import PluginSession
from tests.agent_fakes import Bench
from tests.agent_process import Peer, Process, Site, config_text
from tests.builders import container, cpu_resources, machine, node, pod
from tests.lab.runtime.profile import PROFILES, RuntimeProfile
from tests.lab.runtime.session import RuntimeSession

POD, SHARED, HUGE = pod("own", cpu=2), pod("shared", "Burstable", cpu=0.5), pod("huge", cpu=99)
OWN = container(POD, cpu=2)
OTHER = container(SHARED, cpu=0.5)
TOO_MUCH = container(HUGE, cpu=99)
DAY: tuple[NRIEvent, ...] = (
    nri.RunPodSandbox(SHARED),
    nri.CreateContainer(SHARED, OTHER),
    nri.PostCreateContainer(SHARED, OTHER),
    nri.StartContainer(SHARED, OTHER),
    nri.PostStartContainer(SHARED, OTHER),
    nri.RunPodSandbox(POD),
    nri.CreateContainer(POD, OWN),
    nri.PostCreateContainer(POD, OWN),
    nri.StartContainer(POD, OWN),
    nri.PostStartContainer(POD, OWN),
    nri.UpdateContainer(POD, OWN, cpu_resources(3)),
    nri.PostUpdateContainer(POD, OWN),
    nri.UpdateContainer(POD, OWN, cpu_resources(88)),
    nri.UpdatePodSandbox(POD, resources=cpu_resources(88)),
    nri.RunPodSandbox(HUGE),
    nri.CreateContainer(HUGE, TOO_MUCH),
    nri.StartContainer(HUGE, TOO_MUCH),
    nri.StopContainer(POD, OWN),
    nri.StopPodSandbox(POD),
    nri.RemoveContainer(POD, OWN),
    nri.RemovePodSandbox(POD),
)
ASKED = tuple(event for event in DAY if not isinstance(event, nri.UpdatePodSandbox))
"""What the runtime of the process tells of; others tell all."""

DOES_NOTHING: dict[type, NRIResponse] = {
    nri.Configure: nri.ConfigureResponse(),
    nri.Synchronize: nri.SynchronizeResponse(),
    nri.CreateContainer: nri.CreateContainerResponse(),
    nri.UpdateContainer: nri.UpdateContainerResponse(),
    nri.StopContainer: nri.StopContainerResponse(),
}


def conversation(profile: RuntimeProfile, answer: Callable[[Request], NRIResponse]) -> bytes:
    """Everything a plugin sends on a day on which a container is there already."""
    runtime, plugin = RuntimeSession(profile), PluginSession("nri-pin", "90", SUBSCRIPTION)
    said = []

    def turn() -> None:
        while True:
            heard = runtime.data_to_send()
            for event in plugin.receive_data(heard, 0.0) if heard else ():
                if isinstance(event, Request):
                    plugin.respond(event.call, answer(event), 0.0)
            spoken = plugin.data_to_send()
            if not heard and not spoken:
                return
            if spoken:
                said.append(spoken)
                runtime.receive_data(spoken, 0.0)

    runtime.accept(0.0)
    plugin.register(0.0)
    turn()
    runtime.configure(0.0)
    turn()
    there = container(SHARED, "there", cpu=0.5, state=ContainerState.RUNNING)
    runtime.synchronize((SHARED,), (there,), 0.0)
    turn()
    for event in DAY:
        runtime.call(event, 0.0)
        turn()
    return b"".join(said)


def observing() -> tuple[ObservingHandler, Bench]:
    bench = Bench(node(machine()))
    handler = ObservingHandler(
        bench.handler.node,
        bench.handler.state,
        decide=decide,
        cpusets=CpusetReader(bench.cgroups),
        checkpoint=bench.handler.checkpoint,
        log=bench.log,
        clock=bench.clock,
    )
    return handler, bench


def answering(handler: Handler) -> Callable[[Request], NRIResponse]:
    def answer(request: Request) -> NRIResponse:
        if isinstance(request.event, nri.Configure):
            return nri.ConfigureResponse()
        given = handler.handle(request)
        assert given.refusal == ""
        assert given.checks == ()
        return given.response

    return answer


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_byte_is_that_of_a_plugin_that_does_nothing(profile: RuntimeProfile) -> None:
    handler, bench = observing()
    nothing = conversation(
        profile, lambda request: DOES_NOTHING.get(type(request.event), nri.EmptyResponse())
    )
    assert conversation(profile, answering(handler)) == nothing
    assert not [line for line in bench.journal if line.startswith(("write", "make room"))]
    assert any(fields.get("err") for _, text, fields in bench.lines.lines if text == "refused")


def test_every_decision_is_logged_with_a_mark() -> None:
    handler, bench = observing()
    handler.handle(Request(1, None, nri.CreateContainer(POD, OWN)))
    fields = bench.lines.fields("decided")
    assert (fields["observed"], fields["cpus"]) == ("yes", "2-3")


def test_what_it_would_have_refused_goes_on_without_a_place() -> None:
    handler, bench = observing()
    handler.handle(Request(1, None, nri.CreateContainer(HUGE, TOO_MUCH)))
    record = handler.state.containers[TOO_MUCH.id]
    assert record.unplaced.startswith("UnexpectedAdmissionError")
    assert handler.state.allocations == {}
    assert bench.checkpoint.saved == handler.state
    assert bench.checkpoint.timeouts[-1] == DEFAULT_SAVE_S


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def started(site: Site, *words: str) -> tuple[Process, Peer]:
    process = site.start(*words)
    peer = site.accept()
    peer.synchronize()
    return process, peer


def files_below(folder: Path) -> dict[str, tuple[int, str]]:
    """All files: when they were written, and what they hold."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_text()) for path in folder.rglob("*") if path.is_file()
    }


def make_cgroup(site: Site, path: str) -> None:
    folder = site.folder / "cgroup"
    for part in path.strip("/").split("/"):
        folder /= part
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.cpus.effective"):
            (folder / name).write_text("0-15\n")


def test_the_process_changes_nothing_on_the_node(site: Site) -> None:
    for one in (OWN, OTHER, TOO_MUCH):
        make_cgroup(site, one.cgroups_path)
    site.config.write_text(config_text(site.folder, poolFloor="true"))
    before = files_below(site.folder / "cgroup")
    process, peer = started(site, "--observe")
    for event in ASKED:
        answer = peer.ask(event)
        assert answer.error == ""
        assert not getattr(answer.response, "resources", None)
        assert not getattr(answer.response, "updates", ())
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert files_below(site.folder / "cgroup") == before
    assert not (site.folder / "state" / "state.json").exists()
    assert (site.folder / "state" / "observed.json").exists()
    heard = "".join(process.heard)
    assert "observing: nothing is pinned, refused or written" in heard
    assert "refused op=" in heard
    assert heard.count("observed=yes") > 10


def test_its_recording_says_so_and_decides_the_same_again(site: Site) -> None:
    process, peer = started(site, "--observe")
    for event in ASKED:
        peer.ask(event)
    process.signal(signal.SIGTERM)
    process.wait()
    recording = read(str(site.folder / "state"))
    moments = list(recording.moments())
    assert all(moment.observing for moment in moments)
    assert len(moments) == 1 + len(ASKED)
    assert "unplaced" in (site.folder / "state" / "observed.json").read_text()
    assert moments[-1].state_after.containers[TOO_MUCH.id].unplaced


def test_a_real_start_does_not_take_it_for_promises(site: Site) -> None:
    process, peer = started(site, "--observe")
    peer.ask(nri.RunPodSandbox(POD))
    peer.ask(nri.CreateContainer(POD, OWN))
    process.signal(signal.SIGTERM)
    process.wait()
    process, peer = started(site)
    assert "allocations=0" in next(
        line for line in (*process.heard, process.wait_for_line("ready")) if "ready" in line
    )


def test_the_configuration_can_say_it_and_the_status_tells_it(site: Site) -> None:
    site.config.write_text(config_text(site.folder, observe="true"))
    process, peer = started(site)
    peer.ask(nri.RunPodSandbox(POD))
    assert read_status(str(site.folder / "state" / "agent.sock")).observing
    os.kill(process.pid, signal.SIGHUP)
    process.wait_for_line("configuration reloaded")
    assert peer.ask(nri.CreateContainer(POD, OWN)).response == nri.CreateContainerResponse()
    assert not (site.folder / "state" / "state.json").exists()


def test_the_state_command_shows_it_and_says_so(site: Site) -> None:
    process, peer = started(site, "--observe")
    peer.ask(nri.RunPodSandbox(POD))
    peer.ask(nri.CreateContainer(POD, OWN))
    process.signal(signal.SIGTERM)
    process.wait()
    words = ["show", "--state-dir", str(site.folder / "state"), "--root", str(site.folder / "host")]
    text = CliRunner().invoke(state, words).output
    assert "observed     nothing of this is carried out: the agent runs with --observe" in text
    assert "observed.json" in text
    assert json.loads(CliRunner().invoke(state, [*words, "-o", "json"]).output)["observed"] is True
    process, peer = started(site)
    peer.ask(nri.RunPodSandbox(POD))
    assert "observed" not in CliRunner().invoke(state, words).output
