from pathlib import Path

import pytest

from nri_plugin.cli.doctor import settings as settings_module
from nri_plugin.cli.doctor.settings import (
    CONTAINERD,
    CRIO,
    NOWHERE,
    BrokenFile,
    FileLine,
    NRISettings,
    duration_s,
    find_name,
    find_runtime,
    read_settings,
    read_version,
)
from nri_plugin.cli.doctor.view import Hidden, NodeView, Process
from nri_plugin.host.mounts import MountPoint

NRI = '[plugins."io.containerd.nri.v1.nri"]\n'


@pytest.fixture
def node(tmp_path: Path):
    """Writes files below a root, and looks at it."""

    for folder in ("etc", "var"):
        (tmp_path / folder).mkdir()

    def write(**files: str) -> NodeView:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_toml", ".toml").replace("_conf", ".conf")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return NodeView(str(tmp_path), [])

    return write


def settings(view: NodeView, runtime: str = CONTAINERD, **more: object) -> NRISettings:
    found = read_settings(view, runtime, **more)  # type: ignore[arg-type]
    assert isinstance(found, NRISettings), found
    return found


def test_nothing_written_is_nothing_said(node) -> None:
    found = settings(node())
    assert (found.files, found.is_on, found.socket) == ((), None, "/var/run/nri/nri.sock")
    assert (found.request_timeout_s, found.registration_timeout_s) == (2.0, 5.0)


def test_every_key_of_the_table_is_read_with_its_line(node) -> None:
    text = f"""version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
{NRI}  disable = false
  disable_connections = true
  socket_path = "/run/x.sock"
  plugin_path = "/p"
  plugin_config_path = "/c"
  plugin_request_timeout = "500ms"
  plugin_registration_timeout = "1m1s"
[plugins."io.containerd.nri.v1.nri".default_validator]
  enable = true
  required_plugins = ["nri-pin"]
  tolerate_missing_plugins_annotation = "a"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
"""
    assert settings(node(etc__containerd__config_toml=text)) == NRISettings(
        runtime=CONTAINERD,
        files=("/etc/containerd/config.toml",),
        is_on=True,
        where=FileLine("/etc/containerd/config.toml", 4),
        table=FileLine("/etc/containerd/config.toml", 3),
        socket="/run/x.sock",
        plugin_dir="/p",
        config_dir="/c",
        request_timeout_s=0.5,
        registration_timeout_s=61.0,
        takes_connections=False,
        validator_is_on=True,
        required_plugins=("nri-pin",),
        tolerate_annotation="a",
        systemd_cgroup=True,
        format_version=2,
        closed_by=FileLine("/etc/containerd/config.toml", 5),
    )


def test_imports_come_after_the_file_that_names_them(node) -> None:
    view = node(
        etc__containerd__config_toml=f'version = 3\nimports = ["conf.d/*.toml"]\n{NRI}disable = true\n'
    )
    folder = Path(view.root) / "etc/containerd/conf.d"
    folder.mkdir()
    (folder / "a.toml").write_text(f"{NRI}plugin_path = '/p'\n")
    merged = settings(view)
    assert (merged.is_on, merged.plugin_dir, len(merged.files)) == (False, "/p", 2)
    replaced = settings(view, merges_keys=False)
    assert (replaced.is_on, replaced.plugin_dir) == (None, "/p")


def test_a_file_that_imports_itself_is_read_once(node) -> None:
    text = 'version = 3\nimports = ["/etc/containerd/config.toml"]\n'
    assert settings(node(etc__containerd__config_toml=text)).files == ("/etc/containerd/config.toml",)


def test_the_process_says_where_its_file_is(node) -> None:
    view = node(run__x_toml=f"version = 2\n{NRI}disable = true\n")
    process = Process(7, "containerd", ("containerd", "-c", "/run/x.toml"))
    assert settings(view, process=process).where == FileLine("/run/x.toml", 3)


def test_distributions_have_their_own_places(node) -> None:
    view = node(var__lib__rancher__k3s__agent__etc__containerd__config_toml="version = 3\n")
    assert settings(view).files[0].startswith("/var/lib/rancher/k3s/")
    assert find_name(view, None) == CONTAINERD


def test_a_plugin_that_is_disabled_as_a_whole_is_off(node) -> None:
    text = 'version = 2\ndisabled_plugins = ["io.containerd.nri.v1.nri"]\n'
    assert settings(node(etc__containerd__config_toml=text)).is_disabled_as_plugin


