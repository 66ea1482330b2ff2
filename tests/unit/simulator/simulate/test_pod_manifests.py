"""Kubernetes manifests as pods."""

from typing import Any

import pytest
import yaml

from nri_plugin.model.records import Amounts, QOSClass
from nri_plugin.simulator.simulate.manifests import Manifests
from nri_plugin.simulator.simulate.node import pod_requests
from nri_plugin.simulator.simulate.pod_resources import ManifestError
from nri_plugin.simulator.simulate.pods import PodSpec

GIB = 1 << 30


def manifests(text: str, node: str = "") -> Manifests:
    reader = Manifests(node)
    for number, document in enumerate(yaml.safe_load_all(text)):
        reader.read(document, (number,))
    return reader


def pod(spec: str) -> PodSpec:
    """The pod of a specification."""
    (found,) = manifests(f"kind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n").pods
    return found.pod


def one(resources: str) -> PodSpec:
    return pod(f"{{containers: [{{name: c, resources: {resources}}}]}}")


def level_pod(whole: str, *inside: str) -> str:
    """The manifest of a pod with resources of its own."""
    containers = ", ".join(
        f"{{name: c{number}, resources: {resources}}}" for number, resources in enumerate(inside)
    )
    return f"{{kind: Pod, metadata: {{name: p}}, spec: {{resources: {whole}, containers: [{containers}]}}}}"


@pytest.mark.parametrize(
    ("resources", "cpu", "memory", "qos"),
    [
        ("{limits: {cpu: 2, memory: 1Gi}}", (2000, 2000), (GIB, GIB), QOSClass.GUARANTEED),
        ("{limits: {cpu: 0.5, memory: 1Gi}}", (500, 500), (GIB, GIB), QOSClass.GUARANTEED),
        ("{limits: {cpu: '1500m'}}", (1500, 1500), (0, 0), QOSClass.BURSTABLE),
        (
            "{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}",
            (1000, 0),
            (GIB, GIB),
            QOSClass.BURSTABLE,
        ),
        ("{requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}}", (1000, 2000), (GIB, GIB), QOSClass.BURSTABLE),
        ("{requests: {memory: 64Mi}}", (0, 0), (64 << 20, 0), QOSClass.BURSTABLE),
        ("{}", (0, 0), (0, 0), QOSClass.BEST_EFFORT),
        ("null", (0, 0), (0, 0), QOSClass.BEST_EFFORT),
        ("{limits: {cpu: 0, memory: 0}}", (0, 0), (0, 0), QOSClass.BEST_EFFORT),
        ("{limits: {nvidia.com/gpu: 1}}", (0, 0), (0, 0), QOSClass.BEST_EFFORT),
        ("{requests: {ephemeral-storage: 1Gi}}", (0, 0), (0, 0), QOSClass.BEST_EFFORT),
    ],
)
def test_requests_follow_from_limits_and_the_class_from_both(
    resources: str, cpu: tuple[int, int], memory: tuple[int, int], qos: QOSClass
) -> None:
    found = one(resources)
    (container,) = found.containers
    assert (container.cpu_request_milli, container.cpu_limit_milli) == cpu
    assert (container.memory_request_bytes, container.memory_limit_bytes) == memory
    assert found.qos is qos


def test_one_container_without_limits_keeps_a_pod_from_being_guaranteed() -> None:
    spec = "{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b}]}"
    assert pod(spec).qos is QOSClass.BURSTABLE


def test_huge_pages_and_devices_are_read_under_the_names_of_runtimes_and_plugins() -> None:
    (container,) = one(
        "{limits: {cpu: 1, memory: 1Gi, hugepages-2Mi: 4Mi, nvidia.com/gpu: '2', example.com/x: 0}}"
    ).containers
    assert container.hugepages == (("hugepages-2Mi", 4 << 20),)
    assert container.devices_asked == (("nvidia.com/gpu", 2),)


def test_an_init_container_that_restarts_always_is_a_sidecar() -> None:
    spec = (
        "{initContainers: [{name: i, resources: {limits: {cpu: 4, memory: 1Gi}}}, "
        "{name: s, restartPolicy: Always, resources: {limits: {cpu: 1, memory: 1Gi}}}], "
        "containers: [{name: c, resources: {limits: {cpu: 2, memory: 1Gi}}}]}"
    )
    found = pod(spec)
    assert [(each.name, each.is_sidecar) for each in found.init_containers] == [("i", False), ("s", True)]
    assert found.qos is QOSClass.GUARANTEED
    assert pod_requests(found) == {"cpu": 4000, "memory": 2 * GIB}


