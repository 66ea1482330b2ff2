"""The shortest scenario: a list of pods in a few words.

    name: inference                    # all but pods may be left out
    machine: kep693-8-gpus
    config: {topologyManagerPolicy: single-numa-node, reservedSystemCPUs: "0,16"}
    pods:
      - {pod: infer, count: 4, cpu: 4, memory: 8Gi, nvidia.com/gpu: 1}
      - pod: web
        namespace: shop
        count: 20
        containers:
          web: {requests: {cpu: 250m}}
          proxy: {cpu: 500m, memory: 128Mi}

A list alone, without the keys around it, is one too. Amounts beside `pod` are those of its only container, request
and limit at once; `count` makes so many pods NAME-0, NAME-1, ...
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nri_plugin.app import config_yaml as source
from nri_plugin.app.config_values import one_of, unknown
from nri_plugin.errors import ConfigError
from nri_plugin.simulator.behaviour import BEHAVIOURS
from nri_plugin.simulator.scenario import DEFAULT_RUNTIME, cut_out, refuse_unknown, stem
from nri_plugin.simulator.scenario_containers import CONTAINER_KEYS, is_amount
from nri_plugin.simulator.scenario_steps import RUN_KEYS, StepReader
from nri_plugin.simulator.simulate_plan import Plan
from nri_plugin.simulator.steps import Run

KEYS = ("name", "machine", "runtime", "config", "pods")
POD_KEYS = ("pod", "namespace", "count", *RUN_KEYS, *CONTAINER_KEYS)
MOST_PODS = 10_000
"""Of one line: a slip of the finger must not fill the memory."""


def read_short(text: str, file: str) -> Plan:
    """The plan that a list of pods stands for.

    Raises:
        ConfigError: it is wrong; names file, line, column and key.
    """
    top = source.parse_any(text, file)
    if isinstance(top, source.Sequence):
        top = source.Section(top.place, {"pods": top}, {"pods": top.place})
    section = source.section(top)
    refuse_unknown(section, KEYS)
    given = section.entries
    runs = [pair for item in source.items(given["pods"]) for pair in _pods(item)]
    if not runs:
        raise given["pods"].place.error("expected at least one pod, such as - {pod: db, cpu: 2, memory: 4Gi}")
    _refuse_twins([run for run, _ in runs], file)
    return Plan(
        file=file,
        name=source.text(given["name"]) if "name" in given else stem(file),
        steps=tuple(run for run, _ in runs),
        workloads={run.pod.key: workload for run, workload in runs if workload},
        machine=source.text(given["machine"]).strip() if "machine" in given else "",
        config=_config(given["config"], text) if "config" in given else None,
        runtime=one_of(*BEHAVIOURS)(given["runtime"]) if "runtime" in given else DEFAULT_RUNTIME,
    )


def _config(value: source.Value, text: str) -> str:
    """The configuration where it stands; it is read on the machine it is for."""
    source.section(value)
    return cut_out(text, "config")


def _pods(item: source.Value) -> Iterator[tuple[Run, str]]:
    """The pods of one line, and what they come from."""
    section = source.section(item)
    for key, place in section.keys.items():
        if key not in POD_KEYS and not is_amount(key):
            raise unknown(place, key, POD_KEYS)
    if "pod" not in section.entries:
        raise section.place.error("pod is missing: the name of the pod")
    count = _count(section.entries)
    step = StepReader().read(_as_step(section))
    assert isinstance(step, Run)
    if count is None:
        yield step, ""
        return
    for number in range(count):
        pod = replace(step.pod, name=f"{step.pod.name}-{number}")
        yield replace(step, pod=pod), step.pod.key


def _count(given: Mapping[str, source.Value]) -> int | None:
    if "count" not in given:
        return None
    count = source.number(given["count"])
    if count > MOST_PODS:
        raise given["count"].place.error(f"{count} pods, more than the {MOST_PODS} of one line")
    return count


def _as_step(section: source.Section) -> source.Section:
    """The same as a step `run`, which has containers by name."""
    given, keys = section.entries, section.keys
    namespace, name = _name(given)
    own = [key for key in given if key in CONTAINER_KEYS or is_amount(key)]
    if own and "containers" in given:
        raise keys[own[0]].error("stands beside containers; write it below one of them")
    entries: dict[str, source.Value] = {
        "run": source.Scalar(given["pod"].place, f"{namespace}/{name}", "str"),
        **{key: given[key] for key in RUN_KEYS if key in given},
    }
    if "containers" not in given:
        one = source.Section(section.place, {key: given[key] for key in own}, {key: keys[key] for key in own})
        entries["containers"] = source.Section(section.place, {name: one}, {name: section.place})
    return source.Section(section.place, entries, {key: keys.get(key, section.place) for key in entries})


def _name(given: Mapping[str, source.Value]) -> tuple[str, str]:
    """Namespace and name; the name may have the namespace before it."""
    namespace, slash, name = source.text(given["pod"]).rpartition("/")
    if not name or (slash and ("/" in namespace or not namespace)):
        raise given["pod"].place.error(f"expected NAME or NAMESPACE/NAME, found {source.text(given['pod'])}")
    if "namespace" not in given:
        return namespace or "default", name
    if slash:
        raise given["namespace"].place.error(f"is also given before the name, {namespace}; keep one of them")
    return source.text(given["namespace"]), name


def _refuse_twins(runs: list[Run], file: str) -> None:
    """See that no two pods have one name.

    Raises:
        ConfigError: two have; names the later one.
    """
    seen: dict[str, int] = {}
    for run in runs:
        first = seen.setdefault(run.pod.key, run.line)
        if first != run.line:
            raise ConfigError(
                f"{file}:{run.line}",
                f"pod {run.pod.key} is there already, on line {first}; rename one of them",
            )
