"""In which steps a container got its CPUs: what the choosing code told while it chose them."""

from collections.abc import Iterable
from dataclasses import dataclass

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import AdmissionError
from nri_plugin.hint_providers import Question
from nri_plugin.options import Options
from nri_plugin.placement import cpus_under
from nri_plugin.policy.merge import MergedHint
from nri_plugin.policy.taking import PLACES, Stage
from nri_plugin.topology import Topology

_OPTIONS = {
    Stage.SOCKETS_OF_HINT: "align-by-socket",
    Stage.SHARE_OF_DEVICES: "deviceProportionalCPUs",
    Stage.EQUAL_SHARE: "distribute-cpus-across-numa",
    Stage.WHOLE_CACHE: "prefer-align-cpus-by-uncorecache",
    Stage.PART_OF_CACHE: "prefer-align-cpus-by-uncorecache",
    Stage.BEST_FIT: "uncoreCacheFit: best",
    Stage.ONE_CACHE: "strictUncoreCache",
}
"""The option without which a step is not taken."""


@dataclass(frozen=True, slots=True)
class TakingStep:
    """CPUs taken in one step.

    Attributes:
        stage: in which way; see `policy.taking.Stage`.
        place: where CPUs were on offer: a stage of `policy.taking.PLACES`, or empty.
        on_offer: how many there were.
        option: the option that made it so; empty for the default order.
        cpus: what was taken, as a kernel list.
        count: how many.
        sockets: ids, as a kernel list; so are the next three.
        numa_nodes: where they are.
        uncore_caches: which they share.
        cores: which they are of.
        whole_cores: how many of the cores were taken whole.
    """

    stage: str
    place: str
    on_offer: int
    option: str
    cpus: str
    count: int
    sockets: str
    numa_nodes: str
    uncore_caches: str
    cores: str
    whole_cores: int


class _Listener:
    """Adds up what is told: steps of one way in one place are one step."""

    def __init__(self) -> None:
        self.steps: list[tuple[Stage | None, int, Stage, int]] = []
        self._place: Stage | None = None
        self._on_offer = 0

    def __call__(self, stage: Stage, cpus: int) -> None:
        if stage in PLACES:
            self._place, self._on_offer = stage, cpus
            return
        if stage is Stage.ONE_CACHE and self.steps:
            self.steps.clear()  # says of all CPUs what the best fit had said of them
        last = self.steps[-1] if self.steps else None
        if last and last[:3] == (self._place, self._on_offer, stage):
            self.steps[-1] = (*last[:3], last[3] | cpus)
        else:
            self.steps.append((self._place, self._on_offer, stage, cpus))


def taking_of(question: Question, hint: MergedHint) -> tuple[TakingStep, ...]:
    """How the CPUs are taken under `hint`; none where there are none to take, or they cannot be had."""
    listener = _Listener()
    try:
        cpus_under(question, hint, listener)
    except AdmissionError:
        return ()
    node = question.node
    return tuple(_step(node.topology, node.options, *one) for one in listener.steps)


def _step(
    topology: Topology, options: Options, place: Stage | None, on_offer: int, stage: Stage, taken: int
) -> TakingStep:
    cpus = CPUSet(taken)
    return TakingStep(
        stage=stage,
        place=place or "",
        on_offer=on_offer.bit_count(),
        option=_option(options, place, stage),
        cpus=str(cpus),
        count=len(cpus),
        sockets=_ids(topology.sockets, cpus),
        numa_nodes=str(topology.nodes_of(cpus)),
        uncore_caches=_ids(topology.caches, cpus) if topology.caches_known else "",
        cores=_ids(topology.cores, cpus),
        whole_cores=sum(1 for _, core in topology.cores if core <= cpus),
    )


def _option(options: Options, place: Stage | None, stage: Stage) -> str:
    if stage is Stage.SINGLE_CPUS and options.distribute_cpus_across_cores:
        return "distribute-cpus-across-cores"
    return _OPTIONS.get(stage) or (_OPTIONS.get(place, "") if place else "")


def _ids(groups: Iterable[tuple[int, CPUSet]], cpus: CPUSet) -> str:
    return str(CPUSet.from_ids(int(number) for number, members in groups if not members.isdisjoint(cpus)))