def test_resources_of_the_pod_as_a_whole_decide_its_class_and_its_requests() -> None:
    spec = "{resources: {limits: {cpu: 4, memory: 2Gi}}, containers: [{name: a}, {name: b}]}"
    found = pod(spec)
    assert found.qos is QOSClass.GUARANTEED
    assert found.whole == Amounts(4000, 4000, 2 * GIB, 2 * GIB)
    assert pod_requests(found) == {"cpu": 4000, "memory": 2 * GIB}


@pytest.mark.parametrize(
    ("whole", "inside", "filled"),
    [
        ("{limits: {cpu: 4}}", "{requests: {cpu: 1, memory: 1Gi}}", Amounts(1000, 4000, GIB, 0)),
        ("{limits: {cpu: 4}}", "{limits: {cpu: 0}}", Amounts(0, 4000, 0, 0)),
        ("{requests: {cpu: 4}}", "{limits: {cpu: 1, memory: 1Gi}}", Amounts(4000, 0, 0, 0)),
        (
            "{requests: {cpu: 4}}",
            "{limits: {cpu: 1, memory: 1Gi, hugepages-2Mi: 2Mi}}",
            Amounts(4000, 0, GIB, 0, (("hugepages-2Mi", 2 << 20),)),
        ),
        ("{limits: {}}", "{limits: {cpu: 1, memory: 1Gi}}", None),
    ],
)
def test_a_pod_with_limits_requests_as_a_whole_what_its_containers_request(
    whole: str, inside: str, filled: Amounts | None
) -> None:
    (found,) = manifests(level_pod(whole, inside)).pods
    assert found.pod.whole == filled


def test_overhead_is_no_part_of_what_a_pod_has_as_a_whole() -> None:
    inside = "containers: [{name: a, resources: {limits: {cpu: 2, memory: 1Gi}}}], overhead: {cpu: 250m}"
    for whole in ("{limits: {cpu: 4, memory: 1Gi}}", "{requests: {cpu: 2}, limits: {cpu: 4, memory: 1Gi}}"):
        assert pod(f"{{resources: {whole}, {inside}}}").whole == Amounts(2000, 4000, GIB, GIB)


@pytest.mark.parametrize(
    ("whole", "inside", "differs"),
    [
        ("{requests: {cpu: 4, memory: 4Gi}}", ["{limits: {cpu: 1, memory: 1Gi}}"], True),  # Guaranteed
        ("{requests: {cpu: 4, memory: 4Gi}}", ["{limits: {cpu: 1, memory: 1Gi}}", "{}"], False),
        ("{requests: {cpu: 4}}", ["{requests: {memory: 1Gi}}"], True),
        ("{limits: {cpu: 4}}", ["{limits: {memory: 1Gi}}"], True),
        ("{limits: {cpu: 4}}", ["{limits: {cpu: 1}}"], False),
        ("{limits: {cpu: 4}}", ["{limits: {cpu: 1, ephemeral-storage: 1Gi}}"], False),
        ("{}", ["{limits: {cpu: 1, memory: 1Gi}}"], True),  # not BestEffort
        ("{}", ["{}"], False),
        ("null", ["{limits: {cpu: 1, memory: 1Gi}}"], False),
    ],
)
def test_pods_that_kubernetes_1_37_reads_otherwise_are_counted(
    whole: str, inside: list[str], differs: bool
) -> None:
    text = level_pod(whole, *inside)
    assert any("1.37" in note for note in manifests(text).notes()) is differs
    stored = text.replace("spec:", "status: {qosClass: Burstable}, spec:", 1)
    assert list(manifests(stored).notes()) == []


def test_overhead_of_a_runtime_class_is_counted_and_given_to_nobody() -> None:
    spec = "{overhead: {cpu: 250m, memory: 120Mi}, containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]}"
    assert pod_requests(pod(spec)) == {"cpu": 1250, "memory": GIB + (120 << 20)}


def test_annotations_and_labels_come_along() -> None:
    text = "kind: Pod\nmetadata: {name: p, namespace: n, annotations: {nri-pin/numa-node: '1'}, labels: {a: b}}\n"
    (found,) = manifests(text + "spec: {containers: [{name: c}]}\n").pods
    assert found.pod.annotations == {"nri-pin/numa-node": "1"}
    assert found.pod.labels == {"a": "b"}
    assert found.pod.key == "n/p"


