"""Figures of real runtimes: what is created for them, and when they say nothing."""

import pytest

from tests.e2e.inside.measure import one_side
from tests.e2e.lab import figures
from tests.e2e.lab.figures import others


@pytest.mark.parametrize(("before", "after"), [(0.6, 0.0), (0.0, 0.6)])
def test_figures_of_a_busy_machine_say_that_they_are_not_representative(before: float, after: float) -> None:
    assert others(before, after, 2)["busy machine"].startswith("not representative: ")


def test_those_of_a_quiet_one_say_how_quiet_it_was() -> None:
    said = others(0.1, 0.5, 2)
    assert said == {"CPUs that others kept busy before and after": "0.1 and 0.5 of 2"}


@pytest.mark.parametrize(
    ("later", "busy"), [("cpu 30 0 10 160 0 0 0 0 0 0", 0.4), ("cpu 0 0 0 90 110 0 0 0 0 0", 0.0)]
)
def test_cpus_at_work_are_told_from_the_time_that_passed(
    later: str, busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = iter(["cpu 0 0 0 0 0 0 0 0 0 0\ncpu0", f"{later}\ncpu0"])
    monkeypatch.setattr(figures.Path, "read_text", lambda _path: next(texts))
    monkeypatch.setattr(figures.time, "sleep", lambda _s: None)
    monkeypatch.setattr(figures.os, "cpu_count", lambda: 2)
    assert figures.busy_cpus() == busy


@pytest.mark.parametrize(("free", "exclusive"), [(0, 0), (1, 1), (7, 7), (20, 20), (63, 20)])
def test_a_side_has_200_containers_in_20_pods_and_no_more_exclusive_ones_than_cpus(
    free: int, exclusive: int
) -> None:
    pods = one_side(0, free)
    containers = [each for pod in pods for each in pod.containers]
    assert (len({pod.name for pod in pods}), len(containers)) == (20, 200)
    assert sum(each.cpu_milli == 1000 for each in containers) == exclusive
    assert sum(pod.qos == "guaranteed" for pod in pods) == exclusive
