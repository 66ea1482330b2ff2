"""A pod with resources of its own runs on while the real agent loses its checkpoint, and is whole again with the facts."""

import shutil

from tests.lab.scenario.player import Player
from tests.lab.scenario.scenario import parse
from tests.patient_stage import patient_stage

STEPS = """\
machine: kep693-8-gpus
config:
  reservedSystemCPUs: "0,16"
  topologyManagerPolicy: best-effort
  topologyManagerScope: pod
  featureGates: {PodLevelResourceManagers: true}
steps:
  - run: a/model
    resources: {cpu: 6, memory: 6Gi}
    initContainers: {mesh: {restartPolicy: Always}}
    containers:
      app: {cpu: 4, memory: 4Gi}
      log: {}
    facts: known
  - expect: a/model/app
    cpus: 1-2,17-18
  - expect: a/model/mesh
    cpus: 3,19
  - expect: a/model/log
    cpus: 3,19
"""


def test_a_pod_keeps_its_cpus_when_the_checkpoint_is_lost() -> None:
    scenario = parse(STEPS, "x.yaml")
    run, *expected = scenario.steps
    with patient_stage(scenario) as node:
        node.start_agent()
        player = Player(node)
        problems = [player.play(step).problems for step in (run, *expected)]
        assert node.stop_agent() == 0
        shutil.rmtree(node.places.state)
        assert node.start_agent() == ()
        problems += [player.play(step).problems for step in expected]
        # The exporter knows the pod's object, and the agent asks soon after its start.
        (logged,) = parse(STEPS + "  - logged: pod-rebuilt\n", "x.yaml").steps[-1:]
        problems += [player.play(step).problems for step in (logged, *expected)]
        assert node.stop_agent() == 0
    assert [one for some in problems for one in some] == []