def test_a_file_that_is_no_toml_is_broken(node) -> None:
    found = read_settings(node(etc__containerd__config_toml="a = = 1\n"), CONTAINERD)
    assert isinstance(found, BrokenFile)
    assert "line 1" in found.detail


def test_drop_ins_of_crio_go_by_name_and_its_command_line_wins(node) -> None:
    view = node(etc__crio__crio_conf="[crio.nri]\nenable_nri = true\n")
    folder = Path(view.root) / "etc/crio/crio.conf.d"
    folder.mkdir()
    (folder / "10-a.conf").write_text('[crio.nri]\nenable_nri = false\nnri_listen = "/run/y.sock"\n')
    (folder / "20-b.conf").write_text('[crio.runtime]\ncgroup_manager = "systemd"\n')
    found = settings(view, CRIO)
    assert (found.is_on, found.socket, found.systemd_cgroup, len(found.files)) == (
        False,
        "/run/y.sock",
        True,
        3,
    )
    process = Process(7, "crio", ("crio", "--enable-nri=true"))
    assert settings(view, CRIO, process=process).is_on is True


def test_what_is_not_mounted_is_hidden(tmp_path: Path) -> None:
    view = NodeView(str(tmp_path), [MountPoint(f"{tmp_path}/sys", "sysfs", ())], in_pod=True)
    assert isinstance(read_settings(view, CONTAINERD), Hidden)
    assert isinstance(read_settings(view, CRIO), Hidden)
    assert isinstance(find_name(view, None), Hidden)
    assert isinstance(read_version(view, None, CONTAINERD), Hidden)


def test_the_runtime_is_the_one_with_pods(node) -> None:
    docker = Process(
        5, "containerd", ("containerd", "--config", "/var/run/docker/containerd/containerd.toml")
    )
    plain, crio = Process(9, "containerd", ("/usr/bin/containerd",)), Process(8, "crio", ("crio",))
    assert find_runtime(node(), [docker, plain]) == plain
    assert find_runtime(node(), [docker, plain, crio]) == crio
    assert find_runtime(node(), [Process(1, "systemd")]) is None
    view = node(proc__8__status="Uid:\t65534\t65534\t65534\t65534\n")
    assert find_runtime(view, [docker, plain, crio]) == plain


def test_no_runtime_is_no_name(node) -> None:
    assert find_name(node(), None) == ""
    assert find_name(node(etc__crio__crio_conf=""), None) == CRIO
    assert find_name(node(), None, "/etc/crio/crio.conf") == CRIO


def test_the_version_is_the_one_of_the_socket_and_no_program_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"/run/containerd/containerd.sock": "v2.1.3", "/x.sock": "1.7.24~ds1"}
    monkeypatch.setattr(settings_module, "runtime_version", lambda path: said.get(path, ""))
    program = tmp_path / "containerd"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho containerd example.org/containerd 9.9.9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    view, named = NodeView("/", []), Process(7, "containerd", (str(program), "--address", "/x.sock"))
    assert read_version(view, None, CONTAINERD) == "2.1.3"
    assert read_version(view, named, CONTAINERD) == "1.7.24~ds1"
    assert read_version(view, None, CRIO) == ""
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2.0), ("1m30s", 90.0), ("250ms", 0.25), ("", None), (None, None), ("soon", None)],
)
def test_durations_are_those_of_go(text: str | None, seconds: float | None) -> None:
    assert duration_s(text) == pytest.approx(seconds)


def test_the_line_that_closes_the_socket_of_crio_is_known(node) -> None:
    view = node(etc__crio__crio_conf="[crio.nri]\nenable_nri = true\n")
    folder = Path(view.root) / "etc/crio/crio.conf.d"
    folder.mkdir()
    (folder / "10-a.conf").write_text(
        "# nri_disable_connections = false\n[crio.nri]\nnri_disable_connections = true\n"
    )
    found = settings(view, CRIO)
    assert (found.takes_connections, found.closed_by) == (
        False,
        FileLine("/etc/crio/crio.conf.d/10-a.conf", 3),
    )


def test_a_key_that_leaves_the_socket_open_closes_nothing(node) -> None:
    found = settings(node(etc__containerd__config_toml=f"{NRI}disable_connections = false\n"))
    assert (found.takes_connections, found.closed_by) == (True, NOWHERE)
