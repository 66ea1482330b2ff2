import gc
import logging
import signal
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_plugin.__main__ import main
from nri_plugin.agent import agent, start
from nri_plugin.agent.agent import PluginIdentity, checked_identity
from nri_plugin.agent.arguments import NAMES
from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.serving.link import RuntimeLink
from nri_plugin.config.loading import Config, load, load_text
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.options import Effect
from nri_plugin.process.logs import LOGGER_NAME
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import CreateContainer, Synchronize
from tests.agent_fakes import Bench, Clock, LogLines, recording_log
from tests.builders import container, node, pod


@pytest.fixture(autouse=True)
def put_the_interpreter_back() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_help_names_every_option_and_the_exit_codes_and_nothing_else_happens(
    capsys: pytest.CaptureFixture[str],
):
    assert agent.main(["--help", "--nonsense"]) == 0
    text = capsys.readouterr().out
    assert [name for name in (*NAMES, "Exit code", "70") if name not in text] == []


def test_a_missing_configuration_ends_with_2_and_the_lines_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["run", "--config", str(tmp_path / "none.yaml")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("nri-pin: ") for line in lines] == [True, False, False, False]
    assert lines[-3:] == [
        "  cpuManagerPolicy: static",
        '  reservedSystemCPUs: "0"',
        "  topologyManagerPolicy: best-effort",
    ]


