"""Reads a scenario of any form into a plan. The content tells the form, not the name of the file.

* Objects with a `kind` are Kubernetes manifests (`manifests`): any number of documents, YAML or JSON.
* A mapping with `steps` is a scenario as `hack/demo` plays it; the file says what happens in which order (`steps`).
* A mapping with `pods`, or a list, is the short form, read here:

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

A list alone is valid too. Amounts beside `pod` are request and limit of its only container. `count` makes that many pods,
NAME-0, NAME-1, ...
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nri_plugin.config import yaml_tree as source
from nri_plugin.config.values import choice, one_of, unknown
from nri_plugin.config.yaml_tree import Place, refuse_traps
from nri_plugin.model.bounds import values_in
from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.machine import described_in, shipped_text
from nri_plugin.simulator.simulate.manifests import Manifests
from nri_plugin.simulator.simulate.pod_resources import ManifestError, words
from nri_plugin.simulator.simulate.pod_resources import Path as KeyPath
from nri_plugin.simulator.simulate.pods import DEFAULT_RUNTIME, RUNTIMES, Driver
from nri_plugin.simulator.simulate.steps import (
    CONTAINER_KEYS,
    Run,
    Step,
    StepReader,
    cut_out,
    is_amount,
    read_text,
    refuse_unknown,
    required,
    stem,
)
from nri_plugin.simulator.simulate.steps import POD_KEYS as FIELDS


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A scenario, read and checked.

    Attributes:
        file: for errors.
        name: of the scenario.
        steps: in their order.
        workloads: the owner of a pod by `NAMESPACE/NAME`; bare pods have none.
        machine: the machine that the scenario names; empty for none.
        config: its configuration, as text at its lines in the file; None for none.
        runtime: the runtime whose messages are simulated.
        driver: of cgroups.
        has_objects: whether pod objects exist, which the exporter reads and the scheduler counts. A scenario of steps
            has none, as in `hack/demo`.
        notes: what was left out, a sentence each.
    """

    file: str
    name: str
    steps: tuple[Step, ...]
    workloads: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    config: str | None = None
    runtime: str = DEFAULT_RUNTIME
    driver: Driver = Driver.SYSTEMD
    has_objects: bool = True
    notes: tuple[str, ...] = ()


# The short form


KEYS = ("name", "machine", "runtime", "config", "pods")
POD_KEYS = ("pod", "namespace", "count", *FIELDS, *CONTAINER_KEYS)
MOST_PODS = 10_000
"""Of one line, so that a typing error does not fill the memory."""


