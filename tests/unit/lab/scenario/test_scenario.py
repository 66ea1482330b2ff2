from pathlib import Path

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.records import QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.simulate.pods import Driver
from nri_plugin.simulator.simulate.steps import Expect, Remove, Run, Say, Start, Update
from nri_plugin.wire.nri.messages import Resources
from tests.lab.scenario.scenario import Scenario, load, parse
from tests.lab.scenario.steps import (
    DriftStep,
    Foreign,
    Kubepods,
    Logged,
    Online,
    Part,
    PartitionKind,
    Release,
    Restart,
    Second,
    Writer,
)

HEAD = """\
machine: somewhere
config:
  reservedSystemCPUs: "0"
"""
POD = """\
steps:
  - run: prod/db
    containers:
      db: {cpu: 2, memory: 4Gi}
"""


def steps_of(text: str) -> Scenario:
    return parse(HEAD + text, "day.yaml")


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "day.yaml")
    return str(caught.value)


def test_cpu_and_memory_alone_make_a_guaranteed_pod() -> None:
    (step,) = steps_of(POD).steps
    assert isinstance(step, Run)
    assert step.pod.qos is QOSClass.GUARANTEED
    assert step.pod.containers[0].cpu_limit_milli == 2000
    assert step.pod.containers[0].memory_limit_bytes == 4 << 30
    assert step.line == 5


def test_defaults_are_said_once() -> None:
    scenario = steps_of(POD)
    assert (scenario.runtime, scenario.driver, scenario.cgroup_version) == (
        "containerd-2.1",
        Driver.SYSTEMD,
        2,
    )
    assert scenario.name == "day"
    assert scenario.config == {"reservedSystemCPUs": "0"}


def test_a_request_that_is_not_given_equals_the_limit() -> None:
    (step,) = steps_of(
        "steps:\n  - run: a/b\n    containers:\n      c: {limits: {cpu: 500m}, requests: {memory: 1Mi}}\n"
    ).steps
    assert isinstance(step, Run)
    container = step.pod.containers[0]
    assert (container.cpu_request_milli, container.cpu_limit_milli) == (500, 500)
    assert (container.memory_request_bytes, container.memory_limit_bytes) == (1 << 20, 0)


def test_every_kind_of_step() -> None:
    scenario = steps_of(
        POD
        + """\
  - say: A sentence.
  - create: prod/later
    containers: {c: {}}
  - start: prod/later
  - update: prod/db/db
    cpus: 0-1
  - online: 0-6
  - restart: runtime
  - kill: agent
  - expect: prod/db/db
    exclusive: 2
    numaNodes: 1
    refused: TopologyAffinityError
  - remove: prod/db
"""
    )
    kinds = [type(step) for step in scenario.steps]
    assert kinds == [Run, Say, Run, Start, Update, Online, Restart, Restart, Expect, Remove]
    assert scenario.steps[4] == Update(
        12,
        "prod/db/db",
        Resources(cpu_shares=0, cpu_quota_us=0, cpu_period_us=0, memory_limit_bytes=0, cpus="0-1"),
    )
    assert scenario.steps[5] == Online(14, CPUSet.parse("0-6"))
    assert scenario.steps[7] == Restart(16, Part.AGENT, is_down=True)


def test_hugepages_are_named_as_resources() -> None:
    (step,) = steps_of(
        "steps:\n  - run: a/b\n    containers: {c: {cpu: 1, memory: 1Gi, limits: {hugepages-2Mi: 4Mi}}}\n"
    ).steps
    assert isinstance(step, Run)
    assert step.pod.containers[0].hugepages == (("hugepages-2Mi", 4 << 20),)


def test_devices_are_limits_and_requests_may_say_the_same() -> None:
    (step,) = steps_of(
        "steps:\n  - run: a/b\n    containers: {c: {limits: {x.y/z: 2, hugepages-2Mi: 2Mi}, requests: {x.y/z: 2}}}\n"
    ).steps
    assert isinstance(step, Run)
    assert step.pod.containers[0].devices_asked == (("x.y/z", 2),)
    assert step.pod.qos is QOSClass.BEST_EFFORT


