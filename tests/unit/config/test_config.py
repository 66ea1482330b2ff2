from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.config import loading
from nri_plugin.config.loading import load, load_text
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    ReservedMemory,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyTieBreak,
    UncoreCacheFit,
    UncoreCacheRule,
)
from nri_plugin.model.sets import CPUSet, NUMANodeID
from nri_plugin.model.topology import Topology
from tests.topology_rows import topology_of_rows

SMALLEST = 'reservedSystemCPUs: "0"\n'
# 8 CPUs, SMT 2 with siblings i and i+4, two NUMA nodes.
MACHINE = topology_of_rows([(cpu, cpu % 4, cpu % 4 // 2, cpu % 4 // 2, cpu % 4 // 2) for cpu in range(8)])


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f")
    return str(caught.value)


def test_the_smallest_configuration_has_the_kubelets_defaults_and_the_static_policy() -> None:
    options = load_text(SMALLEST, "f").options
    assert options.cpu_manager_policy is CPUManagerPolicy.STATIC
    assert options.topology_manager_policy is TopologyManagerPolicy.NONE
    assert options.topology_manager_scope is TopologyManagerScope.CONTAINER
    assert options.memory_manager_policy is MemoryManagerPolicy.NONE
    assert options.kept_memory_bytes == 100 << 20  # the default of evictionHard
    assert options.pool_floor
    assert not options.full_pcpus_only


def test_every_key_finds_its_place() -> None:
    loaded = load_text(
        """
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true", prefer-align-cpus-by-uncorecache: "1"}
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
memoryManagerPolicy: Static
reservedMemory:
- {numaNode: 0, limits: {memory: 1Gi}}
- {numaNode: 1, limits: {memory: 100Mi}}
kubeReserved: {cpu: 500m, memory: 512Mi, pid: "1000"}
systemReserved: {cpu: 600m, memory: 512Mi, ephemeral-storage: 1Gi}
evictionHard: {memory.available: 100Mi, nodefs.available: 5%}
featureGates: {MemoryManager: true, PodLevelResourceManagers: false}
stateDir: /var/lib/nri-pin
nriSocket: /run/other.sock
pluginName: pin
pluginIndex: 05
sysfsRoot: /somewhere
cgroupRoot: /somewhere/cgroup
poolFloor: false
neverRefuse: [kube-system, a]
repairMems: false
uncoreCacheRule: kubelet
fullPCPUsRule: whole-cores
metricsBindAddress: 127.0.0.1:9465
healthProbeBindAddress: ":9464"
logFormat: json
logLevel: debug
""",
        "f",
    )
    options = loaded.options
    assert options.full_pcpus_only
    assert options.prefer_align_cpus_by_uncore_cache
    assert options.full_pcpus_rule == "whole-cores"
    assert options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
    assert options.topology_manager_scope is TopologyManagerScope.POD
    assert options.memory_manager_policy is MemoryManagerPolicy.STATIC
    assert options.reserved_memory[1] == ReservedMemory(NUMANodeID(1), "memory", 100 << 20)
    assert options.kept_memory_bytes == (512 + 512 + 100) << 20
    assert not options.pool_floor
    assert options.never_refuse == {"kube-system", "a"}
    assert loaded.reserved_cpu_count == 2
    assert (loaded.state_dir, loaded.nri_socket) == ("/var/lib/nri-pin", "/run/other.sock")
    assert (loaded.plugin_name, loaded.plugin_index) == ("pin", "05")
    assert (loaded.sysfs_root, loaded.cgroup_root) == ("/somewhere", "/somewhere/cgroup")
    assert loaded.metrics_bind_address == ("127.0.0.1", 9465)
    assert loaded.health_probe_bind_address == ("", 9464)
    assert (loaded.log_format, loaded.log_level, loaded.source) == ("json", "debug", "f")


@pytest.mark.parametrize(
    ("text", "address"),
    [("", None), (":0", ("", 0)), ("[::1]:80", ("::1", 80)), ("metrics.local:80", ("metrics.local", 80))],
)
def test_metrics_are_served_where_an_address_says(text: str, address: tuple[str, int] | None) -> None:
    assert (
        load_text(f"reservedSystemCPUs: '0'\nmetricsBindAddress: '{text}'", "f").metrics_bind_address
        == address
    )


# ---- no configuration


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_configuration_is_refused_with_the_three_lines_to_add(text: str) -> None:
    first, *lines = error_of(text).splitlines()
    assert first.startswith("f: no configuration: the static policy needs CPUs kept for the system")
    assert len(lines) == 3
    assert load_text("\n".join(lines), "f").reserved_system_cpus == CPUSet.of(0)


def test_a_missing_file_is_refused_with_the_three_lines_to_add(tmp_path: Path) -> None:
    path = str(tmp_path / "config.yaml")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == str(loading.nothing_configured(path))


def test_a_file_is_read_with_its_name_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SMALLEST)
    assert load(str(path)).source == str(path)
    path.write_text("wrong: 1")
    with pytest.raises(ConfigError, match=r"config\.yaml:1:1: wrong: unknown key"):
        load(str(path))


def test_a_folder_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(str(tmp_path))
    path = tmp_path / "config.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 3"):
        load(str(path))


# ---- wrong values, one line each


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cpuManagerPolic: static", "f:1:1: cpuManagerPolic: unknown key; did you mean cpuManagerPolicy?"),
        ("zzz: 1", "f:1:1: zzz: unknown key; known are cpuManagerPolicy, "),
        ("cpuManagerPolicy: Static", "f:1:19: cpuManagerPolicy: expected none or static, found Static"),
        (
            "reservedSystemCPUs:",
            "f:1:20: reservedSystemCPUs: there is nothing behind the key; write a value, or",
        ),
        ("cpuManagerPolicy:", "f:1:18: cpuManagerPolicy: expected none or static, found nothing"),
        ("memoryManagerPolicy: static", "f:1:22: memoryManagerPolicy: expected None or Static, found static"),
        (
            "topologyManagerPolicy: no",
            "expected none, best-effort, restricted or single-numa-node, found no, which YAML",
        ),
        ("topologyManagerScope: node", "f:1:23: topologyManagerScope: expected container or pod, found node"),
        (
            "cpuManagerPolicyOptions: {full-pcpus-only: yes}",
            (
                'f:1:44: cpuManagerPolicyOptions.full-pcpus-only: bad value for option "full-pcpus-only": '
                'strconv.ParseBool: parsing "yes": invalid syntax; expected true or false'
            ),
        ),
        (
            "cpuManagerPolicyOptions: {full-pcpu-only: true}",
            'unknown CPU Manager Policy option: "full-pcpu-only"; did you mean full-pcpus-only?',
        ),
        (
            "topologyManagerPolicyOptions: {nonsense: true}",
            'unknown Topology Manager Policy option: "nonsense"; known are prefer-closest-numa-nodes or max-allowable',
        ),
        ("cpuManagerPolicyOptions: [full-pcpus-only]", "expected keys and values below it"),
        ("reservedSystemCPUs: 0-", "f:1:21: reservedSystemCPUs: expected a CPU list such as 0-3,8: '0-'"),
        (
            "reservedSystemCPUs: 1:30",
            "f:1:21: reservedSystemCPUs: expected a word, found 1:30, which YAML reads as a number",
        ),
        ("reservedSystemCPUs: 1_0", "which YAML reads as a number"),
        ("reservedSystemCPUs: 3-1", "runs backwards"),
        ("kubeReserved: {cpu: -1}", "f:1:21: kubeReserved.cpu: expected a word, found -1"),
        (
            "kubeReserved: {cpu: true}",
            "f:1:21: kubeReserved.cpu: expected a quantity such as 500m or 2, found true, which YAML reads as",
        ),
        ("kubeReserved: {cpu: '-1'}", "f:1:21: kubeReserved.cpu: -1 is negative"),
        ("kubeReserved: {cpu: 1x}", "f:1:21: kubeReserved.cpu: '1x' has the unknown suffix"),
        ("kubeReserved: {hugepages-2Mi: 1Gi}", "f:1:16: kubeReserved.hugepages-2Mi: cannot be reserved here"),
        ("evictionHard: {memory.free: 1Gi}", "f:1:16: evictionHard.memory.free: unknown key"),
        ("evictionHard: {memory.available: 1.5}", "1.5 is no whole number of bytes"),
        ("featureGates: {MemoryManagers: true}", "unknown key; did you mean MemoryManager?"),
        (
            "featureGates: {MemoryManager: 'true'}",
            "f:1:31: featureGates.MemoryManager: expected true or false",
        ),
        ("reservedMemory: {numaNode: 0}", "f:1:17: reservedMemory: expected a list"),
        ("reservedMemory: [{numaNode: 0}]", "f:1:18: reservedMemory[0]: needs both numaNode and limits"),
        ("reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", "expected memory or hugepages-SIZE"),
        ("reservedMemory: [{numaNode: 0, limit: {memory: 1}}]", "did you mean limits?"),
        ("reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "zero is nothing to reserve"),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 1}}]",
            "numaNode 0 has memory twice",
        ),
        ("stateDir: run", "f:1:11: stateDir: expected an absolute path, found run"),
        ("pluginName: a/b", "expected up to 63 letters"),
        ("pluginIndex: 9", 'f:1:14: pluginIndex: expected two digits such as "90", found 9'),
        ("poolFloor: 'true'", "f:1:12: poolFloor: expected true or false, found true"),
        ("neverRefuse: kube-system", "f:1:14: neverRefuse: expected a list"),
        ("neverRefuse: [Kube]", "f:1:15: neverRefuse[0]: Kube is no name of a namespace"),
        *(
            (
                f"metricsBindAddress: '{text}'",
                f"expected an address such as 127.0.0.1:9465 or :9465, found {text}",
            )
            for text in ("9465", "localhost", "a:b", ":65536", "::1:80", "[a]:80")
        ),
        (
            "metricsBindAddress: ':9465'\nhealthProbeBindAddress: '127.0.0.1:9465'",
            "healthProbeBindAddress: port 9465 is that of metricsBindAddress; choose another port for probes",
        ),
        ("logLevel: loud", "f:1:11: logLevel: expected debug, info, warning or error, found loud"),
    ],
)
def test_a_wrong_value_is_refused_with_place_and_expectation(text: str, error: str) -> None:
    assert error in error_of(f"{text}\n{SMALLEST}" if "reservedSystemCPUs" not in text else text)


