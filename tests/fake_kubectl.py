"""A stand-in for kubectl and its cluster: a program on the PATH that answers from one file, and keeps what it was asked.

`tests/deploy/test_kubectl.py` compares its answers with those of a real kubectl. `exec` runs the real `nri-pin` of this
checkout, with the options of `Cluster.options` of that pod, or gives a prepared answer.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Object = dict[str, Any]
REPOSITORY = Path(__file__).parent.parent


def agent_object(
    node: str, *, name: str = "", image: str = "registry/nri-pin:0.1.0", ready: bool = True, **state: object
) -> Object:
    """The object of an agent's pod; `state` replaces the state of its container."""
    return {
        "metadata": {
            "name": name or f"nri-pin-{node}",
            "namespace": "nri-pin",
            "labels": {"app.kubernetes.io/name": "nri-pin", "app.kubernetes.io/component": "agent"},
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": "agent", "image": image},
                {"name": "exporter", "image": "registry/nri-pin-cluster:0.1.0"},
            ],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "exporter", "ready": True, "state": {"running": {}}},
                {"name": "agent", "ready": ready, "state": state or {"running": {}}},
            ],
        },
    }


def pod_object(
    name: str, node: str = "", namespace: str = "shop", containers: tuple[str, ...] = ("c",)
) -> Object:
    """The object of a user's pod."""
    spec: Object = {"containers": [{"name": one, "image": "x"} for one in containers]}
    if node:
        spec["nodeName"] = node
    phase = "Running" if node else "Pending"
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {"phase": phase}}


class Cluster:
    """A cluster behind a kubectl in `folder`; put the folder on the PATH.

    Attributes:
        pods: objects of pods.
        nodes: names of nodes.
        topologies: NodeResourceTopology objects; None where the kind is not installed.
        forbidden: kinds that may not be listed, and `exec`.
        unreachable: names of pods whose node does not answer.
        options: by the name of an agent's pod, what `exec` adds to the arguments of the real nri-pin.
        prepared: by the name of an agent's pod and the words after nri-pin, (exit code, output, errors).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: list[Object] = []
        self.nodes: list[str] = []
        self.topologies: list[Object] | None = []
        self.forbidden: list[str] = []
        self.unreachable: list[str] = []
        self.options: dict[str, list[str]] = {}
        self.prepared: dict[str, dict[str, tuple[int, str, str]]] = {}
        program = folder / "kubectl"
        program.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
            f"from tests.fake_kubectl import main\nsys.exit(main({str(folder)!r}, sys.argv[1:]))\n"
        )
        program.chmod(0o755)
        self.save()

    def save(self) -> None:
        """Let the next kubectl answer by what is set now."""
        facts = {name: value for name, value in vars(self).items() if name != "folder"}
        (self.folder / "cluster.json").write_text(json.dumps(facts))

    def asked(self) -> list[list[str]]:
        """The arguments of each run of kubectl."""
        log = self.folder / "asked"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def main(folder: str, arguments: list[str]) -> int:
    """Answer as kubectl does; return the exit code."""
    cluster = json.loads(Path(folder, "cluster.json").read_text())
    descriptor = os.open(os.path.join(folder, "asked"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (json.dumps(arguments) + "\n").encode())
    os.close(descriptor)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    words, options = _parsed(arguments[:cut])
    try:
        if words[0] == "get":
            sys.stdout.write(json.dumps(_got(cluster, words[1:], options)))
            return 0
        return _executed(cluster, words[1], options, arguments[cut + 1 :])
    except _Refused as error:
        sys.stderr.write(f"{error}\n")
        return 1


class _Refused(Exception):  # noqa: N818 - an answer, not a fault
    pass


FLAGS = {"--all-namespaces", "-i", "-t"}


def _parsed(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    words, options, rest = [], {}, iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in FLAGS:
            options[word] = "true"
        elif word.startswith("-"):
            options[name] = value if equals else next(rest)
        else:
            words.append(word)
    return words, options


def _got(cluster: Mapping[str, Any], words: list[str], options: Mapping[str, str]) -> Object:
    assert options["-o"] == "json"
    kind, *names = words
    plural = kind if kind.endswith("s") or "." in kind else f"{kind}s"
    if plural.startswith("noderesourcetopologies") and cluster["topologies"] is None:
        raise _Refused(f'error: the server doesn\'t have a resource type "{plural.partition(".")[0]}"')
    namespace = options.get("--namespace", "default")
    everywhere = "--all-namespaces" in options
    if plural in cluster["forbidden"] or (f"{plural} everywhere" in cluster["forbidden"] and everywhere):
        verb = f'get resource "{plural}"' if names else f'list resource "{plural}"'
        where = (
            " at the cluster scope" if everywhere or plural != "pods" else f' in the namespace "{namespace}"'
        )
        subject = f'{plural} "{names[0]}"' if names else plural
        raise _Refused(
            f'Error from server (Forbidden): {subject} is forbidden: User "jane" cannot {verb} in API group ""{where}'
        )
    found = {
        "pods": cluster["pods"],
        "nodes": [{"metadata": {"name": name}} for name in cluster["nodes"]],
    }.get(plural, cluster["topologies"])
    if plural == "pods" and not everywhere:
        found = [one for one in found if one["metadata"]["namespace"] == namespace]
    if names:
        one = next((one for one in found if one["metadata"]["name"] == names[0]), None)
        if one is None:
            raise _Refused(f'Error from server (NotFound): {plural} "{names[0]}" not found')
        return dict(one)
    return {"apiVersion": "v1", "kind": "List", "items": [one for one in found if _selected(one, options)]}


def _selected(one: Object, options: Mapping[str, str]) -> bool:
    labels = one["metadata"].get("labels", {})
    name, _, value = options.get("--selector", "=").partition("=")
    field, _, node = options.get("--field-selector", "=").partition("=")
    assert field in {"", "spec.nodeName"}
    return (not name or labels.get(name) == value) and (not field or one["spec"].get("nodeName") == node)


def _executed(cluster: Mapping[str, Any], pod: str, options: Mapping[str, str], program: list[str]) -> int:
    assert options["--container"] == "agent"
    if "exec" in cluster["forbidden"]:
        raise _Refused(
            f'Error from server (Forbidden): pods "{pod}" is forbidden: User "jane" cannot create resource "pods/exec" '
            f'in API group "" in the namespace "{options["--namespace"]}"'
        )
    if pod in cluster["unreachable"]:
        raise _Refused("Error from server: error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout")
    at = program.index("nri-pin")
    words = program[at + 1 :]
    if pod in cluster["options"]:
        done = subprocess.run(
            [*program[:at], sys.executable, "-m", "nri_plugin", *words, *cluster["options"][pod]],
            cwd=REPOSITORY,
            check=False,
        )
        code = done.returncode
    else:
        code, output, errors = cluster["prepared"][pod][" ".join(words)]
        if "-t" in options:
            size = os.get_terminal_size(1)
            sys.stdout.write(f"rows {size.lines} columns {size.columns} ")
        sys.stdout.write(output)
        sys.stderr.write(errors)
    if code:
        sys.stderr.write(f"command terminated with exit code {code}\n")
    return code
