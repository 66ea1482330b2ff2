import pytest

from nri_plugin.model.sets import CPUSet
from tests.lab.demo.report import _befallen, _restarted
from tests.lab.scenario.steps import (
    DriftStep,
    Foreign,
    Kubepods,
    Logged,
    Measure,
    Online,
    Part,
    PartitionKind,
    Release,
    Restart,
    Second,
    Spin,
    Step,
)

SOME = CPUSet.parse("2-3")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Restart(1, Part.AGENT), "SIGKILL sent, back"),
        (Restart(1, Part.RUNTIME), "runtime restarted, agent back"),
        (Restart(1, Part.AGENT, is_down=True), "agent killed, not started again,"),
        (Restart(1, Part.AGENT, config={"isolation": "none"}), "SIGKILL sent, back with isolation none"),
    ],
)
def test_a_restart_says_what_ended_and_what_came_back(step: Restart, told: str) -> None:
    assert _restarted(step) == told


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Second(1), "a second agent was started by mistake; it waited for the first"),
        (Release(1), "the agent has ended and nri-pin release gave everything back"),
        (Online(1, SOME), "online now: 2-3"),
        (Foreign(1, PartitionKind.ISOLATED, SOME), "another program has 2-3 as isolated partition"),
        (Foreign(1, PartitionKind.MEMBER, CPUSet()), "another program gave up its partition"),
        (Kubepods(1, SOME), "another program gave the cgroup above all pods CPUs 2-3"),
        (Logged(1, "ready"), "the agent's log says: ready"),
        (Logged(1, "ready", "kernel"), "only a real kernel has it logged: ready"),
        (Spin(1, "a/b/c", "all"), None),
        (Measure(1, "a/b/c", "disk"), None),
    ],
)
def test_what_befalls_a_node_is_a_line(step: Step, told: str | None) -> None:
    assert _befallen(step, there_is_an_agent=True) == told


def test_a_drift_says_who_put_it_back() -> None:
    drift = DriftStep(1, "a/b/c", SOME)
    assert _befallen(drift, there_is_an_agent=True) == "a/b/c was put on 2-3 by another program, and put back"
    said = _befallen(drift, there_is_an_agent=False)
    assert said == "a/b/c was put on 2-3 by another program, and there is no agent to put it back"
