"""An agent that the runtime started, as a real process: how it serves, ends, comes back, and makes room for others."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.host.runtime_lock import MARK_NAME
from nri_plugin.wire.nri import events as nri
from tests.agent_process import SUPERVISOR, Peer, Site, until
from tests.builders import container, pod
from tests.lab.runtime.profile import ConnectionLost, PluginRegistered

POD = pod("exclusive", cpu=2)
CREATE = nri.CreateContainer(POD, container(POD, cpu=2))
RUNNING = ((POD,), (container(POD, cpu=2, cpus="2-3"),))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def supervisors(site: Site) -> list[int]:
    return [number for number, name in site.relatives().items() if name == SUPERVISOR]


def agents(site: Site) -> list[int]:
    return [number for number, name in site.relatives().items() if name != SUPERVISOR]


def placed(peer: Peer) -> str:
    return peer.ask(CREATE).response.resources.cpus


def synchronized(peer: Peer) -> Peer:
    peer.listed = RUNNING
    peer.synchronize()
    return peer


def test_it_serves_with_an_empty_environment_and_logs_where_it_can(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    assert placed(peer) == "2-3"
    assert "exclusive" in site.checkpoint()
    peer.sock.close()
    assert process.wait() == 1


def test_a_name_nobody_may_have_still_serves(site: Site):
    _, peer = site.launch(name="we ird")
    peer.synchronize()
    assert placed(peer) == "2-3"


def test_a_wrong_drop_in_refuses_to_be_configured_and_nothing_comes_back(site: Site):
    process, peer = site.launch(config="reservedSystemCPU: 0\n")
    lost = peer.wait_for(lambda event: isinstance(event, ConnectionLost))
    assert "NRI drop-in:1:1" in lost.reason
    assert process.wait() == 2
    until(lambda: not site.relatives(), "the supervisor has ended, too")
    assert not (site.folder / "state").exists()


def test_a_killed_one_comes_back_with_its_name_index_and_drop_in_and_what_it_promised(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    assert placed(peer) == "2-3"
    process.end()
    returned = synchronized(site.accept())
    registered = next(event for event in returned.events if isinstance(event, PluginRegistered))
    assert (registered.name, registered.index) == ("pin", "10")
    other = pod("other", cpu=2)
    assert returned.ask(nri.CreateContainer(other, container(other, cpu=2))).response.resources.cpus == "4-5"


def test_what_came_back_comes_back_again(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    process.end()
    site.accept().synchronize()
    (returned,) = agents(site)
    os.kill(returned, signal.SIGKILL)
    site.accept().synchronize()
    assert len(supervisors(site)) == 1


def test_one_whose_connection_the_runtime_closed_comes_back(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    peer.sock.close()
    assert process.wait() == 1
    site.accept().synchronize()


def test_one_that_is_told_to_end_does_not_come_back(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    until(lambda: not site.relatives(), "the supervisor has ended, too")


def test_one_whose_plugin_was_uninstalled_does_not_come_back(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    (site.folder / "10-pin").unlink()
    process.end()
    until(lambda: not site.relatives(), "the supervisor has ended, too")


def test_one_that_came_back_ends_when_its_plugin_is_uninstalled(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    process.end()
    site.accept().synchronize()
    (site.folder / "10-pin").unlink()
    until(lambda: not site.relatives(), "the agent and its supervisor have ended")


def test_one_that_came_back_makes_room_for_a_newer_one_and_leaves_no_supervisor(site: Site):
    process, peer = site.launch()
    peer.synchronize()
    assert placed(peer) == "2-3"
    process.end()
    synchronized(site.accept())
    newer, peer = site.launch()
    synchronized(peer)
    until(lambda: len(site.relatives()) == 2, "the former agent and its supervisor have ended")
    assert newer.pid in agents(site)


def test_one_killed_while_a_newer_one_starts_leaves_no_supervisor(site: Site):
    """A restarted runtime: the former life's agent ends, and comes back at the very time of the next one's start."""
    former, peer = site.launch()
    peer.synchronize()
    for _ in range(3):
        former.end()
        former, peer = site.launch()
        synchronized(peer)
        until(lambda: len(site.relatives()) == 2, "the former agent and its supervisor have ended")


def test_an_ordinary_agent_yields_to_a_launched_one_and_waits_for_its_turn(site: Site):
    ordinary = site.start()
    peer = site.accept()
    peer.synchronize()
    assert placed(peer) == "2-3"
    launched, newer = site.launch()
    synchronized(newer)
    ordinary.wait_for_line("this agent no longer serves the runtime")
    line = ordinary.wait_for_line("waiting for the right to serve the runtime")
    assert "a newer agent, started by the runtime, takes over" in line
    other = pod("other", cpu=2)
    assert newer.ask(nri.CreateContainer(other, container(other, cpu=2))).response.resources.cpus == "4-5"
    for number in supervisors(site):
        os.kill(number, signal.SIGKILL)
    launched.end()
    synchronized(site.accept())


def test_a_stuck_ordinary_agent_is_overtaken_without_its_help(site: Site):
    ordinary = site.start()
    site.accept().synchronize()
    ordinary.signal(signal.SIGSTOP)
    _, peer = site.launch(yield_s=0.0)
    peer.synchronize()
    assert placed(peer) == "2-3"
    assert ordinary.wait() == -signal.SIGKILL


def test_the_mark_of_a_launched_agent_counts_only_while_that_agent_lives(site: Site):
    launched, peer = site.launch()
    peer.synchronize()
    for number in supervisors(site):
        os.kill(number, signal.SIGKILL)
    launched.end()
    assert (site.folder / MARK_NAME).exists()
    site.start()
    site.accept().synchronize()
