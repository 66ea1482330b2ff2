"""The agent as a real process: both starts, signals, restarts, a second instance."""

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin.host.kubelet_checkpoint import checksum, cpu_v2
from nri_plugin.nri import events as nri
from nri_plugin.simulator.runtime_events import ConnectionLost
from tests.agent_process import PATIENCE_S, REPOSITORY, Peer, Process, Site, config_text
from tests.builders import container, pod

POD = pod("exclusive", cpu=2)
CREATE = nri.CreateContainer(POD, container(POD, cpu=2))
FORBIDDEN = {
    "asyncio",
    "click",
    "rich",
    "grpc",
    "lightkube",
    "httpx2",
    "xxhash",
    "hypothesis",
    "kubernetes",
    "ssl",
    "http",
    "pyroute2",
    "numpy",
}
REPORT_MODULES = """
import sys
report = sys.argv.pop()
from nri_plugin.__main__ import main
code = main(sys.argv[1:])
with open(report, "w") as file:
    file.write(" ".join({name.partition(".")[0] for name in sys.modules}))
raise SystemExit(code)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture
def launched(site: Site) -> Iterator[Callable[..., tuple[Process, Peer]]]:
    """Starts the agent as a runtime does: descriptor 3, three variables, nobody listening."""

    def launch(config: str = "", name: str = "pin") -> tuple[Process, Peer]:
        ours, theirs = socket.socketpair()
        environment = {"NRI_PLUGIN_NAME": name, "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3"}
        with theirs:
            process = site.spawn(
                ["-I", "-c", launcher()], environment, descriptors={3: theirs.fileno()}, is_heard=False
            )
        site.peers.append(Peer(ours, launched_as=(name, "10"), config=config or config_text(site.folder)))
        return process, site.peers[-1]

    return launch


def launcher() -> str:
    """What the installed plugin file does; the checkout may not be installed in this interpreter.

    A former instance may take longer to end than the three seconds that runtimes leave it.
    """
    patience = f"from nri_plugin.app import agent; agent.FORMER_INSTANCE_S = {PATIENCE_S}"
    start = "from nri_plugin.__main__ import main; sys.exit(main())"
    return f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {patience}; {start}"


def test_run_registers_places_and_ends_on_sigterm_with_nothing_undone(site: Site):
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    assert peer.ask(CREATE).response.resources.cpus == "2-3"
    saved = site.checkpoint()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert site.checkpoint() == saved
    assert "exclusive" in saved
    assert any("stopping" in line for line in process.heard)


def test_metrics_tell_what_was_placed_and_refused(site: Site):
    site.config.write_text(config_text(site.folder, metricsBindAddress="127.0.0.1:0"))
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    peer.ask(CREATE)
    too_much = pod("too-much", cpu=500)
    peer.ask(nri.CreateContainer(too_much, container(too_much, cpu=500)))
    port = process.wait_for_line("serving metrics").rpartition("port=")[2]
    with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()
    assert text.startswith("HTTP/1.1 200 OK\r\n")
    assert 'nri_pin_events_total{event="CreateContainer",result="answered"} 1.0\n' in text
    assert 'nri_pin_refusals_total{reason="UnexpectedAdmissionError"} 1.0\n' in text
    assert "kubelet_cpu_manager_exclusive_cpu_allocation_count 2.0\n" in text
    assert "nri_pin_connected 1.0\n" in text


def test_an_address_for_metrics_that_is_taken_ends_the_start_with_a_reason(site: Site):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site.config.write_text(config_text(site.folder, metricsBindAddress=f"127.0.0.1:{port}"))
        process = site.start()
        assert process.wait() == 2
    assert any(f"cannot listen on 127.0.0.1:{port}" in line for line in process.heard)


def test_a_restarted_agent_remembers_and_gives_nobody_the_same_cpus(site: Site):
    first = site.start()
    peer = site.accept()
    peer.synchronize()
    peer.ask(CREATE)
    first.end()
    second = site.start()
    peer = site.accept()
    peer.listed = ((POD,), (container(POD, cpu=2, cpus="2-3"),))
    peer.synchronize()
    other = pod("other", cpu=2)
    assert peer.ask(nri.CreateContainer(other, container(other, cpu=2))).response.resources.cpus == "4-5"
    second.signal(signal.SIGTERM)
    assert second.wait() == 0


def test_a_runtime_that_went_away_is_connected_to_again(site: Site):
    process = site.start()
    site.accept().synchronize()
    site.peers[-1].sock.close()
    site.accept().synchronize()
    assert site.peers[-1].ask(CREATE).response.resources.cpus == "2-3"
    process.signal(signal.SIGINT)
    assert process.wait() == 0


def test_sigterm_ends_an_agent_that_waits_for_its_runtime(site: Site):
    site.listener.close()
    process = site.start()
    process.wait_for_line("no connection to the container runtime")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_sighup_takes_a_new_configuration_over(site: Site):
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    site.config.write_text(config_text(site.folder, reservedSystemCPUs='"0-3"'))
    process.signal(signal.SIGHUP)
    process.wait_for_line("configuration reloaded")
    assert peer.ask(CREATE).response.resources.cpus == "4-5"


@pytest.mark.parametrize(
    ("key", "value"), [("reservedSystemCPUs", '"0-99"'), ("reservedSystemCPU", '"0"'), ("sysfsRoot", "/none")]
)
def test_a_bad_reload_keeps_the_former_configuration_and_says_so(site: Site, key: str, value: str):
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    site.config.write_text(config_text(site.folder, **{key: value}))
    process.signal(signal.SIGHUP)
    process.wait_for_line("configuration not reloaded, the former one stays in force")
    assert peer.ask(CREATE).response.resources.cpus == "2-3"


def test_a_second_instance_on_the_same_state_directory_refuses_to_start(site: Site):
    first = site.start()
    site.accept().synchronize()
    second = site.start()
    assert second.wait() == 1
    assert f"another agent (process {first.pid}) works on this state directory" in "".join(second.heard)


def test_a_lock_ends_with_its_process_however_it_ended(site: Site):
    first = site.start()
    site.accept().synchronize()
    first.end()
    site.start()
    site.accept().synchronize()


def test_a_damaged_checkpoint_is_kept_aside_and_said(site: Site):
    (site.folder / "state").mkdir()
    (site.folder / "state" / "state.json").write_text("{damaged")
    process = site.start()
    line = process.wait_for_line("the checkpoint cannot be used")
    assert "damaged-1" in line
    assert (site.folder / "state" / "state.json.damaged-1").read_text() == "{damaged"
    site.accept().synchronize()
    assert site.peers[-1].ask(CREATE).response.resources.cpus == "2-3"


def test_without_a_configuration_the_lines_to_add_are_printed_and_nothing_is_touched(site: Site):
    site.config.unlink()
    process = site.start()
    assert process.wait() == 2
    assert '  reservedSystemCPUs: "0"\n' in process.heard
    assert not (site.folder / "state").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--frobnicate",), "--frobnicate: no such option"),
        (("--plugin-index", "7"), "expected two digits"),
        (("--log-level", "loud"), "--log-level: expected debug, info, warning or error, found loud"),
        (("--sysfs-root", "/none"), "/none"),
        (("--state-dir", "/dev/null/x"), "give another with --state-dir"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(site: Site, words: tuple[str, ...], complaint: str):
    process = site.start(*words)
    assert process.wait() in (1, 2)
    assert len([line for line in process.heard if complaint in line]) == 1
    assert "Traceback" not in "".join(process.heard)


def test_json_lines_are_json(site: Site):
    process = site.start("--log-format", "json")
    line = json.loads(process.wait_for_line("ready"))
    assert (line["msg"], line["cpus"], line["reserved"]) == ("ready", "0-15", "0-1")
    site.accept().synchronize()


def test_a_launched_plugin_serves_with_an_empty_environment_and_logs_where_it_can(site: Site, launched):
    process, peer = launched()
    peer.synchronize()
    assert peer.ask(CREATE).response.resources.cpus == "2-3"
    assert "exclusive" in site.checkpoint()
    peer.sock.close()
    assert process.wait() == 1


def test_a_launched_plugin_with_a_name_nobody_may_have_still_serves(launched):
    _, peer = launched(name="we ird")
    peer.synchronize()
    assert peer.ask(CREATE).response.resources.cpus == "2-3"


def test_a_launched_plugin_with_a_wrong_drop_in_refuses_to_be_configured(site: Site, launched):
    process, peer = launched(config="reservedSystemCPU: 0\n")
    lost = peer.wait_for(lambda event: isinstance(event, ConnectionLost))
    assert "NRI drop-in:1:1" in lost.reason
    assert process.wait() == 2
    assert not (site.folder / "state").exists()


def test_a_launched_plugin_waits_for_its_former_instance_to_end(site: Site, launched):
    former, peer = launched()
    peer.synchronize()
    _, successor = launched()
    peer.sock.close()
    successor.synchronize()
    assert former.wait() == 1


def test_the_agent_loads_nothing_that_only_commands_need(site: Site, tmp_path: Path):
    report = tmp_path / "modules.json"
    words = ["run", "--config", str(site.config), str(report)]
    process = site.spawn(["-c", REPORT_MODULES, *words], {"PYTHONPATH": str(REPOSITORY)})
    peer = site.accept()
    peer.synchronize()
    peer.ask(CREATE)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    loaded = set(report.read_text().split())
    assert "nri_plugin" in loaded
    assert not loaded & FORBIDDEN


def test_a_node_comes_from_the_kubelets_static_policy_without_a_container_moved(site: Site):
    """Before: a kubelet gave u1 CPUs the packing would not give. After: the checkpoint, the runtime, the agent agree."""
    folder = site.folder / "kubelet"
    folder.mkdir()
    record = {"policyName": "static", "defaultCpuSet": "0-9,12-15", "entries": {"u1": {"db": "10-11"}}}
    (folder / "cpu_manager_state").write_text(json.dumps(record | {"checksum": checksum(cpu_v2(record))}))
    words = ["-m", "nri_plugin", "state", "import", str(folder), "--config", str(site.config)]
    assert site.spawn(words, {"PYTHONPATH": str(REPOSITORY)}).wait() == 0
    running = pod("u1", cpu=2)
    process = site.start()
    peer = site.accept()
    peer.listed = ((running,), (container(running, "db", cpu=2),))
    peer.synchronize()
    assert "kept=1" in process.wait_for_line("Synchronize")
    assert peer.ask(CREATE).response.resources.cpus == "2-3"
    again = peer.ask(nri.CreateContainer(running, container(running, "db", cpu=2, number=1)))
    assert again.response.resources.cpus == "10-11"


def test_who_no_longer_satisfies_the_policy_is_named_and_kept(site: Site):
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    assert peer.ask(CREATE).response.resources.cpus == "2-3"
    site.config.write_text(config_text(site.folder, reservedSystemCPUs='"3"'))
    process.signal(signal.SIGHUP)
    line = process.wait_for_line("no longer satisfies the policy and is kept")
    assert "default/exclusive/c has CPUs 3, which are reserved" in line
    again = peer.ask(nri.CreateContainer(POD, container(POD, cpu=2, number=1)))
    assert again.response.resources.cpus == "2-3"
