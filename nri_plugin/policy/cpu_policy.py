"""The static CPU policy: which containers get exclusive CPUs, where these fit, and which they are.

In the order of an admission: how many exclusive CPUs a request gets, the hints for them, the choice of the CPUs under the
merged hint, and the check of full-pcpus-only. The last part resizes the exclusive CPUs of a running container.

Source: kubelet v1.36 pkg/kubelet/cm/cpumanager/policy_static.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

from nri_plugin.model import bits
from nri_plugin.model.errors import InsufficientCPUsError, SMTAlignmentError
from nri_plugin.model.options import FullPCPUsRule, Options, SMTOddCounts, UncoreCacheFit
from nri_plugin.model.refusals import FoundInPart, GrowsBeside, PartialCore, WholeCoreShortage
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask
from nri_plugin.model.topology import Topology
from nri_plugin.policy.best_fit import take_best_fit, take_in_one_cache
from nri_plugin.policy.cpu_assignment import (
    AssignmentStage,
    CPUTables,
    Note,
    cpu_tables,
    take_distributed,
    take_packed,
)
from nri_plugin.policy.device_hints import proportional_shares
from nri_plugin.policy.hints import (
    LISTED_NODES,
    Hint,
    HintRule,
    HintSet,
    Need,
    Provider,
    by_numa_node,
    hints_in_order,
    smallest_size,
    sums_in_order,
)
from nri_plugin.policy.search.mask_order import Distances
from nri_plugin.policy.whole_queues import without_split_queues

# ----------------------------------------------------------------------------------------------------
# Requests that do not fill their last core.
#
# Source: the rule `kubelet` is that of kubelet v1.36: only full-pcpus-only refuses such a number.
# Differs: the kubelet has only the rule `kubelet`; here: the rules `reject`, `round-up` and `allow` exist
# too. Why: full-pcpus-only alone can only refuse such a number, and only for the whole node. Option:
# `smtOddCounts: kubelet` (the default).


def whole_core_count(rule: SMTOddCounts, count: int, threads: int, container: str = "") -> int:
    """How many exclusive CPUs a container gets that asks for `count`.

    Args:
        rule: `round-up` gives the rest of the last core too; `kubelet` and `allow` give the number that was asked
            for (whether full-pcpus-only refuses it then is decided with `checks_multiple`).
        count: exclusive CPUs asked for, 0 for none.
        threads: CPUs per core; 1 leaves every number as it is.
        container: its name, for the refusal of a pod of which it is a part.

    Raises:
        SMTAlignmentError: the rule is `reject` and the last core would be shared.
    """
    odd = count % threads
    if not odd or rule in {SMTOddCounts.KUBELET, SMTOddCounts.ALLOW}:
        return count
    if rule is SMTOddCounts.ROUND_UP:
        return count + threads - odd
    raise SMTAlignmentError(PartialCore(count, threads, by_odd_counts=True, container=container))


def checks_multiple(rule: SMTOddCounts) -> bool:
    """Whether full-pcpus-only refuses a number that does not fill its last core; `allow` overrules it."""
    return rule is not SMTOddCounts.ALLOW


# ----------------------------------------------------------------------------------------------------
# The choice of CPUs: the options select one of three algorithms.


def take_cpus(
    tables: CPUTables, available: CPUSet, count: int, options: Options, note: Note | None = None
) -> CPUSet:
    """`count` CPUs out of `available`, as the options want them chosen; `note` is told of each step.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than asked for.

    Source: kubelet v1.36 policy_static.go, takeByTopology.
    """
    if options.uncore_cache_fit is UncoreCacheFit.BEST:
        return take_best_fit(tables, available, count, note=note)
    spread = options.distribute_cpus_across_cores
    if options.distribute_cpus_across_numa:
        # The kubelet hands the sorting on here as well, although it refuses both options together.
        group = tables.cpus_per_core if options.full_pcpus_only else 1
        return take_distributed(tables, available, count, group=group, spread=spread, note=note)
    return take_packed(
        tables,
        available,
        count,
        prefer_uncore_cache=options.prefer_align_cpus_by_uncore_cache,
        cache_rule=options.uncore_cache_rule,
        spread=spread,
        note=note,
    )


def reserved_cpus(topology: Topology, options: Options, count: int) -> CPUSet:
    """The reserved CPUs when only their number is configured: those that the policy takes first.

    Raises:
        InsufficientCPUsError: the machine has fewer.

    Source: kubelet v1.36 policy_static.go, NewStaticPolicy.
    """
    return take_cpus(cpu_tables(topology), topology.online, count, options)


# ----------------------------------------------------------------------------------------------------
# Counts and hints.

DEFAULTS = Options()


def exclusive_count(cpu_milli: int, *, guaranteed: bool) -> int:
    """How many exclusive CPUs a request of `cpu_milli` gets; 0 for a container of the shared pool."""
    return cpu_milli // 1000 if guaranteed and cpu_milli % 1000 == 0 else 0


def cpu_hint_sets(
    tables: CPUTables,
    count: int,
    available: CPUSet,
    *,
    reusable: CPUSet = NO_CPUS,
    held: CPUSet = NO_CPUS,
    align_by_socket: bool = False,
) -> Provider:
    """Where `count` exclusive CPUs fit.

    Args:
        tables: the machine.
        count: exclusive CPUs requested; with 0 there is no preference.
        available: CPUs that any container may get.
        reusable: CPUs of the pod's init containers, available to this container too. Hints cover all of them.
        held: CPUs that the container already has: they are the only hint, and there is none when the size changed.
        align_by_socket: masks on as few sockets as can be are preferred too, however many nodes they have.
    """
    if count <= 0:
        return None
    if held:
        if len(held) != count:
            why = f"cpu: {count} wanted, but the container already holds {len(held)} ({held})"
            return (HintSet("cpu", (), why=why),)
        available, reusable = held, CPUSet()
    free = (available | reusable).mask & tables.online
    return (_hint_set(tables, count, free, reusable.mask, align_by_socket=align_by_socket),)


def _hint_set(tables: CPUTables, count: int, free: int, reusable: int, *, align_by_socket: bool) -> HintSet:
    """A mask is a hint when its nodes have enough free CPUs and all reusable ones.

    It is preferred when no smaller mask has enough CPUs in all, those in use and reserved included.
    """
    free_by_node = {node: (cpus & free).bit_count() for node, cpus in tables.nodes}
    total_by_node = {node: cpus.bit_count() for node, cpus in tables.nodes}
    narrowest = smallest_size(total_by_node, count) or len(tables.nodes)
    required = tables.nodes_of(reusable)
    fewest_sockets = _fewest_sockets(tables, narrowest) if align_by_socket else 0
    why = _why(count, free_by_node, total_by_node)
    if len(tables.nodes) <= LISTED_NODES:
        known = hints_in_order(tuple(free_by_node), narrowest)
        # Up to 255 masks: what a loop would do for each is done in one call for all.
        hints = tuple(compress(known, map(count.__le__, sums_in_order(free_by_node))))
        if required:
            hints = tuple([one for one in hints if one.nodes is not None and required & ~one.nodes == 0])
        if fewest_sockets:
            hints = tuple([_preferred_by_sockets(tables, one, fewest_sockets) for one in hints])
            return HintSet("cpu", hints, why=why)
        # No mask below the preferred size can fit, so the preferred ones come first.
        return HintSet.by_size("cpu", hints, why)
    if sum(free_by_node.values()) < count:
        return HintSet("cpu", (), why=why)
    rule = HintRule(
        nodes=sum(1 << node for node in free_by_node),
        required=required,
        needs=(Need(count, free_by_node),),
        preferred_size=narrowest,
        sockets=tuple(tables.nodes_of(socket) for socket in tables.sockets) if fewest_sockets else (),
        fewest_sockets=fewest_sockets,
    )
    return HintSet("cpu", (), rule, why)


def _preferred_by_sockets(tables: CPUTables, hint: Hint, fewest: int) -> Hint:
    """The hint, preferred too where its nodes are on the fewest sockets."""
    is_preferred = hint.preferred or _sockets(tables, hint.nodes or 0) == fewest
    return Hint(hint.nodes, is_preferred)


def _fewest_sockets(tables: CPUTables, nodes: int) -> int:
    """How many sockets so many NUMA nodes take at least; 0 where a node is wider than a socket."""
    return -(-nodes // tables.nodes_per_socket) if tables.nodes_per_socket else 0


def _sockets(tables: CPUTables, nodes: int) -> int:
    cpus = tables.cpus_in(nodes)
    return sum(1 for socket in tables.sockets if socket & cpus)


def _why(count: int, free_by_node: Mapping[int, int], total_by_node: Mapping[int, int]) -> str:
    words = {node: f"{free} of {total_by_node[node]}" for node, free in free_by_node.items()}
    where = by_numa_node(words, free_by_node, total_by_node)
    return f"cpu: {count} wanted, {sum(free_by_node.values())} available ({where})"


def allocate_cpus(
    tables: CPUTables,
    count: int,
    available: CPUSet,
    affinity: NodeMask | None,
    *,
    reserved: CPUSet = NO_CPUS,
    reusable: CPUSet = NO_CPUS,
    held: CPUSet = NO_CPUS,
    options: Options = DEFAULTS,
    weight_by_node: Mapping[int, int] | None = None,
    only_reusable: bool = False,
    note: Note | None = None,
) -> CPUSet:
    """The exclusive CPUs of a container: as many as fit on the nodes of `affinity`, the rest anywhere.

    With align-by-socket the sockets of these nodes take the place of the nodes.

    Args:
        tables: the machine.
        count: exclusive CPUs wanted; 0 gives the empty set, for the shared pool.
        available: CPUs that any container may get: neither reserved nor exclusive.
        affinity: the merged hint; None for anywhere.
        reserved: CPUs for the system, never in `available`.
        reusable: CPUs of the pod's init containers, available too but not preferred.
        held: CPUs that the container already has; then they are the answer.
        options: how CPUs are chosen; full_pcpus_only refuses a count that does not fill cores.
        weight_by_node: NUMA nodes of `affinity` get CPUs in this proportion first, when they are several.
        only_reusable: take none but the reusable CPUs.
        note: told of each step.

    Raises:
        SMTAlignmentError: full_pcpus_only and the count does not fill cores or exceeds the CPUs available
            beside the cores of reserved CPUs. As in the kubelet this check comes first, also when `held`;
            the rule whole-cores does not check then.
        InsufficientCPUsError: fewer CPUs are available than requested.
        UncoreCacheAlignmentError: strict_uncore_cache, and no cache there has as many.
    """
    if count <= 0:
        return CPUSet()
    on_offer = reusable if only_reusable else available | reusable
    counts_cores = options.full_pcpus_rule is FullPCPUsRule.WHOLE_CORES
    if options.full_pcpus_only and not (held and counts_cores):
        check_full_pcpus(
            tables,
            count,
            CPUSet(tables.whole_cores_in(on_offer.mask)) if counts_cores else available,
            reserved,
            allow_odd=not checks_multiple(options.smt_odd_counts),
        )
    if held:
        return held

    def choose(offered: CPUSet, note: Note | None = None) -> CPUSet:
        return _chosen(tables, count, offered, affinity, options, weight_by_node or {}, note)

    if not options.prefer_whole_queues:
        return choose(on_offer, note)
    fewer = without_split_queues(tables, on_offer, choose)
    chosen = choose(fewer, note)
    if note and fewer != on_offer:
        note(AssignmentStage.WHOLE_QUEUES, chosen.mask)
    return chosen


def _chosen(
    tables: CPUTables,
    count: int,
    on_offer: CPUSet,
    affinity: NodeMask | None,
    options: Options,
    weight_by_node: Mapping[int, int],
    note: Note | None,
) -> CPUSet:
    """The CPUs out of `on_offer`, by the algorithms that the options select; see `allocate_cpus`."""
    if options.strict_uncore_cache:
        near = on_offer if affinity is None else on_offer & CPUSet(_near(tables, affinity, options))
        return take_in_one_cache(tables, near if len(near) >= count else on_offer, count, note=note)
    aligned = CPUSet()
    if affinity is not None:
        near = on_offer & CPUSet(_near(tables, affinity, options))
        if note:
            note(
                AssignmentStage.SOCKETS_OF_HINT if options.align_by_socket else AssignmentStage.NODES_OF_HINT,
                near.mask,
            )
        aligned = _in_proportion(tables, count, near, affinity, weight_by_node, options, note)
        aligned |= take_cpus(tables, near - aligned, min(count, len(near)) - len(aligned), options, note)
    rest = count - len(aligned)
    left = on_offer - aligned
    if len(left) < rest:
        found = FoundInPart(count, len(aligned), str(affinity)) if affinity is not None and aligned else ""
        raise InsufficientCPUsError(rest, len(left), found)
    if note and rest:
        note(AssignmentStage.ANYWHERE, left.mask)
    return aligned | take_cpus(tables, left, rest, options, note)


def _near(tables: CPUTables, affinity: NodeMask, options: Options) -> int:
    return (tables.sockets_of if options.align_by_socket else tables.cpus_in)(affinity.mask)


def _in_proportion(
    tables: CPUTables,
    count: int,
    near: CPUSet,
    affinity: NodeMask,
    weight_by_node: Mapping[int, int],
    options: Options,
    note: Note | None,
) -> CPUSet:
    weights = {node: weight for node, weight in weight_by_node.items() if affinity.mask >> node & 1}
    if len(weights) < 2:
        return CPUSet()
    on_node = {node: near & CPUSet(tables.cpus_in(1 << node)) for node in weights}
    room = {node: len(cpus) for node, cpus in on_node.items()}
    cpus = CPUSet()
    for node, share in proportional_shares(count, weights, room, unit=tables.cpus_per_core).items():
        if note and share:
            note(AssignmentStage.SHARE_OF_DEVICES, on_node[node].mask)
        cpus |= take_cpus(tables, on_node[node], share, options, note)
    return cpus


def check_full_pcpus(
    tables: CPUTables, count: int, available: CPUSet, reserved: CPUSet, *, allow_odd: bool = False
) -> None:
    """Refuse a count that full-pcpus-only does not allow.

    Raises:
        SMTAlignmentError: `count` is no multiple of the threads of a core, or larger than the number
            of `available` CPUs outside cores with a reserved CPU. The kubelet passes the CPUs that any container may
            have, so those reusable from init containers do not count, nor whether cores are whole.
    """
    threads = tables.cpus_per_core
    if count % threads and not allow_odd:
        raise SMTAlignmentError(PartialCore(count, threads))
    whole = (available.mask & ~tables.siblings_of(reserved.mask)).bit_count()
    if count > whole:
        raise SMTAlignmentError(WholeCoreShortage(count, whole, threads))


# ----------------------------------------------------------------------------------------------------
# Resize of a running container.
#
# Invariant: the CPUs that it got at its start stay. It grows by the nearest CPUs and shrinks by those that it grew by last,
# so that growing and shrinking again changes nothing.
#
# Source: KEP-5554 (the allocation at admission is kept), which no released kubelet has. A resize that the
#     kubelet refuses is refused here too.


def nearest(
    tables: CPUTables,
    held: CPUSet,
    available: CPUSet,
    count: int,
    options: Options,
    distances: Distances | None = None,
) -> tuple[CPUSet, ...]:
    """The `count` available CPUs nearest to those that are held, nearest first.

    Nearness: another thread of a held core, then the same uncore cache, the same NUMA node, then other NUMA nodes
    by their distance to the nearest held one. Of CPUs equally near those are taken that the options would take.

    Args:
        tables: of the machine.
        held: CPUs of the container, not empty.
        available: CPUs that it may get.
        count: how many it needs, at least 1.
        options: which CPUs of a ring are taken, and whether only whole cores.
        distances: between NUMA nodes; None where all others are equally far.

    Raises:
        InsufficientCPUsError: there are not so many, or not in whole cores.
    """
    left = available.mask & ~held.mask
    if options.full_pcpus_only:
        left = tables.whole_cores_in(left)
    if left.bit_count() < count:
        raise InsufficientCPUsError(count, left.bit_count(), GrowsBeside(str(held)))
    steps = []
    rings = _rings(tables, held.mask, distances)
    while count:
        here = left & next(rings)
        if not here:
            continue
        taken = CPUSet(here) if here.bit_count() <= count else take_cpus(tables, CPUSet(here), count, options)
        steps.append(taken)
        left &= ~taken.mask
        count -= len(taken)
    return tuple(steps)


def without_last(
    tables: CPUTables, grown: Sequence[CPUSet], count: int, options: Options
) -> tuple[CPUSet, ...]:
    """The CPUs that a container grew by and keeps when it gives back `count`, the last ones first.

    Of CPUs taken at once those stay that the options would have taken alone.

    Args:
        tables: of the machine.
        grown: in the order of growing.
        count: at most as many as there are.
        options: which of those taken at once stay.
    """
    remaining = list(grown)
    while count:
        last = remaining.pop()
        if len(last) > count:
            remaining.append(take_cpus(tables, last, len(last) - count, options))
            break
        count -= len(last)
    return tuple(remaining)


def _rings(tables: CPUTables, held: int, distances: Distances | None) -> Iterator[int]:
    """Masks of CPUs, nearer ones first; each holds those before it, the last one all CPUs."""
    yield tables.siblings_of(held)
    yield tables.caches_of(held)
    nodes = tables.nodes_of(held)
    yield tables.cpus_in(nodes)
    homes = list(bits.iterate(nodes))
    # Where all that it holds is offline, the machine tells no node, and all CPUs are equally far.
    if distances is not None and homes:
        far = {node: min(distances.rows[home][node] for home in homes) for node, _ in tables.nodes}
        for distance in sorted(set(far.values())):
            yield tables.cpus_in(bits.from_ids(node for node, value in far.items() if value <= distance))
    yield tables.online
