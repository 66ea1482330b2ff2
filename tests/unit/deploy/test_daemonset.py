"""What the deployment promises about privileges, mounts and limits is what its file says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin import __version__
from nri_plugin.config.loading import DEFAULT_PATH, load_text
from nri_plugin.host.devices import FOLDERS

FILE = Path(__file__).parents[3] / "deploy" / "daemonset.yaml"
OBJECTS = {item["kind"]: item for item in yaml.safe_load_all(FILE.read_text())}
POD: dict[str, Any] = OBJECTS["DaemonSet"]["spec"]["template"]["spec"]
AGENT: dict[str, Any] = POD["containers"][0]
CONFIG_TEXT: str = OBJECTS["ConfigMap"]["data"]["config.yaml"]
HOST_PATHS = {volume["name"]: volume["hostPath"]["path"] for volume in POD["volumes"] if "hostPath" in volume}
MOUNTS = {mount["name"]: mount for mount in AGENT["volumeMounts"]}


def test_the_configuration_in_the_file_is_one_the_agent_takes() -> None:
    config = load_text(CONFIG_TEXT, "configmap")
    assert config.options.never_refuse >= {"kube-system", "nri-pin"}


def test_the_feature_gate_in_its_comment_is_one_the_agent_takes() -> None:
    line = "# featureGates: {PodLevelResourceManagers: true}"
    assert CONFIG_TEXT.count(line) == 1
    config = load_text(CONFIG_TEXT.replace(line, line.removeprefix("# ")), "configmap")
    assert config.options.pod_level_managers


def test_every_path_of_the_configuration_is_mounted_and_the_defaults_are_covered() -> None:
    config = load_text(CONFIG_TEXT, "configmap")
    assert MOUNTS["state"]["mountPath"] == config.state_dir
    assert MOUNTS["nri"]["mountPath"] == str(Path(config.nri_socket).parent)
    assert MOUNTS["cgroup"]["mountPath"] == config.cgroup_root
    assert MOUNTS["sys"]["mountPath"] == f"{config.sysfs_root}/sys"
    assert MOUNTS["config"]["mountPath"] == str(Path(DEFAULT_PATH).parent)


def test_it_sees_the_hosts_cgroup_tree_never_over_its_own() -> None:
    assert HOST_PATHS["cgroup"] == "/sys/fs/cgroup"
    assert all(not mount["mountPath"].startswith("/sys") for mount in AGENT["volumeMounts"])


def test_only_socket_state_and_cgroups_may_be_written() -> None:
    assert {name for name, mount in MOUNTS.items() if not mount.get("readOnly")} == {"nri", "state", "cgroup"}
    assert HOST_PATHS == {
        "nri": "/var/run/nri",
        "state": "/run/nri-pin",
        "cgroup": "/sys/fs/cgroup",
        "sys": "/sys",
        "cdi-static": "/etc/cdi",
        "cdi-dynamic": "/var/run/cdi",
    }


def test_cdi_names_are_looked_up_in_the_folders_that_are_mounted() -> None:
    root = load_text(CONFIG_TEXT, "configmap").sysfs_root
    places = {MOUNTS[name]["mountPath"] for name in ("cdi-static", "cdi-dynamic")}
    assert places == {f"{root}/{folder}" for folder in FOLDERS}


def test_a_node_has_to_be_named_and_the_agent_starts_where_runtimes_insist_on_plugins() -> None:
    assert POD["nodeSelector"] == {"kubernetes.io/os": "linux", "nri-pin/enabled": "true"}
    annotations = OBJECTS["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"nri-pin/tolerate-missing-plugins": "true"}


@pytest.mark.parametrize(
    ("first", "lines", "parsed"),
    [
        ("# seLinuxOptions:", 2, {"seLinuxOptions": {"type": "spc_t"}}),
    ],
)
def test_what_is_commented_out_works_without_its_comment_signs(
    first: str, lines: int, parsed: dict[str, Any]
) -> None:
    text = FILE.read_text().splitlines()
    start = next(number for number, line in enumerate(text) if line.strip() == first)
    block = [line.replace("# ", "", 1) for line in text[start : start + lines]]
    assert yaml.safe_load("\n".join(block)) == parsed


def test_its_probes_ask_the_port_that_the_configuration_opens() -> None:
    (port,) = {AGENT[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")}
    assert load_text(CONFIG_TEXT, "configmap").health_probe_bind_address == ("", port)


def test_it_runs_as_root_without_anything_that_root_can_do() -> None:
    context = AGENT["securityContext"]
    assert context["runAsUser"] == 0
    assert context["privileged"] is False
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("key", ["hostPID", "hostNetwork", "hostIPC"])
def test_it_shares_no_namespace_with_the_host(key: str) -> None:
    assert not POD.get(key, False)


def test_it_holds_no_credentials() -> None:
    assert POD["automountServiceAccountToken"] is False
    assert OBJECTS["ServiceAccount"]["automountServiceAccountToken"] is False
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & set(OBJECTS)


def test_two_agents_never_run_on_one_node() -> None:
    assert OBJECTS["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_it_stays_when_the_node_is_full_and_is_never_throttled() -> None:
    assert POD["priorityClassName"] == "system-node-critical"
    assert POD["tolerations"] == [{"operator": "Exists"}]
    assert AGENT["resources"]["requests"]["memory"] == "64Mi"
    assert "cpu" not in AGENT["resources"]["limits"]


def test_names_agree_across_the_file() -> None:
    assert {item["metadata"].get("namespace", "nri-pin") for item in OBJECTS.values()} == {"nri-pin"}
    assert OBJECTS["Namespace"]["metadata"]["name"] == "nri-pin"
    assert POD["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]
    spec = OBJECTS["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert set(MOUNTS) == {volume["name"] for volume in POD["volumes"]}
    assert AGENT["image"] == f"nri-pin:{__version__}"
