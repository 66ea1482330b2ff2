from pathlib import Path

import pytest

from nri_plugin.cli.doctor.settings import (
    CONFIG_FILE,
    STATE_FILES,
    KubeletSettings,
    Setting,
    read_kubelet,
    read_state_policy,
)
from nri_plugin.cli.doctor.view import Hidden, NodeView, Process
from nri_plugin.host.mounts import MountPoint


@pytest.fixture
def view(tmp_path: Path) -> NodeView:
    (tmp_path / "var/lib/kubelet/conf.d").mkdir(parents=True)
    return NodeView(str(tmp_path), [])


def write(view: NodeView, name: str, text: str) -> None:
    (Path(view.root) / "var/lib/kubelet" / name).write_text(text)


def test_no_file_and_no_process_is_no_kubelet(view: NodeView) -> None:
    assert read_kubelet(view, None) is None
    assert read_kubelet(view, Process(1, "kubelet")) == KubeletSettings()


def test_values_come_with_file_and_line(view: NodeView) -> None:
    write(
        view, "config.yaml", "kind: KubeletConfiguration\n# cpuManagerPolicy: no\ncpuManagerPolicy: static\n"
    )
    found = read_kubelet(view, None)
    assert isinstance(found, KubeletSettings)
    assert found.by_key == {"cpuManagerPolicy": Setting("static", CONFIG_FILE, 3)}
    assert found.line_files == (CONFIG_FILE,)


def test_a_key_is_not_taken_for_a_longer_one(view: NodeView) -> None:
    text = """\
cpuManagerPolicyOptions:
  # as the vendor says
  full-pcpus-only: "true"
  strict-cpu-reservation: "true"

# and this
cpuManagerPolicy: static
kubeReserved: {cpu: 500m,
  memory: 1Gi}
"""
    write(view, "config.yaml", text)
    found = read_kubelet(view, None)
    assert isinstance(found, KubeletSettings)
    assert {key: one.line for key, one in found.by_key.items()} == {
        "cpuManagerPolicyOptions": 1,
        "cpuManagerPolicy": 7,
        "kubeReserved": 8,
    }
    assert found.by_key["kubeReserved"].value == "cpu=500m,memory=1Gi"
    assert found.cpu_options == (found.by_key["cpuManagerPolicyOptions"],)


def test_json_is_not_edited_line_by_line(view: NodeView) -> None:
    write(view, "config.yaml", '{"cpuManagerPolicy": "static",\n"cpuManagerPolicyOptions": {}}\n')
    found = read_kubelet(view, None)
    assert isinstance(found, KubeletSettings)
    assert found.by_key["cpuManagerPolicy"] == Setting("static", CONFIG_FILE, 1)
    assert (found.cpu_options, found.line_files) == ((), ())


def test_options_on_the_command_line_replace_those_of_files(view: NodeView) -> None:
    write(view, "config.yaml", "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n")
    found = read_kubelet(view, Process(1, "kubelet", ("kubelet", "--cpu-manager-policy-options=a=true")))
    assert isinstance(found, KubeletSettings)
    assert [one.value for one in found.cpu_options] == ["a=true"]


def test_options_of_several_files_count_together(view: NodeView) -> None:
    write(view, "config.yaml", "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n")
    write(view, "conf.d/10-a.conf", "cpuManagerPolicyOptions: {align-by-socket: 'true'}\n")
    found = read_kubelet(view, Process(1, "kubelet", ("kubelet", "--config-dir=/var/lib/kubelet/conf.d")))
    assert isinstance(found, KubeletSettings)
    assert [one.where for one in found.cpu_options] == [
        f"{CONFIG_FILE}:1",
        "/var/lib/kubelet/conf.d/10-a.conf:1",
    ]


def test_drop_ins_win_over_the_file_and_the_command_line_over_both(view: NodeView) -> None:
    write(
        view,
        "config.yaml",
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\nmemoryManagerPolicy: Static\n",
    )
    write(view, "conf.d/20-b.conf", "cpuManagerPolicy: none\n")
    write(view, "conf.d/10-a.conf", "cpuManagerPolicy: static\nmemoryManagerPolicy: None\n")
    write(view, "conf.d/ignored.yaml", "cpuManagerPolicy: other\n")
    args = ("kubelet", "--config", CONFIG_FILE, "--config-dir=/var/lib/kubelet/conf.d", "--reserved-cpus=0-3")
    found = read_kubelet(view, Process(1, "kubelet", args))
    assert isinstance(found, KubeletSettings)
    assert {key: setting.value for key, setting in found.by_key.items()} == {
        "cpuManagerPolicy": "none",
        "reservedSystemCPUs": "0-3",
        "memoryManagerPolicy": "None",
    }
    assert found.by_key["reservedSystemCPUs"].where == "--reserved-cpus on its command line"


@pytest.mark.parametrize("text", ["a: [", "- a\n"])
def test_a_broken_file_is_named(view: NodeView, text: str) -> None:
    write(view, "config.yaml", text)
    found = read_kubelet(view, None)
    assert isinstance(found, KubeletSettings)
    assert found.broken.startswith(f"{CONFIG_FILE}: ")


def test_a_file_out_of_sight_is_hidden(tmp_path: Path) -> None:
    view = NodeView(str(tmp_path), [MountPoint(f"{tmp_path}/sys", "sysfs", ())], in_pod=True)
    assert isinstance(read_kubelet(view, None), Hidden)
    assert isinstance(read_state_policy(view, STATE_FILES[0]), Hidden)


@pytest.mark.parametrize(
    ("text", "policy"), [('{"policyName":"static"}', "static"), ("{}", ""), ("not json", "")]
)
def test_a_state_file_names_its_policy(view: NodeView, text: str, policy: str) -> None:
    assert read_state_policy(view, STATE_FILES[0]) is None
    write(view, "cpu_manager_state", text)
    assert read_state_policy(view, STATE_FILES[0]) == policy


def test_cpus_of_an_amount_are_named_by_the_file_that_has_them(view: NodeView) -> None:
    write(view, "config.yaml", "cpuManagerPolicy: none\nkubeReserved: {cpu: '1', memory: 1Gi}\n")
    (Path(view.root) / "var/lib/kubelet/conf.d/deep").mkdir()
    write(view, "conf.d/deep/20.conf", "kubeReserved: {memory: 2Gi}\n")
    found = read_kubelet(view, Process(1, "kubelet", ("kubelet", "--config-dir=/var/lib/kubelet/conf.d")))
    assert isinstance(found, KubeletSettings)
    amount = found.by_key["kubeReserved"]
    assert (amount.value, amount.where) == ("cpu=1,memory=2Gi", f"{CONFIG_FILE}:2")
