import http.client
import logging
from threading import Thread
from types import SimpleNamespace

import pytest

from nri_plugin.agent.observing.metrics import Metrics
from nri_plugin.agent.serving import link as module
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver
from nri_plugin.agent.serving.link import comes_round, probe_pages
from nri_plugin.model.records import Allocation
from nri_plugin.model.state import State
from nri_plugin.process.http_server import ListenAddress, Routes, Server
from nri_plugin.process.loop import Loop
from tests.agent_fakes import Bench, FakeCheckpoint
from tests.builders import cpus, node
from tests.drift_reports import drift

LOG = logging.getLogger("test-monitoring")


def test_saves_are_timed_also_when_they_fail():
    watch = Metrics()
    saver = CheckpointSaver(FakeCheckpoint([], failures=1), State(), LOG, took=watch.saved)
    state = State(allocations={"p/c": Allocation(cpus("2"))})
    assert saver.save(state, 1) is not None
    assert saver.save(state, 1) is None
    assert watch.registry.get_sample_value("nri_pin_checkpoint_duration_seconds_count") == 2


def test_the_pages_tell_of_the_handler_and_the_runtime():
    loop, watch, handler = Loop(), Metrics(), Bench(node()).handler
    link = SimpleNamespace(is_synchronized=False, waits_for="", handler=handler, lost=3)
    watch.follow_state(handler, link)  # type: ignore[arg-type]
    pages = {"/metrics": watch.page(), **probe_pages(loop, link)}  # type: ignore[arg-type]
    server = Server(ListenAddress("metricsBindAddress", ("127.0.0.1", 0), "metrics"), Routes(pages), LOG)
    turning = Thread(target=loop.run)
    turning.start()
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

    def ask(path: str) -> tuple[int, str]:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()

    try:
        assert ask("/healthz") == (200, "alive ok\n")
        assert ask("/readyz") == (503, "not connected to the container runtime\n")
        assert "nri_pin_connected 0.0\n" in ask("/metrics")[1]
        link.is_synchronized = True
        assert ask("/readyz") == (200, "ready ok\n")
        status, text = ask("/metrics")
        assert status == 200
        assert "nri_pin_connected 1.0\n" in text
        assert "nri_pin_connections_lost_total 3.0\n" in text
        assert "kubelet_cpu_manager_shared_pool_size_millicores 14000.0\n" in text
    finally:
        client.close()
        server.close()
        loop.post(lambda: loop.stop(0))
        turning.join()
        loop.close()


def test_what_is_looked_after_and_fought_over_is_shown():
    watch = Metrics()
    watch.follow(SimpleNamespace(watches=3, fights=1, waiting=2), SimpleNamespace(names=("a", "b")))  # type: ignore[arg-type]
    watch.drifted(drift())
    read = watch.registry.get_sample_value
    assert read("nri_pin_cgroup_watches") == 3
    assert read("nri_pin_drift_fights") == 1
    assert read("nri_pin_drift_waiting") == 2
    assert read("nri_pin_drifts_total", {"cause": "all-cpus"}) == 1


def test_what_is_kept_beside_cpusets_is_shown():
    watch = Metrics()
    drift_watch = SimpleNamespace(watches=3, fights=0, waiting=0)
    reconciler = SimpleNamespace(watches=4, lifted=4, partitions=2, refused=1)
    watch.follow(drift_watch, SimpleNamespace(names=()), reconciler)  # type: ignore[arg-type]
    watch.count_quota("watch")
    read = watch.registry.get_sample_value
    assert read("nri_pin_cpu_quotas_lifted") == 4
    assert read("nri_pin_partitions") == 2
    assert read("nri_pin_partitions_refused") == 1
    assert read("nri_pin_cgroup_watches") == 7
    assert read("nri_pin_cpu_quotas_written_back_total", {"noticed_by": "watch"}) == 1
    assert read("nri_pin_cpu_quotas_written_back_total", {"noticed_by": "sweep"}) == 0


def test_a_loop_that_does_not_come_round_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ALIVE_WITHIN_S", 0.01)
    loop = Loop()
    assert not comes_round(loop)
    loop.run_once()
    loop.close()


def test_how_containers_run_is_shown_only_by_who_observes():
    watch = Metrics()
    name, labels = "nri_pin_observed_containers", {"would": "exclusive", "runs": "elsewhere"}
    assert watch.registry.get_sample_value(name, labels) is None
    watch.follow_observed(SimpleNamespace(count=lambda kind: 2 if kind == ("exclusive", "elsewhere") else 3))  # type: ignore[arg-type]
    assert watch.registry.get_sample_value(name, labels) == 2


def test_probes_tell_of_a_checkpoint_that_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Bench(node()).handler
    pages = probe_pages(SimpleNamespace(), SimpleNamespace(is_synchronized=True, handler=handler))  # type: ignore[arg-type]
    monkeypatch.setattr(module, "comes_round", lambda _loop: True)
    assert (pages["/healthz"]().status, pages["/readyz"]().status) == (200, 200)
    handler.checkpoint.doubt("/run/x: is mounted read-only")
    assert pages["/healthz"]().status == 200
    page = pages["/readyz"]()
    assert (page.status, page.body) == (
        503,
        b"the checkpoint cannot be saved: /run/x: is mounted read-only\n",
    )
    monkeypatch.setattr(
        "nri_plugin.agent.serving.checkpoint_saver.removed_mount", lambda _path: "was removed"
    )
    page = pages["/healthz"]()
    assert (page.status, page.body) == (503, b"/run/x: is mounted read-only\n")


def test_an_agent_that_waits_for_another_is_alive_and_says_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "comes_round", lambda _loop: True)
    link = SimpleNamespace(
        is_synchronized=False, waits_for="waiting: another agent (process 7)", handler=None
    )
    pages = probe_pages(SimpleNamespace(), link)  # type: ignore[arg-type]
    assert pages["/healthz"]().status == 200
    assert pages["/readyz"]().body == b"waiting: another agent (process 7)\n"


def test_allocations_that_only_the_memory_holds_are_counted() -> None:
    bench, watch = Bench(node()), Metrics()
    watch.follow_state(bench.handler, SimpleNamespace(is_synchronized=True, lost=0))  # type: ignore[arg-type]
    assert watch.registry.get_sample_value("nri_pin_unsaved_allocations") == 0
    assert watch.registry.get_sample_value("nri_pin_checkpoint_trouble") == 0
    bench.handler.checkpoint.doubt("/run/x: is full")
    bench.handler.state = State(allocations={"p/c": Allocation(cpus("2-3"))})
    assert watch.registry.get_sample_value("nri_pin_unsaved_allocations") == 1
    assert watch.registry.get_sample_value("nri_pin_checkpoint_trouble") == 1


def test_incomplete_pods_are_counted() -> None:
    watch, found = Metrics(), [1, 2]
    runtime = SimpleNamespace(is_synchronized=True, lost=0)
    watch.follow_state(Bench(node()).handler, runtime, lambda: len(found))  # type: ignore[arg-type]
    assert watch.registry.get_sample_value("nri_pin_incomplete_pods") == 2
    found.clear()
    assert watch.registry.get_sample_value("nri_pin_incomplete_pods") == 0
