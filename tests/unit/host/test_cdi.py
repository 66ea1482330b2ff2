"""Device nodes of CDI names."""

import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest

from nri_plugin.host.devices import MOST_BYTES, MOST_FILES, CDISpecs
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.wire.nri.messages import DeviceNode

GPU0 = "vendor.com/gpu=0"


def spec(path: str = "/dev/gpu0", kind: str = "vendor.com/gpu", **node: object) -> dict[str, object]:
    edits = {"deviceNodes": [{"path": path, **node}], "env": ["A=1"], "mounts": []}
    return {
        "cdiVersion": "0.6.0",
        "kind": kind,
        "devices": [{"name": "0", "containerEdits": edits}, {"name": "none", "containerEdits": {}}],
        "containerEdits": {"deviceNodes": [{"path": "/dev/gpuctl"}]},
    }


def write(root: Path, name: str, text: str, folder: str = "etc/cdi") -> Path:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def nodes(root: Path, name: str = GPU0) -> tuple[DeviceNode, ...]:
    return CDISpecs(KernelFiles(str(root))).nodes_by_name((name,))[name]


def test_a_name_stands_for_the_nodes_of_its_device_not_for_what_all_of_them_get(tmp_path: Path) -> None:
    write(tmp_path, "v.json", json.dumps(spec(type="b", major=195, minor=3)))
    assert nodes(tmp_path) == (DeviceNode("/dev/gpu0", "b", 195, 3),)


def test_specifications_may_be_yaml(tmp_path: Path) -> None:
    text = "kind: vendor.com/gpu\ndevices:\n- name: 0\n"
    write(
        tmp_path,
        "v.yaml",
        text.replace("0", '"0"') + "  containerEdits: {deviceNodes: [{path: /dev/gpu0}]}\n",
    )
    assert nodes(tmp_path) == (DeviceNode("/dev/gpu0", "c", 0, 0),)


def test_the_folder_of_the_running_system_goes_first(tmp_path: Path) -> None:
    write(tmp_path, "v.json", json.dumps(spec("/dev/static")))
    write(tmp_path, "v.json", json.dumps(spec("/dev/running")), folder="var/run/cdi")
    assert [node.path for node in nodes(tmp_path)] == ["/dev/running"]


@pytest.mark.parametrize(
    "name", ["vendor.com/gpu=1", "vendor.com/gpu=none", "vendor.com/gpu", "other.com/gpu=0", ""]
)
def test_other_names_stand_for_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path, "v.json", json.dumps(spec()))
    assert nodes(tmp_path, name) == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.txt", json.dumps(spec())),
        ("v.json", ""),
        ("v.json", '{"kind": 7}'),
        ("v.json", "[" * 60000),
        ("v.yaml", "kind: [\n"),
        ("v.yaml", "kind: 2001-99-99\n"),
        ("v.json", json.dumps(spec()) + " " * MOST_BYTES),
    ],
)
def test_what_is_no_specification_says_nothing(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, name, text)
    assert nodes(tmp_path) == ()


def test_one_that_is_broken_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "{")
    (tmp_path / "etc/cdi/b.json").symlink_to("nowhere")
    (tmp_path / "etc/cdi/c.json").mkdir()
    write(tmp_path, "d.json", json.dumps(spec()))
    assert nodes(tmp_path) != ()


def test_without_folders_nothing_is_known(tmp_path: Path) -> None:
    assert nodes(tmp_path) == ()


def test_a_file_is_parsed_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = write(tmp_path, "v.json", json.dumps(spec("/dev/gpu0")))
    os.utime(path, (1, 1))
    specs = CDISpecs(KernelFiles(str(tmp_path)))
    assert [node.path for node in specs.nodes_by_name((GPU0,))[GPU0]] == ["/dev/gpu0"]
    path.write_text(json.dumps(spec("/dev/gpu7")))
    os.utime(path, (1, 1))
    assert [node.path for node in specs.nodes_by_name((GPU0,))[GPU0]] == ["/dev/gpu0"]
    os.utime(path, (2, 2))
    assert [node.path for node in specs.nodes_by_name((GPU0,))[GPU0]] == ["/dev/gpu7"]


def claim(number: int) -> tuple[str, str]:
    """Name and content of the file that a DRA driver writes for a claim."""
    kind = "k8s.gpu.example.com/claim"
    return (
        f"k8s.gpu.example.com-claim_{number:04}.json",
        json.dumps(spec(f"/dev/claim{number}") | {"kind": kind}).replace('"0"', f'"{number:04}-0"'),
    )


def test_files_that_are_asked_for_are_found_among_any_number(tmp_path: Path) -> None:
    said: list[str] = []
    write(tmp_path, "vendor.json", json.dumps(spec("/dev/static")))
    for number in range(2 * MOST_FILES):
        write(tmp_path, *claim(number), folder="var/run/cdi")
    write(tmp_path, "zz.json", json.dumps(spec() | {"kind": "other.com/nic"}), folder="var/run/cdi")
    specs = CDISpecs(KernelFiles(str(tmp_path)), said.append)
    asked = (GPU0, "other.com/nic=0", f"k8s.gpu.example.com/claim={2 * MOST_FILES - 1:04}-0")
    assert all(specs.nodes_by_name(asked).values())
    assert all(all(specs.nodes_by_name((name,)).values()) for name in asked)
    (told,) = said
    assert re.match(r"\d+ CDI specifications not read, .*claim_\d+\.json", told)


def test_removed_files_are_forgotten(tmp_path: Path) -> None:
    specs, before = CDISpecs(KernelFiles(str(tmp_path))), 0
    tracemalloc.start()
    for number in range(200):
        path = write(tmp_path, *claim(number))
        assert specs.nodes_by_name((f"k8s.gpu.example.com/claim={number:04}-0",))
        path.unlink()
        if number == 50:
            before = tracemalloc.get_traced_memory()[0]
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 50_000


def test_a_file_that_is_too_large_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    write(tmp_path, "v.json", json.dumps(spec()) + " " * MOST_BYTES)
    assert CDISpecs(KernelFiles(str(tmp_path)), said.append).nodes_by_name((GPU0,)) == {GPU0: ()}
    assert "v.json" in said[0]
