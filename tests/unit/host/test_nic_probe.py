"""From links as the kernel tells of them to the device that carries an interface; and once the real kernel."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.host.nic_helper import COMMAND
from nri_plugin.host.nic_probe import answer, parent, serve

PCI = {"IFLA_PARENT_DEV_BUS_NAME": "pci", "IFLA_PARENT_DEV_NAME": "0000:3b:00.0"}
LINKS = {
    "lo": {"index": 1},
    "ens1": {"index": 2, **PCI},
    "vlan7": {"index": 3, "IFLA_LINK": 2},
    "macvlan": {"index": 4, "IFLA_LINK": 3},
    "elsewhere": {"index": 5, "IFLA_LINK": 2, "IFLA_LINK_NETNSID": 0},
    "itself": {"index": 6, "IFLA_LINK": 6},
    "gone": {"index": 7, "IFLA_LINK": 99},
    "old-kernel": {"index": 8, "IFLA_PARENT_DEV_NAME": "0000:3b:00.0"},
}


def find(ifname="", index=0):
    return next((link for name, link in LINKS.items() if name == ifname or link["index"] == index), None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lo", None),
        ("ens1", ("pci", "0000:3b:00.0")),
        ("vlan7", ("pci", "0000:3b:00.0")),
        ("macvlan", ("pci", "0000:3b:00.0")),
        ("elsewhere", None),
        ("itself", None),
        ("gone", None),
        ("old-kernel", None),
        ("nobody", None),
    ],
)
def test_an_interface_is_carried_by_the_device_at_its_bottom(name, expected) -> None:
    assert parent(find, name) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('["ens1", "lo", 5]', {"ens1": ["pci", "0000:3b:00.0"], "lo": None}),
        ("[]", {}),
        ("{", {}),
        ("7", {}),
    ],
)
def test_every_question_has_one_answer(line, expected) -> None:
    assert json.loads(answer(find, line)) == expected


def test_it_says_that_it_listens_and_ends_with_its_input() -> None:
    out = io.StringIO()
    serve(io.StringIO('["lo"]\n["ens1"]\n'), out, find)
    assert out.getvalue().splitlines() == ["{}", '{"lo": null}', '{"ens1": ["pci", "0000:3b:00.0"]}']


def test_without_its_library_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "pyroute2.py").write_text("raise ImportError('no pyroute2 here')\n")
    run = "import sys; sys.path.insert(0, sys.argv[1]); from nri_plugin.host.nic_probe import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", run, str(tmp_path)], input="", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, '{"error": "no pyroute2 here"}\n')


@pytest.mark.root
def test_the_real_kernel_knows_no_device_of_lo_and_those_of_hardware_as_sysfs_does() -> None:
    hardware = [link.name for link in Path("/sys/class/net").iterdir() if (link / "device").exists()]
    done = subprocess.run(
        COMMAND,
        input=json.dumps(["lo", "nobody", *hardware]) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    ready, line = done.stdout.splitlines()
    found = json.loads(line)
    assert ready == "{}"
    assert (found.pop("lo"), found.pop("nobody")) == (None, None)
    assert found == {
        name: [
            Path(f"/sys/class/net/{name}/device/subsystem").resolve().name,
            Path(f"/sys/class/net/{name}/device").resolve().name,
        ]
        for name in hardware
    }
