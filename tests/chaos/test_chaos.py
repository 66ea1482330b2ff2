"""Short lives of every seed a minute has time for, and that the judge would notice."""

from tests.chaos.__main__ import report
from tests.chaos.faults import Fault
from tests.chaos.life import Life, Tally


def test_nothing_is_lost_moved_or_shared_whatever_fails() -> None:
    tally = Tally()
    for seed in range(12):
        Life(seed, tally).play(250)
    assert tally.broken == {}, report(tally)
    assert {fault for fault in Fault if not tally.injected[fault]} <= {Fault.CGROUP_ERROR, Fault.STALL}


def test_an_agent_that_forgets_is_found_out() -> None:
    tally = Tally()
    for seed in range(4):
        Life(seed, tally, forgets=True).play(200)
    assert {"lost", "overlap"} <= set(tally.broken)
    assert tally.stories


def test_the_report_has_a_row_for_each_fault() -> None:
    tally = Tally()
    Life(1, tally).play(50)
    rows = [line for line in report(tally).splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(Fault)
