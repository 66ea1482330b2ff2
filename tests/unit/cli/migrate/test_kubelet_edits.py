"""A value is changed where it comes from: the main file, a drop-in, or a flag in a unit or an environment file."""

from collections.abc import Mapping

import pytest

from nri_plugin.cli.doctor.view import NodeView, Process
from nri_plugin.cli.migrate.kubelet import (
    OFF,
    KubeletFiles,
    agent_part,
    as_flag,
    edits_of,
    from_flag,
    next_settings,
    read_kubelet_files,
    to_kubelet_changes,
    to_plugin_changes,
)
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.sets import CPUSet

MAIN, FLAGS = "/var/lib/kubelet/config.yaml", "/etc/default/kubelet"
UNIT = "/usr/lib/systemd/system/kubelet.service"


class Files(NodeView):
    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self.texts = texts

    def text(self, path: str) -> str | None:
        return self.texts.get(path)

    def names(self, path: str) -> tuple[str, ...]:
        return tuple(
            sorted(name.removeprefix(f"{path}/") for name in self.texts if name.startswith(f"{path}/"))
        )


class Units:
    def show(self, unit: str, name: str) -> str:
        return {"FragmentPath": UNIT, "DropInPaths": ""}[name]


def read(texts: Mapping[str, str], *words: str) -> KubeletFiles:
    unit = f"[Service]\nEnvironmentFile=-{FLAGS}\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n"
    process = Process(1, "kubelet", ("kubelet", *words))
    return read_kubelet_files(Files({UNIT: unit, **texts}), process, Units(), "kubelet.service")  # type: ignore[arg-type]


def after(files: KubeletFiles, changes: Mapping[str, object]) -> dict[str, str | None]:
    return {edit.path: edit.after for edit in edits_of(files, changes)}


def test_what_counts_is_main_file_then_drop_ins_then_flags() -> None:
    files = read(
        {
            MAIN: "cpuManagerPolicy: none\ntopologyManagerPolicy: none\ncpuManagerPolicyOptions: {a: x, b: x}\nmaxPods: 9\n",
            "/d/10-a.conf": "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {b: y}\nmaxPods: null\n",
            "/d/readme.md": "- no configuration\n",
        },
        "--config-dir=/d",
        "--topology-manager-policy",
        "restricted",
    )
    assert files.effective() == {
        "cpuManagerPolicy": "static",
        "topologyManagerPolicy": "restricted",
        "cpuManagerPolicyOptions": {"a": "x", "b": "y"},
    }


def test_a_drop_in_that_wins_is_changed_and_options_go_from_every_file() -> None:
    files = read(
        {
            MAIN: "cpuManagerPolicy: none\ncpuManagerPolicyOptions: {a: x}\nmaxPods: 9\n",
            "/d/10.conf": "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {b: y}\n",
        },
        "--config-dir=/d",
    )
    changes = to_plugin_changes(files.effective(), CPUSet(), 0)
    assert after(files, changes) == {
        MAIN: "cpuManagerPolicy: none\nmaxPods: 9\n",
        "/d/10.conf": "cpuManagerPolicy: none\n",
    }


def test_options_are_set_in_the_last_file_that_has_any_and_removed_from_the_others() -> None:
    files = read(
        {MAIN: "cpuManagerPolicyOptions: {a: x}\n", "/d/1.conf": "cpuManagerPolicyOptions: {b: y}\n"},
        "--config-dir=/d",
    )
    found = after(files, {"cpuManagerPolicyOptions": {"c": "z"}})
    assert found == {MAIN: "", "/d/1.conf": "cpuManagerPolicyOptions:\n  c: z\n"}


def test_flags_are_changed_in_the_environment_file() -> None:
    words = ("--cpu-manager-policy=static", "--cpu-manager-policy-options=full-pcpus-only=true", "--v=2")
    files = read({MAIN: "maxPods: 9\n", FLAGS: f'KUBELET_EXTRA_ARGS="{" ".join(words)}"\n'}, *words)
    changes = to_plugin_changes(files.effective(), CPUSet.parse("0"), 0)
    assert after(files, changes) == {
        MAIN: "maxPods: 9\nreservedSystemCPUs: '0'\n",
        FLAGS: 'KUBELET_EXTRA_ARGS="--cpu-manager-policy=none --v=2"\n',
    }


