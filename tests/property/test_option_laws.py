"""Laws of the options that change how CPUs are chosen."""

from itertools import combinations
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.config.option_checks import NEVER_TOGETHER
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.option_rows import CPU_MANAGER, Affects
from nri_plugin.model.options import Options, UncoreCacheRule, options_of
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import cpu_tables, take_distributed, take_packed
from nri_plugin.policy.cpu_policy import allocate_cpus, take_cpus
from tests.property.machines import machine_with_free_cpus
from tests.topology_rows import topology_of_rows

COUNTS = st.integers(-1, 40)
FIELDS = {name: row.attribute for name, row in options_of(CPU_MANAGER).items() if row.affects is Affects.CPUS}
ALLOWED = [
    set(on)
    for size in range(len(FIELDS) + 1)
    for on in combinations(FIELDS, size)
    if not any(set(pair) <= set(on) for pair in NEVER_TOGETHER)
]


@st.composite
def any_options(draw):
    on = draw(st.sampled_from(ALLOWED))
    rule = draw(st.sampled_from(UncoreCacheRule))
    return Options(uncore_cache_rule=rule, **{FIELDS[name]: True for name in on})


@given(machine_with_free_cpus(), COUNTS, any_options(), st.none() | st.integers(1, 15))
def test_under_all_options_a_result_is_available_and_of_the_right_size(machine, count, options, affinity):
    _, topology, free = machine
    available = CPUSet.from_ids(free)
    hint = None if affinity is None else NodeMask(affinity)
    try:
        taken = allocate_cpus(cpu_tables(topology), count, available, hint, options=options)
    except AdmissionError:
        assert count > len(available) or options.full_pcpus_only
    else:
        assert taken <= available
        assert len(taken) == max(0, count)


@given(machine_with_free_cpus(), COUNTS)
def test_the_cache_rule_of_kep_4800_has_no_effect_where_caches_are_not_split(machine, count):
    """KEP-4800: "on monolithic caches the option changes nothing", here: no NUMA node has two caches."""
    rows, topology, free = machine
    tables = cpu_tables(topology)
    if any(len(tables.caches_in[node]) > 1 for node in tables.node_sets):
        rows = [(cpu, core, socket, node, node) for cpu, core, socket, node, _ in rows]
        tables = cpu_tables(topology_of_rows(rows))
    available = CPUSet.from_ids(free)
    if count > len(available):
        return
    by_rule = Options(
        prefer_align_cpus_by_uncore_cache=True,
        uncore_cache_rule=UncoreCacheRule.KEP_4800,
    )
    assert take_cpus(tables, available, count, by_rule) == take_packed(tables, available, count)


@given(machine_with_free_cpus(), COUNTS, st.sampled_from([1, 2]))
def test_equal_shares_leave_the_rest_as_even_as_any_other_nodes_would(machine, count, group):
    """KEP-2902: no fewer nodes could hold equal shares, no other nodes leave a smaller deviation."""
    _, topology, free = machine
    tables, available = cpu_tables(topology), CPUSet.from_ids(free)
    if count > len(available) or count <= 0 or count % group:
        return
    taken = take_distributed(tables, available, count, group=group)
    left = {node: (node & available.mask).bit_count() for node in tables.node_sets if node & available.mask}
    used = {node: size for node in left if (size := (node & taken.mask).bit_count())}
    groups_per_node = ceil(ceil(len(topology.online) / len(tables.nodes)) / group)
    smallest = ceil(count // group / groups_per_node)
    even = [
        (size, _deviation(left, nodes, count // size))
        for size in range(smallest, len(left) + 1)
        if count % (size * group) == 0
        for nodes in combinations(left, size)
        if all(left[node] >= count // size for node in nodes)
    ]
    if even and len(used) == min(even)[0] and len(set(used.values())) == 1:
        assert _deviation(left, tuple(used), count // len(used)) <= min(even)[1] + 1
    if even:
        assert len(used) <= min(even)[0]


def _deviation(left, nodes, share):
    """Sum of squares of what stays free: the standard deviation, but for constants."""
    return sum((size - (share if node in nodes else 0)) ** 2 for node, size in left.items())
