"""The agent as a real process: both starts, signals, restarts, a second instance."""

import json
import os
import resource
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing.status_client import read_lines
from nri_plugin.checkpoint.format import decode
from nri_plugin.checkpoint.kubelet_files import checksum, cpu_v2
from nri_plugin.wire.nri import events as nri
from tests.agent_process import PATIENCE_S, REPOSITORY, Process, Site, config_text, until
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
    "_hashlib",
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

REPORT_WRITERS = """
import os, sys
report = os.open(sys.argv.pop(), os.O_WRONLY | os.O_CREAT)
def hear(event, arguments):
    is_named = event == "open" and isinstance(arguments[0], str)  # not a descriptor that was opened by name
    if is_named and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(report, f"{arguments[0]}\\n".encode())
sys.addaudithook(hear)
from nri_plugin.__main__ import main
raise SystemExit(main(sys.argv[1:]))
"""
"""`-m nri_plugin`, which notes the name of each file that is opened for writing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def asked(port: int, path: str) -> str:
    """The answer to a probe or a scrape."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()


def test_run_registers_places_and_ends_on_sigterm_with_nothing_undone(site: Site):
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    assert peer.ask(CREATE).response.resources.cpus == "2-3"
    saved = site.checkpoint()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    before, after = (decode(text.encode()) for text in (saved, site.checkpoint()))
    assert before.state == after.state
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
    assert asked(int(port), "/metrics").startswith("HTTP/1.1 200 OK\r\n")
    expected = {
        'nri_pin_events_total{event="CreateContainer",result="answered"} 1.0',
        'nri_pin_refusals_total{reason="UnexpectedAdmissionError"} 1.0',
        "kubelet_cpu_manager_exclusive_cpu_allocation_count 2.0",
        "nri_pin_connected 1.0",
    }
    # The agent counts an event after its answer.
    until(
        lambda: expected <= set(asked(int(port), "/metrics").splitlines()),
        "the metrics tell of both creations",
    )