def read_short(text: str, file: str) -> PodPlan:
    """The plan of the short form.

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
    return PodPlan(
        file=file,
        name=source.text(given["name"]) if "name" in given else stem(file),
        steps=tuple(run for run, _ in runs),
        workloads={run.pod.key: workload for run, workload in runs if workload},
        machine=described_in(section, text) if "machine" in given else "",
        config=_config(given["config"], text) if "config" in given else None,
        runtime=one_of(*RUNTIMES)(given["runtime"]) if "runtime" in given else DEFAULT_RUNTIME,
    )


def _config(value: source.Value, text: str) -> str:
    """The text of the configuration; it is checked later, with the machine."""
    source.section(value)
    return cut_out(text, "config")


def _pods(item: source.Value) -> Iterator[tuple[Run, str]]:
    """The pods of one line, and their owner."""
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
        **{key: given[key] for key in FIELDS if key in given},
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
    """Check that names of pods are unique.

    Raises:
        ConfigError: two pods have one name; names the later one.
    """
    seen: dict[str, int] = {}
    for run in runs:
        first = seen.setdefault(run.pod.key, run.line)
        if first != run.line:
            raise ConfigError(
                f"{file}:{run.line}",
                f"pod {run.pod.key} is there already, on line {first}; rename one of them",
            )


# All forms


STDIN = "-"
FORMS = (
    "a list of pods such as '- {pod: db, cpu: 2, memory: 4Gi, count: 3}', Kubernetes manifests, "
    "or steps as hack/demo plays them"
)
_FOLDER, _SUFFIX = "scenarios", ".yaml"


def shipped_scenarios() -> dict[str, str]:
    """Titles of the shipped scenarios by name."""
    found = {
        entry.name.removesuffix(_SUFFIX): entry.read_text("utf-8")
        for entry in (resources.files("nri_plugin.simulator") / _FOLDER).iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    return {name: found[name].partition("\n")[0].removeprefix("# ") for name in sorted(found)}


def read_plan(word: str, node: str = "") -> PodPlan:
    """Read a plan from a file, a shipped scenario or standard input.

    Args:
        word: a path, the name of a shipped scenario, or `-` for standard input.
        node: of manifests, only pods of this node count; empty for all.

    Raises:
        ConfigError: it cannot be read or is wrong; names file, line and key.
    """
    text, file = _text(word)
    if not text.strip():
        raise ConfigError(file, f"is empty; give {FORMS}")
    documents = _documents(text, file)
    first = documents[0] if documents else None
    if isinstance(first, Mapping) and "kind" in first:
        return _from_manifests(documents, text, file, node)
    if node:
        raise ConfigError("--node", f"goes with Kubernetes manifests; {file} has none")
    if isinstance(first, Mapping) and "steps" in first:
        return _from_steps(text, file)
    if isinstance(first, list) or (isinstance(first, Mapping) and "pods" in first):
        return read_short(text, file)
    raise ConfigError(file, f"is no scenario; give {FORMS}")


def _text(word: str) -> tuple[str, str]:
    """The text, and its name for errors."""
    entry = resources.files("nri_plugin.simulator") / _FOLDER / (word + _SUFFIX)
    if "/" not in word and not Path(word).exists() and entry.is_file():
        return entry.read_text("utf-8"), word + _SUFFIX
    if word == STDIN:
        file = "standard input"
        return read_text(file, stream=sys.stdin), file
    absent = "is neither a file nor the name of a shipped scenario; nri-pin simulate --list names them"
    if shipped_text(word) is not None:
        absent = f"is a machine; name a scenario after it, such as nri-pin simulate {word} pods.yaml"
    return read_text(word, absent=absent), word


MOST_VALUES, MOST_JSON_VALUES = 1 << 19, 1 << 23
"""Of a text. Each takes half a kilobyte in YAML and 60 bytes in JSON. A pod as kubectl prints it has 200."""


MOST_DEPTH = 200
"""Of YAML; the library ends the process where it goes down some ten thousand levels."""


class _Loader(yaml.CSafeLoader):
    """YAML whose mappings have each key once, and whose aliases do not multiply it."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _written_out(node, {}) > MOST_VALUES:
            raise yaml.constructor.ConstructorError(None, None, "aliases make it too large", node.start_mark)
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value) and not any(key.value == "<<" for key, _ in node.value):
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return found


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a document has with its aliases written out; more than any number where it holds itself."""
    size = known.get(id(node))
    if size is not None:
        return size
    known[id(node)] = MOST_VALUES + 1  # until it is known
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_written_out(one, known) for one in node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_written_out(one, known) for pair in node.value for one in pair)
    known[id(node)] = size
    return size


TEMPLATE = re.compile(r"\{\{-?\s*[^\s{}\"'][^{}]*\}\}")
"""An action of a Go template, as Helm uses; YAML reads it as a mapping in a mapping."""

UNRENDERED = (
    "holds {{ }}, so it is a template and not a manifest yet; render it first: "
    "helm template CHART | nri-pin simulate MACHINE -"
)


def _documents(text: str, file: str) -> list[Any]:
    """All documents that are not empty."""
    values = values_in(text)
    if text.lstrip()[:1] in "{[" and values <= MOST_JSON_VALUES:
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # YAML may begin like JSON
    if values > MOST_VALUES:
        raise ConfigError(file, f"has about {values} values; give fewer pods at once, or give JSON")
    try:
        refuse_traps(text, file, MOST_DEPTH, takes_aliases=True)
        return [found for found in yaml.load_all(text, Loader=_Loader) if found is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        if TEMPLATE.search(text):
            raise place.error(UNRENDERED) from None
        raise place.error(f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(file, f"not YAML: {' '.join(str(error).split())}") from None


STEPS_KEYS = ("name", "machine", "runtime", "driver", "cgroup", "config", "steps")


def _from_steps(text: str, file: str) -> PodPlan:
    top = source.parse(text, file)
    refuse_unknown(top, STEPS_KEYS)
    given = top.entries
    required(top, "machine")
    reader = StepReader()
    steps = tuple(reader.read(item) for item in source.items(required(top, "steps")))
    if not steps:
        raise given["steps"].place.error("expected at least one step")
    return PodPlan(
        file=file,
        name=source.text(given["name"]) if "name" in given else stem(file),
        steps=steps,
        machine=described_in(top, text),
        config=_config(required(top, "config"), text),
        runtime=one_of(*RUNTIMES)(given["runtime"]) if "runtime" in given else DEFAULT_RUNTIME,
        driver=choice(Driver)(given["driver"]) if "driver" in given else Driver.SYSTEMD,
        has_objects=False,
    )


def _from_manifests(documents: Sequence[Any], text: str, file: str, node: str) -> PodPlan:
    reader = Manifests(node)
    try:
        for number, document in enumerate(documents):
            reader.read(document, (number,))
    except ManifestError as error:
        raise _place(text, file, error.path).error(error.detail) from None
    except RecursionError:
        raise ConfigError(file, "is nested too deeply; lists in lists are read some hundred deep") from None
    if not reader.pods:
        what = "; ".join(reader.notes()) or "nothing in it makes pods"
        raise ConfigError(file, f"has no pods: {what}; give Pods, or what makes pods, such as a Deployment")
    return PodPlan(
        file=file,
        name=stem(file),
        steps=tuple(Run(0, found.pod) for found in reader.pods),
        workloads={found.pod.key: found.workload for found in reader.pods if found.workload},
        notes=tuple(reader.notes()),
    )


def _place(text: str, file: str, path: KeyPath) -> Place:
    """The place of a path in the text; of its deepest part that exists."""
    roots = (node for node in yaml.compose_all(text, Loader=yaml.CSafeLoader) if not _is_nothing(node))
    node = next(root for number, root in enumerate(roots) if number == path[0])
    mark = node.start_mark
    for part in path[1:]:
        below = next(iter(_below(node, part)), None)
        if below is None:
            break
        mark, node = below
    return Place(file, mark.line + 1, mark.column + 1, words(path))


def _below(node: yaml.Node, part: str | int) -> Iterator[tuple[Any, yaml.Node]]:
    """A member and its place; the place of a mapping's value is that of its key."""
    if isinstance(node, yaml.MappingNode):
        return ((key.start_mark, value) for key, value in node.value if key.value == part)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return ((item.start_mark, item) for item in node.value[part : part + 1])
    return iter(())


def _is_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")
