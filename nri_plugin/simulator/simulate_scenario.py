"""Reads a scenario of any form: recognised by what it holds, not by its name.

* Kubernetes objects have a `kind`: `pod_manifests`; any number of documents, YAML or JSON.
* `steps` make a scenario as `nri-pin demo` plays it: `scenario`.
* `pods`, or a list, are pods in a few words: `simulate_pods`.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nri_plugin.app.config_yaml import Place
from nri_plugin.errors import ConfigError
from nri_plugin.simulator.manifest_defaults import ManifestError, words
from nri_plugin.simulator.manifest_defaults import Path as KeyPath
from nri_plugin.simulator.pod_manifests import Manifests
from nri_plugin.simulator.scenario import cut_out, parse, stem
from nri_plugin.simulator.simulate_plan import Plan
from nri_plugin.simulator.simulate_pods import read_short
from nri_plugin.simulator.steps import Run

STDIN = "-"
LARGEST = 64 << 20
"""Characters; ten thousand pods as kubectl prints them are smaller."""

FORMS = (
    "a list of pods such as '- {pod: db, cpu: 2, memory: 4Gi, count: 3}', Kubernetes manifests, "
    "or steps as in nri-pin demo"
)
_FOLDER, _SUFFIX = "scenarios", ".yaml"


def shipped_scenarios() -> dict[str, str]:
    """What each scenario that comes with the package shows, by name."""
    found = {
        entry.name.removesuffix(_SUFFIX): entry.read_text("utf-8")
        for entry in (resources.files("nri_plugin.simulator") / _FOLDER).iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    return {name: found[name].partition("\n")[0].removeprefix("# ") for name in sorted(found)}


def read_plan(word: str, node: str = "") -> Plan:
    """The scenario of a file, a shipped one by its name, or that of standard input.

    Args:
        word: see above; `-` is standard input.
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
    """What is read, and what it is called."""
    entry = resources.files("nri_plugin.simulator") / _FOLDER / (word + _SUFFIX)
    if "/" not in word and not Path(word).exists() and entry.is_file():
        return entry.read_text("utf-8"), word + _SUFFIX
    file = "standard input" if word == STDIN else word
    try:
        text = sys.stdin.read(LARGEST + 1) if word == STDIN else _file(word)
    except FileNotFoundError:
        detail = "is neither a file nor the name of a shipped scenario; nri-pin simulate --list names them"
        raise ConfigError(file, detail) from None
    except OSError as error:
        raise ConfigError(file, f"cannot be read: {(error.strerror or 'unknown error').lower()}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(file, f"not UTF-8 text at byte {error.start}") from None
    if len(text) > LARGEST:
        raise ConfigError(file, f"is larger than {LARGEST >> 20} MiB; give fewer pods at once")
    return text, file


def _file(path: str) -> str:
    with open(path, encoding="utf-8-sig") as file:
        return file.read(LARGEST + 1)


class _Loader(yaml.CSafeLoader):
    """As YAML has it, but no key twice."""

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


TEMPLATE = re.compile(r"\{\{-?\s*[^\s{}\"'][^{}]*\}\}")
"""What Helm and Go's templates put between two braces; YAML reads it as a mapping in a mapping."""

UNRENDERED = (
    "holds {{ }}, so it is a template and not a manifest yet; render it first: "
    "helm template CHART | nri-pin simulate MACHINE -"
)


def _documents(text: str, file: str) -> list[Any]:
    """Every document that holds something."""
    if text.lstrip()[:1] in "{[":
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # YAML may begin like JSON
    try:
        return [found for found in yaml.load_all(text, Loader=_Loader) if found is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        if TEMPLATE.search(text):
            raise place.error(UNRENDERED) from None
        raise place.error(f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(file, f"not YAML: {' '.join(str(error).split())}") from None


def _from_steps(text: str, file: str) -> Plan:
    scenario = parse(text, file)
    return Plan(
        file=file,
        name=scenario.name,
        steps=scenario.steps,
        machine=scenario.machine,
        config=cut_out(text, "config"),
        runtime=scenario.runtime,
        driver=scenario.driver,
        has_objects=False,
    )


def _from_manifests(documents: Sequence[Any], text: str, file: str, node: str) -> Plan:
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
    return Plan(
        file=file,
        name=stem(file),
        steps=tuple(Run(0, found.pod) for found in reader.pods),
        workloads={found.pod.key: found.workload for found in reader.pods if found.workload},
        notes=tuple(reader.notes()),
    )


def _place(text: str, file: str, path: KeyPath) -> Place:
    """Where a path stands: the deepest part of it that is there."""
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
    """Where a member begins, and the member: a key's value begins with its key."""
    if isinstance(node, yaml.MappingNode):
        return ((key.start_mark, value) for key, value in node.value if key.value == part)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return ((item.start_mark, item) for item in node.value[part : part + 1])
    return iter(())


def _is_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")
