"""Facts of simulated pods: when the exporter's stand-in tells them, and that the agent reads what it sends."""

import json

import pytest

from nri_plugin.agent.serving.pod_facts import read_facts
from nri_plugin.model.records import Amounts
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec, Telling, ToldFacts, pod_facts
from tests.lab.runtime.exporter_stand_in import facts_words

POD = PodSpec(
    "train",
    "ml",
    (ContainerSpec("work", 2000, 2000, 1 << 20, 1 << 20, (("hugepages-2Mi", 2 << 20),)),),
    init_containers=(ContainerSpec("fetch"), ContainerSpec("mesh", is_sidecar=True)),
    whole=Amounts(4000, 4000, 1 << 30, 1 << 30),
)


def test_the_agent_reads_the_facts_that_the_stand_in_sends() -> None:
    facts = pod_facts(POD, "u1")
    assert facts.pod_resources is not None
    assert read_facts(json.dumps(facts_words(facts)).encode()) == facts


@pytest.mark.parametrize(
    ("telling", "told"),
    [
        (Telling.KNOWN, [True, True, True]),
        (Telling.LATE, [False, True, True]),
        (Telling.ONCE, [True, False, False]),
        (Telling.LOST, [False, False, False]),
    ],
)
def test_facts_are_told_at_these_questions(telling: Telling, told: list[bool]) -> None:
    facts = ToldFacts()
    facts.tell(POD, telling)
    assert facts.is_known_in_time(POD.key) == told[0]
    assert [facts.facts(POD.key, "u1") is not None for _ in told] == told
    facts.forget(POD.key)
    assert facts.facts(POD.key, "u1") is None
    assert not facts.is_known_in_time(POD.key)


def test_a_pod_that_comes_again_is_told_of_anew() -> None:
    facts = ToldFacts()
    for _ in range(2):
        facts.tell(POD, Telling.ONCE)
        assert facts.facts(POD.key, "u1") is not None
        assert facts.facts(POD.key, "u1") is None
