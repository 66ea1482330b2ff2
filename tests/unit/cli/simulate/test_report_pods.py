"""Pods that own CPUs as a whole in a report: one letter for the pod, and who shares under it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.cli.simulate.report import render
from nri_plugin.cli.simulate.report_marks import Marks
from nri_plugin.cli.simulate.report_plots import by_numa_node
from nri_plugin.cli.simulate.report_tables import SimulationTables
from nri_plugin.simulator.machine.source import read_machine
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import read_plan
from nri_plugin.simulator.simulate.simulate import simulate

CONFIG = """
reservedSystemCPUs: "0"
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
featureGates: {PodLevelResourceManagers: true}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p0, namespace: ml}
spec:
  resources: {requests: {cpu: 5, memory: 1Gi}, limits: {cpu: 5, memory: 1Gi}}
  initContainers:
  - {name: fetch, resources: {limits: {cpu: 3, memory: 128Mi}}}
  - {name: mesh, restartPolicy: Always}
  - {name: log, restartPolicy: Always}
  containers:
  - {name: work, resources: {limits: {cpu: 2, memory: 512Mi}}}
"""


INIT = """
apiVersion: v1
kind: Pod
metadata: {name: build, namespace: ml}
spec:
  initContainers:
  - {name: fetch, resources: {limits: {cpu: 6, memory: 128Mi}}}
  containers:
  - {name: work, resources: {limits: {cpu: 2, memory: 512Mi}}}
"""


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return simulated(tmp_path_factory.mktemp("pods"), POD)


def simulated(folder: Path, pods: str) -> Mapping[str, Any]:
    (folder / "pods.yaml").write_text(pods)
    (folder / "config.yaml").write_text(CONFIG)
    where = read_machine("demo")
    plan = read_plan(str(folder / "pods.yaml"))
    return simulate(where, plan, choose(where.topology, str(folder / "config.yaml"))).as_dict()


def test_the_shared_cpus_of_a_pod_have_the_letter_of_the_pod(simulation: Mapping[str, Any]) -> None:
    page = render([simulation])
    chips = re.findall(
        r'<span class="cpu ([^"]*)" data-cpu="(\d+)" data-c="(\d+)"[^>]*label="([^"]*)"[^>]*><b>(.)', page
    )
    mine = {
        int(cpu): (letter, look, joins, label) for look, cpu, joins, label, letter in chips if "ml" in label
    }
    assert {cpu: letter for cpu, (letter, *_) in mine.items()} == {1: "A", 33: "A", 2: "B", 32: "B", 34: "B"}
    assert mine[2] == ("B", "pod-shared k1", "4", "CPU 2: ml/p0, shared in the pod")
    assert "or one pod that shares it" in page


def test_a_sentence_tells_who_shares(simulation: Mapping[str, Any]) -> None:
    says = {key: sentences for key, _, _, sentences in Marks([simulation]).says()}
    (sentence,) = says["ml/p0"]
    assert sentence == (
        "a pod with CPUs of its own: 1-2,32-34; fetch has 1,32-33 to itself; work has 1,33 to itself; "
        "pod shared pool 2,32,34: mesh, log"
    )


def test_rows_of_the_containers_that_share_belong_to_the_pod(simulation: Mapping[str, Any]) -> None:
    tables = SimulationTables(simulation, 0, "", marks := Marks([simulation]))
    rows = {row.cells[1].text: (row.cells[0].text, row.also) for row in tables.placements().rows}
    pod = str(marks.number("ml/p0"))
    assert rows == {"ml/p0/log": ("B", pod), "ml/p0/mesh": ("B", pod), "ml/p0/work": ("A", None)}
    assert [row.joins for row in tables.pods().rows] == [marks.number("ml/p0")]


def test_a_column_has_one_piece_for_what_a_pod_shares(simulation: Mapping[str, Any]) -> None:
    (drawing,) = by_numa_node([simulation], Marks([simulation])).drawings
    words = [str(getattr(shape, "title", "")) for shape in drawing.shapes]
    assert [one for one in words if "ml/" in one] == [
        "NUMA 0: ml/p0/work, 2 CPUs",
        "NUMA 0: ml/p0, shared in the pod, 3 CPUs",
    ]


def test_the_cpus_that_an_ended_init_container_keeps_have_its_letter(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, INIT)
    chips = dict(re.findall(r'data-cpu="(\d+)"[^>]*label="[^"]*ml/[^"]*"[^>]*><b>(.?)', render([simulation])))
    assert chips == {"1": "A", "33": "A", "2": "B", "3": "B", "34": "B", "35": "B"}
    says = {key: sentences for key, _, _, sentences in Marks([simulation]).says()}
    assert says["ml/build/fetch"] == ["ended, keeps CPUs 2-3,34-35 until its pod ends"]
