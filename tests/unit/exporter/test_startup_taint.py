"""The startup taint: on the Node exactly while the agent is away, and never at the cost of another change."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.exporter.exporter import Exporter, ExportOptions
from nri_plugin.exporter.startup_taint import AWAY_S, TAINT, StartupTaint
from nri_plugin.kube.api_client import NODES, KubeClient
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import Configure
from tests.builders import machine
from tests.kube_api_server import KubeAPI

PATIENCE_S = 30.0
LOG = logging.getLogger("startup taint under test")
OTHER = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def taint(client: KubeClient, clock: Clock) -> StartupTaint:
    return StartupTaint(client, "n1", LOG, clock)


def with_taints(api: KubeAPI, *taints: dict[str, str]) -> dict[str, Any]:
    spec = {"taints": list(taints)} if taints else {}
    return api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": spec})


def taints_of(api: KubeAPI) -> list[dict[str, str]]:
    found: list[dict[str, str]] = api.store.objects["", "nodes", "", "n1"].get("spec", {}).get("taints", [])
    return found


def patches(api: KubeAPI) -> int:
    return sum(one.method == "PATCH" for one in api.asked)


def test_a_ready_agent_removes_the_taint_and_no_other_one(taint: StartupTaint, api: KubeAPI) -> None:
    taint.listed([with_taints(api, TAINT, OTHER)])
    taint.hear(is_ready=True)
    assert taint.due_s() == 0.0
    taint.step()
    assert taints_of(api) == [OTHER]
    taint.step()
    assert (taint.due_s(), patches(api)) == (None, 1)


def test_a_node_without_the_taint_is_not_written(taint: StartupTaint, api: KubeAPI) -> None:
    taint.listed([with_taints(api)])
    taint.hear(is_ready=True)
    taint.step()
    assert patches(api) == 0


def test_an_agent_that_stays_away_gets_its_taint_back(
    taint: StartupTaint, api: KubeAPI, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    taint.listed([with_taints(api, OTHER)])
    taint.hear(is_ready=True)
    clock.now += 1000
    taint.hear(is_ready=False)
    clock.now += 5
    taint.hear(is_ready=False)
    assert taint.due_s() == AWAY_S - 5
    taint.step()
    assert taints_of(api) == [OTHER]
    clock.now += AWAY_S - 5
    taint.step()
    assert taints_of(api) == [OTHER, TAINT]
    assert [record.message for record in caplog.records] == [
        "the agent is away: no new pod is scheduled to the node until it is back"
    ]


def test_a_restarted_agent_leaves_the_node_alone(taint: StartupTaint, api: KubeAPI, clock: Clock) -> None:
    taint.listed([with_taints(api)])
    for is_ready in (True, False, True):
        taint.hear(is_ready=is_ready)
        clock.now += AWAY_S - 1
        taint.step()
    assert patches(api) == 0


def test_an_agent_that_never_comes_is_waited_for_before_the_node_is_tainted(
    taint: StartupTaint, api: KubeAPI, clock: Clock
) -> None:
    taint.listed([with_taints(api)])
    assert taint.due_s() == AWAY_S
    clock.now += AWAY_S
    taint.step()
    assert taints_of(api) == [TAINT]


def test_a_change_in_between_is_kept(
    taint: StartupTaint, api: KubeAPI, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    taint.listed([with_taints(api, TAINT)])
    taint.hear(is_ready=True)
    newer = with_taints(api, TAINT, OTHER)
    taint.step()
    assert taints_of(api) == [TAINT, OTHER]
    assert caplog.records == []
    taint.changed(newer)
    clock.now += taint.due_s() or 0.0
    taint.step()
    assert taints_of(api) == [OTHER]


def test_versions_from_before_a_write_are_not_believed(taint: StartupTaint, api: KubeAPI) -> None:
    older = with_taints(api, TAINT)
    taint.listed([older])
    taint.hear(is_ready=True)
    taint.step()
    taint.changed(older)
    assert taint.due_s() is None


def test_a_version_from_after_a_write_is_believed_though_it_comes_before_the_answer(
    taint: StartupTaint, api: KubeAPI, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    taint.listed([with_taints(api, TAINT)])
    taint.hear(is_ready=True)
    write = client.merge_patch

    def answered_late(*arguments: Any) -> Any:
        stored = write(*arguments)
        taint.changed(with_taints(api, OTHER, TAINT))
        return stored

    with monkeypatch.context() as patched:
        patched.setattr(client, "merge_patch", answered_late)
        taint.step()
    assert taint.due_s() == 0.0
    taint.step()
    assert taints_of(api) == [OTHER]


def test_a_node_that_is_registered_again_with_the_taint_is_freed_again(
    taint: StartupTaint, api: KubeAPI, client: KubeClient
) -> None:
    taint.listed([with_taints(api, TAINT)])
    taint.hear(is_ready=True)
    taint.step()
    client.send("DELETE", NODES.path("n1"))
    taint.deleted({})
    taint.step()
    taint.changed(with_taints(api, TAINT))
    taint.step()
    assert taints_of(api) == []
    taint.listed([])
    assert taint.due_s() is None


@pytest.mark.parametrize(("status", "advises"), [(403, True), (500, False)])
def test_a_failure_is_said_once_and_tried_again_ever_later(
    taint: StartupTaint,
    api: KubeAPI,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    status: int,
    advises: bool,
) -> None:
    api.behaviour.fail_next += [(status, {})] * 3
    taint.listed([with_taints(api, TAINT)])
    taint.hear(is_ready=True)
    for _ in range(3):
        clock.now += taint.due_s() or 0.0
        taint.step()
    assert [record.message for record in caplog.records] == [
        "the startup taint cannot be kept, will be tried again"
    ]
    assert ("exporter.startupTaint" in str(caplog.records[0].__dict__)) is advises
    clock.now += taint.due_s() or 0.0
    taint.step()
    assert taints_of(api) == []


def test_the_follower_s_failures_are_said_too(
    taint: StartupTaint, client: KubeClient, api: KubeAPI, caplog: pytest.LogCaptureFixture
) -> None:
    api.behaviour.fail_next.append((403, {}))
    with pytest.raises(Exception, match="403") as refused:
        client.list(NODES)
    taint.failed(refused.value)  # type: ignore[arg-type]
    assert len(caplog.records) == 1


def test_the_exporter_keeps_the_taint_by_what_the_agent_says(
    api: KubeAPI, client: KubeClient, tmp_path: Path
) -> None:
    """All threads together: the watch, the status, the main loop."""
    runtimes: list[Configure] = []
    node, feed, path = Node(machine(), Options(), CPUSet.parse("0")), StatusFeed(), tmp_path / "agent.sock"
    agent = StatusSocket(
        path, lambda: (node, State()), feed, runtime=lambda: runtimes[-1] if runtimes else None
    )
    with_taints(api, TAINT)
    exporter = Exporter(ExportOptions("n1", str(path), keeps_taint=True, pause_s=0.0), client, LOG)
    thread = threading.Thread(target=exporter.run)
    thread.start()
    try:
        with api.store.changed:  # it is heard, and no runtime has asked it yet
            published = ("topology.node.k8s.io", "noderesourcetopologies", "", "n1")
            assert api.store.changed.wait_for(lambda: published in api.store.objects, PATIENCE_S)
        assert taints_of(api) == [TAINT]
        runtimes.append(Configure(runtime_name="containerd", runtime_version="2.1.9"))
        feed.wake()
        with api.store.changed:
            assert api.store.changed.wait_for(lambda: taints_of(api) == [], PATIENCE_S)
    finally:
        exporter.stop()
        thread.join(PATIENCE_S)
        agent.close()
        api.end_watches()
        for one in exporter.threads:
            one.join(PATIENCE_S)
    # The status ended with the agent: from then on it is away.
    assert exporter.taint is not None
    assert not exporter.hears_agent
    assert exporter.taint.due_s() is not None