def test_devices_and_pages_beside_cpu_are_limits() -> None:
    (step,) = steps_of(
        "steps:\n  - run: a/b\n    containers:\n      c: {cpu: 1, hugepages-2Mi: 4Mi, nvidia.com/gpu: 2}\n"
    ).steps
    assert isinstance(step, Run)
    assert step.pod.containers[0].devices_asked == (("nvidia.com/gpu", 2),)
    assert step.pod.containers[0].hugepages == (("hugepages-2Mi", 4 << 20),)


def test_an_init_container_that_restarts_always_is_a_sidecar() -> None:
    text = "steps:\n  - run: a/b\n    initContainers:\n      mesh: {restartPolicy: Always, cpu: 1}\n    containers: {c: {}}\n"
    (step,) = steps_of(text).steps
    assert isinstance(step, Run)
    assert step.pod.init_containers[0].is_sidecar


def test_init_containers_belong_to_the_pod() -> None:
    step, expect = steps_of(
        "steps:\n  - run: a/b\n    initContainers: {i: {cpu: 1}}\n    containers: {c: {cpu: 1, memory: 1Gi}}\n"
        "  - expect: a/b/i\n    devices: {x/y: 'a, b', x/z: [1], v/w: 0}\n"
    ).steps
    assert isinstance(step, Run)
    assert isinstance(expect, Expect)
    assert [each.name for each in step.pod.init_containers] == ["i"]
    assert step.pod.qos is QOSClass.BURSTABLE
    assert expect.devices == {"x/y": ("a", "b"), "x/z": ("1",), "v/w": ("0",)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("machine: m\nsteps: []\n", "day.yaml:1:1: config is missing"),
        ("machin: m\n", "day.yaml:1:1: machin: unknown key; did you mean machine?"),
        (HEAD + "steps: []\n", "day.yaml:4:8: steps: expected at least one step"),
        (HEAD + "steps:\n  - rum: a/b\n", "day.yaml:5:5: steps[0].rum: unknown key; did you mean run?"),
        (HEAD + "steps:\n  - run: ab\n    containers: {c: {}}\n", "expected NAMESPACE/POD, found ab"),
        (HEAD + "steps:\n  - run: a/b\n", "containers is missing"),
        (HEAD + "steps:\n  - run: a/b\n    containers: {}\n", "a pod has at least one container"),
        (HEAD + "steps:\n  - start: a/b\n", "no earlier step made a pod a/b; made were none"),
        (HEAD + POD + "  - stop: prod/db/web\n", "pod prod/db has no container web; it has db"),
        (HEAD + POD + "  - expect: prod/db/db\n", "nothing is expected; add"),
        (HEAD + POD + "  - expect: prod/db\n    exclusive: 1\n", "expected NAMESPACE/POD/CONTAINER"),
        (HEAD + POD + "  - update: prod/db/db\n", "nothing is changed"),
        (HEAD + POD + "  - restart: node\n", "expected agent or runtime, found node"),
        (HEAD + POD + "  - online: x\n", "expected a CPU list such as 0-3,8"),
        (HEAD + POD + "  - restart: agent\n    config: {}\n", "config: nothing is changed; name a key"),
        (
            HEAD + POD + "  - restart: agent\n    config: {isolation: some}\n",
            "isolation: expected none, partition or isolated, found some",
        ),
        (
            HEAD + POD + "  - restart: runtime\n    config: {isolation: none}\n",
            "config: only the agent has a configuration here; write restart: agent",
        ),
        (HEAD + POD + "  - restart: agent\n    conf: {}\n", "conf: unknown key; did you mean config?"),
        (
            HEAD + POD + "  - partition: apart\n    cpus: 1\n",
            "expected isolated, root or member, found apart",
        ),
        (HEAD + POD + "  - partition: isolated\n", "cpus is missing: whose it becomes"),
        (HEAD + POD + "  - partition: member\n    cpus: 1\n", "a member has none of its own; leave cpus out"),
        (HEAD + POD + "  - logged: x\n    only: embedded\n", "expected kernel, found embedded"),
        (
            HEAD
            + POD
            + "  - drift: prod/db/db\n    cpus: 1\n    meanwhile: {prod/db/web: {partition: root}}\n",
            "pod prod/db has no container web; it has db",
        ),
        (
            HEAD
            + POD
            + "  - drift: prod/db/db\n    cpus: 1\n    meanwhile: {prod/db/db: {partitions: root}}\n",
            "partitions: unknown key; did you mean partition?",
        ),
        (HEAD + POD + "runtime: docker\n", "found docker"),
        (HEAD + POD + "cgroup: 3\n", "expected 1 or 2, found 3"),
        (HEAD + POD + "  - {}\n", "a step begins with say, run"),
        (
            HEAD + "steps:\n  - run: a/b\n    containers: {c: {cpu: 1, limits: {cpu: 2}}}\n",
            "cpu is also given for requests and limits at once",
        ),
        (
            HEAD + "steps:\n  - run: a/b\n    containers: {c: {requests: {x/y: 2}}}\n",
            "containers.c.requests.x/y: x/y must be the same in limits, where it is 0",
        ),
        (
            HEAD + "steps:\n  - run: a/b\n    containers: {c: {limits: {gpu: 2}}}\n",
            "limits.gpu: unknown key; known are cpu or memory",
        ),
        (
            HEAD + "steps:\n  - create: a/b\n    containers: {c: {}}\n    initContainers: {i: {}}\n",
            "day.yaml:7:21: steps[0].initContainers: init containers have ended before the others are created",
        ),
        (
            HEAD + "steps:\n  - run: a/b\n    containers: {c: {}}\n    initContainers: {c: {}}\n",
            "a container has the name of an init container; rename one of them",
        ),
        ("machine: m\nconfig:\n  reservedSystemCPUs: x\n" + POD, "day.yaml:3:23: reservedSystemCPUs"),
        ("machine: m\nconfig:\n    cpuManagerPolice: x\n" + POD, "day.yaml:3:5: cpuManagerPolice"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, expected: str) -> None:
    assert expected in complaint(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: no such file"):
        load(tmp_path / "gone.yaml")


def test_copies_make_every_container_that_often() -> None:
    (step,) = steps_of("steps:\n  - run: a/b\n    copies: 3\n    containers: {c: {}, d: {}}\n").steps
    assert isinstance(step, Run)
    assert [each.name for each in step.pod.containers] == ["c-1", "c-2", "c-3", "d-1", "d-2", "d-3"]


def test_what_befalls_a_node_can_be_said() -> None:
    scenario = steps_of(
        POD
        + """\
  - drift: prod/db/db
    cpus: 0-3
    by: daemon-reload
  - second: agent
  - restart: agent
    writes: 0
  - release: agent
"""
    )
    assert scenario.steps[1:] == (
        DriftStep(8, "prod/db/db", CPUSet.parse("0-3"), Writer.RELOAD),
        Second(11),
        Restart(12, Part.AGENT, writes=0),
        Release(14),
    )


def test_what_only_a_kernel_can_tell_can_be_said() -> None:
    scenario = steps_of(
        POD
        + """\
  - drift: prod/db/db
    cpus: 0-3
    meanwhile: {prod/db/db: {partition: root invalid}}
  - partition: isolated
    cpus: 4-5
  - partition: member
  - kubepods: 0-5
  - restart: agent
    config: {isolation: none}
  - logged: partition made
  - logged: not permitted
    only: kernel
"""
    )
    said = {"prod/db/db": {"partition": "root invalid"}}
    assert scenario.steps[1:] == (
        DriftStep(8, "prod/db/db", CPUSet.parse("0-3"), meanwhile=said),
        Foreign(11, PartitionKind.ISOLATED, CPUSet.parse("4-5")),
        Foreign(13, PartitionKind.MEMBER, CPUSet()),
        Kubepods(14, CPUSet.parse("0-5")),
        Restart(15, Part.AGENT, config={"isolation": "none"}),
        Logged(17, "partition made"),
        Logged(18, "not permitted", only="kernel"),
    )


def test_a_drift_without_cpus_is_refused() -> None:
    assert "cpus is missing" in complaint(HEAD + POD + "  - drift: prod/db/db\n")
