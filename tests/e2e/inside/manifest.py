"""deploy/daemonset.yaml, read the way a kubelet would carry it out, as far as this lab can.

What it does not do: pull the image (the node's own Python and libraries are mounted read-only instead) and give the pod
a network of its own. So the pod opens no port for probes, which would be one of this machine, and nobody probes it.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from .agent import PYTHON
from .pods import ContainerSpec, PodSpec

AGENT_POD = "nri-pin-agent"
_MANIFEST = "/opt/e2e/deploy/daemonset.yaml"
_AS_JSON = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"
_CONFIG_DIRECTORY = Path("/run/lab/manifest")
_IMAGE = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/opt/nri-pin": "/opt/nri-pin"}
_RUNTIME_DEFAULT = 0
_PORT = "healthProbeBindAddress:"


def agent_pod(**settings: Any) -> PodSpec:
    """Return the pod of the DaemonSet; `settings` are added to the configuration of its ConfigMap."""
    documents = {document["kind"]: document for document in _documents()}
    _write_config(documents["ConfigMap"], settings)
    template = documents["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = template["containers"]
    mounts, read_only = _mounts(template["volumes"], container["volumeMounts"])
    spec = ContainerSpec(
        container["name"],
        cpu_milli=int(container["resources"]["requests"]["cpu"].removesuffix("m")),
        memory_mib=int(container["resources"]["limits"]["memory"].removesuffix("Mi")),
        command=("/opt/nri-pin/bin/nri-pin", *container["args"]),
        mounts={**_IMAGE, **mounts},
        read_only=frozenset(_IMAGE) | read_only,
        security=_security(container["securityContext"]),
    )
    return PodSpec(AGENT_POD, "burstable", (spec,), namespace=documents["DaemonSet"]["metadata"]["namespace"])


def agent_as_static_pod(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the pod's spec of the DaemonSet for a kubelet without an API server: its ConfigMap is a directory."""
    documents = {document["kind"]: document for document in _documents()}
    _write_config(documents["ConfigMap"], settings)
    spec: dict[str, Any] = documents["DaemonSet"]["spec"]["template"]["spec"]
    for name in ("serviceAccountName", "nodeSelector", "priorityClassName", "imagePullSecrets"):
        spec.pop(name, None)
    for volume in spec["volumes"]:
        if volume.pop("configMap", None):
            volume["hostPath"] = {"path": str(_CONFIG_DIRECTORY)}
    (container,) = spec["containers"]
    container.pop("env")  # the address of a node that no API server knows
    container["command"] = ["/opt/nri-pin/bin/nri-pin"]
    return _with_the_nodes_programs(spec)


def debugger(command: str) -> dict[str, Any]:
    """Return a pod's spec as `kubectl debug node/NODE --profile=sysadmin` makes it, for a command of the shell."""
    container = {
        "name": "debugger",
        "command": ["/usr/bin/sh", "-c", command],
        "env": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": "10.96.0.1"},
            {"name": "PATH", "value": "/usr/sbin:/usr/bin"},
        ],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "host-root", "mountPath": "/host"}],
    }
    spec = {
        "hostPID": True,
        "hostIPC": True,
        "restartPolicy": "Never",
        "volumes": [{"name": "host-root", "hostPath": {"path": "/"}}],
        "containers": [container],
    }
    return _with_the_nodes_programs(spec)


def _with_the_nodes_programs(spec: dict[str, Any]) -> dict[str, Any]:
    (container,) = spec["containers"]
    container |= {"image": "localhost/test:1", "imagePullPolicy": "Never"}
    for number, (place, source) in enumerate(_IMAGE.items()):
        spec["volumes"].append({"name": f"image-{number}", "hostPath": {"path": source}})
        container["volumeMounts"].append({"name": f"image-{number}", "mountPath": place, "readOnly": True})
    return spec


def _documents() -> list[dict[str, Any]]:
    done = subprocess.run([PYTHON, "-c", _AS_JSON, _MANIFEST], capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _write_config(config_map: dict[str, Any], settings: dict[str, Any]) -> None:
    _CONFIG_DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, text in config_map["data"].items():
        added = "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
        lines = [line for line in text.splitlines(keepends=True) if not line.startswith(_PORT)]
        (_CONFIG_DIRECTORY / name).write_text("".join(lines) + added)


def _mounts(
    volumes: list[dict[str, Any]], places: list[dict[str, Any]]
) -> tuple[dict[str, str], frozenset[str]]:
    hosts = {volume["name"]: volume.get("hostPath", {"path": str(_CONFIG_DIRECTORY)}) for volume in volumes}
    for host in hosts.values():
        if host.get("type") == "DirectoryOrCreate":
            Path(host["path"]).mkdir(parents=True, exist_ok=True)
    mounts = {place["mountPath"]: hosts[place["name"]]["path"] for place in places}
    return mounts, frozenset(place["mountPath"] for place in places if place.get("readOnly"))


def _security(context: dict[str, Any]) -> dict[str, Any]:
    return {
        "capabilities": {"drop_capabilities": context["capabilities"]["drop"]},
        "privileged": context.get("privileged", False),
        "run_as_user": {"value": context["runAsUser"]},
        "run_as_group": {"value": context["runAsGroup"]},
        "readonly_rootfs": context["readOnlyRootFilesystem"],
        "no_new_privs": not context["allowPrivilegeEscalation"],
        "seccomp": {"profile_type": _RUNTIME_DEFAULT},
    }
