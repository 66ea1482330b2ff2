"""Files of others, of any kind: what it takes to read one stays in proportion, whatever is in it."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_plugin.checkpoint.file import read_checkpoint
from nri_plugin.checkpoint.kubelet_files import parse
from nri_plugin.config.loading import load
from nri_plugin.model.errors import NriPinError
from nri_plugin.simulator.machine.machine import load as load_description
from nri_plugin.simulator.machine.source import read_machine
from nri_plugin.simulator.simulate.plan import read_plan
from tests.lab.scenario.scenario import load as load_scenario

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: %s}\nspec: {containers: [{name: c}]}\n"
LAUGHS = "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9) if i else 'x'}]\n" for i in range(12))
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 4)}]}}\n" for i in range(1, 14)
)
LISTS = "[" + "[]," * 3_000_000 + "[]]"
HEAD = '{"format":"nri-pin checkpoint","version":4,"pods":'

READERS: dict[str, Callable[[str], object]] = {
    "pods": read_plan,
    "scenario": lambda path: load_scenario(Path(path)),
    "machine": read_machine,
    "description": load_description,
    "configuration": load,
    "checkpoint": read_checkpoint,
    "state of the kubelet": lambda path: parse(Path(path).read_bytes()),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content",
    [
        LAUGHS + POD % "*a11",
        MERGES + POD % "{}",
        "x: &a [*a]\n" + POD % "{}",
        "apiVersion: v1\nkind: List\nitems: &a [{kind: List, apiVersion: v1, items: *a}]\n",
        LISTS,
        HEAD + LISTS + "}",
        '{"files": ' + LISTS + "}",
        "- a\n" * 1_000_000,
        "- " * 1_000_000,
        "[" * 400_000,
        "{a: " * 400_000,
        '{"a":' * 400_000,
        "a" * (9 << 20),
        "---\n" * 1_000_000,
    ],
    ids=[
        "laughs",
        "merges",
        "cycle",
        "own items",
        "lists",
        "checkpoint of lists",
        "machine of lists",
        "lines",
        "dashes",
        "brackets",
        "braces",
        "objects",
        "word",
        "documents",
    ],
)
def test_a_file_that_is_a_bomb_is_refused_in_little_memory(tmp_path: Path, reader: str, content: str) -> None:
    path = tmp_path / "bomb"
    path.write_text(content)
    tracemalloc.start()
    with pytest.raises((NriPinError, ValueError)) as caught:
        READERS[reader](str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * len(content) + (100 << 20)
    assert len(str(caught.value)) < 1000
