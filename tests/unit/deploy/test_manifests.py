"""The plain manifests and the values' schema say what the agent takes and shows."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from nri_plugin import __version__
from nri_plugin.agent.observing.metrics import Metrics
from nri_plugin.config.loading import load_text
from nri_plugin.model.errors import ConfigError
from tests import guides
from tests.agent_fakes import Bench
from tests.builders import node

DEPLOY = Path(__file__).parents[3] / "deploy"
OBJECTS = {
    item["kind"]: item for item in yaml.safe_load_all((DEPLOY / "kustomize/base/nri-pin.yaml").read_text())
}
BY_HAND = {item["kind"]: item for item in yaml.safe_load_all((DEPLOY / "daemonset.yaml").read_text())}
SCHEMA = json.loads((DEPLOY / "chart/values.schema.json").read_text())

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def pod_of(objects: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = objects["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def test_the_configuration_is_one_the_agent_takes_and_shows_its_metrics_where_probes_look() -> None:
    config = load_text(OBJECTS["ConfigMap"]["data"]["config.yaml"], "configmap")
    ports = {port["name"]: port["containerPort"] for port in pod_of(OBJECTS)["containers"][0]["ports"]}
    assert config.metrics_bind_address == ("", ports["metrics"])
    assert config.health_probe_bind_address == ("", ports["healthz"])
    probes = [pod_of(OBJECTS)["containers"][0][kind] for kind in PROBES]
    assert {probe["httpGet"]["port"] for probe in probes} == {"healthz"}
    assert config.options.never_refuse == {"kube-system", "nri-pin"}


def test_the_single_file_and_the_chart_run_the_same_pod() -> None:
    pods = [pod_of(OBJECTS), pod_of(BY_HAND)]
    for pod in pods:
        for key in ("ports", *PROBES):
            pod["containers"][0].pop(key, None)
    assert pods[0] == pods[1]


def objects_of(path: str) -> dict[tuple[str, str], Any]:
    """All objects of a file by kind and name, a list of them taken apart."""
    found = [item for item in yaml.safe_load_all((DEPLOY / path).read_text()) if item]
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


WAYS = ("daemonset.yaml", "export-rbac.yaml", "kustomize/base/nri-pin.yaml", "kustomize/cluster/nri-pin.yaml")


@pytest.mark.parametrize("old", WAYS)
@pytest.mark.parametrize("new", WAYS)
def test_one_way_to_deploy_can_be_applied_over_another(old: str, new: str) -> None:
    """Fields that an API server lets nobody change are the same in all of them."""
    before, after = objects_of(old), objects_of(new)
    for key in set(before) & set(after):
        for field in ("selector", "roleRef"):
            fixed = [one.get("spec", {}).get(field, one.get(field)) for one in (before[key], after[key])]
            assert fixed[0] == fixed[1], (key, field)


@pytest.mark.parametrize("path", WAYS)
def test_a_file_makes_the_namespace_of_its_objects_first(path: str) -> None:
    made: set[str] = set()
    for (kind, name), item in objects_of(path).items():
        if kind == "Namespace":
            made.add(name)
        assert item["metadata"].get("namespace", "nri-pin") in made or "namespace" not in item["metadata"], (
            name
        )
    labels = objects_of(path)["Namespace", "nri-pin"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"  # apply would take a label away


def test_the_schema_takes_the_words_that_the_agent_takes() -> None:
    found = {key: one for key, one in SCHEMA["definitions"]["config"]["properties"].items() if "enum" in one}
    assert len(found) >= 15
    for key, one in found.items():
        with pytest.raises(ConfigError) as refused:
            load_text(f"{key}: nonsense", "values")
        words = re.search(r"expected (.*), found", str(refused.value))
        assert words is not None
        assert set(re.split(r", | or ", words[1])) == set(one["enum"])


def test_the_schema_says_of_every_key_what_it_holds() -> None:
    assert all(SCHEMA["definitions"]["config"]["properties"].values())


def test_the_version_is_the_packages() -> None:
    chart = yaml.safe_load((DEPLOY / "chart/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    kustomization = yaml.safe_load((DEPLOY / "kustomize/base/kustomization.yaml").read_text())
    assert kustomization["images"][0]["newTag"] == __version__


def exposed_names() -> set[str]:
    """The metrics of agent and extender, and those of the exporter."""
    bench, metrics = Bench(node()), Metrics()
    metrics.follow_state(bench.handler, SimpleNamespace(is_synchronized=True, lost=0))  # type: ignore[arg-type]
    text = generate_latest(metrics.registry).decode()
    return set(re.findall(r"^([a-z_0-9]+)[{ ]", text, re.MULTILINE))


def asked_names(expressions: Iterable[str]) -> set[str]:
    return set(re.findall(r"(?:nri_pin|kubelet)_\w+", " ".join(expressions)))


def test_the_dashboard_asks_for_nothing_that_is_not_exposed() -> None:
    dashboard = json.loads((DEPLOY / "chart/files/dashboard.json").read_text())
    names = asked_names(
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    )
    assert len(names) > 15
    assert names <= exposed_names()


ALERTS = yaml.safe_load((DEPLOY / "chart/files/alerts.yaml").read_text())["groups"][0]["rules"]


def test_the_alerts_ask_for_nothing_that_no_guide_knows() -> None:
    names = asked_names(rule["expr"] for rule in ALERTS)
    guide = (DEPLOY / "guide/metrics.md").read_text()
    assert len(names) > 15
    assert {name for name in names if name.removesuffix("_bucket") not in guide} == set()
    of_agent = {name for name in names if not name.startswith(("nri_pin_export_", "nri_pin_extender_"))}
    assert of_agent <= exposed_names()


def test_each_section_of_the_runbook_has_the_same_parts() -> None:
    for name, body in guides.runbook_sections().items():
        parts = re.findall(r"^\* \*\*([\w ]+)\*\*", body, re.MULTILINE)
        assert parts == ["Means", "Look", "Do", "Until then"], name
    assert {rule["labels"]["severity"] for rule in ALERTS} == {"critical", "warning", "info"}


def test_the_dashboards_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "chart/files/dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