def test_a_key_of_a_later_version_is_refused_by_name() -> None:
    assert "not yet supported" in error_of(f"repairMems: true\n{SMALLEST}")


MANAGERS_GATE = "PodLevelResourceManagers: true"


def test_the_gate_of_pod_level_managers_is_off_and_can_be_set() -> None:
    assert not load_text(SMALLEST, "f").options.pod_level_managers
    text = f"featureGates: {{{MANAGERS_GATE}}}\n{SMALLEST}"
    assert load_text(text, "f").options.pod_level_managers


def test_the_gate_of_pod_level_managers_needs_that_of_pod_level_resources() -> None:
    error = error_of(f"featureGates: {{{MANAGERS_GATE}, PodLevelResources: false}}\n{SMALLEST}")
    assert error.startswith("f:1:1: featureGates: ")
    assert "depends on features that are disabled: [PodLevelResources]" in error


ALPHA = "featureGates: {CPUManagerPolicyAlphaOptions: true}\n"
CLOSEST = "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'true'}\n"


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ("cpuManagerPolicyOptions: {distribute-cpus-across-numa: T}", "distribute_cpus_across_numa", True),
        (
            ALPHA + "cpuManagerPolicyOptions: {distribute-cpus-across-cores: 1}",
            "distribute_cpus_across_cores",
            True,
        ),
        (ALPHA + "cpuManagerPolicyOptions: {align-by-socket: t}", "align_by_socket", True),
        ("cpuManagerPolicyOptions: {strict-cpu-reservation: 'T'}", "strict_cpu_reservation", True),
        ("cpuManagerPolicyOptions: {strict-cpu-reservation: 'false'}", "strict_cpu_reservation", False),
        (f"topologyManagerPolicy: restricted\n{CLOSEST}", "prefer_closest_numa_nodes", True),
        (CLOSEST, "prefer_closest_numa_nodes", False),
        (
            "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {max-allowable-numa-nodes: 16}",
            "max_allowable_numa_nodes",
            16,
        ),
        ("topologyManagerPolicyOptions: {max-allowable-numa-nodes: few}", "max_allowable_numa_nodes", None),
        ("uncoreCacheRule: kep-4800", "uncore_cache_rule", UncoreCacheRule.KEP_4800),
    ],
)
def test_options_reach_decisions_and_policy_none_looks_at_none(
    text: str, attribute: str, value: object
) -> None:
    assert getattr(load_text(f"{text}\n{SMALLEST}", "f").options, attribute) == value


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            (
                "featureGates: {CPUManagerPolicyBetaOptions: false}\n"
                "cpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}"
            ),
            (
                "f:2:1: cpuManagerPolicyOptions: CPU Manager Policy Beta-level Options not enabled, but option "
                '"distribute-cpus-across-numa" provided; set featureGates CPUManagerPolicyBetaOptions: true'
            ),
        ),
        (
            "cpuManagerPolicyOptions: {align-by-socket: 'false'}",
            'CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided',
        ),
        (
            "featureGates: {CPUManagerPolicyOptions: false}\ncpuManagerPolicyOptions: {full-pcpus-only: t}",
            'CPU Manager policy options map[full-pcpus-only:t] require feature gates "CPUManagerPolicyOptions"',
        ),
        (
            "featureGates: {TopologyManagerPolicyOptions: false}\ntopologyManagerPolicy: restricted\n"
            + CLOSEST,
            (
                "f:3:1: topologyManagerPolicyOptions: Topology Manager policy options map[prefer-closest-numa-nodes:"
                'true] require feature gates "TopologyManagerPolicyOptions" enabled'
            ),
        ),
        (
            "cpuManagerPolicyOptions: {distribute-cpus-across-numa: t, prefer-align-cpus-by-uncorecache: t}",
            "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be",
        ),
        (
            ALPHA + "cpuManagerPolicyOptions: {align-by-socket: t}\ntopologyManagerPolicy: single-numa-node",
            "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket",
        ),
        (
            "topologyManagerPolicy: restricted\nfeatureGates: {TopologyManager: false}",
            "f:1:1: topologyManagerPolicy: topologyManagerPolicy restricted requires feature gate TopologyManager",
        ),
        (
            "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {max-allowable-numa-nodes: 7}",
            'the minimum value of "max-allowable-numa-nodes" should not be less than 8, found 7',
        ),
    ],
)
def test_options_the_kubelet_refuses_are_refused_with_its_reason(text: str, error: str) -> None:
    assert error in error_of(f"{text}\n{SMALLEST}")