def test_every_wrong_value_is_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "config.yaml"
    path.write_text('reservedSystemCPUs: "0"\nlogLevel: loud\nnope: 1\n')
    assert main(["run", "--config", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    starts = (f"nri-pin: {path}:2:11: ", f"  {path}:3:1: ")
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True, True]


def test_a_switch_of_threads_is_asked_for_ten_times_as_often_as_usual(capsys: pytest.CaptureFixture[str]):
    agent.main(["--help"])
    assert sys.getswitchinterval() == pytest.approx(0.0005)


def test_errors_are_log_lines_once_there_is_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fails(_argv: list[str]) -> None:
        raise HostError("/x", "unreadable")

    _, lines = recording_log()
    logger = logging.getLogger(LOGGER_NAME)
    logger.addHandler(lines)
    try:
        monkeypatch.setattr(agent, "parse", fails)
        assert agent.main([]) == 1
    finally:
        logger.removeHandler(lines)
    assert str(lines.fields("cannot start")["err"]) == "/x: unreadable"
    assert capsys.readouterr().err == ""


def test_the_identity_is_the_configurations():
    config = load_text('reservedSystemCPUs: "0"\npluginName: pin\npluginIndex: "07"\n', "test")
    assert checked_identity(config) == PluginIdentity("pin", "07")


def test_pages_are_served_before_the_agent_connects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Their modules load slowly, and the runtime waits for whoever has registered."""
    order: list[str] = []
    turn = SimpleNamespace(begin=lambda: order.append("connect"), is_serving=True)
    monkeypatch.setattr(agent, "ServingLease", lambda *_args, **_options: turn)
    monkeypatch.setattr(agent.Assembly, "serve_http", lambda _self: order.append("pages"))

    def run(
        loop: Loop, _link: object, _reload: object, _log: object, begin: Callable[[], None], *_rest: object
    ) -> int:
        begin()
        loop.close()
        return 0

    monkeypatch.setattr(agent, "run", run)
    config = load_text(f'reservedSystemCPUs: "0"\nstateDir: {tmp_path}\n', "test")
    assert agent.serve(config, lambda: config, agent.checked_identity(config)) == 0
    assert order == ["pages", "connect"]


def test_a_configuration_for_another_machine_is_refused_before_the_wait_for_the_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """There is no runtime, and no folder of its socket, so the agent would wait."""
    config = load_text(
        f'reservedSystemCPUs: "9000"\nstateDir: {tmp_path}\nnriSocket: {tmp_path}/none/nri.sock\n', "test"
    )
    with pytest.raises(ConfigError, match="CPUs 9000 do not exist on this machine"):
        agent.serve(config, lambda: config, agent.checked_identity(config))
    assert "waiting for the right to serve the runtime" in capsys.readouterr().err


class Cycle:
    """A value that only a garbage collection ends."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collecting() -> Iterator[tuple[Loop, Clock]]:
    """A loop between whose requests garbage is collected."""
    clock = Clock()
    loop = Loop(clock)
    start.collect_garbage_between_requests(loop)
    yield loop, clock
    loop.close()
    gc.unfreeze()
    gc.enable()


def test_garbage_does_not_pile_up_where_requests_never_pause(collecting: tuple[Loop, Clock]):
    loop, _ = collecting
    assert not gc.isenabled()
    cycles: list[weakref.ref[Cycle]] = []
    most = 0
    for _ in range(40):
        loop.post(lambda: cycles.extend(weakref.ref(Cycle()) for _ in range(500)))
        loop.run_once()
        most = max(most, sum(one() is not None for one in cycles))
    assert most <= start.MOST_YOUNG
    assert len(cycles) > 3 * start.MOST_YOUNG


def test_nothing_is_collected_while_a_request_is_handled(collecting: tuple[Loop, Clock]):
    loop, _ = collecting
    alive: list[int] = []

    def request() -> None:
        cycles = [weakref.ref(Cycle()) for _ in range(3 * start.MOST_YOUNG)]
        alive.append(sum(one() is not None for one in cycles))

    loop.post(request)
    loop.run_once()
    assert alive == [3 * start.MOST_YOUNG]


@pytest.mark.parametrize("pause_s", [start.COLLECT_PAUSE_S, start.COLLECT_ALL_PAUSE_S])
def test_a_few_cycles_are_collected_by_the_clock(collecting: tuple[Loop, Clock], pause_s: float):
    loop, clock = collecting
    cycle = Cycle()
    one = weakref.ref(cycle)
    if pause_s == start.COLLECT_ALL_PAUSE_S:
        gc.freeze()  # it was alive at a collection
    del cycle
    for _ in range(2):
        clock.now += pause_s
        loop.run_once()
    assert one() is None


def test_a_reload_without_a_configuration_file_is_said_as_that(tmp_path: Path):
    log, lines = recording_log()
    loop = Loop()
    link = RuntimeLink(
        loop,
        open_socket=socket.socket,
        new_session=PluginIdentity("a", "90").session,
        handler=Bench(node()).handler,
        log=log,
    )
    missing = str(tmp_path / "none.yaml")
    agent.reload(partial(load, missing), link, log)
    loop.close()
    told = "there is no configuration to read again, the former one stays in force"
    assert lines.texts("ERROR") == [told]
    assert lines.fields(told) == {"file": missing}


def reloaded(tmp_path: Path, read: Callable[[], Config]) -> tuple[Bench, LogLines]:
    """A handler without a cgroup tree, after the reload of what `read` gives."""
    log, lines = recording_log()
    loop = Loop()
    bench = Bench(node(effect=Effect.UPDATE))
    bench.handler.change_node(bench.handler.node, CpusetWriter(None))
    link = RuntimeLink(
        loop,
        open_socket=socket.socket,
        new_session=PluginIdentity("a", "90").session,
        handler=bench.handler,
        log=log,
    )
    agent.reload(read, link, log)
    loop.close()
    return bench, lines


def test_a_reload_that_finds_a_cgroup_tree_writes_to_it(tmp_path: Path):
    (tmp_path / "cgroup.controllers").write_text("cpuset")
    shared, path = pod("s", "Burstable"), tmp_path / "kubepods/burstable/pods/s-c-0"
    path.mkdir(parents=True)
    for name in ("cpuset.cpus", "cpuset.cpus.effective"):
        (path / name).write_text("0-3")
    text = f'reservedSystemCPUs: "0"\ncgroupRoot: {tmp_path}\n'
    bench, _ = reloaded(tmp_path, lambda: load_text(text, "test"))
    bench.handler.change_node(node(effect=bench.handler.node.options.effect, pool_floor=False))
    bench.ask(Synchronize((shared,), (container(shared, cpu=1, cpus="0-3"),)))
    assert bench.ask(CreateContainer(pod(), container(pod(), cpu=2))).refusal == ""
    assert (path / "cpuset.cpus").read_text().strip() == "0-1,4-15"


def test_a_reload_knows_the_cpus_that_pods_can_reach(tmp_path: Path):
    (tmp_path / "cgroup.controllers").write_text("cpuset")
    (tmp_path / "cpuset.cpus.effective").write_text("0\n")
    text = f'reservedSystemCPUs: "0"\ncgroupRoot: {tmp_path}\n'
    bench, _ = reloaded(tmp_path, lambda: load_text(text, "test"))
    assert str(bench.handler.node.topology.online) == "0"


def test_a_mistake_in_a_reload_does_not_end_the_agent(tmp_path: Path):
    def fails() -> Config:
        raise RuntimeError("a bug")

    _, lines = reloaded(tmp_path, fails)
    assert lines.texts("ERROR") == [
        "internal error, configuration not reloaded, the former one stays in force"
    ]


def test_a_reload_changes_what_becomes_of_allocations_that_cannot_be_saved(tmp_path: Path):
    text = f'reservedSystemCPUs: "0"\ncgroupRoot: {tmp_path}\nonCheckpointFailure: serve\n'
    bench, _ = reloaded(tmp_path, lambda: load_text(text, "test"))
    assert bench.handler.checkpoint.serves


def test_an_agent_that_ends_closes_every_part_where_one_fails():
    log, lines = recording_log()
    closed: list[str] = []

    def part(name: str) -> SimpleNamespace:
        def close() -> None:
            closed.append(name)
            raise OSError(5, "Input/output error")

        return SimpleNamespace(close=close, handler=None)

    link, handler, lease = part("link"), part("handler"), part("lease")
    link.handler = handler
    loop = Loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert agent.run(loop, link, lambda: None, log, lambda: loop.stop(3), lease) == 3  # type: ignore[arg-type]
    finally:
        for number, action in before.items():
            signal.signal(number, action)
    assert closed == ["link", "handler", "lease"]
    assert lines.texts("ERROR") == ["internal error while ending"] * 3
