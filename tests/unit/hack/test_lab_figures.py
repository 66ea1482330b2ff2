"""Figures of real runtimes: what is created for them, and when they say nothing."""

import pytest

from tests.e2e.inside.measure import one_side
from tests.e2e.lab.figures import loads


def test_figures_of_a_busy_machine_say_that_they_are_not_representative() -> None:
    said = loads(2.1, 0.5, 2)["busy machine"]
    assert said == "not representative: the load was above 2 CPUs before it began"


def test_the_load_that_the_figures_make_themselves_is_no_reason_to_doubt_them() -> None:
    assert loads(2.0, 3.2, 2) == {"load when it began": "2.0", "load when it ended": "3.2"}


@pytest.mark.parametrize(("free", "exclusive"), [(0, 0), (1, 1), (7, 7), (20, 20), (63, 20)])
def test_a_side_has_200_containers_in_20_pods_and_no_more_exclusive_ones_than_cpus(
    free: int, exclusive: int
) -> None:
    pods = one_side(0, free)
    containers = [each for pod in pods for each in pod.containers]
    assert (len({pod.name for pod in pods}), len(containers)) == (20, 200)
    assert sum(each.cpu_milli == 1000 for each in containers) == exclusive
    assert sum(pod.qos == "guaranteed" for pod in pods) == exclusive