def http_get(port: int, path: str) -> str:
    """Status line and body."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        text = b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()
    head, _, body = text.partition("\r\n\r\n")
    return f"{head.partition(chr(13))[0]} {body}"


def port_of(process: Process, what: str) -> int:
    return port_in([process.wait_for_line(f"serving {what}")], what)


def port_in(lines: list[str], what: str) -> int:
    return next(int(line.rpartition("port=")[2]) for line in lines if f"serving {what}" in line)


def test_a_port_that_another_program_has_keeps_no_container_waiting(site: Site):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site.config.write_text(config_text(site.folder, metricsBindAddress=f"127.0.0.1:{port}"))
        process = site.start()
        peer = site.accept()
        peer.synchronize()
        assert peer.ask(CREATE).response.resources.cpus == "2-3"
        line = process.wait_for_line("not listening yet, will be tried again")
        assert f"cannot listen on 127.0.0.1:{port}: address already in use" in line
    assert port_of(process, "metrics") == port
    assert http_get(port, "/readyz") == "HTTP/1.1 200 OK ready ok\n"


def test_a_wrong_address_for_metrics_or_probes_ends_the_start_with_a_reason(site: Site):
    for key in ("metricsBindAddress", "healthProbeBindAddress"):
        site.config.write_text(config_text(site.folder, **{key: "'[2001:db8::1]:9465'"}))
        process = site.start()
        assert process.wait() == 2
        assert any(f"{key}: cannot listen on [2001:db8::1]:9465" in line for line in process.heard)


def test_an_agent_that_was_probed_can_be_killed_and_started_again_at_once(site: Site):
    """As the kubelet probes: the agent closes the connection, and its side of it stays for a minute."""
    site.config.write_text(config_text(site.folder, healthProbeBindAddress="127.0.0.1:0"))
    first = site.start()
    port = port_of(first, "probes")
    site.accept().synchronize()
    assert http_get(port, "/readyz") == "HTTP/1.1 200 OK ready ok\n"
    first.end()
    site.config.write_text(config_text(site.folder, healthProbeBindAddress=f"127.0.0.1:{port}"))
    second = site.start()
    assert port_of(second, "probes") == port
    site.accept().synchronize()
    assert http_get(port, "/readyz") == "HTTP/1.1 200 OK ready ok\n"


DESCRIPTORS = 96
"""What the agent may have in the next test; it needs some 20 of its own."""


def test_slow_clients_of_its_ports_take_nothing_from_containers_and_probes(site: Site):
    """Each connects, sends a byte and waits, more of them than the agent may have descriptors."""
    anywhere = "127.0.0.1:0"
    site.config.write_text(
        config_text(site.folder, metricsBindAddress=anywhere, healthProbeBindAddress=anywhere)
    )
    process = site.start()
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    probes, metrics = port_of(process, "probes"), port_of(process, "metrics")
    peer = site.accept()
    peer.synchronize()
    with ExitStack() as attack:
        for number in range(2 * DESCRIPTORS):
            port = metrics if number % 2 else probes
            slow = attack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            slow.sendall(b"G")
        assert peer.ask(CREATE).response.resources.cpus == "2-3"
        assert http_get(probes, "/healthz") == "HTTP/1.1 200 OK alive ok\n"
        assert http_get(probes, "/readyz") == "HTTP/1.1 200 OK ready ok\n"
        assert "nri_pin_connected 1.0\n" in http_get(metrics, "/metrics")
        shared = pod("shared")
        assert peer.ask(nri.CreateContainer(shared, container(shared))).response.resources.cpus
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < DESCRIPTORS - 20
    assert "exclusive" in site.checkpoint()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not [line for line in process.heard if " ERROR " in line]


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


def test_two_plugins_that_set_cpusets_are_told_by_what_becomes_of_containers(site: Site):
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    status = str(site.folder / "state" / "agent.sock")
    for name in ("try-1", "try-2"):
        tried = replace(CREATE.container, id=name)
        assert peer.ask(nri.CreateContainer(POD, tried)).response.resources.cpus == "2-3"
        # The runtime refuses what both plugins set, and undoes the creation.
        peer.ask(nri.StopContainer(POD, tried))
        peer.ask(nri.RemoveContainer(POD, tried))
    assert "failed-creation" in process.wait_for_line("another CPU manager also gives CPUs to containers")
    assert any(told.failed_creations == 2 for told in read_lines(status, PATIENCE_S))
    created = replace(CREATE.container, id="alone")
    peer.ask(nri.CreateContainer(POD, created))
    peer.ask(nri.PostCreateContainer(POD, created))
    assert any(told.failed_creations == 0 for told in read_lines(status, PATIENCE_S))


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


@pytest.mark.parametrize("has_state", [True, False])
def test_a_second_agent_waits_says_for_whom_touches_nothing_and_takes_over(site: Site, has_state: bool):
    first = site.start()
    peer = site.accept()
    peer.synchronize()
    peer.ask(CREATE)
    if not has_state:
        (site.folder / "state").rename(site.folder / "gone")  # at once, for the agent may be writing into it
    other = site.folder / "other.yaml"
    other.write_text(config_text(site.folder, stateDir=str(site.folder / "elsewhere")))
    second = site.start("--config", str(other))
    line = second.wait_for_line("waiting for the right to serve the runtime")
    assert f"another agent (process {first.pid}: " in line
    assert f"serves the runtime at {site.folder}" in line
    assert not (site.folder / "elsewhere").exists()
    assert not select.select([site.listener], [], [], 0)[0], "the second agent connected"
    first.end()
    peer = site.accept()
    peer.listed = ((POD,), (container(POD, cpu=2, cpus="2-3"),))
    peer.synchronize()
    third = pod("third", cpu=2)
    assert peer.ask(nri.CreateContainer(third, container(third, cpu=2))).response.resources.cpus == "4-5"
    assert (site.folder / "elsewhere" / "agent.sock").exists()


def test_a_waiting_agent_is_alive_not_ready_and_stops_when_told_to(site: Site):
    first = site.start()
    site.accept().synchronize()
    site.config.write_text(config_text(site.folder, metricsBindAddress="127.0.0.1:0"))
    second = site.start()
    second.wait_for_lines("serving metrics", "waiting for the right to serve the runtime")
    port = port_in(second.heard, "metrics")
    assert asked(port, "/healthz").startswith("HTTP/1.1 200 ")
    ready = asked(port, "/readyz")
    assert ready.startswith("HTTP/1.1 503 ")
    assert f"waiting: another agent (process {first.pid}: " in ready
    second.signal(signal.SIGTERM)
    assert second.wait() == 0


def test_a_waiting_agent_serves_its_port_on_once_it_is_its_turn(site: Site):
    first = site.start()
    site.accept().synchronize()
    site.config.write_text(config_text(site.folder, metricsBindAddress="127.0.0.1:0"))
    second = site.start()
    second.wait_for_lines("serving metrics", "waiting for the right to serve the runtime")
    port = port_in(second.heard, "metrics")
    first.end()
    site.accept().synchronize()
    until(lambda: asked(port, "/readyz").startswith("HTTP/1.1 200 "), "the agent is ready")
    assert "nri_pin_connected 1.0\n" in asked(port, "/metrics")


def test_a_port_that_the_other_agent_has_does_not_end_the_wait(site: Site):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = site.start()
        site.accept().synchronize()
        port = taken.getsockname()[1]
        site.config.write_text(config_text(site.folder, metricsBindAddress=f"127.0.0.1:{port}"))
        second = site.start()
        second.wait_for_lines("not listening yet", "waiting for the right to serve the runtime")
    first.end()
    site.accept().synchronize()


def test_an_agent_waits_for_the_directory_of_the_socket(site: Site):
    folder = site.folder / "run" / "nri"
    site.config.write_text(config_text(site.folder, nriSocket=str(folder / "nri.sock")))
    process = site.start()
    line = process.wait_for_line("waiting for the right to serve the runtime")
    assert f"{folder}: no such file or directory; is the container runtime running, with NRI enabled" in line
    folder.mkdir(parents=True)
    os.link(site.folder / "nri.sock", folder / "nri.sock")
    site.accept().synchronize()


def test_a_helper_of_the_agent_does_not_keep_the_right_to_serve(site: Site):
    """The lock goes with the agent although a process that it started lives on."""
    site.config.write_text(config_text(site.folder, nicLocality="netlink"))
    first = site.start()
    site.accept().synchronize()
    helpers = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    assert helpers
    for helper in helpers:
        os.kill(int(helper), signal.SIGSTOP)
    try:
        first.end()
        site.start()
        site.accept().synchronize()
    finally:
        for helper in helpers:
            os.kill(int(helper), signal.SIGKILL)


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


SETTINGS = {
    "proc/irq/default_smp_affinity": "ffff",
    "proc/irq/24/smp_affinity_list": "0-15",
    "proc/irq/24/effective_affinity_list": "3",
    "sys/kernel/irq/24/actions": "eth0",
    "sys/kernel/irq/24/chip_name": "PCI-MSIX",
    "sys/kernel/irq/24/hwirq": "1",
    "sys/devices/virtual/workqueue/cpumask": "ffff",
    "sys/class/net/eth0/device/vendor": "0x1af4",
    "sys/class/net/eth0/queues/rx-0/rps_cpus": "ffff",
    **{f"sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us": "0" for cpu in range(16)},
}


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ({}, set()),
        ({"irqs": "on-request"}, set()),
        (
            {"irqs": "exclusive", "workqueues": "exclusive", "receiveSteering": "exclusive"},
            {
                "proc/irq/24/smp_affinity_list",
                "proc/irq/default_smp_affinity",
                "sys/class/net/eth0/queues/rx-0/rps_cpus",
                "sys/devices/virtual/workqueue/cpumask",
            },
        ),
    ],
)
def test_where_nobody_asks_no_setting_of_the_kernel_is_opened_for_writing(
    site: Site, asked: dict[str, str], written: set[str]
):
    host, report = site.folder / "host", site.folder / "opened"
    for name, text in SETTINGS.items():
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_text(f"{text}\n")
    site.config.write_text(config_text(site.folder, **asked))
    words = ["-c", REPORT_WRITERS, "run", "--config", str(site.config), str(report)]
    # Python itself would write each compiled module after a change of its source: some 140 files.
    own = {"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    process = site.spawn(words, own)
    peer = site.accept()
    peer.synchronize()
    assert peer.ask(CREATE).response.resources.cpus == "2-3"
    until(lambda: written <= opened_below(host, report), "every setting was opened that has to be")
    peer.ask(nri.RemovePodSandbox(POD))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert opened_below(host, report) == written
    assert (site.folder / "state/quiet.json").exists() == bool(written)
    others = set(report.read_text().splitlines()) - {f"{host}/{name}" for name in written}
    assert f"{site.folder}/state/state.json.new" in others  # the checkpoint, so it does hear
    own_log = {"/proc/self/fd/2"}  # opened again, so that a reader that stands still holds up nothing
    assert {name for name in others if not name.startswith(f"{site.folder}/state/")} <= own_log


def opened_below(folder: Path, report: Path) -> set[str]:
    """The files below a folder that were opened for writing."""
    names = report.read_text().splitlines() if report.exists() else []
    return {os.path.relpath(name, folder) for name in names if name.startswith(f"{folder}/")}
