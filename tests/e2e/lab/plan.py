"""A scenario as plain values, for the half that runs in a guest and knows nothing of the product's code.

Pods travel as a manifest says them, in milli-CPUs and bytes; shares, quotas and scores are made over there, apart
from what the product's own simulator makes of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from nri_plugin.model.records import Amounts
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec, Telling, page_size, pod_facts
from nri_plugin.simulator.simulate.steps import Expect, Run, Update
from tests.lab.runtime.exporter_stand_in import facts_words
from tests.lab.scenario.scenario import Scenario
from tests.lab.scenario.steps import Restart, Step

Json = dict[str, Any]


def plan(name: str, scenario: Scenario, pictures: Sequence[Json | None], devices: Sequence[Json]) -> Json:
    """The scenario with, for every step, the picture that the embedded runtime gave; None where there is none."""
    steps = [
        {**step_values(step), "wanted": picture}
        for step, picture in zip(scenario.steps, pictures, strict=True)
    ]
    return {"name": name, "config": dict(scenario.config), "steps": steps, "devices": list(devices)}


def step_values(step: Step) -> Json:
    """One step: `do` says which."""
    match step:
        case Run():
            values: Json = {"start": step.start, "pod": _pod(step.pod)}
            if step.facts is not Telling.LOST:
                words = facts_words(pod_facts(step.pod, ""))
                values["facts"] = {"telling": step.facts.value, "words": words}
        case Update():
            values = {"target": step.target, "resources": _resources(step)}
        case Restart():
            values = {"part": str(step.part), "is_down": step.is_down}
            values |= {} if step.writes is None else {"writes": step.writes}
            values |= {"config": dict(step.config)} if step.config else {}
        case Expect():
            values = _given(step)
        case _:
            values = _given(step)
    return {"do": type(step).__name__.removesuffix("Step").lower(), "line": step.line, **values}


def _given(step: Step) -> Json:
    """The fields that say something, as text or numbers."""
    assert is_dataclass(step)
    found = {field.name: getattr(step, field.name) for field in fields(step)}
    return {name: _plain(value) for name, value in found.items() if value is not None and name != "line"}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, bool | int | float):
        return value
    return value.value if isinstance(value, Enum) else str(value)


def _pod(pod: PodSpec) -> Json:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "qos": pod.qos.value.lower(),
        "labels": dict(pod.labels),
        "annotations": dict(pod.annotations),
        "init": [_container(spec) for spec in pod.init_containers],
        "containers": [_container(spec) for spec in pod.containers],
        "sidecars": [spec.name for spec in pod.init_containers if spec.is_sidecar],
        **({"whole": _whole(pod.whole)} if pod.whole is not None else {}),
    }


def _whole(amounts: Amounts) -> Json:
    return {"limit_milli": amounts.cpu_limit_milli, "memory_bytes": amounts.memory_limit_bytes}


def _container(spec: ContainerSpec) -> Json:
    return {
        "name": spec.name,
        "cpu_milli": spec.cpu_request_milli,
        "limit_milli": spec.cpu_limit_milli,
        "memory_bytes": spec.memory_limit_bytes,
        "request_bytes": spec.memory_request_bytes,
        "hugepages": {page_size(name): size for name, size in spec.hugepages},
        "env": list(spec.env),
    }


def _resources(step: Update) -> Json:
    """What a kubelet sends to change a container; what is absent is not sent."""
    asked = step.resources
    values = {
        "cpu_shares": asked.cpu_shares,
        "cpu_quota": asked.cpu_quota_us,
        "cpu_period": asked.cpu_period_us,
        "cpuset_cpus": asked.cpus,
        "cpuset_mems": asked.mems,
        "memory_limit_in_bytes": asked.memory_limit_bytes,
    }
    return {name: value for name, value in values.items() if value}
