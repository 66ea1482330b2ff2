import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.model.sets import CPUSet, IDSet, NodeMask

REPOSITORY = Path(__file__).parents[3]
MIXTURES = """\
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.sets import NodeMask

cpus, nodes = CPUSet.of(1), NodeMask.of(1)
cpus & nodes
nodes | cpus
cpus - nodes
nodes ^ cpus
cpus <= nodes
cpus == nodes
cpus.isdisjoint(nodes)
wrong: CPUSet = NodeMask.parse("1")
"""


@pytest.mark.parametrize("kind", [CPUSet, NodeMask])
def test_what_makes_a_set_makes_one_of_the_type_that_is_asked(kind: type[IDSet]) -> None:
    for made in (kind.of(1, 3), kind.from_ids([3, 1]), kind.parse("1,3")):
        assert type(made) is kind
        assert (str(made), len(made), bool(made), 3 in made, 2 in made) == ("1,3", 2, True, True, False)
        assert repr(made) == f"{kind.__name__}('1,3')"
    with pytest.raises(ValueError, match=f"a {kind.__name__} mask cannot be negative: -1"):
        kind(-1)


def test_sets_of_two_kinds_are_never_equal_and_have_no_order() -> None:
    assert CPUSet.of(1) != NodeMask.of(1)
    with pytest.raises(TypeError):
        CPUSet.of(1) < NodeMask.of(1)  # type: ignore[operator]  # noqa: B015


def test_a_type_checker_refuses_every_mixture(tmp_path: Path) -> None:
    file = tmp_path / "mixtures.py"
    file.write_text(MIXTURES, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "", str(file)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line}
    assert lines == set(range(5, MIXTURES.count("\n") + 1)), done.stdout + done.stderr
