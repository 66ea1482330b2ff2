"""Whole pods through the engine, container by container: with the facts of their objects as the kubelet placed them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.requests import informed, pod_request
from nri_plugin.model.options import Options
from nri_plugin.model.records import Amounts, PodRecord, QOSClass
from nri_plugin.policy.hints import Provider
from nri_plugin.wire.nri.events import NRIEvent
from tests.oracles.recorded_pods import Case, Player, facts_of, replay_admission, replay_sequence
from tests.vectors.judges import admission, memory, static
from tests.vectors.judges.managers import Pod
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.registry import recordings
from tests.vectors.judges.verdict import Verdict

OURS = Path(__file__).resolve().parents[1] / "vectors"
ALL = Path(os.environ.get("NRI_PIN_VECTORS") or OURS)
EVERYWHERE = pytest.mark.parametrize(
    "where",
    [
        OURS,
        pytest.param(
            ALL,
            marks=pytest.mark.skipif(
                ALL == OURS, reason="needs the whole recording: set NRI_PIN_VECTORS=DIR"
            ),
        ),
    ],
    ids=["part", "whole"],
)

HISTORY = {"mem0167"}
"""The kubelet groups NUMA nodes by promises that have ended too, once a forced hint made its groups lopsided."""


def cases(where: Path, schema: str) -> Iterator[tuple[Case, Case | None]]:
    """Sound recorded cases, each with its machine."""
    for found, _, document in recordings(where):
        for case in document["cases"] if found == schema else ():
            machine = document.get("topologies", {}).get(case.get("topology"))
            contradicts = machine is not None and "inconsistent" in machine
            if "steps" in case["expect"] and not contradicts and case["id"] not in HISTORY:
                yield case, machine


def differing_admissions(where: Path, **how: bool) -> dict[str, str]:
    found = {
        case["id"]: replay_admission(case, machine, **how)
        for case, machine in cases(where, "admission")
        if machine and admission.judge_case(case, tables_of(machine)).verdict is Verdict.PASSED
    }
    assert len(found) > 80
    return {name: wrong for name, wrong in found.items() if wrong}


@EVERYWHERE
def test_recorded_pods_are_admitted_refused_and_placed_as_the_kubelet_did(where: Path) -> None:
    assert differing_admissions(where) == {}


def test_cpus_are_given_alike_where_each_init_container_has_started_and_ended_before_the_next() -> None:
    without_memory = {case["id"] for case, _ in cases(OURS, "admission") if "memory_reserved" not in case}
    assert len(without_memory) > 10
    assert without_memory.isdisjoint(differing_admissions(OURS, started=True))


def test_without_facts_the_same_as_long_as_there_are_no_sidecars_and_no_totals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tell = Player.tell

    def uninformed(player: Player, event: NRIEvent | InformedCreate, devices: Provider = None) -> Decision:
        return tell(player, event.event if isinstance(event, InformedCreate) else event, devices)

    monkeypatch.setattr(Player, "tell", uninformed)
    differing = differing_admissions(OURS, started=True)
    judged = [case for case, _ in cases(OURS, "admission")]
    beyond = {
        case["id"] for case in judged if case["tm_scope"] == "pod" or "'restartable': True" in str(case)
    }
    assert differing
    assert set(differing) <= beyond
    assert len(judged) > len(beyond) + 10


@EVERYWHERE
def test_cpus_are_given_and_passed_on_as_in_recorded_sequences(where: Path) -> None:
    compared = 0
    for case, machine in cases(where, "cpu_static_sequences"):
        assert machine is not None
        if static.judge_case(case, tables_of(machine), machine).verdict is Verdict.PASSED:
            wrong, number = replay_sequence(case, machine)
            assert not wrong, f"{case['id']} {wrong}"
            compared += number
    assert compared > 400


@EVERYWHERE
def test_memory_is_given_and_passed_on_as_in_recorded_sequences(where: Path) -> None:
    compared = 0
    for case, _ in cases(where, "memory_hints"):
        if memory.judge_case(case).verdict is Verdict.PASSED:
            wrong, number = replay_sequence(case, None)
            assert not wrong, f"{case['id']} {wrong}"
            compared += number
    assert compared > 250


def test_a_recorded_pod_with_resources_of_its_own_has_no_wish_for_memory() -> None:
    """The kubelet's gate PodLevelResourceManagers, off by default, would give it one."""
    found = [
        case
        for schema, _, document in recordings(OURS)
        for case in (document["cases"] if schema == "unit_memory" else ())
        if case["fn"] == "get_pod_topology_hints" and case["gates"] == ["PodLevelResources"]
    ]
    wishes = {}
    for case in found:
        facts = facts_of(Pod.of({**case["pod"], "pod": case["pod"]["uid"]}))
        facts = replace(facts, pod_resources=Amounts(1000) if case["pod"].get("pod_resources") else None)
        record = informed(PodRecord(facts.uid, "s"), replace(facts, qos=QOSClass.GUARANTEED))
        wishes[case["id"]] = (
            bool(pod_request(Options(), record).memory_by_resource),
            case["hints"] is not None,
        )
    assert wishes
    assert {ours for ours, _ in wishes.values()} == {False}
    assert all(ours == recorded for ours, recorded in wishes.values())
