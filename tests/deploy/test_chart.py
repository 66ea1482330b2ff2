import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.cli.export import command as export
from nri_plugin.cli.extender import command as extend
from nri_plugin.config.loading import EXPORTER_SOCKET, load_text
from nri_plugin.exporter.process import FACTS_SOCKET, FOLDER
from nri_plugin.exporter.refused_pods import REFUSED
from nri_plugin.exporter.startup_taint import TAINT_KEY
from nri_plugin.extender.process import ExtenderOptions
from nri_plugin.model.quantity import parse_quantity
from tests.deploy.conftest import DEPLOY
from tests.kube_api_server import KubeAPI

BINDER = {"replicas": 1, "tlsSecret": "certificate", "clientCASecret": "authorities"}

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


def test_only_an_agent_that_asks_netlink_is_in_the_hosts_network(render: Render):
    objects = render(nodeGroups=[{"name": "nics", "config": {"nicLocality": "netlink"}}])
    assert pod_of(named(objects, "DaemonSet", "pin-nics"))["hostNetwork"] is True
    assert "hostNetwork" not in pod_of(named(objects, "DaemonSet", "pin"))


@pytest.mark.parametrize(
    ("value", "path", "mount"),
    [
        ("none", None, None),
        ("interrupts", "/proc/interrupts", "/host/proc/interrupts"),
        ("all", "/proc", "/host/proc"),
    ],
)
def test_the_agent_sees_of_the_nodes_proc_what_is_asked_for_and_changes_nothing(
    render: Render, value: str, path: str | None, mount: str | None
):
    pod = pod_of(named(render(agent={"hostProc": value}), "DaemonSet", "pin"))
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {one["mountPath"]: one for one in pod["containers"][0]["volumeMounts"]}
    assert {one for one in paths if one.startswith("/proc")} == ({path} if path else set())
    assert {one for one in mounts if one.startswith("/host/proc")} == ({mount} if mount else set())
    assert all(one["readOnly"] for name, one in mounts.items() if name == mount)
    assert pod_of(named(render(), "DaemonSet", "pin")) == pod_of(
        named(render(agent={"hostProc": "none"}), "DaemonSet", "pin")
    )


def test_only_an_agent_that_makes_partitions_or_steers_packets_has_a_capability(render: Render):
    def capabilities(objects: Objects) -> dict[str, list[str]]:
        found: dict[str, list[str]] = pod_of(named(objects, "DaemonSet", "pin"))["containers"][0][
            "securityContext"
        ]["capabilities"]
        return found

    assert capabilities(render()) == {"drop": ["ALL"]}
    granted = render(config={"isolation": "partition"}, agent={"partitions": True})
    assert capabilities(granted) == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    steers = render(config={"receiveSteering": "exclusive"}, agent={"receiveSteering": True})
    assert capabilities(steers) == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    (agent,) = [
        one for one in pod_of(named(steers, "DaemonSet", "pin"))["containers"] if one["name"] == "agent"
    ]
    mounted = {one["mountPath"]: one.get("readOnly", False) for one in agent["volumeMounts"]}
    assert (mounted["/host/sys"], mounted["/host/sys/devices"]) == (True, False)


def test_the_last_rollout_gives_everything_back_with_the_mounts_of_the_agent(render: Render):
    config = {"irqs": "exclusive", "workqueues": "exclusive"}
    running = pod_of(named(render(config=config), "DaemonSet", "pin"))
    pod = pod_of(named(render(config=config, agent={"release": True}), "DaemonSet", "pin"))
    (agent,), (waits,) = pod["initContainers"], pod["containers"]
    assert agent["args"] == ["release", "--cgroup-root", "/host/sys/fs/cgroup", "--root", "/host"]
    (before,) = [one for one in running["containers"] if one["name"] == "agent"]
    for same in ("image", "volumeMounts", "securityContext", "resources"):
        assert agent[same] == before[same]
    assert not {"startupProbe", "livenessProbe", "readinessProbe", "ports"} & agent.keys()
    assert "volumeMounts" not in waits
    assert waits["securityContext"]["runAsUser"] == 65534
    assert pod["volumes"][-1] == running["volumes"][-1]


