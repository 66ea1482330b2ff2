"""Scenarios are recognised by what they hold, and a mistake is told with file, line and key."""

import json
from pathlib import Path

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.records import QOSClass
from nri_plugin.simulator.simulate.plan import PodPlan, read_plan, shipped_scenarios
from nri_plugin.simulator.simulate.steps import Run

POD = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Gi}}}]}\n"
STEPS = "machine: laptop\nconfig: {reservedSystemCPUs: '0'}\nsteps:\n- run: a/b\n  containers: {c: {cpu: 1, memory: 1Gi}}\n"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Reads a text as the file s.yaml."""
    monkeypatch.chdir(tmp_path)

    def read(text: str | bytes, node: str = "") -> PodPlan:
        Path("s.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_plan("s.yaml", node)

    return read


def names(found: PodPlan) -> list[str]:
    return [step.pod.key for step in found.steps if isinstance(step, Run)]


def test_a_kind_makes_manifests_and_comments_or_empty_documents_do_not_matter(plan) -> None:  # type: ignore[no-untyped-def]
    found = plan(f"# pods\n---\n---\n{POD}---\n# nothing\n---\n{POD.replace('name: p', 'name: q')}")
    assert names(found) == ["default/p", "default/q"]
    assert found.has_objects
    assert (found.name, found.machine, found.config) == ("s", "", None)


def test_json_is_read_as_json(plan) -> None:  # type: ignore[no-untyped-def]
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    assert names(plan(json.dumps({"kind": "List", "items": [pod]}))) == ["default/p"]
    assert names(plan(json.dumps([{"pod": "x", "cpu": 1}]))) == ["default/x"]


def test_yaml_may_begin_like_json(plan) -> None:  # type: ignore[no-untyped-def]
    assert names(plan("[{pod: x}]")) == ["default/x"]


def test_steps_bring_machine_and_configuration_where_they_stand(plan) -> None:  # type: ignore[no-untyped-def]
    found = plan(STEPS)
    assert (found.machine, found.has_objects) == ("laptop", False)
    assert found.config.strip() == "{reservedSystemCPUs: '0'}"
    assert found.config.count("\n") == 1


def test_a_list_alone_and_a_list_below_pods_are_alike(plan) -> None:  # type: ignore[no-untyped-def]
    lines = "- {pod: a, cpu: 1, memory: 1Gi}\n- {pod: n/b, count: 2, requests: {cpu: 100m}}\n"
    alone, below = plan(lines), plan("name: mine\nmachine: laptop\npods:\n" + lines)
    assert names(alone) == names(below) == ["default/a", "n/b-0", "n/b-1"]
    assert (below.name, below.machine) == ("mine", "laptop")
    assert alone.workloads == {"n/b-0": "n/b", "n/b-1": "n/b"}
    qos = [step.pod.qos for step in alone.steps if isinstance(step, Run)]
    assert qos == [QOSClass.GUARANTEED, QOSClass.BURSTABLE, QOSClass.BURSTABLE]


def test_a_windows_mark_before_the_text_does_not_matter(plan) -> None:  # type: ignore[no-untyped-def]
    assert names(plan(b"\xef\xbb\xbf- {pod: a}\n")) == ["default/a"]


def test_containers_are_written_as_in_steps(plan) -> None:  # type: ignore[no-untyped-def]
    found = plan(
        "- pod: a\n  namespace: n\n  annotations: {x/y: z}\n"
        "  initContainers: {m: {restartPolicy: Always, cpu: 1}}\n  containers: {c: {nvidia.com/gpu: 1}}\n"
    )
    (step,) = found.steps
    assert isinstance(step, Run)
    assert step.pod.key == "n/a"
    assert step.pod.init_containers[0].is_sidecar
    assert step.pod.containers[0].devices_asked == (("nvidia.com/gpu", 1),)
    assert step.pod.annotations == {"x/y": "z"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "s.yaml: is empty; give a list of pods"),
        ("hello", "s.yaml: is no scenario; give a list of pods"),
        ("a: 1", "s.yaml: is no scenario"),
        ("a: [1\nb", "s.yaml:3:1: not YAML"),
        ("kind: Pod\nmetadata:\n  name: {{ .Values.name }}\n", "render it first: helm template CHART"),
        ("{{- if .Values.on }}\nkind: Pod\n{{- end }}\n", "holds {{ }}, so it is a template"),
        ("kind: Pod\nkind: Pod\n", "s.yaml:2:1: not YAML: key kind is given twice"),
        (b"\xff\xfe", "s.yaml: not UTF-8 text at byte 0"),
        ("kind: Service\nmetadata: {name: x}\n", "s.yaml: has no pods: 1 Service passed over"),
        (
            POD + "---\n" + POD.replace("cpu: 1", "cpu: x").replace("name: p", "name: q"),
            "s.yaml:7:52: spec.containers[0].resources.limits.cpu: 'x' is not a quantity",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec:\n  containers: []\n",
            "s.yaml:4:3: spec.containers: a pod has at",
        ),
        ("kind: Pod\nmetadata: {name: p}\n", "s.yaml:1:1: spec: expected keys and values, found nothing"),
        (
            '{"kind": "Pod", "metadata": {"name": "p"},\n "spec": {"containers": [{"name": 3}]}}',
            "s.yaml:2:27: spec.containers[0].name: expected the name of a container, found 3",
        ),
        (STEPS.replace("run", "ran"), "s.yaml:4:3: steps[0].ran: unknown key; did you mean run?"),
        ("- {pod: a, cpus: 1}", "s.yaml:1:12: [0].cpus: unknown key; did you mean cpu?"),
        ("- {cpu: 1}", "s.yaml:1:3: [0]: pod is missing"),
        ("- {pod: a/b/c}", "s.yaml:1:9: [0].pod: expected NAME or NAMESPACE/NAME, found a/b/c"),
        ("- {pod: n/a, namespace: n}", "is also given before the name, n; keep one of them"),
        ("- {pod: a, count: x}", "s.yaml:1:19: [0].count: expected a plain number"),
        ("- {pod: a, count: 10001}", "10001 pods, more than the 10000 of one line"),
        ("- {pod: a, cpu: 1, containers: {c: {}}}", "s.yaml:1:12: [0].cpu: stands beside containers"),
        (
            "- {pod: a}\n- {pod: a}\n",
            "s.yaml:2: pod default/a is there already, on line 1; rename one of them",
        ),
        ("pods: []", "s.yaml:1:7: pods: expected at least one pod"),
        ("pods: []\nnam: x", "s.yaml:2:1: nam: unknown key; did you mean name?"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(plan, text: str | bytes, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as caught:
        plan(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_without_end_are_refused_in_one_line(plan) -> None:  # type: ignore[no-untyped-def]
    text = '{"kind": "List", "items": [' * 900 + "]}" * 900
    with pytest.raises(ConfigError, match=r"s\.yaml:.*nested deeper than 200 levels"):
        plan(text)


def test_a_node_is_asked_for_only_of_manifests(plan) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="--node: goes with Kubernetes manifests"):
        plan("- {pod: a}", "n1")


def test_what_is_there_neither_as_file_nor_by_name_is_told(plan) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="nri-pin simulate --list names them"):
        read_plan("nowhere")
    with pytest.raises(ConfigError, match="is a directory"):
        read_plan(".")


def test_every_shipped_scenario_says_what_it_shows_and_can_be_read() -> None:
    for name, title in shipped_scenarios().items():
        assert title
        assert read_plan(name).machine
