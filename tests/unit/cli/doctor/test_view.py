import os
import socket
from pathlib import Path

import pytest

from nri_plugin.cli.doctor import view as node_view
from nri_plugin.cli.doctor.view import NOT_COPIED, Hidden, NodeView, Process, Stranger, is_in_pod
from nri_plugin.host.mounts import MountPoint


def mounts(*points: str) -> list[MountPoint]:
    return [MountPoint(point, "ext4", ()) for point in ("/", "/proc", "/sys", *points)]


def test_a_tree_without_mounts_is_a_copy_and_tells_of_the_folders_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x").write_text("yes")
    view = NodeView(str(tmp_path), mounts())
    assert (view.is_copy, view.text("/etc/x"), view.text("/etc/y")) == (True, "yes", None)
    assert view.names("/etc") == ("x",)
    assert view.names("/etc/none") is None
    assert view.names("/var/lib/kubelet") == Hidden("/var", why=NOT_COPIED)


def test_below_a_root_with_mounts_only_what_is_mounted_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    view = NodeView(str(tmp_path), mounts(f"{tmp_path}/etc/cdi"), in_pod=True)
    assert view.names("/etc/cdi") == ()
    assert view.text("/etc/cdi/x") is None
    assert view.text("/etc/containerd/config.toml") == Hidden("/etc/containerd", f"{tmp_path}/etc/containerd")
    assert view.text("/etc/x") == Hidden("/etc/x", f"{tmp_path}/etc/x")


def test_a_root_that_is_mounted_itself_is_the_whole_node(tmp_path: Path) -> None:
    mounted = mounts(str(tmp_path), f"{tmp_path}/proc")
    assert not NodeView(str(tmp_path), mounted, in_pod=True).is_whole  # nothing of a system but mounts
    (tmp_path / "etc").mkdir()
    (tmp_path / "usr").mkdir()
    view = NodeView(str(tmp_path), mounted, in_pod=True)
    assert (view.is_whole, view.is_here, view.text("/etc/x")) == (True, False, None)


def test_a_pod_sees_what_it_has_under_the_nodes_own_name(tmp_path: Path) -> None:
    (tmp_path / "nri").mkdir()
    view = NodeView("/", mounts(str(tmp_path / "nri")), in_pod=True)
    assert view.names(str(tmp_path / "nri")) == ()
    assert isinstance(view.names(str(tmp_path)), Hidden)
    assert isinstance(
        NodeView("/", mounts("/run", "/etc"), in_pod=True).text("/etc/containerd/config.toml"), Hidden
    )


def test_on_the_node_itself_nothing_is_hidden(tmp_path: Path) -> None:
    view = NodeView("/", mounts())
    assert (view.is_here, view.text(str(tmp_path / "none"))) == (True, None)


def test_links_are_followed_below_the_root_and_never_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/x").write_text("the node's")
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "var/up").symlink_to("../../../run")
    (tmp_path / "var/loop").symlink_to("loop")
    view = NodeView(str(tmp_path), mounts())
    assert view.text("/var/run/x") == "the node's"
    assert view.text("/var/up/x") == "the node's"
    assert isinstance(view.find("/var/loop/x"), str)


def test_what_may_not_be_read_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "etc").mkdir()
    view = NodeView(str(tmp_path), mounts())
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert view.text("/etc/x") == Hidden("/etc/x", why="permission denied; run as root")


def test_a_kernels_file_is_the_same_in_every_container(tmp_path: Path) -> None:
    pod = NodeView(str(tmp_path), mounts(f"{tmp_path}/sys"), in_pod=True)
    assert pod.kernel_text("/proc/sys/kernel/osrelease") == Path("/proc/sys/kernel/osrelease").read_text()
    (tmp_path / "proc").mkdir()
    copy = NodeView(str(tmp_path), mounts())
    assert copy.kernel_text("/proc/cmdline") is None  # a copy has its own or none


