import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.process.logs import LineSink, SyslogSink, without_waiting


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("nri-pin", level, __file__, 1, text, None, None)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_a_full_pipe_costs_lines_and_no_time_and_the_loss_is_said(pipe: tuple[int, int]):
    read, write = pipe
    sink = without_waiting(write)
    assert sink is not None
    for _ in range(3000):  # a pipe holds 64 kB; a sink that waited would hang here
        sink.emit(record("x" * 99))
    said = os.read(read, 1 << 20)
    assert said.count(b"\n") < 3000
    sink.emit(record("there is room again"))
    rest = os.read(read, 1 << 20).decode()
    assert "log lines lost, the reader was too slow)\nthere is room again\n" in rest
    lost = int(rest.split("(")[1].split()[0])
    assert said.count(b"x" * 99) + lost in (2999, 3000, 3001)
    sink.close()


def test_the_pipe_itself_is_left_blocking_for_whoever_shares_it(pipe: tuple[int, int]):
    sink = without_waiting(pipe[1])
    assert sink is not None
    assert os.get_blocking(pipe[1])
    sink.close()


def test_a_stream_socket_that_is_full_costs_lines_and_no_time():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sink = without_waiting(ours.fileno())
        assert sink is not None
        for _ in range(20_000):
            sink.emit(record("x" * 99))
        assert ours.getblocking()
        assert theirs.recv(100).startswith(b"xxx")
        sink.close()


def test_a_line_cut_by_a_full_pipe_is_ended_before_the_next():
    taken: list[bytes] = []

    def narrow(data: bytes) -> int:
        taken.append(data[:3])
        return min(3, len(data))

    sink = LineSink(narrow, lambda: taken.append(b"closed"))
    sink.emit(record("first"))
    sink.emit(record("second"))
    sink.close()
    assert taken == [b"fir", b"\nse", b"closed"]


def test_files_are_written_the_ordinary_way(tmp_path: Path):
    with open(tmp_path / "f", "w") as file:
        assert without_waiting(file.fileno()) is None


def test_the_reader_of_a_pipe_may_go_away(pipe: tuple[int, int]):
    read, write = os.pipe()
    sink = without_waiting(write)
    os.close(read)
    assert sink is not None
    sink.emit(record("nobody"))
    sink.close()
    os.close(write)


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 31), (logging.INFO, 30), (logging.WARNING, 28), (logging.ERROR, 27), (42, 30)],
)
def test_a_datagram_to_the_system_log_carries_facility_severity_and_process(
    tmp_path: Path, level: int, priority: int
):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "log"))
        sink = SyslogSink(str(tmp_path / "log"))
        sink.emit(record("hello", level))
        assert receiver.recv(100) == f"<{priority}>nri-pin[{os.getpid()}]: hello".encode()
        sink.close()


def test_a_system_log_started_anew_is_found_again(tmp_path: Path):
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(str(path))
        sink = SyslogSink(str(path))
    sink.emit(record("nobody hears this"))
    path.unlink()
    sink.emit(record("nor this"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.bind(str(path))
        sink.emit(record("this"))
        assert second.recv(100).endswith(b": this")
    sink.close()


def test_a_system_log_that_does_not_read_costs_lines_and_no_time(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "log"))
        sink = SyslogSink(str(tmp_path / "log"))
        for _ in range(5000):
            sink.emit(record("x"))
        assert receiver.recv(100)
        sink.close()


def test_without_a_system_log_there_is_no_such_sink(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        SyslogSink(str(tmp_path / "none"))
