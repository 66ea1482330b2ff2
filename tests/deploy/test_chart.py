from collections.abc import Callable
from typing import Any

import pytest

from nri_plugin.app.config import load_text

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]


def named(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    return next(item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)


def config_of(objects: Objects, name: str) -> str:
    text: str = named(objects, "ConfigMap", name)["data"]["config.yaml"]
    return text


def pod_of(daemonset: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


def test_every_node_group_has_a_daemonset_with_its_own_configuration(render: Render):
    objects = render(
        config={"reservedSystemCPUs": "0", "topologyManagerPolicy": "restricted"},
        nodeGroups=[
            {"name": "hpc", "config": {"topologyManagerPolicy": "single-numa-node"}},
            {"name": "web"},
        ],
    )
    policies = {
        name: load_text(config_of(objects, name), name).options.topology_manager_policy
        for name in ("pin", "pin-hpc", "pin-web")
    }
    assert policies == {"pin": "restricted", "pin-hpc": "single-numa-node", "pin-web": "restricted"}
    assert pod_of(named(objects, "DaemonSet", "pin-hpc"))["nodeSelector"]["nri-pin/group"] == "hpc"


def test_no_node_gets_two_agents(render: Render):
    objects = render(nodeGroups=[{"name": "hpc"}])
    rest = pod_of(named(objects, "DaemonSet", "pin"))
    terms = rest["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert terms == [{"matchExpressions": [{"key": "nri-pin/group", "operator": "NotIn", "values": ["hpc"]}]}]
    selectors = [
        str(item["spec"]["selector"]["matchLabels"]) for item in objects if item["kind"] == "DaemonSet"
    ]
    assert len(set(selectors)) == len(selectors) == 2
    for item in objects:
        if item["kind"] == "DaemonSet":
            assert item["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_a_changed_configuration_rolls_the_pods_out(render: Render):
    sums = {
        named(render(config={"reservedSystemCPUs": cpus}), "DaemonSet", "pin")["spec"]["template"][
            "metadata"
        ]["annotations"]["nri-pin/config-checksum"]
        for cpus in ("0", "0-1", "0")
    }
    assert len(sums) == 2


def test_the_namespace_of_the_release_is_never_refused(render: Render):
    config = load_text(config_of(render(config={"neverRefuse": ["a", "place"]}), "pin"), "f")
    assert config.options.never_refuse == {"a", "place"}


def test_without_metrics_there_are_neither_ports_nor_probes(render: Render):
    objects = render(metrics={"enabled": False, "podMonitor": {"enabled": True}})
    agent = pod_of(named(objects, "DaemonSet", "pin"))["containers"][0]
    assert not {"ports", "livenessProbe", "readinessProbe"} & set(agent)
    assert load_text(config_of(objects, "pin"), "f").metrics_bind_address is None
    assert not [item for item in objects if item["kind"] == "PodMonitor"]


def test_monitoring_selects_the_agents_and_keeps_dashboards_as_they_are(render: Render):
    objects = render(metrics={"podMonitor": {"enabled": True}, "dashboard": {"enabled": True}})
    wanted = named(objects, "PodMonitor", "pin")["spec"]["selector"]["matchLabels"].items()
    labels = named(objects, "DaemonSet", "pin")["spec"]["template"]["metadata"]["labels"]
    assert wanted <= labels.items()
    dashboard = named(objects, "ConfigMap", "pin-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert "{{event}}" in dashboard["data"]["nri-pin.json"]


def test_security_image_and_names_follow_the_values(render: Render):
    digest = "sha256:" + "a" * 64
    objects = render(
        image={"repository": "somewhere/pin", "tag": "9", "digest": digest},
        imagePullSecrets=[{"name": "key"}],
        agent={"seLinuxOptions": {"type": "spc_t"}, "annotations": {"a": "b"}},
        podSecurity={"createNamespace": True, "enforce": "privileged"},
    )
    pod = pod_of(named(objects, "DaemonSet", "pin"))
    agent = pod["containers"][0]
    assert agent["image"] == f"somewhere/pin@{digest}"
    assert agent["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert pod["imagePullSecrets"] == [{"name": "key"}]
    assert named(objects, "Namespace", "place")["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "privileged"
    }
    assert {item["metadata"].get("namespace", "place") for item in objects} == {"place"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"config": {"cpuManagerPolcy": "static"}}, "cpuManagerPolcy"),
        ({"config": {"topologyManagerPolicy": "strict"}}, "topologyManagerPolicy"),
        ({"config": {"reservedSystemCPUs": 0}}, "reservedSystemCPUs"),
        ({"config": {"stateDir": "/x"}}, "stateDir"),
        ({"nodeGroups": [{"name": "HPC"}]}, "nodeGroups"),
        ({"nodeGroups": [{"config": {}}]}, "name"),
        ({"nodeGroups": [{"name": "a"}, {"name": "a"}]}, "each name once, found a, a"),
        ({"metrics": {"port": 70000}}, "port"),
        ({"image": {"digest": "abc"}}, "digest"),
        ({"agnet": {}}, "agnet"),
    ],
)
def test_wrong_values_are_refused_by_name(render: Render, values: dict[str, object], told: str):
    with pytest.raises(ValueError, match=told):
        render(**values)