def test_processes_are_those_of_the_node(tmp_path: Path) -> None:
    assert any(process.pid == os.getpid() for process in NodeView("/", mounts()).processes())
    (tmp_path / "proc").mkdir()
    assert NodeView(str(tmp_path), mounts()).processes() == Hidden("/proc", "", "no processes here")
    for pid, name, line in (
        (1, "init", b"/sbin/init\0"),
        (2, "kthreadd", b""),
        (70, "containerd", b""),  # a zombie
        (77, "containerd", b"containerd\0-c\0/x.toml\0"),
        (78, "", b""),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(line)
        if name:
            (folder / "comm").write_text(name + "\n")
    view = NodeView(str(tmp_path), mounts(f"{tmp_path}/proc"))
    assert view.processes() == (
        Process(1, "init", ("/sbin/init",)),
        Process(77, "containerd", ("containerd", "-c", "/x.toml")),
    )


OF_HOST = {"uid": "0\t0\t0\t0", "cgroup": "0::/system.slice/kubelet.service", "mnt": 1, "pid": 1, "user": 1}
UNSEEN = dict.fromkeys(("mnt", "pid", "user"))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"cgroup": "0::/"}, ""),  # a host without systemd
        ({"uid": "65534\t65534\t65534\t65534"}, "it belongs to user 65534"),
        ({"uid": "1000\t0\t0\t0"}, "it belongs to user 1000"),  # a set-uid program behind a link of that name
        ({"uid": None}, "its user cannot be seen"),
        ({"mnt": 2}, "it has another mount namespace than the host"),
        ({"pid": 2}, "it has another process id namespace than the host"),
        ({"user": 2}, "it has another user namespace than the host"),
        ({"cgroup": "0::/kubepods.slice/kubepods-podu1.slice/x.scope"}, "it is in the cgroup of a pod"),
        ({"cgroup": "9:name=systemd:/kubepods/burstable/podu1/c1"}, "it is in the cgroup of a pod"),
        # An ordinary user sees no namespaces: then only a unit of the host is one of its services.
        (UNSEEN, ""),
        ({**UNSEEN, "cgroup": "9:name=systemd:/system.slice/kubelet.service"}, ""),
        ({**UNSEEN, "cgroup": "0::/"}, "its mount namespace cannot be seen; run as root"),
        (
            {**UNSEEN, "cgroup": "0::/system.slice/docker-1.scope/system.slice/kubelet.service"},
            "its mount namespace cannot be seen; run as root",
        ),
    ],
)
def test_a_service_of_the_host_belongs_to_root_and_is_in_no_container(
    tmp_path: Path, more: dict[str, object], why: str
) -> None:
    for pid, evidence in ((1, OF_HOST), (7, OF_HOST | more)):
        folder = tmp_path / f"proc/{pid}"
        (folder / "ns").mkdir(parents=True)
        (folder / "cgroup").write_text(f"{evidence['cgroup']}\n")
        if evidence["uid"]:
            (folder / "status").write_text(f"Name:\tkubelet\nUid:\t{evidence['uid']}\n")
        for name in ("mnt", "pid", "user"):
            if evidence[name]:
                (folder / "ns" / name).symlink_to(f"{name}:[{evidence[name]}]")
    view = NodeView(str(tmp_path), mounts(f"{tmp_path}/proc"))
    process = Process(7, "kubelet", ("kubelet",))
    own, strangers = view.services([process], lambda one: one.name == "kubelet")
    assert (own, strangers) == (([], [Stranger(process, why)]) if why else ([process], []))
    assert view.services([process], lambda one: one.name == "crio") == ([], [])
    # systemd knows the main process of a unit with namespaces of its own; some programs run in pods.
    is_root = not why or not ("belongs" in why or "its user" in why)
    assert bool(view.services([process], bool, pids=[7])[0]) == is_root
    assert bool(view.services([process], bool, in_containers=True)[0]) == is_root


def test_the_listener_on_a_socket_of_root_is_a_service_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    itself = Process(os.getpid(), "containerd", ("containerd",))
    view = NodeView("/", mounts())
    monkeypatch.setattr(
        view, "_process_text", lambda _pid, name: "Uid:\t0\t0\t0\t0\n" if name == "status" else ""
    )
    monkeypatch.setattr(view, "_namespace", lambda _proc, pid, name: f"{name}:[{pid != 1}]")
    socket_path = str(tmp_path / "s")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert view.services([itself], bool, [socket_path])[0] == []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_path)
        listener.listen()
        for user, own in ((0, [itself]), (1000, [])):
            monkeypatch.setattr(node_view, "peer_of", lambda _peer, user=user: (itself.pid, user))
            assert view.services([itself], bool, [socket_path])[0] == own


def test_a_pod_without_the_nodes_processes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_view, "FIRST_PID_NAMESPACE", 0)
    assert NodeView("/", mounts(), in_pod=True).processes() == Hidden("/proc", "/host/proc")


def test_options_are_read_in_both_spellings_and_the_last_one_counts() -> None:
    process = Process(1, "kubelet", ("kubelet", "--config=/a", "-v", "2", "--config", "/b", "--last"))
    assert process.option("--config") == "/b"
    assert process.option("-v") == "2"
    assert process.option("--last") == ""
    assert process.option("--none") is None


def test_a_socket_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    view = NodeView("/", mounts())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("there")
        assert view.connects(str(tmp_path / "there")) == "no process listens on it"
        listener.listen()
        assert view.connects(str(tmp_path / "there")) == ""
    assert view.connects(str(tmp_path / "none")) == "there is no such socket"
    assert isinstance(NodeView("/", mounts(), in_pod=True).connects(str(tmp_path / "none")), Hidden)


def test_a_pod_is_known_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not is_in_pod()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(node_view, "FIRST_PID_NAMESPACE", 0)
    assert is_in_pod()
