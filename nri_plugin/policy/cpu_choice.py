"""Which way of choosing CPUs the options select: the one place where the ways meet."""

from nri_plugin.cpuset import CPUSet
from nri_plugin.options import Options, UncoreCacheFit
from nri_plugin.policy.best_fit import take_best_fit
from nri_plugin.policy.cpu_assignment import take_packed
from nri_plugin.policy.cpu_distribution import take_distributed
from nri_plugin.policy.tables import CPUTables
from nri_plugin.policy.taking import Note


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
    if options.distribute_cpus_across_numa:
        group = tables.cpus_per_core if options.full_pcpus_only else 1
        return take_distributed(tables, available, count, group=group, note=note)
    return take_packed(
        tables,
        available,
        count,
        prefer_uncore_cache=options.prefer_align_cpus_by_uncore_cache,
        cache_rule=options.uncore_cache_rule,
        spread=options.distribute_cpus_across_cores,
        note=note,
    )
