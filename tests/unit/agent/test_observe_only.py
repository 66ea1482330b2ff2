"""What an observing agent finds out about those who run."""

from msgspec.structs import replace

from nri_plugin.agent.serving.observe_only import (
    ELSEWHERE,
    EXCLUSIVE,
    LOOK_PAUSE_S,
    POD_SHARED,
    SAME,
    SHARED,
    SUMMARY_PAUSE_S,
    ObservedWatch,
)
from nri_plugin.model.sets import CPUSet
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import CreateContainer, RunPodSandbox, StartContainer
from tests.agent_fakes import Bench, Clock
from tests.builders import container, cpus, machine, node, pod
from tests.level_pod import ROWS, admitted, level_node

POD, LOOSE = pod("own", cpu=2), pod("other", "Burstable")
OWN, OTHER = container(POD, cpu=2), container(LOOSE)
TEXTS = ("runs elsewhere than it would", "runs where it would")


class Timers(Loop):
    """Timers only."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._timers = {}
        self._put_off = self.failures = 0
        self._in_a_row = {}

    def is_asked(self) -> bool:
        return False


def bench() -> tuple[Bench, ObservedWatch]:
    made = Bench(node(machine(), pool_floor=False))
    for one, of in ((OWN, POD), (OTHER, LOOSE)):
        made.ask(RunPodSandbox(of))
        made.ask(CreateContainer(of, one))
        made.ask(StartContainer(of, replace(one)))
    made.forget()
    return made, ObservedWatch(made.handler, Timers(made.clock), made.log)


def runs(made: Bench, own: str, other: str) -> None:
    made.cgroups.values |= {OWN.cgroups_path: cpus(own), OTHER.cgroups_path: cpus(other)}


def said(made: Bench) -> list[str]:
    return [text for _, text, _ in made.lines.lines if text in TEXTS]


def test_those_who_run_as_decided_and_elsewhere_are_counted() -> None:
    made, watch = bench()
    runs(made, "2-3", "0-15")
    watch.look()
    assert watch.counts == {(EXCLUSIVE, SAME): 1, (SHARED, ELSEWHERE): 1}


def test_who_would_have_cpus_of_its_own_is_said_once_for_each_pair() -> None:
    made, watch = bench()
    runs(made, "0-15", "0-15")
    watch.look()
    watch.look()
    assert said(made) == ["runs elsewhere than it would"]
    fields = made.lines.fields("runs elsewhere than it would")
    assert (fields["name"], fields["runs_on"], fields["would_have"]) == (
        "default/own/c",
        CPUSet.parse("0-15"),
        CPUSet.parse("2-3"),
    )
    runs(made, "2-3", "0-15")
    watch.look()
    assert said(made) == list(TEXTS)


def test_who_runs_where_it_would_from_the_start_is_not_said() -> None:
    made, watch = bench()
    runs(made, "2-3", "0-1,4-15")
    watch.look()
    assert said(made) == []
    assert [watch.count((would, SAME)) for would in (EXCLUSIVE, SHARED)] == [1, 1]


def test_who_would_share_the_cpus_of_its_pod_is_counted_apart_and_said() -> None:
    on = level_node()
    state, of = admitted(on, *ROWS), replace(pod("web"), name="web")
    made = Bench(on, state)
    log = container(of, "log")
    for kind in (CreateContainer, StartContainer):
        made.ask(kind(of, log))
    made.cgroups.values |= {log.cgroups_path: cpus("0-15")}
    made.forget()
    watch = ObservedWatch(made.handler, Timers(made.clock), made.log)
    watch.look()
    assert watch.counts == {(POD_SHARED, ELSEWHERE): 1}
    assert said(made) == ["runs elsewhere than it would"]


def test_what_cannot_be_seen_is_not_counted() -> None:
    made, watch = bench()
    made.cgroups.values.clear()
    made.cgroups.failing.add(OWN.cgroups_path)
    watch.look()
    assert sum(watch.counts.values()) == 0


def test_it_looks_by_the_clock_and_sums_up_now_and_then() -> None:
    made, watch = bench()
    runs(made, "0-15", "0-15")
    watch.start()
    loop = watch._loop
    for _ in range(int(SUMMARY_PAUSE_S / LOOK_PAUSE_S) + 1):
        made.clock.now += LOOK_PAUSE_S
        loop._run_due_timers()
    fields = made.lines.fields("count of running containers")
    assert (fields["exclusive_as_decided"], fields["exclusive_elsewhere"], fields["shared_elsewhere"]) == (
        0,
        1,
        1,
    )
