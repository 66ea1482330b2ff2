"""What an agent may complain of in its log: what the steps of a scenario bring about, and what the scenario names.

Both runners judge by it, so that it knows neither of them: steps are plain values, as in a plan.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_MACHINE = ("the machine changed", "a container lost exclusive CPUs; they stay allocated to it")
_RUNTIME = ("connection to the container runtime ended", "no connection to the container runtime")
_DRIFT = (
    "cpuset drifted and was repaired",
    "cpusets drifted",
    "another CPU manager also gives CPUs to containers",
    "invalid (Cpu list in cpuset.cpus not exclusive)",  # a partition that was looked at before its drifted sibling
)
# systemd takes the controller from a slice in which nobody needs it any more: with the last pod, and it comes back
_SYSTEMD_S = re.compile(
    r" WARNING cpuset drifted and was repaired name=kubepods\S* .*cause=(files-gone|never-set)"
)
_UNREACHABLE = "the cgroup above the pods does not have all online CPUs"
_DIFFERS = "effective cpuset differs from the desired one"
_BROUGHT_BY = {
    "online": (*_MACHINE, _DIFFERS),
    "drift": _DRIFT,
    "foreign": (*_MACHINE, _UNREACHABLE, _DIFFERS),
    "kubepods": (*_MACHINE, _UNREACHABLE, _DIFFERS),
}


def complaints(
    lines: Iterable[str],
    steps: Iterable[Mapping[str, Any]],
    refused: Iterable[str],
    sandboxes: Iterable[str] = (),
) -> list[str]:
    """Lines above the level of information that nothing in the scenario explains.

    Args:
        lines: of the log.
        steps: as played, `do` says which.
        refused: keys of containers that were refused at some time, NAMESPACE/POD/CONTAINER.
        sandboxes: ids; a slow runtime reports one later than the agent waits for, which then takes it for a container.
    """
    steps = list(steps)
    expected = {text for step in steps for text in _BROUGHT_BY.get(step["do"], ())}
    expected |= {step["text"] for step in steps if step["do"] == "logged"}
    expected |= {text for step in steps if step.get("part") == "runtime" for text in _RUNTIME}
    if any(step.get("load") == "hotplug" for step in steps):
        expected |= set(_BROUGHT_BY["online"])
    if any(step["do"] == "update" and "cpuset_cpus" in step["resources"] for step in steps):
        expected |= set(_DRIFT)  # a kubelet that pins writes as a stranger does
    drifted = tuple(f" observed={step['cpus']}" for step in steps if step["do"] == "drift")
    unreported = tuple(f" container={one} " for one in sandboxes)
    pods = {f" pod={key.rpartition('/')[0]} container={key.rpartition('/')[2]} " for key in refused}
    return [
        line
        for line in lines
        if " INFO " not in line
        and not any(one in line for one in unreported)
        and not _is_drift(line, drifted)
        and not _is_expected(line, expected, pods)
    ]


def _is_drift(line: str, drifted: tuple[str, ...]) -> bool:
    """An agent that was slow to look at its own write finds what somebody has written since."""
    return _DIFFERS in line and line.endswith(drifted)


def _is_expected(line: str, expected: set[str], pods: set[str]) -> bool:
    refusal = " WARNING refused op=" in line and any(pod in line for pod in pods)
    return refusal or _SYSTEMD_S.search(line) is not None or any(text in line for text in expected)
