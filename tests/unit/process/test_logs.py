import json
import logging
import os
import socket
from pathlib import Path

import pytest

from nri_plugin.process import logs
from nri_plugin.process.logs import SyslogSink


def record(text: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("nri-pin", logging.INFO, __file__, 1, text, None, None)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    made.fields = fields
    return made


@pytest.fixture(autouse=True)
def put_logging_back():
    logger = logging.getLogger(logs.LOGGER_NAME)
    before = (logger.handlers[:], logger.level, logger.propagate, logging.raiseExceptions)
    yield
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:], logger.level, logger.propagate = before[0], before[1], before[2]
    logging.raiseExceptions = before[3]


def test_a_text_line_has_time_level_text_and_fields_with_err_last():
    line = logs.TextFormatter().format(record("decided", err="no", op="1f00ba12", took_us=18))
    assert line == "2023-11-14T22:13:20.250Z INFO    decided op=1f00ba12 took_us=18 err=no"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain-1.2:3/x", "plain-1.2:3/x"),
        ("two words", '"two words"'),
        ("forged\n2023 INFO line", '"forged\\n2023 INFO line"'),
        ('quo"te', '"quo\\"te"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        (0, "0"),
    ],
)
def test_values_of_a_text_line_never_break_it(value: object, shown: str):
    assert logs.TextFormatter().format(record("x", pod=value)).endswith(f" x pod={shown}")


def test_fields_without_a_value_are_left_out():
    assert dict(logs.fields_of(record("x", a=None, b="", c=0))) == {"c": 0}


def test_a_json_line_is_one_object_with_the_same_fields():
    line = logs.JSONFormatter().format(record("decided", err="a\nb", cpus=Path("/x")))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "msg": "decided",
        "cpus": "/x",
        "err": "a\nb",
    }


@pytest.mark.parametrize("formatter", [logs.TextFormatter(), logs.JSONFormatter()])
def test_a_traceback_is_in_the_line(formatter: logging.Formatter):
    made = record("internal error")
    made.exc_info = (RuntimeError, RuntimeError("the cause"), None)
    assert "RuntimeError: the cause" in formatter.format(made)


def test_a_disabled_level_costs_no_record(tmp_path: Path):
    logger = logs.set_up("warning", "text", tmp_path)
    seen: list[logging.LogRecord] = []
    logger.handlers[0].emit = seen.append  # type: ignore[method-assign]
    logs.say(logger, logging.INFO, "quiet")
    logs.say(logger, logging.WARNING, "loud", a=1)
    assert [(r.getMessage(), r.fields) for r in seen] == [("loud", {"a": 1})]


def test_set_up_twice_leaves_one_handler(tmp_path: Path):
    logs.set_up("info", "text", tmp_path)
    logger = logs.set_up("debug", "json", tmp_path)
    assert len(logger.handlers) == 1
    assert isinstance(logger.handlers[0].formatter, logs.JSONFormatter)
    assert logger.level == logging.DEBUG


def test_dev_null_is_no_place_for_log_lines(tmp_path: Path):
    with open(os.devnull, "w") as null, open(tmp_path / "file", "w") as file:
        assert not logs.is_read(null.fileno())
        assert logs.is_read(file.fileno())
        closed = file.fileno()
    assert not logs.is_read(closed)


def test_without_standard_error_lines_go_to_the_system_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "is_read", lambda _fd: False)
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        handler = logs.pick_handler(tmp_path, syslog=path)
        assert isinstance(handler, SyslogSink)
        handler.setFormatter(logs.TextFormatter())
        handler.emit(record("hello"))
        assert b"nri-pin[" in receiver.recv(4096)
        handler.close()


def test_without_standard_error_and_system_log_lines_go_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logs, "is_read", lambda _fd: False)
    handler = logs.pick_handler(tmp_path, syslog=str(tmp_path / "none"))
    handler.setFormatter(logs.TextFormatter())
    handler.emit(record("hello"))
    handler.close()
    assert "hello" in (tmp_path / logs.FILE_NAME).read_text()


def test_a_long_log_file_is_set_aside_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "MAX_FILE_BYTES", 3)
    (tmp_path / logs.FILE_NAME).write_text("long")
    logs.file_handler(tmp_path).close()
    assert (tmp_path / "agent.log.old").read_text() == "long"
    assert (tmp_path / logs.FILE_NAME).read_text() == ""


def test_where_nothing_can_be_written_the_agent_still_runs(tmp_path: Path):
    handler = logs.file_handler(tmp_path / "missing")
    handler.emit(record("lost"))
    assert isinstance(handler, logging.NullHandler)


def test_an_op_is_eight_hex_digits():
    assert all(len(op) == 8 and int(op, 16) >= 0 for op in (logs.new_op() for _ in range(50)))