def machine_of(nodes: int, sockets: int, *, distances: bool) -> Topology:
    rows = [(node, node, node * sockets // nodes, node, 0) for node in range(nodes)]
    known = {node: [10 + abs(node - other) for other in range(nodes)] for node in range(nodes)}
    return topology_of_rows(rows, distances=known if distances else None)


def test_closest_nodes_need_a_machine_that_tells_its_distances() -> None:
    loading = load_text(f"topologyManagerPolicy: restricted\n{CLOSEST}{SMALLEST}", "f")
    assert loading.node(machine_of(2, 1, distances=True)).options.prefer_closest_numa_nodes
    with pytest.raises(
        ConfigError, match=r"f:2:31: topologyManagerPolicyOptions: cannot discover NUMA topology"
    ):
        loading.node(machine_of(2, 1, distances=False))


def test_a_limit_of_numa_nodes_is_enforced_and_there_is_none_by_default() -> None:
    text = f"topologyManagerPolicy: restricted\n{SMALLEST}"
    limit = "topologyManagerPolicyOptions: {max-allowable-numa-nodes: 8}"
    machine = machine_of(9, 1, distances=False)
    assert load_text(text, "f").node(machine).topology is machine
    with pytest.raises(
        ConfigError, match="unsupported on machines with more than 8 NUMA Nodes: this one has 9"
    ):
        load_text(text + limit, "f").node(machine)


def test_alignment_by_socket_needs_as_many_numa_nodes_as_sockets() -> None:
    loading = load_text(f"{ALPHA}cpuManagerPolicyOptions: {{align-by-socket: t}}\n{SMALLEST}", "f")
    two_sockets_on_a_node = topology_of_rows([(0, 0, 0, 0, 0), (1, 1, 1, 0, 0)])
    with pytest.raises(
        ConfigError, match=r"f:2:26: cpuManagerPolicyOptions: Align by socket is not compatible"
    ):
        loading.node(two_sockets_on_a_node)
    assert loading.node(machine_of(2, 1, distances=False)).options.align_by_socket


def test_all_errors_are_listed_in_the_order_of_the_file() -> None:
    lines = error_of("stateDir: run\nlogLevel: loud\nzzz: 1\n").splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["f:1:11", "stateDir"],
        ["f:2:11", "logLevel"],
        ["f:3:1", "zzz"],
    ]


# ---- the kubelet's checks over several keys


def test_the_static_policy_needs_reserved_cpus() -> None:
    assert "static needs CPUs kept for the system" in error_of("logLevel: info")
    assert "static needs CPUs kept for the system" in error_of("kubeReserved: {memory: 1Gi, cpu: 0}")
    load_text("cpuManagerPolicy: none", "f")


@pytest.mark.parametrize(
    ("kube", "system", "count"), [("1m", "0", 1), ("500m", "500m", 1), ("500m", "501m", 2), ("2", "1", 3)]
)
def test_reserved_cpus_are_the_sum_rounded_up(kube: str, system: str, count: int) -> None:
    loaded = load_text(f"kubeReserved: {{cpu: {kube}}}\nsystemReserved: {{cpu: {system}}}", "f")
    assert loaded.reserved_cpu_count == count


def test_a_list_of_reserved_cpus_replaces_the_amounts() -> None:
    loaded = load_text("kubeReserved: {cpu: 4}\nreservedSystemCPUs: 0-1", "f")
    assert loaded.reserved_cpu_count == 2
    assert loaded.reserved(MACHINE) == CPUSet.of(0, 1)


def test_policy_none_has_no_options_and_reserves_nothing() -> None:
    assert load_text("cpuManagerPolicy: none\nreservedSystemCPUs: 0", "f").reserved(MACHINE) == CPUSet()
    text = "cpuManagerPolicy: none\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}"
    assert "None policy: received unsupported options=map[full-pcpus-only:true]; set " in error_of(text)


def static_memory(reserved: str, rest: str = "") -> str:
    return f"memoryManagerPolicy: Static\n{SMALLEST}reservedMemory:\n- {{numaNode: 0, limits: {{{reserved}}}}}\n{rest}"


def test_static_memory_needs_reserved_memory() -> None:
    nothing_kept = "evictionHard: {memory.available: 0}\nmemoryManagerPolicy: Static\n"
    assert "Static needs memory kept for the system" in error_of(nothing_kept + SMALLEST)


def test_static_memory_alone_is_refused_with_lines_that_work_when_they_are_added(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/devices/system/node"
    nodes.mkdir(parents=True)
    (nodes / "has_memory").write_text("2-3\n", encoding="ascii")
    text = f"memoryManagerPolicy: Static\nkubeReserved: {{memory: 1Gi}}\nsysfsRoot: {tmp_path}\n{SMALLEST}"
    first, *lines = error_of(text).splitlines()
    assert first.startswith("f:1:1: memoryManagerPolicy: Static needs reservedMemory")
    assert first.endswith("add these lines:")
    rows = load_text(text + "\n".join(lines), "f").options.reserved_memory
    assert rows == (ReservedMemory(NUMANodeID(2), "memory", (1 << 30) + (100 << 20)),)


def test_without_a_list_of_nodes_with_memory_the_lines_name_node_0(tmp_path: Path) -> None:
    assert "- numaNode: 0" in error_of(f"memoryManagerPolicy: Static\nsysfsRoot: {tmp_path}\n{SMALLEST}")
    assert "Static needs memory kept for the system" in error_of(static_memory("hugepages-2Mi: 2Mi"))
    huge = static_memory("memory: 1124Mi, hugepages-2Mi: 2Mi", "kubeReserved: {memory: 1Gi}")
    assert "huge pages cannot be kept back, remove them" in error_of(huge)


def test_reserved_memory_adds_up_to_what_the_node_keeps_with_the_default_eviction_threshold() -> None:
    load_text(static_memory("memory: 1124Mi", "kubeReserved: {memory: 1Gi}\n"), "f")
    error = error_of(static_memory("memory: 1Gi", "kubeReserved: {memory: 1Gi}\n"))
    assert "f:3:1: reservedMemory: memory adds up to 1Gi" in error
    assert "keep 1124Mi;" in error


def test_a_list_of_eviction_thresholds_replaces_the_default() -> None:
    load_text(
        static_memory("memory: 1Gi", "kubeReserved: {memory: 1Gi}\nevictionHard: {nodefs.available: 5%}"), "f"
    )
    load_text(
        static_memory("memory: 1025Mi", "kubeReserved: {memory: 1Gi}\nevictionHard: {memory.available: 1Mi}"),
        "f",
    )


# ---- on a machine


def test_a_count_of_reserved_cpus_is_taken_as_for_a_container() -> None:
    # Whole cores first: CPU 0 and its sibling 4.
    assert load_text("kubeReserved: {cpu: 2}", "f").reserved(MACHINE) == CPUSet.of(0, 4)


def test_reserved_cpus_that_the_machine_lacks_are_refused_where_they_stand() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^f:2:21: reservedSystemCPUs: CPUs 8-9 do not exist on this machine, online are 0-7; reserve ",
    ):
        load_text('poolFloor: true\nreservedSystemCPUs: "7-9"', "f").node(MACHINE)
    with pytest.raises(ConfigError, match=r"^f:1:15: kubeReserved: reserves 9 CPUs, 8 are online"):
        load_text("kubeReserved: {cpu: 9}", "f").node(MACHINE)


@pytest.mark.parametrize(
    ("reserved", "offline", "unreachable", "error"),
    [
        ("6-7", "7", "", ""),
        ("6-7", "6-7", "", "CPUs 6-7 are offline on this machine, online are 0-5"),
        ("6-7", "7", "6", ""),
        ("6-7", "", "6-7", ""),
        ("6-8", "7", "6", "CPUs 8 do not exist on this machine, online are 0-6"),
    ],
)
def test_reserved_cpus_have_to_exist_and_one_to_be_online(
    reserved: str, offline: str, unreachable: str, error: str
) -> None:
    online = MACHINE.online - CPUSet.parse(offline)
    machine = replace(MACHINE, online=online, offline=CPUSet.parse(offline))
    machine = machine.within(online - CPUSet.parse(unreachable))
    config = load_text(f"reservedSystemCPUs: {reserved}", "f")
    if not error:
        assert config.node(machine).reserved == CPUSet.parse(reserved)
        return
    with pytest.raises(ConfigError, match=f"^f:1:21: reservedSystemCPUs: {error}"):
        config.node(machine)


def test_a_number_of_reserved_cpus_is_what_is_online_of_it() -> None:
    machine = MACHINE.within(CPUSet.parse("4-5"))
    assert load_text("kubeReserved: {cpu: 3}", "f").reserved(machine) == CPUSet.parse("4-5")


def test_reserved_memory_on_a_numa_node_that_does_not_exist_is_refused_where_it_is_named() -> None:
    rows = "- {numaNode: 1, limits: {memory: 1Gi}}\n- {numaNode: 7, limits: {memory: 1Gi}}\n"
    loaded = load_text(f"{SMALLEST}reservedMemory:\n{rows}", "f")
    with pytest.raises(
        ConfigError,
        match=r"^f:4:14: reservedMemory\[1\].numaNode: NUMA node 7 does not exist on this machine, it has NUMA nodes 0-1",
    ):
        loaded.node(MACHINE)


def test_the_node_holds_machine_options_and_reserved_cpus() -> None:
    loaded = load_text(SMALLEST, "f")
    node = loaded.node(MACHINE)
    assert (node.topology, node.options, node.reserved) == (MACHINE, loaded.options, CPUSet.of(0))


def test_roots_are_found_under_the_host_mount_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "HOST_MOUNT", str(tmp_path))
    loaded = load_text(SMALLEST, "f")
    assert (loaded.sysfs_root, loaded.cgroup_root) == ("/", "/sys/fs/cgroup")
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    loaded = load_text(SMALLEST, "f")
    assert (loaded.sysfs_root, loaded.cgroup_root) == (str(tmp_path), f"{tmp_path}/sys/fs/cgroup")


