"""What a command line asks for becomes the event that a runtime would send."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from nri_plugin.cli.explain.what_if import ASKED, WhatIf, changed, doubts, event_of
from nri_plugin.config.keys import words_of
from nri_plugin.config.loading import load_text
from nri_plugin.core.engine import creation_context
from nri_plugin.core.requests import ContainerRequest
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import CPU_MANAGER, TOPOLOGY_MANAGER, Option
from nri_plugin.model.options import (
    OPTION_BY_NAME,
    CPUManagerPolicy,
    ReservedMemory,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    UncoreCacheFit,
    options_of,
)
from nri_plugin.model.records import Amounts
from nri_plugin.model.sets import NodeMask, NUMANodeID
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.machine import build_topology, load
from tests.builders import GIB, machine, node
from tests.topology_rows import topology_of_rows
from tests.whole_pods import pod_scope

WHOLE: dict[str, object] = {"pod_cpu": "6", "pod_memory": "8Gi"}


def request_of(**words: object) -> ContainerRequest:
    return creation_context(node(), State(), event_of(WhatIf(**words), node()))[2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cpu", "milli"),
    [("3", 3000), ("1500m", 1500), ("0.1", 100), ("255", 255000), ("1000", 1000000), ("", 0)],
)
def test_an_amount_of_cpu_arrives_as_it_was_written(cpu: str, milli: int) -> None:
    assert request_of(cpu=cpu).cpu_milli == milli


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"cpu": "1e99"}, "--cpu: 1e99 is more than any machine has; ask for 1000000 CPUs or less"),
        ({"cpu": "1000001"}, "--cpu: 1000001 is more than any machine has"),
        ({"memory": "1e99"}, "--memory: 1e99 is more than any machine has; ask for 1Ei or less"),
        (
            {"hugepages": (("2Mi", "3M"),)},
            "--hugepages-2Mi: 3M is no whole number of pages of 2Mi; ask for 2Mi or 4Mi",
        ),
        ({"hugepages": (("1Gi", "1536Mi"),)}, "pages of 1Gi; ask for 1Gi or 2Gi"),
    ],
)
def test_amounts_that_no_machine_could_give_are_refused(wish: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        request_of(**wish)


def test_memory_and_huge_pages_arrive_by_their_names() -> None:
    asked = request_of(cpu="2", memory="4Gi", hugepages=(("2Mi", "1Gi"),))
    assert asked.memory_by_resource == {"memory": 4 * GIB, "hugepages-2Mi": GIB}


def test_a_container_alone_brings_no_facts() -> None:
    assert event_of(WhatIf(cpu="2"), node()).facts is None


def test_a_pod_as_a_whole_arrives_with_its_containers_and_its_total() -> None:
    wanted = WhatIf(
        cpu="4",
        memory="4Gi",
        pod_cpu="6",
        pod_memory="8Gi",
        pod_hugepages=(("1Gi", "2Gi"),),
        others=("nothing", "cpu=500m, memory=64Mi"),
    )
    event = event_of(wanted, node())
    assert event.facts is not None
    pages = (("hugepages-1Gi", 2 * GIB),)
    assert event.facts.pod_resources == Amounts(6000, 6000, 8 * GIB, 8 * GIB, pages)
    assert [(one.name, one.amounts) for one in event.facts.containers] == [
        ("container", Amounts(4000, 4000, 4 * GIB, 4 * GIB)),
        ("other-1", Amounts()),
        ("other-2", Amounts(500, 500, 64 << 20, 64 << 20)),
    ]
    total = event.event.pod.resources
    assert total is not None
    assert (total.cpu_quota_us, total.memory_limit_bytes) == (600_000, 8 * GIB)


def test_the_total_of_a_pod_without_resources_of_its_own_is_that_of_its_containers() -> None:
    pages = (("2Mi", "4Mi"),)
    event = event_of(WhatIf(cpu="4", memory="1Gi", hugepages=pages, others=("cpu=2,memory=1Gi",)), node())
    total = event.event.pod.resources
    assert total is not None
    assert (total.cpu_quota_us, total.memory_limit_bytes) == (600_000, 2 * GIB)
    assert total.hugepage_limits == (("2MB", 4 << 20),)
    assert event.facts is not None
    assert event.facts.pod_resources is None


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (
            {"others": ("gpu=1",)},
            "--with: expected amounts such as cpu=500m,memory=64Mi, or nothing; found gpu=1",
        ),
        ({"others": ("cpu",)}, "found cpu"),
        ({"others": ("cpu=",)}, "found cpu="),
        ({"others": ("",)}, "expected amounts"),
        ({"others": ("cpu=x",)}, "--with: "),
        ({"pod_cpu": "x"}, "--pod-cpu: "),
        ({"pod_hugepages": (("2Mi", "3M"),)}, "--pod-hugepages-2Mi: 3M is no whole number of pages"),
        (
            {"pod_cpu": "3", "cpu": "2.5", "others": ("cpu=1",)},
            "--pod-cpu: 3 is less than its containers ask for, .*; ask for 3.5 or more",
        ),
        (
            {"pod_memory": "1Gi", "others": ("memory=2Gi",)},
            "--pod-memory: 1Gi is less .* ask for 2Gi or more",
        ),
        (
            {"pod_hugepages": (("2Mi", "2Mi"),), "hugepages": (("2Mi", "4Mi"),)},
            "--pod-hugepages-2Mi: 2Mi is less .* ask for 4Mi or more",
        ),
    ],
)
def test_pods_that_cannot_be_are_refused_with_what_to_write(wish: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        request_of(**wish)


@pytest.mark.parametrize(
    ("wish", "options", "words"),
    [
        ({"cpu": "2"}, {"pod_level_managers": False}, []),
        (WHOLE, {"pod_level_managers": False}, ["featureGates.PodLevelResourceManagers is off"]),
        (WHOLE, {"topology_manager_scope": TopologyManagerScope.CONTAINER}, ["try --scope pod"]),
        (WHOLE, {"topology_manager_policy": TopologyManagerPolicy.NONE}, ["try --policy best-effort"]),
        (WHOLE, {}, []),
        ({"pod_cpu": "6"}, {}, ["only with both CPUs and memory"]),
        ({"pod_cpu": "6", "qos": "Burstable"}, {}, []),
        ({**WHOLE, "cpu": "2"}, {}, ["add --memory"]),
    ],
)
def test_a_pod_that_may_get_less_than_expected_is_told_why(
    wish: dict[str, object], options: dict[str, object], words: list[str]
) -> None:
    on = pod_scope(**options)
    notes = list(doubts(WhatIf(**wish), on))  # type: ignore[arg-type]
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


@pytest.mark.parametrize("qos", ["Guaranteed", "Burstable", "BestEffort"])
def test_the_class_of_the_pod_is_the_one_asked_for(qos: str) -> None:
    assert request_of(cpu="2", qos=qos).qos == qos


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("x.com/gpu=2@0", ["0", "0"]), ("x.com/gpu=2@0,1", ["0", "1"]), ("x.com/gpu=1@0-1", ["0-1"])],
)
def test_devices_are_where_the_caller_says(text: str, nodes: list[str]) -> None:
    (given,) = event_of(WhatIf(devices=(text,)), node()).devices
    assert [str(device.nodes) for device in given.devices] == nodes


def test_devices_of_a_described_machine_are_given_as_the_kubelet_would() -> None:
    description = load("kep693-8-gpus")
    on = node(build_topology(description))
    (given,) = event_of(WhatIf(devices=("nvidia.com/gpu=2",)), on, description).devices
    assert [device.id for device in given.devices] == ["0", "3"]
    assert given.totals == ((NodeMask.of(0), 4), (NodeMask.of(1), 4))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu", "expected RESOURCE=COUNT"),
        ("x.com/gpu=0", "expected RESOURCE=COUNT"),
        ("x.com/gpu=2", "--device x.com/gpu=2@0"),
        ("x.com/gpu=2@9", "NUMA node 9 does not exist"),
        ("x.com/gpu=3@0,1", "3 devices on 2 places"),
        ("x.com/gpu=1@x", "x.com/gpu: "),
    ],
)
def test_devices_that_cannot_be_are_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        event_of(WhatIf(devices=(text,)), node())


def test_a_described_machine_has_no_more_devices_than_it_has() -> None:
    description = load("kep693-8-gpus")
    with pytest.raises(ConfigError, match="9 wanted, the machine has 8"):
        event_of(WhatIf(devices=("nvidia.com/gpu=9",)), node(), description)


def test_options_go_by_their_names_in_the_configuration() -> None:
    on = changed(
        node(),
        [
            "full-pcpus-only=true",
            "topologyManagerPolicy=restricted",
            "smtOddCounts=allow",
            "reservedSystemCPUs=0-3",
        ],
    )
    assert on.options.full_pcpus_only
    assert on.options.topology_manager_policy is TopologyManagerPolicy.RESTRICTED
    assert on.options.smt_odd_counts is SMTOddCounts.ALLOW
    assert str(on.reserved) == "0-3"


def test_an_option_of_the_node_can_be_switched_off() -> None:
    on = node(full_pcpus_only=True)
    assert not changed(on, ["full-pcpus-only=false"]).options.full_pcpus_only
    assert on.options.full_pcpus_only


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["full-pcpus-only=true", "distribute-cpus-across-cores=true"], "can not be used at the same time"),
        (["strictUncoreCache=true"], "strictUncoreCache: goes only with uncoreCacheFit: best"),
        (["uncoreCacheFit=best", "distribute-cpus-across-numa=true"], "uncoreCacheFit: best packs CPUs"),
        (["topologyManagerPolicy=single-numa-node", "align-by-socket=true"], "incompatible"),
        (["cpuManagerPolicy=none", "full-pcpus-only=true"], "None policy: received unsupported options"),
        (["full-pcpus-only=perhaps"], "^--option: full-pcpus-only: bad value .* expected true or false$"),
        (["reservedSystemCPUs=x"], "reservedSystemCPUs"),
    ],
)
def test_options_that_a_configuration_could_not_have_are_refused(given: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        changed(node(), given)


CPU_OPTIONS = options_of(CPU_MANAGER)
CPU_PAIRS = [(), *combinations(CPU_OPTIONS, 1), *combinations(CPU_OPTIONS, 2)]


@pytest.mark.parametrize("cpu", CPUManagerPolicy)
@pytest.mark.parametrize(
    "topology", [TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE]
)
@pytest.mark.parametrize("fit", UncoreCacheFit)
@pytest.mark.parametrize("strict", ["true", "false"])
def test_an_option_is_taken_when_and_only_when_the_configuration_takes_it(
    cpu: str, topology: str, fit: str, strict: str
) -> None:
    settings = {
        "cpuManagerPolicy": cpu,
        "topologyManagerPolicy": topology,
        "uncoreCacheFit": fit,
        "strictUncoreCache": strict,
    }
    for names in CPU_PAIRS:
        options = "cpuManagerPolicyOptions: {" + ", ".join(f"{name}: 'true'" for name in names) + "}\n"
        text = "".join(f"{key}: {value}\n" for key, value in settings.items())
        gates = "featureGates: {CPUManagerPolicyAlphaOptions: true}\nreservedSystemCPUs: 0-1\n"
        given = [f"{key}={value}" for key, value in settings.items()] + [f"{name}=true" for name in names]
        assert taken(lambda: changed(node(), given)) == taken(  # noqa: B023 - called at once
            lambda: load_text(text + gates + (options if names else ""), "x").node(node().topology)  # noqa: B023
        ), given


def example_values(option: Option) -> list[str]:
    """Every word of an option, or a value and a wrong one."""
    if option.kind is bool:
        return ["true", "false", "1", "no", "perhaps"]
    memory = [f"[{{numaNode: {number}, limits: {{memory: 100Mi}}}}]" for number in (0, 7)]
    return [*words_of(option.kind), "nonsense", "[default]", *memory, "8"]


@pytest.mark.parametrize("name", ASKED)
def test_each_value_of_each_option_is_taken_when_and_only_when_the_configuration_takes_it(name: str) -> None:
    option = OPTION_BY_NAME[name]
    for value in example_values(option):
        text = (
            f"{name}: {value}\n" if option.manager is None else f"{option.manager.key}: {{{name}: {value}}}\n"
        )
        if option.is_derived:
            text = f"featureGates: {{{option.gate}: {value}}}\n"
        text += "reservedSystemCPUs: 0-1\n" if name != "reservedSystemCPUs" else ""
        text += f"featureGates: {{{option.gate}: true}}\n" if option.manager else ""
        if option.manager is TOPOLOGY_MANAGER:
            text += "topologyManagerPolicy: restricted\n"
        if (name, value) == ("memoryManagerPolicy", "Static"):  # reserved as in a simulation
            text += "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n"
        assert taken(lambda: changed(node(), [f"{name}={value}"])) == taken(  # noqa: B023 - called at once
            lambda: load_text(text, "x").node(node().topology)  # noqa: B023
        ), text


def test_the_static_policy_without_reserved_cpus_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"static needs CPUs kept .* add --option reservedSystemCPUs=0"):
        changed(node(reserved="", cpu_manager_policy=CPUManagerPolicy.NONE), ["cpuManagerPolicy=static"])
    assert changed(node(), ["cpuManagerPolicy=none", "reservedSystemCPUs="])


def test_a_static_memory_manager_has_the_smallest_reservation_unless_the_node_has_one() -> None:
    rows = (ReservedMemory(NUMANodeID(1), "memory", GIB),)
    asked = ["memoryManagerPolicy=Static"]
    (added,) = changed(node(), asked).options.reserved_memory
    assert (added.node, added.size_bytes) == (0, 100 << 20)
    assert changed(node(reserved_memory=rows), asked).options.reserved_memory == rows


def test_the_limit_of_numa_nodes_is_an_option_like_the_others() -> None:
    given = ["topologyManagerPolicy=restricted", "max-allowable-numa-nodes=8"]
    with pytest.raises(ConfigError, match="more than 8 NUMA Nodes: this one has 9"):
        changed(node(machine(nodes=9)), given)
    assert changed(node(), given).options.max_allowable_numa_nodes == 8


def taken(read: Callable[[], object]) -> bool:
    try:
        read()
    except ConfigError:
        return False
    return True


def test_options_that_this_machine_cannot_have_are_refused() -> None:
    two_sockets = topology_of_rows([(cpu, cpu, cpu // 4, 0, cpu // 4) for cpu in range(8)])
    with pytest.raises(ConfigError, match="cpuManagerPolicyOptions: Align by socket is not compatible"):
        changed(node(two_sockets), ["align-by-socket=true"])


def test_the_best_fit_and_the_strict_rule_go_together() -> None:
    on = changed(node(), ["uncoreCacheFit=best", "strictUncoreCache=true"])
    assert on.options == replace(
        node().options, uncore_cache_fit=UncoreCacheFit.BEST, strict_uncore_cache=True
    )
