"""Asking the exporter, played by a socket in this process."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.serving.pod_facts import NoAnswerError, PodResourcesClient
from nri_plugin.core.decision import LINE_BYTES, ExporterAnswer
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import NO_NODES, NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri.events import CreateContainer
from tests.agent_fakes import Clock
from tests.builders import container, pod
from tests.exporter import PATIENCE_S, Exporter

EVENT = CreateContainer(pod("u1", namespace="ml"), container(pod("u1"), "worker"))


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    made = Exporter(tmp_path)
    yield made
    made.close()


def ask(exporter: Exporter, limit_s: float = PATIENCE_S):
    return PodResourcesClient(exporter.path, Clock()).ask(EVENT, limit_s)


def answered(exporter: Exporter, answer: object):
    exporter.answers(json.dumps(answer) + "\n")
    return ask(exporter)


def test_the_question_is_one_line_that_names_pod_and_container(exporter: Exporter) -> None:
    answered(exporter, {"devices": []})
    assert exporter.asked.count(b"\n") == 1
    named = {"pod": "u1", "namespace": "ml", "name": "u1", "container": "worker"}
    assert json.loads(exporter.asked) == named


def test_devices_come_by_resource_in_the_order_of_the_first(exporter: Exporter) -> None:
    informed = answered(
        exporter,
        {
            "devices": [
                {"resource": "x/nic", "ids": ["n0"]},
                {
                    "resource": "x/gpu",
                    "ids": ["g0", "g1"],
                    "nodes": [0],
                    "totals": {"1": 4, "0": 4, "0-1": 1, "-1": 2},
                },
                {"resource": "x/gpu", "ids": ["g4"], "nodes": [0, 1]},
                {"resource": "x/nic", "ids": ["n1"], "nodes": [-1]},
            ],
            "of a later version": True,
        },
    )
    assert informed.devices == (
        DeviceResource("x/nic", (Device("n0", NO_NODES), Device("n1", NO_NODES))),
        DeviceResource(
            "x/gpu",
            (Device("g0", NodeMask.of(0)), Device("g1", NodeMask.of(0)), Device("g4", NodeMask.of(0, 1))),
            ((NodeMask.of(0), 4), (NodeMask.of(1), 4), (NodeMask.of(0, 1), 1)),
        ),
    )
    assert informed.pod_devices == ()


def test_devices_of_the_whole_pod_count_once(exporter: Exporter) -> None:
    gpu = {"resource": "x/gpu", "ids": ["g0"], "nodes": [1]}
    informed = answered(exporter, {"devices": [], "pod_devices": [gpu, gpu]})
    assert informed.devices == ()
    assert informed.pod_devices == (DeviceResource("x/gpu", (Device("g0", NodeMask.of(1)),)),)


def test_an_answer_without_devices_says_that_the_container_is_not_known(exporter: Exporter) -> None:
    assert answered(exporter, {}) == ExporterAnswer()


FACTS = {
    "uid": "u1",
    "qos": "Guaranteed",
    "containers": [
        {"name": "fetch", "kind": "init", "cpu_request_milli": 1500, "hugepages": {"hugepages-2Mi": 0}},
        {"name": "mesh", "kind": "sidecar", "memory_limit_bytes": 7, "of a later version": True},
        {"name": "worker"},
    ],
    "pod_resources": {"cpu_limit_milli": 4000},
}


def test_facts_come_with_devices_or_without(exporter: Exporter) -> None:
    facts = PodFacts(
        "u1",
        QOSClass.GUARANTEED,
        (
            ContainerFacts(
                "fetch", Kind.INIT, Amounts(cpu_request_milli=1500, hugepages=(("hugepages-2Mi", 0),))
            ),
            ContainerFacts("mesh", Kind.SIDECAR, Amounts(memory_limit_bytes=7)),
            ContainerFacts("worker"),
        ),
        Amounts(cpu_limit_milli=4000),
    )
    assert answered(exporter, {"facts": FACTS}) == ExporterAnswer(facts=facts)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (None, ""),
        (7, "Expected `object`, got `int`"),
        ({"qos": "Guaranteed"}, "missing required field `uid`"),
        ({**FACTS, "qos": "Best"}, "Invalid enum value 'Best'"),
        ({**FACTS, "uid": "u2"}, "facts of pod u2, asked for u1"),
        ({**FACTS, "containers": [{"name": "a"}, {"name": "a"}]}, "2 containers of 1 names"),
        ({**FACTS, "containers": [{"name": "a", "cpu_request_milli": -1}]}, ">= 0"),
        ({**FACTS, "pod_resources": {"memory_limit_bytes": 1 << 63}}, "<= 9223372036854775807"),
    ],
)
def test_facts_of_another_form_or_pod_are_passed_over_and_devices_still_count(
    exporter: Exporter, facts: object, why: str
) -> None:
    known = answered(exporter, {"devices": [], "facts": facts})
    assert (known.devices, known.facts) == ((), None)
    assert why in known.unusable
    assert bool(why) == bool(known.unusable)


def test_an_answer_may_come_byte_by_byte(exporter: Exporter) -> None:
    def play(peer: socket.socket) -> None:
        for byte in b'{"devices":[]}\n':
            peer.sendall(bytes([byte]))

    exporter.serve(play)
    assert ask(exporter) == ExporterAnswer(devices=())


def test_what_follows_the_first_line_is_not_read(exporter: Exporter) -> None:
    exporter.answers('{"devices":[]}\ngarbage')
    assert ask(exporter).devices == ()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "null",
        "[]",
        "{",
        '{"devices": 7}',
        '{"devices": [{"resource": "x"}]}',
        '{"devices": [{"resource": "", "ids": []}]}',
        '{"devices": [{"resource": "a b", "ids": []}]}',
        '{"devices": [{"resource": "x", "ids": ["a\\nb"]}]}',
        '{"devices": [{"resource": "x", "ids": ["a"], "nodes": [-2]}]}',
        '{"devices": [{"resource": "x", "ids": ["a"], "nodes": [1024]}]}',
        '{"devices": [{"resource": "x", "ids": ["a"], "nodes": [1.5]}]}',
        '{"devices": [{"resource": "x", "ids": ["a"], "totals": {"0": -1}}]}',
        '{"devices": [{"resource": "x", "ids": ["a"], "totals": {"": 1}}]}',
        '{"devices": [{"resource": "x", "ids": ["a"], "totals": {"1024": 1}}]}',
        '{"devices": [], "pod_devices": [{"resource": "x", "ids": ["a"], "totals": {"2-1": 1}}]}',
        "[" * 60000,
    ],
)
def test_an_answer_of_another_form_is_refused(exporter: Exporter, answer: str) -> None:
    exporter.answers(answer + "\n")
    with pytest.raises(NoAnswerError, match="not an answer") as caught:
        ask(exporter)
    assert not caught.value.late


def test_bytes_that_are_no_text_are_refused(exporter: Exporter) -> None:
    exporter.serve(lambda peer: peer.sendall(b'{"devices":[{"resource":"\xff","ids":[]}]}\n'))
    with pytest.raises(NoAnswerError, match="not an answer"):
        ask(exporter)


def test_a_longer_answer_is_not_listened_to(exporter: Exporter) -> None:
    def play(peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            peer.sendall(b" " * (2 * LINE_BYTES))

    exporter.serve(play)
    with pytest.raises(NoAnswerError, match=f"up to {LINE_BYTES} bytes"):
        ask(exporter)


def test_a_connection_that_ends_early_is_no_answer(exporter: Exporter) -> None:
    exporter.answers('{"dev')
    with pytest.raises(NoAnswerError, match="ended after 5 bytes without a newline"):
        ask(exporter)


def test_an_exporter_that_says_nothing_is_given_up_after_the_limit(exporter: Exporter) -> None:
    over = threading.Event()
    exporter.serve(lambda _peer: over.wait(PATIENCE_S) and None)
    with pytest.raises(NoAnswerError, match="no answer within 10 ms") as caught:
        ask(exporter, limit_s=0.01)
    over.set()
    assert caught.value.late


def test_one_that_keeps_on_trickling_is_given_up_all_the_same(exporter: Exporter) -> None:
    clock, over = Clock(), threading.Event()

    def play(peer: socket.socket) -> None:
        clock.now += 1.0
        peer.sendall(b"{")
        over.wait(PATIENCE_S)

    exporter.serve(play)
    with pytest.raises(NoAnswerError, match="no answer within 500 ms") as caught:
        PodResourcesClient(exporter.path, clock).ask(EVENT, 0.5)
    over.set()
    assert caught.value.late


def test_nobody_there_is_no_answer_and_not_late(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / ("x" * 200)):
        with pytest.raises(NoAnswerError) as caught:
            PodResourcesClient(str(path), Clock()).ask(EVENT, 1.0)
        assert not caught.value.late
        assert caught.value.path == str(path)


def test_without_an_exporter_no_socket_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    with pytest.raises(NoAnswerError, match="no such socket"):
        PodResourcesClient(str(tmp_path / "exporter.sock"), Clock()).ask(EVENT, PATIENCE_S)
