"""The agent's side of the helper process, with helpers that behave and helpers that do not."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin.host import nic_helper
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.nic_helper import PAUSE_S, NICHelper
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.errors import HostError
from nri_plugin.wire.nri.messages import Container

GOOD = """
import sys
print("{}", flush=True)
for line in sys.stdin:
    print('{"ens1": ["pci", "0000:3b:00.0"], "lo": null}', flush=True)
"""
SILENT = """
import sys
print("{}", flush=True)
sys.stdin.read()
"""
WANTED = {"ens1": "sys/bus/pci/devices/0000:3b:00.0"}


class Clock:
    """Real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def helper_of(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], NICHelper]]:
    """Helpers that are given as long as a busy machine takes."""
    monkeypatch.setattr(nic_helper, "ANSWER_S", 20.0)
    made = []

    def make(text: str) -> NICHelper:
        made.append(NICHelper(clock, (sys.executable, "-c", text)))
        return made[-1]

    yield make
    for helper in made:
        helper.close()


def test_interfaces_on_a_device_have_a_path(helper_of) -> None:
    helper = helper_of(GOOD)
    helper.start()
    assert helper(["ens1", "lo"]) == WANTED
    assert helper(["ens1"]) == WANTED
    assert helper([]) == {}
    assert helper.failures == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('print(\'{"error": "no library"}\')', "no library; install pyroute2, or use sysfs"),
        ("pass", "it ended; install"),
        ("print('hello', flush=True)", "helper process does not work"),
        ("print('[]', flush=True)", "helper process does not work"),
        ("print('x' * 200_000, flush=True, end='')", "its answer has no end"),
    ],
)
def test_a_helper_that_does_not_start_stops_the_agent_with_the_reason(helper_of, text, why) -> None:
    with pytest.raises(HostError, match=why) as caught:
        helper_of(text).start()
    assert str(caught.value).startswith("nicLocality: netlink: ")


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(HostError, match="No such file"):
        NICHelper(time.monotonic, ("/nowhere/python",)).start()


def test_one_that_takes_too_long_to_start_is_told(helper_of) -> None:
    with pytest.raises(HostError, match=r"it says nothing within 0 s"):
        helper_of("import sys; sys.stdin.read()").start(0.0)


@pytest.mark.parametrize(
    "text",
    [
        SILENT,
        "import sys; print('{}', flush=True); sys.stdin.readline()",
        "import sys; print('{}', flush=True); sys.stdin.readline(); print('[1]', flush=True); sys.stdin.read()",
        "import sys; print('{}', flush=True); sys.stdin.readline(); print('{\"x\": 1}', flush=True); sys.stdin.read()",
    ],
    ids=["silent", "ends", "no object", "no places"],
)
def test_a_helper_that_fails_is_given_up_and_another_one_started_after_a_pause(
    helper_of, clock, text, monkeypatch
) -> None:
    helper = helper_of(text)
    helper.start()
    with monkeypatch.context() as patch:
        patch.setattr(nic_helper, "ANSWER_S", 0.0 if text == SILENT else 20.0)
        assert helper(["ens1"]) == {}
    assert helper.failures == 1
    assert helper(["ens1"]) == {}
    assert helper._process is None

    helper._command = (sys.executable, "-c", GOOD)
    clock.ahead += PAUSE_S
    assert helper(["ens1"]) == {}  # started now, and not waited for
    assert helper._process is not None
    helper._buffer = helper._line(20.0) + b"\n"  # as if it had said so just before the next question
    assert helper(["ens1"]) == WANTED


def test_a_new_helper_that_dies_or_babbles_is_given_up_too(helper_of, clock) -> None:
    helper = helper_of("print('what', flush=True)")
    for failures in (1, 2):
        assert helper(["ens1"]) == {}
        helper._process.wait()
        assert helper(["ens1"]) == {}
        assert helper.failures == failures
        helper._command = (sys.executable, "-c", "pass")
        clock.ahead += PAUSE_S


def test_a_new_helper_is_left_to_load(helper_of) -> None:
    helper = helper_of("import sys; sys.stdin.read()")
    assert helper(["ens1"]) == {}
    assert helper(["ens1"]) == {}
    assert (helper.failures, helper._process.poll()) == (0, None)


def test_words_that_would_lead_elsewhere_are_passed_over(helper_of) -> None:
    places = '{"a": ["pci", ".."], "b": ["../pci", "x"], "c": ["pci", "x/y"], "d": ["pci", ""], "e": ["virtio", "virtio2"]}'
    helper = helper_of(
        f"import sys\nprint('{{}}', flush=True)\nsys.stdin.readline()\nprint('{places}', flush=True)\nsys.stdin.read()"
    )
    helper.start()
    assert helper(["a"]) == {"e": "sys/bus/virtio/devices/virtio2"}


def test_more_names_than_a_line_holds_are_not_asked_for(helper_of) -> None:
    helper = helper_of(GOOD)
    helper.start()
    assert helper(["x" * 70_000]) == {}


def machine(root: Path) -> DeviceLocator:
    """A NIC on node 1 that only netlink knows by its name, and one on node 0 that sysfs knows."""
    for number, address in enumerate(("0000:10:00.0", "0000:3b:00.0")):
        where = root / "sys/devices/pci0000:00" / address
        where.mkdir(parents=True)
        (where / "numa_node").write_text(f"{number}\n")
        link = root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../devices/pci0000:00/{address}")
    (root / "sys/class/net/ens0").mkdir(parents=True)
    (root / "sys/class/net/ens0/device").symlink_to("../../../devices/pci0000:00/0000:10:00.0")
    asked = []

    def nics(names):
        asked.append(list(names))
        return {**WANTED, "ens2": "sys/bus/pci/devices/0000:ff:00.0"}

    locator = DeviceLocator(KernelFiles(str(root)), nics=nics)
    locator.asked = asked
    return locator


@pytest.mark.parametrize(
    ("names", "nodes"),
    [
        (("ens1",), {"0000:3b:00.0": "1"}),
        (("ens0",), {"0000:10:00.0": "0"}),
        (("ens0", "ens1"), {"0000:10:00.0": "0", "0000:3b:00.0": "1"}),
        (("ens2", "..", "a/b"), {}),
    ],
    ids=["known to netlink", "known to sysfs", "both", "known to nobody"],
)
def test_what_netlink_does_not_know_is_looked_up_in_sysfs(tmp_path: Path, names, nodes) -> None:
    locator = machine(tmp_path)
    resources = locator.resources(Container("c", net_devices=names))
    assert {device.id: str(device.nodes) for each in resources for device in each.devices} == nodes
    assert locator.asked == [[name for name in names if name.startswith("ens")]]


def test_nobody_is_asked_for_a_container_without_interfaces(tmp_path: Path) -> None:
    locator = machine(tmp_path)
    assert locator.resources(Container("c")) == ()
    assert locator.asked == []
