"""Laws of the journal: what a file says that was cut, damaged, or left by a process that failed or ended anywhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nri_plugin.checkpoint import directory
from nri_plugin.checkpoint import file as checkpoint
from nri_plugin.checkpoint.file import CheckpointFile, Origin
from nri_plugin.checkpoint.format import (
    DamagedJournalError,
    Encoder,
    decode,
    last_checksum,
)
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.chaos.disk import Disk
from tests.chaos.faults import Fault, Faults, Killed
from tests.property.checkpoint_states import states


def journal(first: State, *others: State) -> tuple[bytes, list[int]]:
    """A checkpoint with a record for each of the others, and where the document and each record end."""
    encoder, former = Encoder(), first
    data = b"".join(encoder.encode(first, 1, None))
    ends = [len(data)]
    for generation, state in enumerate(others, 2):
        data += encoder.record(state.changes_from(former), generation, last_checksum(data))
        ends.append(len(data))
        former = state
    return data, ends


sequences = st.lists(states, min_size=1, max_size=4)


def last_before(ends: list[int], at: int) -> int:
    """The number of the last part that ends at `at` or before."""
    return max(number for number, end in enumerate(ends) if end <= at)


@given(sequences)
def test_the_last_state_is_read(sequence: list[State]) -> None:
    data, ends = journal(*sequence)
    found = decode(data)
    assert (found.state, found.is_cut) == (sequence[-1], False)
    assert found.generation == 1 + max((n for n in range(1, len(ends)) if ends[n] > ends[n - 1]), default=0)


@given(sequences, st.data())
def test_a_cut_anywhere_leaves_a_state_that_there_was(sequence: list[State], data: st.DataObject) -> None:
    whole, ends = journal(*sequence)
    at = data.draw(st.integers(ends[0], len(whole)))
    found = decode(whole[:at])
    # A record is whole without the end of its line.
    assert found.state == sequence[last_before(ends, at + 1)]
    assert found.is_cut == (at not in ends and at + 1 not in ends)


@given(sequences, st.data())
def test_a_cut_document_is_noticed(sequence: list[State], data: st.DataObject) -> None:
    whole, ends = journal(*sequence)
    with pytest.raises(ValueError, match="it "):
        decode(whole[: data.draw(st.integers(0, ends[0] - 1))])


@given(sequences, st.data())
def test_a_flipped_bit_anywhere_is_noticed_and_what_is_before_it_is_sound(
    sequence: list[State], data: st.DataObject
) -> None:
    whole, ends = journal(*sequence)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match="it ") as raised:
        decode(bytes(damaged))
    if bit // 8 >= ends[0]:
        assert isinstance(raised.value, DamagedJournalError)
        before = last_before(ends, bit // 8)
        assert raised.value.sound.state == sequence[before]
        assert raised.value.at == ends[before]
        assert decode(whole[: raised.value.at]).state == sequence[before]


RECORD_END = b',"checksum":"crc32:00000000"}\n'
"""The record after one whose own end is damaged cannot be told from a damaged one."""


@given(states, st.lists(st.binary(max_size=40), max_size=3))
def test_whatever_follows_a_document_is_read_or_refused(state: State, rest: list[bytes]) -> None:
    with suppress(ValueError):
        found = decode(journal(state)[0] + b"\n".join(rest))
        assert found.state == state


# --- a file on a disk that fails

small = st.integers(0, 3).flatmap(
    lambda count: st.dictionaries(
        st.sampled_from(["a/x", "a/y", "b/z"]),
        st.integers(0, 7).map(lambda cpu: Allocation(CPUSet.of(cpu))),
        max_size=count,
    )
)
FAULTS = [None, None, *(Fault.NO_SPACE, Fault.IO_ERROR, Fault.KILL, Fault.TORN)]
CONDITIONS = [None, None, None, Fault.DIRECTORY_FULL, Fault.DIRECTORY_READ_ONLY]
faults = st.sampled_from(FAULTS)
steps = st.integers(0, 14)


class SavedFile(RuleBasedStateMachine):
    """A file, and the states that a start may find in it: the last confirmed one and those tried since."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk(Faults(Random(0)), Random(0))
        self.durable = False
        self.possible = [State()]

    @initialize(durable=st.booleans(), seed=st.integers(0, 1000))
    def begin(self, durable: bool, seed: int) -> None:
        self.durable = durable
        self.disk = Disk(Faults(Random(seed)), Random(seed))
        self.start()

    @contextmanager
    def working(self) -> Iterator[None]:
        with (
            mock.patch.object(checkpoint, "os", self.disk),
            mock.patch.object(directory, "os", self.disk),
            mock.patch.object(checkpoint, "LEAST_JOURNAL", 300),
        ):
            yield

    def start(self) -> None:
        self.file = CheckpointFile("/state", durable=self.durable)
        with self.working():
            found = self.file.load()
        assert found.origin is not Origin.PREVIOUS
        assert found.origin is not Origin.BEGINNING
        self.state = found.state or State()
        assert self.state in self.possible
        self.possible = [self.state]

    def do(self, act: Callable[[], None], fault: Fault | None, at: int) -> bool:
        """Do one thing with a fault at one of its steps; returns whether it was done."""
        self.disk.faults.plan(fault)
        self.disk.faults.at = at
        try:
            with self.working():
                act()
        except CheckpointError:
            return False
        except Killed:
            self.disk.faults.plan(None)
            self.disk.restart()
            self.start()
            return False
        finally:
            self.disk.faults.plan(None)
        return True

    @rule(held=small, fault=faults, at=steps)
    def append(self, held: dict[str, Allocation], fault: Fault | None, at: int) -> None:
        state = State(self.state.pods, self.state.containers, held)
        self.possible.append(state)
        if self.do(lambda: self.file.append(state), fault, at):
            self.state, self.possible = state, [state]

    @rule(key=st.sampled_from(["a/x", "b/z"]), cpu=st.integers(0, 7), fault=faults, at=steps)
    def change(self, key: str, cpu: int, fault: Fault | None, at: int) -> None:
        self.append({**dict(self.state.allocations.items()), key: Allocation(CPUSet.of(cpu))}, fault, at)

    @rule(fault=faults, at=steps)
    def compact(self, fault: Fault | None, at: int) -> None:
        self.do(self.file.compact, fault, at)

    @rule()
    def kill(self) -> None:
        self.disk.restart()
        self.start()

    @rule()
    def lose_power(self) -> None:
        if self.durable:
            self.disk.restart(is_losing=True)
            self.start()

    @rule(condition=st.sampled_from(CONDITIONS))
    def turn(self, condition: Fault | None) -> None:
        self.disk.condition = condition

    @invariant()
    def a_start_finds_a_confirmed_state_or_one_that_was_tried(self) -> None:
        inode = self.disk.names.get("state.json")
        found = State() if inode is None else decode(bytes(inode.data)).state
        assert found in self.possible


SavedFile.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestSavedFile = SavedFile.TestCase
