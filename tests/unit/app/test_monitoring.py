import http.client
from threading import Thread
from types import SimpleNamespace

import pytest

from nri_plugin.app import monitoring
from nri_plugin.app.loop import Loop
from nri_plugin.app.monitoring import Monitoring, comes_round
from nri_plugin.errors import CheckpointError
from nri_plugin.state import State
from tests.agent_fakes import Bench, FakeCheckpoint
from tests.builders import node
from tests.drift_reports import drift


def test_saves_are_timed_also_when_they_fail():
    watch = Monitoring()
    store = watch.timed(FakeCheckpoint([], failures=1))
    with pytest.raises(CheckpointError):
        store.save(State(), 1)
    store.save(State(), 1)
    assert watch.registry.get_sample_value("nri_pin_checkpoint_duration_seconds_count") == 2
    assert store.close(1)


def test_the_pages_tell_of_the_handler_and_the_runtime():
    loop, link, watch = Loop(), SimpleNamespace(is_synchronized=False), Monitoring()
    handler = Bench(node()).handler
    server = watch.serve(("127.0.0.1", 0), handler, link, loop)  # type: ignore[arg-type]
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
        assert "kubelet_cpu_manager_shared_pool_size_millicores 14000.0\n" in text
    finally:
        client.close()
        server.close()
        loop.post(lambda: loop.stop(0))
        turning.join()
        loop.close()


def test_what_is_looked_after_and_fought_over_is_shown():
    watch = Monitoring()
    watch.follow(SimpleNamespace(watches=3, fights=1, waiting=2))  # type: ignore[arg-type]
    watch.drifted(drift())
    read = watch.registry.get_sample_value
    assert read("nri_pin_cgroup_watches") == 3
    assert read("nri_pin_drift_fights") == 1
    assert read("nri_pin_drift_waiting") == 2
    assert read("nri_pin_drifts_total", {"cause": "all-cpus"}) == 1


def test_what_is_kept_beside_cpusets_is_shown():
    watch = Monitoring()
    watch.follow_kernel_side(SimpleNamespace(lifted=4, partitions=2, refused=1))  # type: ignore[arg-type]
    read = watch.registry.get_sample_value
    assert read("nri_pin_cpu_quotas_lifted") == 4
    assert read("nri_pin_partitions") == 2
    assert read("nri_pin_partitions_refused") == 1


def test_a_loop_that_does_not_come_round_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitoring, "ALIVE_WITHIN_S", 0.01)
    loop = Loop()
    assert not comes_round(loop)
    loop.run_once()
    loop.close()


def test_how_containers_run_is_shown_only_by_who_observes():
    watch = Monitoring()
    name, labels = "nri_pin_observed_containers", {"would": "exclusive", "runs": "elsewhere"}
    assert watch.registry.get_sample_value(name, labels) is None
    watch.follow_observed(SimpleNamespace(count=lambda kind: 2 if kind == ("exclusive", "elsewhere") else 3))  # type: ignore[arg-type]
    assert watch.registry.get_sample_value(name, labels) == 2
