"""The lab's scenarios test what their names say: with the option a name rests on set otherwise, each of them fails.

A guest plays the same files on a real kernel; a scenario that passes whatever is configured would prove nothing there.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.lab.embedded import Played, play_embedded
from tests.e2e.lab.lab_files import machine_named, scenario_named

POLICY = "topologyManagerPolicy"
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
CPU_OPTIONS, TOPOLOGY_OPTIONS = "cpuManagerPolicyOptions", "topologyManagerPolicyOptions"
CACHES = {"prefer-align-cpus-by-uncorecache": "true"}
CLOSEST = {"prefer-closest-numa-nodes": "true"}
NO_MEMORY_MANAGER = {"memoryManagerPolicy": None, "reservedMemory": None}

Change = dict[str, Any]
"""Keys of a scenario's config with other values; None takes the key away."""

MATRIX: list[tuple[str, Change]] = [
    *(
        (f"kep-693-several-nodes-{own}", {POLICY: other})
        for own in POLICIES
        for other in POLICIES
        if other != own
    ),
    # one node is always the same CPUs: policies differ in the words of a refusal alone, and each in its own
    *(
        (f"kep-693-one-node-{own}", {POLICY: other})
        for own, other in zip(POLICIES, (*POLICIES[1:], "none"), strict=True)
    ),
]
OTHERS: list[tuple[str, Change]] = [
    *(("kep-693-pci-device", {POLICY: other}) for other in POLICIES[:3]),
    ("kep-693-pci-device", NO_MEMORY_MANAGER),
    *(("nic-locality", {POLICY: other}) for other in POLICIES[:3]),
    ("nic-locality", NO_MEMORY_MANAGER),
    ("memory-and-huge-pages", {POLICY: "none"}),
    ("memory-and-huge-pages", NO_MEMORY_MANAGER),
    *(("nodes-without-memory-or-cpus", {POLICY: other}) for other in POLICIES if other != "best-effort"),
    ("nodes-without-memory-or-cpus", NO_MEMORY_MANAGER),
    ("pod-scope", {"topologyManagerScope": "container"}),
    ("pod-level-resources", {"featureGates": None}),
    ("pod-level-resources", {"topologyManagerScope": "container"}),
    ("a-pod-refused-as-a-whole", {POLICY: "restricted"}),
    *(("pod-scope", {POLICY: other}) for other in POLICIES[:3]),
    ("kep-3545-node-0-full-on", {TOPOLOGY_OPTIONS: None}),
    ("kep-3545-node-0-full-on", {POLICY: "none", TOPOLOGY_OPTIONS: None}),
    ("kep-3545-node-0-full-off", {TOPOLOGY_OPTIONS: CLOSEST}),
    ("kep-4800-16-cores-on", {CPU_OPTIONS: None}),
    ("kep-4800-16-cores-off", {CPU_OPTIONS: CACHES}),
    ("kep-4800-32-cores-its-rule", {"uncoreCacheRule": None}),
    ("kep-4800-32-cores-its-rule", {CPU_OPTIONS: None}),
    ("kep-4800-32-cores-kubelet", {"uncoreCacheRule": "kep-4800"}),
    ("kep-4800-32-cores-kubelet", {CPU_OPTIONS: None}),
    ("split-l3-packing", {CPU_OPTIONS: {"full-pcpus-only": "true"}}),
    ("split-l3-packing", {CPU_OPTIONS: CACHES}),
    ("an-l3-over-two-nodes", {CPU_OPTIONS: None}),
    *(("an-l3-over-two-nodes", {POLICY: other}) for other in POLICIES[1:]),
    *(
        (name, change)
        for name in ("many-nodes", "thirty-two-nodes")
        for change in (
            {TOPOLOGY_OPTIONS: None},
            {POLICY: "best-effort"},
            {POLICY: "none", TOPOLOGY_OPTIONS: None},
            {POLICY: "single-numa-node"},
        )
    ),
    ("isolated-cpus-on-request", {"isolatedCPUs": None}),
    ("isolated-cpus-on-request", {"isolatedCPUs": "ignore"}),
    ("isolated-cpus-for-exclusive", {"isolatedCPUs": "on-request"}),
    ("isolated-cpus-for-exclusive", {"isolatedCPUs": "ignore"}),
    ("quota-restored-on-shrink", {"annotationNamespaces": None}),
    ("quota-restored-on-shrink", {"annotationNamespaces": ["b"]}),
    ("refusals-in-the-cri-error", {POLICY: "restricted"}),
    ("refusals-in-the-cri-error", {CPU_OPTIONS: None}),
    ("refusals-in-the-cri-error", NO_MEMORY_MANAGER),
]


def described(rows: list[tuple[str, Change]]) -> Iterator[Any]:
    for name, change in rows:
        said = " ".join(f"{key}={value}" for key, value in change.items())
        yield pytest.param(name, change, id=f"{name} {said}")


def played(name: str, change: Change) -> Played:
    scenario = scenario_named(name)[1]
    config = {key: value for key, value in {**scenario.config, **change}.items() if value is not None}
    return play_embedded(replace(scenario, config=config), machine_named(scenario.machine).text)


@pytest.mark.parametrize(("name", "change"), [*described(MATRIX), *described(OTHERS)])
def test_a_scenario_fails_when_what_its_name_rests_on_is_set_otherwise(name: str, change: Change) -> None:
    problems = played(name, change).problems
    assert problems
    assert all(f"{name}.yaml:" in problem for problem in problems), (
        "an expectation fails, not the agent's start"
    )


def test_every_change_of_the_table_is_one() -> None:
    for name, change in [*MATRIX, *OTHERS]:
        config = scenario_named(name)[1].config
        assert all(config.get(key) != value for key, value in change.items()), (name, change)