LABELS = "{app: x, tier: y}"
TEMPLATE = (
    "selector: {matchLabels: {app: x}}, "
    f"template: {{metadata: {{annotations: {{a: b}}, labels: {LABELS}}}, spec: {{containers: [{{name: c}}]}}}}"
)


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Deployment", "replicas: 3, ", 3),
        ("Deployment", "", 1),
        ("StatefulSet", "replicas: 2, ", 2),
        ("ReplicaSet", "replicas: 2, ", 2),
        ("ReplicationController", "replicas: 2, ", 2),
        ("Job", "parallelism: 4, completions: 8, ", 4),
        ("Job", "", 1),
        ("DaemonSet", "", 1),
        ("CronJob", "schedule: '* * * * *', jobTemplate: {spec: {parallelism: 2, ", 2),
    ],
)
def test_what_makes_pods_makes_as_many_as_run_at_once(kind: str, spec: str, count: int) -> None:
    text = f"kind: {kind}\nmetadata: {{name: w, namespace: n}}\nspec: {{{spec}{TEMPLATE}}}"
    text += "}" * (text.count("{") - text.count("}"))
    found = manifests(text).pods
    assert [each.pod.key for each in found] == [f"n/w-{number}" for number in range(count)]
    assert {each.workload for each in found} == {f"{kind} n/w"}
    assert found[0].pod.annotations == {"a": "b"}


def test_lists_are_read_as_kubectl_prints_them() -> None:
    text = "kind: List\nitems:\n- {kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}\n"
    assert [each.pod.name for each in manifests(text).pods] == ["a"]
    text = "kind: PodList\nitems:\n- {metadata: {name: a}, spec: {containers: [{name: c}]}}\n"
    assert [each.pod.name for each in manifests(text).pods] == ["a"]


CLUSTER = """\
kind: List
items:
- {kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Running}}
- {kind: Pod, metadata: {name: b}, spec: {nodeName: n2, containers: [{name: c}]}, status: {phase: Running}}
- {kind: Pod, metadata: {name: d}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Succeeded}}
- {kind: Pod, metadata: {name: e}, spec: {containers: [{name: c}]}, status: {phase: Pending}}
"""


def test_pods_that_are_over_hold_nothing_and_those_of_other_nodes_can_be_left_out() -> None:
    everywhere = manifests(CLUSTER)
    assert [each.pod.name for each in everywhere.pods] == ["a", "b", "e"]
    assert list(everywhere.notes()) == [
        "1 pod passed over: Succeeded or Failed, nothing is held by it any more",
        "pods of 2 nodes are all played on this one machine; --node NAME takes those of one",
    ]
    here = manifests(CLUSTER, "n1")
    assert [each.pod.name for each in here.pods] == ["a"]
    assert "2 pods of other nodes than n1 passed over" in list(here.notes())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "{apiVersion: v1, kind: Deployment, metadata: {name: p}, spec: {template: {}}}",
            "apiVersion: Deployment is of apps/v1, found v1",
        ),
        ("{apiVersion: v2, kind: Pod, metadata: {name: p}}", "apiVersion: Pod is of v1, found v2"),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: DP_}]}}",
            "spec.containers[0].name: expected at most 63 small letters, digits and inner '-', found 'DP_'",
        ),
        (
            f"{{kind: Pod, metadata: {{name: p}}, spec: {{containers: [{{name: {'a' * 64}}}]}}}}",
            "spec.containers[0].name: expected at most 63",
        ),
    ],
)
def test_versions_and_names_that_the_api_server_refuses_are_refused(text: str, told: str) -> None:
    with pytest.raises(ManifestError) as caught:
        manifests(text)
    assert str(caught.value).startswith(told)


def test_with_a_node_named_it_is_said_that_pods_of_workloads_name_none() -> None:
    text = f"kind: Deployment\nmetadata: {{name: web}}\nspec: {{replicas: 3, {TEMPLATE}}}\n"
    assert list(manifests(text).notes()) == []
    found = manifests(text, "n9")
    assert len(found.pods) == 3
    assert list(found.notes()) == [
        "3 pods of workloads all taken: they name no node, --node chooses none of them"
    ]