def test_the_choices_beyond_the_kubelets_are_off_until_named() -> None:
    options = load_text(SMALLEST, "f").options
    off = (options.uncore_cache_fit, options.topology_tie_break, options.smt_odd_counts)
    assert off == (UncoreCacheFit.FIRST, TopologyTieBreak.PACKED, SMTOddCounts.KUBELET)
    assert not options.strict_uncore_cache


def test_the_choices_beyond_the_kubelets_find_their_places() -> None:
    text = (
        "uncoreCacheFit: best\nstrictUncoreCache: true\ntopologyTieBreak: best-fit\nsmtOddCounts: round-up\n"
    )
    options = load_text(SMALLEST + text, "f").options
    on = (options.uncore_cache_fit, options.topology_tie_break, options.smt_odd_counts)
    assert on == (UncoreCacheFit.BEST, TopologyTieBreak.BEST_FIT, SMTOddCounts.ROUND_UP)
    assert options.strict_uncore_cache


def test_a_strict_cache_without_the_best_fit_is_refused() -> None:
    assert error_of(SMALLEST + "strictUncoreCache: true\n").endswith(
        "strictUncoreCache: goes only with uncoreCacheFit: best; set that too"
    )


def test_the_best_fit_beside_an_option_that_spreads_is_refused() -> None:
    text = 'uncoreCacheFit: best\ncpuManagerPolicyOptions: {distribute-cpus-across-numa: "true"}\n'
    assert error_of(SMALLEST + text).endswith(
        "uncoreCacheFit: best packs CPUs and distribute-cpus-across-numa spreads them; turn one of them off"
    )


