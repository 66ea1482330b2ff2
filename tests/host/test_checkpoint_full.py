import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.checkpoint.file import CheckpointFile, Origin
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State

SMALL = State(allocations={"p/c": Allocation(CPUSet.of(2))})
LARGE = State(allocations={f"p/{'c' * 200}{number}": Allocation(CPUSet.of(number)) for number in range(500)})


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory with room for four pages."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.root
def test_full_file_system_refuses_the_save_and_keeps_the_former_state(tiny: Path) -> None:
    file = CheckpointFile(str(tiny / "nri-pin"))
    assert not file.durable
    file.save(SMALL)
    with pytest.raises(CheckpointError, match="No space left on device; free space"):
        file.save(LARGE)
    found = CheckpointFile(str(tiny / "nri-pin")).load()
    assert (found.state, found.origin) == (SMALL, Origin.CURRENT)
    file.save(SMALL)
    file.close()  # or it could not be unmounted


@pytest.mark.root
def test_full_file_system_takes_appends_to_its_end_and_goes_on_where_there_is_room_again(tiny: Path) -> None:
    file = CheckpointFile(str(tiny / "nri-pin"))
    file.append(SMALL)
    filler = tiny / "filler"
    filler.write_bytes(bytes(12 << 10))
    state, failures = SMALL, 0
    while failures < 3:
        after = state.with_allocation(f"p/{'c' * 90}{len(state.allocations)}", Allocation(CPUSet.of(3)))
        try:
            file.append(after)
            state = after
        except CheckpointError:
            failures += 1
        found = CheckpointFile(str(tiny / "nri-pin")).load()
        assert (found.state, found.origin, found.is_cut) == (state, Origin.CURRENT, False)
    assert len(state.allocations) > 10
    filler.unlink()
    file.append(after)
    file.close()
    assert CheckpointFile(str(tiny / "nri-pin")).load().state == after


@pytest.mark.root
def test_read_only_file_system_refuses_the_save_and_loads(tiny: Path) -> None:
    file = CheckpointFile(str(tiny / "nri-pin"))
    file.save(SMALL)
    file.close()  # or it could not be mounted read-only
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    with pytest.raises(CheckpointError, match="mount the state directory read-write"):
        file.save(SMALL)
    assert CheckpointFile(str(tiny / "nri-pin")).load().state == SMALL