def test_a_kubelet_without_a_file_gets_new_flags_beside_others() -> None:
    words = ("--cpu-manager-policy=none", "--v=2")
    files = read({FLAGS: f"KUBELET_EXTRA_ARGS={' '.join(words)}\n"}, *words)
    found = after(
        files,
        {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "cpuManagerPolicyOptions": {"a": True}},
    )
    assert found == {
        FLAGS: "KUBELET_EXTRA_ARGS=--cpu-manager-policy=static --reserved-cpus=0 --cpu-manager-policy-options=a=true --v=2\n"
    }


def test_a_kubelet_without_a_file_and_without_such_flags_is_changed_by_hand() -> None:
    with pytest.raises(ConfigError, match="add by hand: --cpu-manager-policy=static"):
        edits_of(read({}, "--v=2"), {"cpuManagerPolicy": "static"})


def test_a_flag_that_no_file_has_is_changed_by_hand() -> None:
    files = read({MAIN: "a: 1\n"}, "--cpu-manager-policy=static")
    with pytest.raises(ConfigError, match="is on the kubelet's command line and in none of"):
        edits_of(files, {"cpuManagerPolicy": "none"})


def test_a_unit_of_a_package_gets_an_override() -> None:
    unit = "[Service]\nExecStart=/usr/bin/kubelet --cpu-manager-policy=static\n"
    files = read({UNIT: unit}, "--cpu-manager-policy=static")
    (edit,) = edits_of(files, {"cpuManagerPolicy": "none"})
    assert (edit.path, edit.before) == ("/etc/systemd/system/kubelet.service", None)
    assert edit.after == unit.replace("static", "none")


def test_gates_and_amounts_of_others_stay() -> None:
    files = read({MAIN: "featureGates: {Mine: true}\nkubeReserved: {pid: '9'}\n"})
    agent = {
        "featureGates": {"CPUManagerPolicyAlphaOptions": True, "MemoryManager": True},
        "kubeReserved": {"memory": "1Gi"},
    }
    changes = to_kubelet_changes(files.effective(), agent)
    told = next_settings(files, changes)
    assert told["featureGates"] == {"Mine": True, "CPUManagerPolicyAlphaOptions": True}
    assert told["kubeReserved"] == {"pid": "9", "memory": "1Gi"}
    text = after(files, changes)[MAIN]
    assert text is not None
    assert "Mine: true" in text
    assert "pid: '9'" in text


def test_nothing_changes_where_it_is_so_already() -> None:
    now = {"cpuManagerPolicy": "None", "featureGates": {"A": True}}
    assert to_plugin_changes(now, CPUSet(), 0) == {}
    assert OFF.keys() - to_plugin_changes(
        {"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static"}, CPUSet(), 0
    ).keys() == {
        "topologyManagerPolicy",
        "cpuManagerPolicyOptions",
    }


@pytest.mark.parametrize(
    ("now", "count", "changed"),
    [
        ({}, 0, True),
        ({}, 2, False),
        ({"reservedSystemCPUs": "0,1"}, 0, False),
        ({"reservedSystemCPUs": "2"}, 0, True),
        ({"systemReservedCgroup": "/x"}, 0, False),
    ],
)
def test_the_kubelet_reserves_what_the_agent_reserves(now: dict[str, str], count: int, changed: bool) -> None:
    changes = to_plugin_changes(now, CPUSet.parse("0-1"), count)
    assert (changes.get("reservedSystemCPUs") == "0-1") is changed


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("reservedMemory", "0:memory=1Gi;1:memory=2Gi", [(0, "1Gi"), (1, "2Gi")]),
        ("evictionHard", "memory.available<1Gi", {"memory.available": "1Gi"}),
        ("featureGates", "A=true,B=false", {"A": True, "B": False}),
        ("kubeReserved", "cpu=1,memory=1Gi", {"cpu": "1", "memory": "1Gi"}),
        ("cpuManagerPolicy", "static", "static"),
    ],
)
def test_flags_are_read_and_written(key: str, text: str, value: object) -> None:
    found = from_flag(key, text)
    if key == "reservedMemory":
        assert [(one["numaNode"], one["limits"]["memory"]) for one in found] == value
    else:
        assert found == value
    assert as_flag(key, found) == text


def test_the_agents_first_configuration_has_what_concerns_it() -> None:
    now = {"maxPods": 9, "cpuManagerPolicy": "static", "featureGates": {"Mine": True}, "kubeReserved": {}}
    assert agent_part(now) == {"cpuManagerPolicy": "static"}


def test_a_file_out_of_sight_is_named() -> None:
    view = NodeView("/", in_pod=True)
    with pytest.raises(HostError, match="cannot be seen from here"):
        read_kubelet_files(
            view, Process(1, "kubelet", ("kubelet", "--config-dir=/d")), Units(), "kubelet.service"
        )  # type: ignore[arg-type]