def test_namespaces_whose_annotations_are_read_switch_the_pool_floor_off() -> None:
    options = load_text("reservedSystemCPUs: '0'\nannotationNamespaces: [trading]", "f").options
    assert options.annotation_namespaces == {"trading"}
    assert not options.pool_floor
    assert load_text("reservedSystemCPUs: '0'", "f").options.annotation_namespaces == frozenset()


def test_an_eviction_percentage_is_of_the_machines_memory(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    text = f"sysfsRoot: {tmp_path}\nmemoryManagerPolicy: Static\nevictionHard: {{memory.available: 5%}}\n{SMALLEST}"
    kept = int(16000000 * 1024 * 0.05000000074505806)  # 5 % as a 32-bit float
    wrong = error_of(f"{text}\nreservedMemory: [{{numaNode: 0, limits: {{memory: 1Gi}}}}]")
    assert f"evictionHard keep {kept}" in wrong
    right = load_text(f"{text}\nreservedMemory: [{{numaNode: 0, limits: {{memory: {kept}}}}}]", "f")
    assert right.options.reserved_memory[0].size_bytes == kept


def test_an_eviction_percentage_of_an_unknown_memory_is_refused(tmp_path: Path) -> None:
    text = f"sysfsRoot: {tmp_path}\nmemoryManagerPolicy: Static\nevictionHard: {{memory.available: 5%}}\n{SMALLEST}"
    assert "memory.available 5%: how much memory this machine has cannot be read" in error_of(text)