def test_isolation_without_the_capability_is_refused(render: Render):
    with pytest.raises(ValueError, match=r"isolation needs agent\.partitions: true"):
        render(config={"isolation": "isolated"})
    with pytest.raises(ValueError, match=r"receiveSteering needs agent\.receiveSteering: true"):
        render(config={"receiveSteering": "exclusive"})


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


def test_a_feature_gate_of_the_values_reaches_the_agent(render: Render):
    gates = {"PodLevelResourceManagers": True}
    config = load_text(config_of(render(config={"featureGates": gates}), "pin"), "f")
    assert config.options.pod_level_managers
    assert not load_text(config_of(render(), "pin"), "f").options.pod_level_managers


def test_metrics_and_probes_have_ports_of_their_own_and_each_can_be_left_out(render: Render):
    def shown(**values: Any) -> tuple[list[str], set[str], Any]:
        objects = render(**values)
        agent = pod_of(named(objects, "DaemonSet", "pin"))["containers"][0]
        config = load_text(config_of(objects, "pin"), "f")
        probed = {
            agent[kind]["httpGet"]["port"] for kind in ("livenessProbe", "readinessProbe") if kind in agent
        }
        names = [port["name"] for port in agent.get("ports", [])]
        return names, probed, (config.metrics_bind_address, config.health_probe_bind_address)

    off = {"enabled": False}
    assert shown() == (["metrics", "healthz"], {"healthz"}, (("", 9465), ("", 9464)))
    assert shown(metrics=off) == (["healthz"], {"healthz"}, (None, ("", 9464)))
    assert shown(healthz=off) == (["metrics"], set(), (("", 9465), None))
    assert shown(metrics=off, healthz=off) == ([], set(), (None, None))


def test_without_metrics_nothing_is_scraped(render: Render):
    objects = render(metrics={"enabled": False, "podMonitor": {"enabled": True}})
    assert not [item for item in objects if item["kind"] == "PodMonitor"]


def test_monitoring_selects_the_agents_and_keeps_dashboards_as_they_are(render: Render):
    objects = render(metrics={"podMonitor": {"enabled": True}, "dashboard": {"enabled": True}})
    wanted = named(objects, "PodMonitor", "pin")["spec"]["selector"]["matchLabels"].items()
    labels = named(objects, "DaemonSet", "pin")["spec"]["template"]["metadata"]["labels"]
    assert wanted <= labels.items()
    dashboard = named(objects, "ConfigMap", "pin-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert "{{event}}" in dashboard["data"]["nri-pin.json"]


def test_alerts_are_a_rule_of_the_operator_as_they_are_in_the_file(render: Render):
    assert not [one for one in render() if one["kind"] == "PrometheusRule"]
    objects = render(metrics={"alerts": {"enabled": True, "labels": {"release": "prometheus"}}})
    rule = named(objects, "PrometheusRule", "pin")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    text = (DEPLOY / "chart/files/alerts.yaml").read_text()
    assert text.count('{daemonset=~"nri-pin.*"}') == 1
    assert rule["spec"] == yaml.safe_load(text.replace('{daemonset=~"nri-pin.*"}', '{daemonset=~"pin.*"}'))


@pytest.mark.parametrize(("secret", "scheme"), [("", None), ("certificate", "https")])
def test_the_extenders_own_page_is_read_where_it_is(render: Render, secret: str, scheme: str | None):
    objects = render(
        extender={"enabled": True, "tlsSecret": secret}, metrics={"podMonitor": {"enabled": True}}
    )
    monitor = named(objects, "PodMonitor", "pin-extender")["spec"]
    template = named(objects, "Deployment", "pin-extender")["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint.get("scheme")) == (ports[0], scheme)


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
        ({"nodeGroups": [{"name": "default"}]}, "cannot be called default"),
        ({"nodeGroups": [{"name": "a"}, {"name": "dashboard"}]}, "cannot be called dashboard"),
        ({"config": {"logLevel": "loud"}}, "logLevel"),
        ({"config": {"pluginIndex": "9"}}, "pluginIndex"),
        ({"extender": {"weights": {"cpu": 101}}}, "weights.cpu"),
        ({"extender": {"networkPolicy": {"enabled": True, "from": ["10.0.0.0/8"]}}}, "networkPolicy.from"),
        (
            {"extender": {"enabled": True, "networkPolicy": {"enabled": True}}},
            "needs extender.networkPolicy.from",
        ),
        ({"metrics": {"port": 70000}}, "port"),
        ({"image": {"digest": "abc"}}, "digest"),
        ({"agnet": {}}, "agnet"),
    ],
)
def test_wrong_values_are_refused_by_name(render: Render, values: dict[str, object], told: str):
    with pytest.raises(ValueError, match=told):
        render(**values)


