"""Who is asked for hints, and what an answer from outside may be. Entry points: tests/unit/config."""

from dataclasses import replace

import pytest

from nri_plugin.core.hint_providers import Question, ask, memory_request
from nri_plugin.core.requests import ContainerRequest, pod_record
from nri_plugin.model.errors import AdmissionError, InsufficientCPUsError
from nri_plugin.model.options import MemoryManagerPolicy
from nri_plugin.model.records import QOSClass
from nri_plugin.model.state import State
from nri_plugin.policy.hints import Hint, HintSet
from tests.builders import GIB, node, pod

WISH = HintSet("our.site/licence", (Hint(0b10, True),), why="licence: on NUMA node 1")


def asked(*outside):
    request = ContainerRequest("p1", "c", QOSClass.GUARANTEED, 2000)
    on = replace(node(), hint_providers=outside)
    return ask(
        Question(
            on, State(), pod_record(pod(), on.options, run_seen=True), request, 2, memory_request(on, request)
        )
    )


@pytest.mark.parametrize("answer", [None, (), (WISH,)])
def test_those_from_outside_are_asked_last(answer):
    own = asked()
    assert len(own) == 3
    assert asked(lambda _: answer) == [*own, answer]


def test_one_from_outside_may_refuse_in_its_own_words():
    def full(question):
        raise InsufficientCPUsError(question.exclusive_cpus, 0, "no licence")

    with pytest.raises(InsufficientCPUsError, match="no licence"):
        asked(full)


def test_a_failure_outside_refuses_by_name():
    def broken(question):
        return {}["table"]

    with pytest.raises(AdmissionError, match=r"hint provider .*broken failed: KeyError: 'table'"):
        asked(broken)


@pytest.mark.parametrize(("answer", "kind"), [([WISH], "list"), ((WISH, 3), "tuple"), ("node 1", "str")])
def test_an_answer_of_another_kind_refuses_by_name(answer, kind):
    class Careless:
        def __call__(self, question):
            return answer

    with pytest.raises(AdmissionError, match=f"hint provider Careless answered with {kind}, expected None"):
        asked(Careless())


def test_memory_is_promised_only_by_the_static_policy():
    request = ContainerRequest("p1", "c", QOSClass.GUARANTEED, 2000, GIB)
    assert memory_request(node(), request) == {}
    static = node(memory_manager_policy=MemoryManagerPolicy.STATIC)
    assert memory_request(static, request) == {"memory": GIB}
