"""What all tests share: strict skips, the root marker, hypothesis profiles, where recorded data lies."""

import logging
import os
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from nri_plugin.process.logs import LOGGER_NAME

HERE = Path(__file__).parent
NOBODY = 65534
OPTIONAL_DATA = ("NRI_PIN_MACHINES", "NRI_PIN_VECTORS")

# A deadline would be a timed assert; CI draws the same examples every time.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "local")

# In the locale C pictures are drawn in ASCII.
os.environ["LC_ALL"] = "C.UTF-8"

# A shell starts what runs in its background with SIGINT ignored, and so would be every process a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help="a skip is a failure, unless it waits for NRI_PIN_MACHINES or NRI_PIN_VECTORS",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            reason = f"needs root: sudo hack/test -n0 {item.nodeid.split('::', 1)[0]}"
            item.add_marker(pytest.mark.skip(reason=reason))


def awaits_optional_data(reason: str) -> bool:
    """Whether a skip only says that recorded data outside the checkout was not named."""
    return any(name in reason and not os.environ.get(name) for name in OPTIONAL_DATA)


def skip_reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def turn_skip_into_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = skip_reason(report.longrepr)
    if awaits_optional_data(reason):
        return
    report.outcome = "failed"
    report.longrepr = f"skipped under --strict-skips: {reason}"


@pytest.fixture
def tmp_path() -> Generator[Path, None, None]:
    """Pytest's own with a short name: a socket's path has at most 107 bytes, wherever TMPDIR is."""
    with tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--strict-skips"):
        turn_skip_into_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and collector.config.getoption("--strict-skips"):
        turn_skip_into_failure(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    waiting = sum(awaits_optional_data(skip_reason(report.longrepr)) for report in skipped)
    if waiting:
        terminalreporter.write_line(
            f"{waiting} skipped for want of recorded data: set {' and '.join(OPTIONAL_DATA)}"
        )


def data_dirs(name: str, variable: str) -> list[Path]:
    """The folders that hold recorded data: the checkout's own, then the one the variable names."""
    extra = os.environ.get(variable)
    own = HERE / name
    return ([own] if own.is_dir() else []) + ([Path(extra)] if extra else [])


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    """Every test begins with the log of a fresh process, whatever an earlier one set up.

    A log with handlers takes the agent's complaints, and pytest listens at those that do not propagate.
    """
    log = logging.getLogger(LOGGER_NAME)
    log.handlers, log.propagate = [], True


@pytest.fixture
def unprivileged_dir() -> Generator[Path, None, None]:
    """An empty folder of a user that is not root; a test that runs as root is that user meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


@pytest.fixture(scope="session")
def machine_dirs() -> list[Path]:
    """Every folder of recorded machines that is there."""
    return data_dirs("machines", "NRI_PIN_MACHINES")


@pytest.fixture(scope="session")
def vector_dirs() -> list[Path]:
    """Every folder of recorded answers that is there."""
    return data_dirs("vectors", "NRI_PIN_VECTORS")


@pytest.fixture(scope="session")
def more_machines() -> Path:
    """The folder outside the checkout that NRI_PIN_MACHINES names."""
    return outside_dir("NRI_PIN_MACHINES", "recorded machines")


@pytest.fixture(scope="session")
def more_vectors() -> Path:
    """The folder outside the checkout that NRI_PIN_VECTORS names."""
    return outside_dir("NRI_PIN_VECTORS", "recorded answers")


def outside_dir(variable: str, what: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} names no folder of {what}: run {variable}=DIR hack/test")
    return Path(value)
