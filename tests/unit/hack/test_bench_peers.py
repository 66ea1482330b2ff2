"""The tables of `hack/bench peers`, from made-up samples."""

from tests.bench.against_peers import AWARE, EMPTY, FULL, NOTHING, OURS, Beside, Crowd, Peer, Samples
from tests.bench.peers_table import tables


def samples(us: float, count: int = 100, *, mib: float = 10.0, slowest: float | None = None) -> Samples:
    """So many equal times of a shared creation, the last two slower where told."""
    times = [us] * (count - 2) + [us if slowest is None else slowest] * 2
    return Samples({"shared": times, "synchronize": [us]}, {"shared": 0, "synchronize": 0}, [mib], [mib + 2])


def beside(crowd: Crowd, **found: Samples) -> Beside:
    peers: dict[str, Peer] = {"nothing": NOTHING, "ours": OURS, "aware": AWARE}
    return Beside(crowd, {peers[name].name: one for name, one in found.items()})


def row(text: str, what: str) -> list[str]:
    """The cells of the first line that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(what))
    return line.removeprefix(what).split()


def test_a_creation_is_shown_in_times_that_of_the_plugin_that_does_nothing_beside_its_target() -> None:
    shown = tables([beside(EMPTY, nothing=samples(100), ours=samples(300))], [])
    assert row(shown, "CreateContainer shared, empty node: p50 to Go's") == ["3.00", "2.5"]
    assert row(shown, "CreateContainer shared, empty node") == ["0.10", "0.10", "0.30", "0.30"]


def test_beside_a_crowd_the_own_figure_on_an_empty_node_is_the_measure() -> None:
    empty = beside(EMPTY, nothing=samples(100), ours=samples(300))
    shown = tables([empty, beside(FULL, nothing=samples(100), ours=samples(600))], [])
    assert row(shown, "    p50 to the own one on an empty node") == ["2.00", "1.3"]
    assert row(shown, "CreateContainer shared, 600 pods + 3,000 containers: p50 to Go's") == ["6.00"]
    assert row(shown, "Synchronize, 600 pods + 3,000 containers: p50 to Go's") == ["6.00", "1.2"]


def test_a_tail_is_compared_with_that_of_the_plugin_that_does_nothing() -> None:
    shown = tables([beside(EMPTY, nothing=samples(100, slowest=200), ours=samples(100, slowest=600))], [])
    assert row(shown, "    p99/p50 to Go's") == ["3.00", "1.5"]


def test_no_p99_is_shown_of_few_samples() -> None:
    shown = tables([beside(EMPTY, nothing=samples(100, 99), ours=samples(300, 99))], [])
    assert row(shown, "CreateContainer shared, empty node") == ["0.10", "0.30"]
    assert "p99/p50" not in shown


def test_a_plugin_that_was_not_asked_beside_a_crowd_has_empty_cells_there() -> None:
    empty = beside(EMPTY, nothing=samples(100), ours=samples(300), aware=samples(900))
    shown = tables([empty, beside(FULL, nothing=samples(100), ours=samples(300))], [])
    assert row(shown, "CreateContainer shared, empty node: p50 to Go's") == ["3.00", "9.00", "2.5"]
    assert row(shown, "CreateContainer shared, 600 pods + 3,000 containers: p50 to Go's") == ["3.00"]


def test_memory_and_its_peak_stand_beside_what_they_should_be() -> None:
    empty = beside(EMPTY, nothing=samples(100), ours=samples(300, mib=35))
    shown = tables(
        [empty, beside(FULL, nothing=samples(100), ours=samples(300, mib=50))],
        [("CRI", {"Go, does nothing": 1.1, "nri-pin": 1.25})],
    )
    assert row(shown, "resident memory, empty node, MiB") == ["10.0", "35.0", "30"]
    assert row(shown, "    peak of Synchronize above that, MiB") == ["2.0", "2.0", "24"]
    assert row(shown, "CRI") == ["1.10", "1.25", "1.2"]