def test_what_is_not_simulated_is_named() -> None:
    text = """\
kind: Service
metadata: {name: s}
---
kind: MPIJob
metadata: {name: m}
---
kind: Deployment
metadata: {name: none}
spec: {replicas: 0, selector: {}, template: {spec: {containers: [{name: c}]}}}
---
kind: Pod
metadata: {name: p}
spec: {nodeSelector: {a: b}, resourceClaims: [{name: x}], ephemeralContainers: [{name: e}], containers: [{name: c}]}
"""
    assert list(manifests(text).notes()) == [
        "1 Service passed over: no kind of object that makes pods here",
        "1 MPIJob passed over: no kind of object that makes pods here",
        "Deployment default/none has replicas 0: no pods",
        "ephemeralContainers of 1 pod not looked at: they ask for nothing",
        "nodeSelector of 1 pod not looked at: every pod is played on this one node",
        "resourceClaims of 1 pod not looked at: dynamic resource allocation is not simulated",
    ]


TWIN = "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}"


def wrong(resources: str) -> Any:
    return {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": yaml.safe_load(resources)}]},
    }


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ("{limits: {cpus: 1}}", "limits.cpus: is no resource of containers; did you mean cpu?"),
        ("{limits: {gpu: 1}}", "limits.gpu: is no resource of containers; devices are named as in"),
        ("{limits: {cpu: x}}", "limits.cpu: 'x' is not a quantity"),
        ("{limits: {cpu: -1}}", "limits.cpu: -1 is negative"),
        ("{limits: {cpu: true}}", "limits.cpu: expected an amount such as 500m or 2Gi, found True"),
        ("{limits: {cpu: [1]}}", "limits.cpu: expected an amount such as 500m or 2Gi, found a list"),
        ("{limits: {memory: 1Q}}", "limits.memory: '1Q' has the unknown suffix"),
        ("{requests: {cpu: 3}, limits: {cpu: 2}}", "requests.cpu: 3 is more than the limit, 2; lower it"),
        (
            "{requests: {nvidia.com/gpu: 1}}",
            "requests.nvidia.com/gpu: must equal its limit, found 1 and no limit",
        ),
        ("{requests: {a.b/c: 1}, limits: {a.b/c: 2}}", "must equal its limit, found 1 and limit 2"),
        ("{requests: {cpu: 1, hugepages-2Mi: 2Mi}}", "must equal its limit"),
        ("{limits: {hugepages-2Mi: 2Mi}}", "huge pages need cpu or memory beside them"),
        (
            "{limits: {cpu: 1, hugepages-2Mi: 3Mi}}",
            "hugepages-2Mi: 3Mi is no multiple of 2Mi, the size of a page",
        ),
        ("{limits: {cpu: 1, hugepages-x: 3Mi}}", "hugepages-x: 'x' is not a quantity"),
        ("{limits: {nvidia.com/gpu: 1.5}}", "1.5 is no whole number; devices are counted"),
        ("{limits: 3}", "resources.limits: expected keys and values, found 3"),
        ("{limit: {cpu: 2}}", "resources.limit: unknown key; did you mean limits?"),
        ("{cpu: 2}", "resources.cpu: unknown key; known are limits, requests or claims"),
        ("{claims: []}", ""),
        ("[]", ""),
        ("3", "resources: expected keys and values, found 3"),
    ],
)
def test_what_the_api_server_would_refuse_is_refused_with_its_path(resources: str, told: str) -> None:
    if not told:
        assert Manifests().read(wrong(resources), (0,)) is None
        return
    with pytest.raises(ManifestError) as caught:
        Manifests().read(wrong(resources), (0,))
    assert str(caught.value).startswith("spec.containers[0].resources")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3", ": expected keys and values, found 3"),
        ("{}", "kind: expected the kind of the object, such as Pod, found nothing"),
        ("{kind: Pod}", "metadata: expected keys and values, found nothing"),
        (
            "{kind: Pod, metadata: {}, spec: {containers: [{name: c}]}}",
            "metadata.name: expected a name, found nothing",
        ),
        ("{kind: Pod, metadata: {name: p}, spec: {}}", "spec.containers: a pod has at least one container"),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: 3}}",
            "spec.containers: expected a list, found 3",
        ),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{}]}}",
            "spec.containers[0].name: expected the name of",
        ),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}, {name: c}]}}",
            "spec.containers[1].name: container c is there already; rename one of them",
        ),
        (
            "{kind: Deployment, metadata: {name: d}, spec: {}}",
            "spec.template: expected keys and values, found nothing",
        ),
        (
            "{kind: Deployment, metadata: {name: d}, spec: {template: {spec: {}}}}",
            "spec.selector: missing; repeat the labels of the template under matchLabels",
        ),
        (
            "{kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {app: x}}, template: {spec: {}}}}",
            "spec.selector.matchLabels.app: x is not the label of the template, which is missing; make them equal",
        ),
        (
            "{kind: CronJob, metadata: {name: d}, spec: {jobTemplate: {}}}",
            "spec.jobTemplate.spec: expected keys and values, found nothing",
        ),
        (
            "{kind: Deployment, metadata: {name: d}, spec: {replicas: x, selector: {}, template: {spec: {}}}}",
            "spec.replicas: expected a number of pods, found 'x'",
        ),
        (
            "{kind: Job, metadata: {name: d}, spec: {parallelism: 10001, template: {spec: {}}}}",
            "spec.parallelism: 10001 pods, more than the 10000 that are played of one object",
        ),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, resorces: {}}]}}",
            "spec.containers[0].resorces: unknown key; did you mean resources?",
        ),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}], initcontainers: []}}",
            "spec.initcontainers: unknown key; did you mean initContainers?",
        ),
        (
            "{kind: Deployment, metadata: {name: d}, spec: {replica: 3, template: {spec: {}}}}",
            "spec.replica: unknown key; did you mean replicas?",
        ),
        ("{kind: List, items: {}}", "items: expected a list, found keys and values"),
        (
            "{kind: Pod, metadata: {name: p, annotations: {a: 1}}, spec: {containers: [{name: c}]}}",
            "metadata.annotations.a: expected text; put it in quotes, found 1",
        ),
        (
            "{kind: Pod, metadata: {name: p}, spec: {resources: {limits: {a.b/c: 1}}, containers: [{name: c}]}}",
            "spec.resources.limits.a.b/c: a pod as a whole has cpu, memory and hugepages-SIZE only",
        ),
        (
            level_pod("{requests: {cpu: 1}}", "{requests: {cpu: 2}}"),
            "spec.resources.requests.cpu: 1 is less than its containers ask for; ask for 2 or more",
        ),
        (
            level_pod("{limits: {cpu: 2}}", "{requests: {cpu: 1}}", "{requests: {cpu: 3}}"),
            "spec.resources.requests.cpu: 4 is more than the limit, 2; lower it",
        ),
        (
            level_pod("{limits: {memory: 2Gi}}", "{requests: {memory: 1Gi}, limits: {memory: 3Gi}}"),
            "spec.containers[0].resources.limits.memory: 3Gi is more than the limit of the pod, 2147483648",
        ),
        (
            level_pod("{claims: [{name: x}]}", "{}"),
            "spec.resources.claims: a pod as a whole has no claims",
        ),
        (
            level_pod("{limits: {hugepages-2Mi: 4Mi}}", "{}"),
            "spec.resources: huge pages need cpu or memory beside them",
        ),
        (
            level_pod("{limits: {cpu: 2}, requests: {hugepages-2Mi: 4Mi}}", "{}"),
            "spec.resources.requests.hugepages-2Mi: must equal its limit, found 4194304 and no limit",
        ),
        (
            f"{{kind: List, items: [{TWIN}, {TWIN}]}}",
            "items[1].metadata.name: pod default/p is there already; rename one of them",
        ),
    ],
)
def test_what_is_no_manifest_is_told_with_its_path(text: str, told: str) -> None:
    with pytest.raises(ManifestError) as caught:
        manifests(text)
    assert told in str(caught.value)


def test_a_pod_as_a_whole_has_the_huge_pages_of_its_containers_unless_it_names_them() -> None:
    inside = "{limits: {cpu: 1, hugepages-2Mi: 4Mi}}", "{limits: {cpu: 1, hugepages-2Mi: 2Mi}}"
    for whole, pages in (("{limits: {cpu: 2}}", 6 << 20), ("{limits: {hugepages-2Mi: 8Mi}}", 8 << 20)):
        (found,) = manifests(level_pod(whole, *inside)).pods
        assert found.pod.whole is not None
        assert dict(found.pod.whole.hugepages) == {"hugepages-2Mi": pages}


def test_other_keys_of_pods_and_containers_pass_though_they_look_alike() -> None:
    container = (
        "{name: c, resizePolicy: [], restartPolicyRules: [], restartPolicy: Always, envFrom: [], ports: []}"
    )
    spec = f"{{containers: [{container}], ephemeralContainers: [], resourceClaims: [], restartPolicy: Never}}"
    assert len(manifests(f"{{kind: Pod, metadata: {{name: p}}, spec: {spec}}}").pods) == 1