def test_what_is_left_empty_is_as_if_it_were_not_there(render: Render):
    assert named(render(config=None, nodeGroups=None), "DaemonSet", "pin")
    assert config_of(render(config=None), "pin").startswith("cgroupRoot")


CLUSTER = {"exporter": {"enabled": True}, "extender": {"enabled": True}}


def test_only_the_exporter_has_credentials(render: Render):
    pod = pod_of(named(render(**CLUSTER), "DaemonSet", "pin"))
    assert pod["automountServiceAccountToken"] is False
    mounts = {item["name"]: {mount["name"] for mount in item["volumeMounts"]} for item in pod["containers"]}
    assert mounts["exporter"] == {"state", "exporter", "pod-resources", "token"}
    assert not mounts["agent"] & {"token", "pod-resources"}
    assert pod["containers"][1]["args"] == ["export", "--min-interval=1"]
    for item in pod["containers"]:
        assert item["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_arguments_in_the_chart_are_ones_the_commands_take(render: Render):
    objects = render(
        exporter={
            "enabled": True,
            "takeOver": True,
            "minIntervalSeconds": 5,
            "metricsPort": 9466,
            "healthzPort": 9467,
        },
        extender={
            "enabled": True,
            "strategy": "LeastAllocated",
            "distanceBonus": "prefer-closest-numa-nodes",
            "weights": {"cpu": 2},
            "accounting": False,
            "nodeObjects": True,
            "bind": {"enabled": True, "numaAnnotation": True},
            "replicas": 1,
            "tlsSecret": "certificate",
            "clientCASecret": "authorities",
        },
    )
    exporter = pod_of(named(objects, "DaemonSet", "pin"))["containers"][1]
    extender = pod_of(named(objects, "Deployment", "pin-extender"))["containers"][0]
    assert (exporter["args"][0], extender["args"][0]) == ("export", "extender")
    for command, (_, *options) in ((export, exporter["args"]), (extend, extender["args"])):
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {option.partition("=")[0] for option in options} <= known
    for kind in (
        "startupProbe",
        "livenessProbe",
    ):  # without the first, a slow node would kill it before it listens
        assert extender[kind]["httpGet"] == {"path": "/healthz", "port": "healthz"}
    assert {"name": "healthz", "containerPort": 8889} in extender["ports"]
    assert "--health-probe-bind-address=:8889" in extender["args"]
    mounts = {one["mountPath"] for one in extender["volumeMounts"]}
    files = {option.partition("=")[2].rpartition("/")[0] for option in extender["args"] if "--tls" in option}
    assert files == mounts == {"/tls", "/client-ca"}


def test_who_may_reach_the_extender_is_a_choice(render: Render):
    source = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    assert "NetworkPolicy" not in {item["kind"] for item in render(extender={"enabled": True})}
    objects = render(extender={"enabled": True, "networkPolicy": {"enabled": True, "from": source}})
    (policy,) = [item for item in objects if item["kind"] == "NetworkPolicy"]
    deployment = named(objects, "Deployment", policy["metadata"]["name"])
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert policy["spec"]["ingress"] == [{"from": source, "ports": [{"protocol": "TCP", "port": "extender"}]}]


def test_the_exporter_writes_in_the_folder_of_its_sockets_only(render: Render):
    pod = pod_of(
        named(
            render(exporter={"enabled": True}, agent={"hostPaths": {"stateDir": "/run/elsewhere"}}),
            "DaemonSet",
            "pin",
        )
    )
    mounts = pod["containers"][1]["volumeMounts"]
    assert [(mount["name"], mount["mountPath"]) for mount in mounts if not mount.get("readOnly")] == [
        ("exporter", f"/run/nri-pin/{FOLDER}")
    ]
    paths = {volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths["exporter"] == {"path": f"{paths['state']['path']}/{FOLDER}", "type": "DirectoryOrCreate"}
    assert f"{FOLDER}/{FACTS_SOCKET}" == EXPORTER_SOCKET


def test_the_exporter_may_do_what_the_plain_file_says(render: Render):
    of_chart = named(render(**CLUSTER), "ClusterRole", "pin-export")["rules"]
    plain = list(yaml.safe_load_all((DEPLOY / "export-rbac.yaml").read_text()))
    assert of_chart == named(plain, "ClusterRole", "nri-pin-export")["rules"]


def test_the_kind_is_installed_with_those_who_need_it_and_left_out_where_others_do(render: Render):
    def has_kind(**values: object) -> bool:
        return "CustomResourceDefinition" in {item["kind"] for item in render(**values)}

    assert not has_kind()
    assert has_kind(exporter={"enabled": True})
    assert has_kind(extender={"enabled": True})
    assert not has_kind(crd={"install": False}, **CLUSTER)


def test_the_kind_outlives_the_release_for_it_holds_the_objects_of_others(render: Render):
    kind = next(item for item in render(**CLUSTER) if item["kind"] == "CustomResourceDefinition")
    assert kind["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert kind == yaml.safe_load((DEPLOY / "crd.yaml").read_text())


def test_an_exporter_is_held_to_its_own_node(render: Render):
    objects = render(exporter={"enabled": True})
    policy = named(objects, "ValidatingAdmissionPolicy", "pin-export")["spec"]
    account = named(objects, "ClusterRoleBinding", "pin-export")["subjects"][0]
    assert (
        f'"system:serviceaccount:{account["namespace"]}:{account["name"]}"'
        in policy["matchConditions"][0]["expression"]
    )
    assert policy["matchConstraints"]["resourceRules"][0]["resources"] == ["noderesourcetopologies"]
    assert policy["validations"][0]["expression"] == "variables.node == object.metadata.name"
    binding = named(objects, "ValidatingAdmissionPolicyBinding", "pin-export")["spec"]
    assert binding == {"policyName": "pin-export", "validationActions": ["Deny"]}
    kinds = {item["kind"] for item in render(exporter={"enabled": True, "ownNodeOnly": False})}
    assert not {kind for kind in kinds if kind.startswith("Validating")}


def test_the_startup_taint_comes_with_the_right_to_patch_nodes_and_the_policy_that_limits_it(render: Render):
    def verbs(**exporter: Any) -> list[str]:
        role = named(render(exporter={"enabled": True, **exporter}), "ClusterRole", "pin-export")
        return next(rule["verbs"] for rule in role["rules"] if rule["resources"] == ["nodes"])

    assert verbs() == ["get"]
    assert verbs(startupTaint=True) == ["get", "list", "watch", "patch"]
    objects = render(exporter={"enabled": True, "startupTaint": True})
    assert "--startup-taint" in pod_of(named(objects, "DaemonSet", "pin"))["containers"][1]["args"]
    policy = named(objects, "ValidatingAdmissionPolicy", "pin-export-taint")["spec"]
    assert policy["matchConstraints"]["resourceRules"][0]["resources"] == ["nodes"]
    assert policy["validations"][0]["expression"] == "variables.node == object.metadata.name"
    assert all(TAINT_KEY in policy["variables"][number]["expression"] for number in (1, 2))
    assert named(objects, "ValidatingAdmissionPolicyBinding", "pin-export-taint")


def test_authorities_without_a_certificate_of_ones_own_are_refused(render: Render):
    with pytest.raises(ValueError, match=r"clientCASecret needs extender\.tlsSecret"):
        render(extender={"enabled": True, "clientCASecret": "authorities"})


def test_an_annotation_without_the_binding_it_is_written_at_is_refused(render: Render):
    with pytest.raises(ValueError, match=r"numaAnnotation needs extender\.bind\.enabled"):
        render(extender={"enabled": True, "bind": {"numaAnnotation": True}})


def test_binding_by_several_replicas_is_refused(render: Render):
    with pytest.raises(ValueError, match=r"bind\.enabled needs extender\.replicas 1"):
        render(extender={"enabled": True, "bind": {"enabled": True}, **BINDER, "replicas": 2})
    assert render(extender={"enabled": True, "bind": {"enabled": True}, **BINDER})


@pytest.mark.parametrize("given", [{}, {"tlsSecret": "certificate"}])
def test_binding_for_anybody_is_refused(render: Render, given: dict[str, str]):
    extender = {"enabled": True, "bind": {"enabled": True}, "replicas": 1, **given}
    with pytest.raises(
        ValueError, match=r"bind\.enabled needs extender\.tlsSecret and extender\.clientCASecret"
    ):
        render(extender=extender)


def test_whole_node_objects_are_taken_only_where_that_is_asked_for(render: Render):
    def arguments(**extender: Any) -> list[str]:
        objects = render(extender={"enabled": True, **extender})
        found: list[str] = pod_of(named(objects, "Deployment", "pin-extender"))["containers"][0]["args"]
        return found

    assert "--node-objects" not in arguments()
    assert "--node-objects" in arguments(nodeObjects=True)


def test_the_extenders_limit_holds_all_it_reads_at_once(render: Render):
    container = pod_of(named(render(extender={"enabled": True}), "Deployment", "pin-extender"))["containers"][
        0
    ]
    limit = parse_quantity(container["resources"]["limits"]["memory"])
    names, objects = ExtenderOptions(), ExtenderOptions(takes_node_objects=True)
    assert 10 * names.limits.body_bytes < limit
    assert 2 * objects.limits.body_bytes < limit


def test_pods_may_be_failed_only_where_that_is_chosen_and_on_the_own_node(render: Render):
    def rights(**exporter: Any) -> list[str]:
        objects = render(exporter={"enabled": True, **exporter})
        return [
            res for rule in named(objects, "ClusterRole", "pin-export")["rules"] for res in rule["resources"]
        ]

    assert "pods/status" not in rights()
    assert "pods/status" in rights(onRefusal="fail-pod")
    objects = render(exporter={"enabled": True, "onRefusal": "fail-pod"})
    (exporter,) = pod_of(named(objects, "DaemonSet", "pin"))["containers"][1:]
    assert "--on-refusal=fail-pod" in exporter["args"]
    policy = named(objects, "ValidatingAdmissionPolicy", "pin-export-pods")["spec"]
    assert policy["matchConstraints"]["resourceRules"][0]["resources"] == ["pods/status"]
    assert "variables.node == object.spec.nodeName" in policy["validations"][0]["expression"]
    assert policy["validations"][1]["message"].endswith(f"may only set the annotation {REFUSED} of a pod")
    assert f'key == "{REFUSED}"' in policy["validations"][1]["expression"]
    kinds = [item["metadata"]["name"] for item in render(exporter={"enabled": True})]
    assert "pin-export-pods" not in kinds


@pytest.mark.parametrize(("of_agent", "ports"), [(True, ["metrics", "exporter"]), (False, ["exporter"])])
def test_the_exporter_is_probed_and_read_where_it_has_a_port(
    render: Render, of_agent: bool, ports: list[str]
):
    objects = render(
        exporter={"enabled": True, "metricsPort": 9466, "healthzPort": 9467},
        metrics={"enabled": of_agent, "podMonitor": {"enabled": True}},
    )
    exporter = pod_of(named(objects, "DaemonSet", "pin"))["containers"][1]
    assert exporter["ports"] == [
        {"name": "exporter", "containerPort": 9466},
        {"name": "exporter-probe", "containerPort": 9467},
    ]
    assert {"--metrics-bind-address=:9466", "--health-probe-bind-address=:9467"} <= set(exporter["args"])
    probes = [exporter[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes == [
        {"path": path, "port": "exporter-probe"} for path in ("/healthz", "/healthz", "/readyz")
    ]
    endpoints = named(objects, "PodMonitor", "pin")["spec"]["podMetricsEndpoints"]
    assert [endpoint["port"] for endpoint in endpoints] == ports


def test_an_exporter_without_a_port_is_neither_probed_nor_read(render: Render):
    objects = render(exporter={"enabled": True}, metrics={"podMonitor": {"enabled": True}})
    exporter = pod_of(named(objects, "DaemonSet", "pin"))["containers"][1]
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & set(exporter)
    assert "--metrics-bind-address" not in " ".join(exporter["args"])
    (endpoint,) = named(objects, "PodMonitor", "pin")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"


@pytest.mark.parametrize(
    "values",
    [
        {"exporter": {"enabled": True, "metricsPort": 9465}},
        {"exporter": {"enabled": True, "healthzPort": 9464}},
        {"exporter": {"enabled": True, "metricsPort": 1, "healthzPort": 1}},
        {"healthz": {"port": 9465}},
    ],
)
def test_no_two_ports_of_the_agents_pod_are_the_same(render: Render, values: dict[str, Any]):
    with pytest.raises(ValueError, match="each port of the agent's pod once, found"):
        render(**values)


def test_the_notes_show_a_scheduler_configuration_that_fits_the_extender(helm: str, tmp_path: Path):
    api = KubeAPI()
    chosen = [f"extender.{name}={value}" for name, value in {"enabled": "true", **BINDER}.items()]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KUBECONFIG": str(api.kubeconfig(tmp_path)),
    }
    command = [helm, "install", "pin", str(DEPLOY / "chart"), "-n", "place", "--dry-run=client"]
    for values, tls in ((["extender.enabled=true"], False), ([*chosen, "extender.bind.enabled=true"], True)):
        done = subprocess.run(
            [*command, "--set", ",".join(values)], capture_output=True, text=True, check=True, env=environment
        )
        notes = done.stdout.partition("NOTES:")[2]
        block = notes.partition("kube-scheduler's configuration:")[2].split("\n\n")[1]
        config = yaml.safe_load(block)
        (extender,) = config["extenders"]
        assert config["percentageOfNodesToScore"] == 100
        assert extender["urlPrefix"] == f"http{'s' * tls}://pin-extender.place.svc:8888"
        assert extender["nodeCacheCapable"] is True
        assert (extender.get("bindVerb"), "tlsConfig" in extender) == (
            ("bind", True) if tls else (None, False)
        )
        assert ("Anyone who reaches" in notes) is not tls
    api.close()


CRD = "topology.node.k8s.io/noderesourcetopologies"
RIGHTS = {
    "pin-export": {
        (CRD, "create"): ("exporter/publication.py", "self._client.apply(self._resource"),
        (CRD, "patch"): ("exporter/publication.py", "self._client.apply(self._resource"),
        (CRD, "get"): ("exporter/publication.py", "self._client.get(self._resource"),
        (CRD, "list"): ("exporter/exporter.py", "self._follower(NODE_RESOURCE_TOPOLOGIES"),
        (CRD, "watch"): ("exporter/exporter.py", "self._follower(NODE_RESOURCE_TOPOLOGIES"),
        ("/nodes", "get"): ("exporter/publication.py", "self._client.get(NODES"),
        ("/pods", "list"): ("exporter/exporter.py", "self._follower(PODS"),
        ("/pods", "watch"): ("exporter/exporter.py", "self._follower(PODS"),
        ("events.k8s.io/events", "create"): ("exporter/events.py", "self._client.create(EVENTS"),
    },
    "startupTaint": {
        ("/nodes", "list"): ("exporter/exporter.py", "self._follower(NODES"),
        ("/nodes", "watch"): ("exporter/exporter.py", "self._follower(NODES"),
        ("/nodes", "patch"): ("exporter/startup_taint.py", "self._client.merge_patch(NODES"),
    },
    "onRefusal": {
        ("/pods", "get"): ("exporter/refused_pods.py", "self._client.get(PODS"),
        ("/pods/status", "patch"): ("exporter/refused_pods.py", "self._client.merge_patch(PODS"),
    },
    "pin-extender": {
        (CRD, "list"): ("extender/process.py", "self._follow(NODE_RESOURCE_TOPOLOGIES"),
        (CRD, "watch"): ("extender/process.py", "self._follow(NODE_RESOURCE_TOPOLOGIES"),
    },
    "accounting": {
        ("/pods", "list"): ("extender/process.py", "self._follow(PODS"),
        ("/pods", "watch"): ("extender/process.py", "self._follow(PODS"),
    },
    "bind": {("/pods/binding", "create"): ("extender/process.py", 'client.send("POST", PODS.path(')},
}
"""Each right in the cluster, by its role or the value that it needs: where the program uses it."""


def rights_of(role: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (f"{group}/{resource}", verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("exporter", "extender", "needs"),
    [
        ({}, {"accounting": False}, ()),
        ({"startupTaint": True}, {}, ("startupTaint", "accounting")),
        (
            {"startupTaint": True, "onRefusal": "fail-pod"},
            {**BINDER, "bind": {"enabled": True, "numaAnnotation": True}},
            ("startupTaint", "onRefusal", "accounting", "bind"),
        ),
    ],
)
def test_each_role_has_the_rights_that_the_program_uses_and_no_other(
    render: Render, exporter: dict[str, Any], extender: dict[str, Any], needs: tuple[str, ...]
):
    objects = render(exporter={"enabled": True, **exporter}, extender={"enabled": True, **extender})
    roles = {item["metadata"]["name"]: rights_of(item) for item in objects if item["kind"].endswith("Role")}
    of_exporter = [RIGHTS[one] for one in ("startupTaint", "onRefusal") if one in needs]
    of_extender = [RIGHTS[one] for one in ("accounting", "bind") if one in needs]
    assert roles == {
        "pin-export": set().union(RIGHTS["pin-export"], *of_exporter),
        "pin-extender": set().union(RIGHTS["pin-extender"], *of_extender),
    }
    by_hand = yaml.safe_load_all((DEPLOY / "export-rbac.yaml").read_text())
    assert [rights_of(one) for one in by_hand if one["kind"] == "ClusterRole"] == [set(RIGHTS["pin-export"])]


def test_each_right_is_used_where_the_table_says():
    for rights in RIGHTS.values():
        for right, (file, use) in rights.items():
            assert use in (DEPLOY.parent / "nri_plugin" / file).read_text(), right


@pytest.mark.parametrize(("what", "value"), [("startupTaint", True), ("onRefusal", "fail-pod")])
def test_a_right_to_write_is_refused_without_the_policy_that_limits_it(
    render: Render, what: str, value: object
):
    with pytest.raises(ValueError, match=rf"exporter\.{what}.* needs exporter\.ownNodeOnly"):
        render(exporter={"enabled": True, "ownNodeOnly": False, what: value})
    render(exporter={"enabled": True, "ownNodeOnly": False})


def nested(path: str, value: object) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


TEXTS = [
    "image.repository",
    "image.tag",
    "image.digest",
    "image.pullPolicy",
    "clusterImage.repository",
    "clusterImage.tag",
    "agent.priorityClassName",
    "agent.tolerateMissingPluginsAnnotation",
    "agent.hostPaths.stateDir",
    "agent.hostPaths.nriSocketDir",
    "agent.hostProc",
    "exporter.podResourcesDir",
    "exporter.onRefusal",
    "extender.strategy",
    "extender.tlsSecret",
    "extender.clientCASecret",
    "extender.priorityClassName",
    "podSecurity.enforce",
    "metrics.podMonitor.interval",
]


@pytest.mark.parametrize("text", ["x\n      hostPID: true", '/a/b"\n x: 1', "a: b", "{a: b}", "x #"])
def test_no_text_of_the_values_adds_yaml(render: Render, text: str):
    for path in TEXTS:
        with pytest.raises(ValueError, match=path.replace(".", r"\.")):
            render(**nested(path, text))
    for values in ({"extender": {"weights": {text: 2}}}, {"imagePullSecrets": [{"name": text}]}):
        with pytest.raises(ValueError, match=r"[Pp]attern"):
            render(**values)


@pytest.mark.parametrize("path", ["agent.hostPaths.stateDir", "agent.hostPaths.nriSocketDir"])
@pytest.mark.parametrize(
    "folder",
    [
        "/",
        "//",
        "/etc",
        "/etc/",
        "/etc/kubernetes",
        "/run",
        "/var/run",
        "/var/lib",
        "/run/../etc",
        "/run/./x",
        "x",
    ]
    + ["/usr/bin", "/proc/1/root", "/var/lib/kubelet", "/run/containerd", "/a//b", "/run/x y"],
)
def test_no_folder_of_the_system_is_mounted_to_write_in(render: Render, path: str, folder: str):
    with pytest.raises(ValueError, match=path.replace(".", r"\.")):
        render(**nested(path, folder))


def test_folders_of_others_choice_are_mounted(render: Render):
    folders = {"stateDir": "/data/nri-pin/", "nriSocketDir": "/run/nri"}
    objects = render(exporter={"enabled": True}, agent={"hostPaths": folders})
    paths = {
        one["hostPath"]["path"]
        for one in pod_of(named(objects, "DaemonSet", "pin"))["volumes"]
        if "hostPath" in one
    }
    assert {"/data/nri-pin/", "/data/nri-pin/exporter", "/run/nri"} <= paths
    with pytest.raises(ValueError, match="are one folder"):
        render(agent={"hostPaths": {"stateDir": "/run/nri", "nriSocketDir": "/run/nri/"}})


def test_a_network_policy_limits_who_reads_the_metrics(render: Render):
    assert not [item for item in render() if item["kind"] == "NetworkPolicy"]
    who = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    objects = render(
        exporter={"enabled": True, "metricsPort": 9466},
        metrics={"networkPolicy": {"enabled": True, "from": who}},
    )
    spec = named(objects, "NetworkPolicy", "pin")["spec"]
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "agent"
    (rule,) = spec["ingress"]
    assert rule["from"] == who
    assert [port["port"] for port in rule["ports"]] == [9465, 9466]
    with pytest.raises(ValueError, match=r"needs metrics\.networkPolicy\.from"):
        render(metrics={"networkPolicy": {"enabled": True}})
