"""The HTML report of a simulation: the tables of the text and the picture of `topology`, and nothing that runs or loads."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.cli.simulate.report import render
from nri_plugin.simulator.machine.source import SourcedMachine, read_machine
from nri_plugin.simulator.simulate.comparison import compare
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import read_plan
from nri_plugin.simulator.simulate.simulate import simulate
from nri_plugin.simulator.simulate.simulation import Simulation

PODS = """
- {pod: db, cpu: 4, memory: 8Gi, count: 3}
- {pod: huge, cpu: 90, memory: 1Gi}
- {pod: web, requests: {cpu: 250m}, limits: {cpu: 1}}
"""
CONFIG = """
reservedSystemCPUs: "0"
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
featureGates: {PodLevelResourceManagers: true}
"""
WHOLE_POD = """
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


class Page(HTMLParser):
    """What a reader finds: the rows of each table by its caption, the tooltips of the picture, every tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.hovers: list[str] = []
        self.tags: list[tuple[str, list[str]]] = []
        self._text = ""
        self._rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attrs if tag != "td"]))
        if tag == "tr":
            self._rows.append([])
        self._text = ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "caption":
            self._rows = self.tables.setdefault(self._text, [])
        elif tag in {"th", "td"}:
            self._rows[-1].append(self._text)
        elif tag == "title":
            self.hovers.append(self._text)


def simulated(
    folder: Path, pods: str, config: str = CONFIG, machine: str = "demo"
) -> tuple[SourcedMachine, Simulation]:
    (folder / "pods.yaml").write_text(pods)
    (folder / "config.yaml").write_text(config)
    where = read_machine(machine)
    chosen = choose(where.topology, str(folder / "config.yaml"))
    return where, simulate(where, read_plan(str(folder / "pods.yaml")), chosen, summary="64 CPUs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def one(folder: Path) -> tuple[SourcedMachine, Simulation]:
    return simulated(folder, PODS)


def test_the_page_runs_nothing_and_loads_nothing(one: tuple[SourcedMachine, Simulation]) -> None:
    page = render(one[0], [one[1]])
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert page.index("Content-Security-Policy") < page.index("<style")
    assert set(re.findall(r"\w+://[^\"'\s<]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|\s(?:src|href|action|srcset|on\w+)=|@import|url\(", page)


def test_the_page_has_the_sums_the_refusals_and_every_container(
    one: tuple[SourcedMachine, Simulation],
) -> None:
    text = render(one[0], [one[1]])
    page = Page(text)
    assert "<title>pods on demo</title>" in text
    assert re.search(r'class="lead">pods +4 of 5 placed, 1 refused<', text)
    assert "reserved 0: as " in text
    assert "topologyManagerPolicy: single-numa-node" in text
    (refused,) = page.tables["Refused"][1:]
    assert refused[:3] == ["1 pod", "default/huge", "Guaranteed: cpu 90, memory 1Gi"]
    placed = [row[0] for row in page.tables["Placements"][1:]]
    assert [name.split("/")[1] for name in placed] == ["db-0", "db-1", "db-2", "web"]
    assert len(page.tables["Steps"]) == 6
    assert page.tables["How many more fit"][0][-1] == "ASKS FOR"


def test_each_numa_node_shows_how_many_of_its_cpus_are_taken(one: tuple[SourcedMachine, Simulation]) -> None:
    text = render(one[0], [one[1]])
    assert '<meter max="15" value="12"></meter> NUMA 0: 12 of 15 CPUs taken' in text
    assert "NUMA 3: 0 of 16 CPUs taken" in text
    assert [row[0] for row in Page(text).tables["NUMA nodes"][1:]] == ["0", "1-3"]


def test_the_picture_says_who_has_each_cpu(one: tuple[SourcedMachine, Simulation]) -> None:
    cpus = [hover for hover in Page(render(one[0], [one[1]])).hovers if hover.startswith("CPU ")]
    assert len(cpus) == 64
    assert sum("default/db-" in hover for hover in cpus) == 12
    assert sum(hover.endswith("\nshared pool") for hover in cpus) == 51


def test_a_pod_that_owns_cpus_has_them_once_with_who_shares_in_it(folder: Path) -> None:
    where, found = simulated(folder, WHOLE_POD)
    text = render(where, [found])
    owners = {
        int(hover[4:].split(",")[0]): hover.split("\n")[1]
        for hover in Page(text).hovers
        if "\nml/p0" in hover
    }
    assert owners == {1: "ml/p0/work", 33: "ml/p0/work", 2: "ml/p0", 32: "ml/p0", 34: "ml/p0"}
    assert "pod shared pool, of the pod&#" in text or "pod shared pool, of the pod's CPUs" in text
    assert "ml/p0 (pod)" in [row[0] for row in Page(text).tables["Placements"]]


def test_cpus_that_an_ended_init_container_keeps_are_its_own(folder: Path) -> None:
    where, found = simulated(folder, INIT)
    page = Page(render(where, [found]))
    assert sum("\nml/build/fetch" in hover for hover in page.hovers) == 4
    assert "ml/build/fetch (ended)" in [row[0] for row in page.tables["Placements"]]


def test_two_configurations_stand_side_by_side_with_their_differences(
    folder: Path, one: tuple[SourcedMachine, Simulation]
) -> None:
    where, other = simulated(folder, PODS, 'reservedSystemCPUs: "0-3"\n')
    pair = [one[1], other]
    page = Page(text := render(where, pair, compare(*pair)))
    assert ["reservedSystemCPUs", "0", "0-3"] in page.tables["Configurations"]
    assert page.tables["Containers"][0] == ["CONTAINER", "DIFFERS IN", "A", "B"]
    assert ["pods placed", "4", "4", ""] in page.tables["Sums"]
    assert {"Placements A", "Placements B", "Steps A", "Steps B"} <= page.tables.keys()
    assert text.count("<svg ") == 2
    assert "Configuration B: " in text


@settings(max_examples=30, deadline=None)
@given(text=st.text())
def test_no_text_adds_an_element_or_an_attribute(one: tuple[SourcedMachine, Simulation], text: str) -> None:
    def tags(name: str) -> list[tuple[str, list[str]]]:
        found = one[1]
        named = replace(
            found,
            scenario=name or "-",
            notes=(name,),
            configuration=replace(found.configuration, name=name, said={"key": name}),
            steps=(replace(found.steps[0], problems=(name,), target=name), *found.steps[1:]),
            containers=(replace(found.containers[0], pod=name, key=name), *found.containers[1:]),
            owners=tuple(owner for owner in found.owners if not owner.container),
        )
        page = render(one[0], [named])
        page.encode()
        return Page(page).tags

    assert tags(text) == tags("name")
