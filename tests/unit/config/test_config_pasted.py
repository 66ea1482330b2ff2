import pytest

from nri_plugin.config.keys import KEYS
from nri_plugin.config.loading import HEADER, OTHER_KEYS, load_text
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import TopologyManagerPolicy

PASTED = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}}
cgroupRoot: /
clusterDNS: [10.96.0.10]
featureGates: {CPUManagerPolicyBetaOptions: true, RotateKubeletServerCertificate: true}
maxPods: 250
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
"""


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f")
    return str(caught.value)


def test_a_pasted_file_gives_what_concerns_placement_and_lists_what_it_passes_over() -> None:
    config = load_text(PASTED, "f")
    assert config.options.topology_manager_policy is TopologyManagerPolicy.RESTRICTED
    assert set(config.passed_over) == {
        "authentication",
        "cgroupRoot",
        "clusterDNS",
        "maxPods",
        "featureGates.RotateKubeletServerCertificate",
    }


def test_the_cgroup_root_of_the_kubelet_is_not_the_mount_point_that_ours_is() -> None:
    assert load_text(PASTED, "f").cgroup_root.endswith("/sys/fs/cgroup")


LATER = """\
defaultPodSysctls: {net.ipv4.ip_forward: "1"}
maxPod: 1
memoryManagerPolicyOptions: {later: [1, {a: b}]}
swapManagerPolicy: static
evictionHard: {memory.available: 200Mi, swapfs.available: 5%}
kubeReserved: {cpu: 1, storage.later: 2}
"""


def test_keys_of_a_later_kubelet_are_passed_over_and_listed() -> None:
    config = load_text(PASTED + LATER, "f")
    assert config.unknown_keys == (
        "maxPod",
        "memoryManagerPolicyOptions",
        "swapManagerPolicy",
        "evictionHard.swapfs.available",
        "kubeReserved.storage.later",
    )
    assert "defaultPodSysctls" in config.passed_over
    assert config.options.kept_memory_bytes == 200 << 20
    for line in LATER.splitlines()[1:]:
        assert "unknown" in error_of(f"reservedSystemCPUs: '0'\n{line}\n") or "cannot be" in error_of(line)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("topologyManagerScop: pod", "topologyManagerScope"),
        ("cpumanagerpolicy: none", "cpuManagerPolicy"),
        ("cpuManagerPolicyOption: {}", "cpuManagerPolicyOptions"),
        ("memory-manager-policy: Static", "memoryManagerPolicy"),
        ("reservedCpus: 0-4", "reservedSystemCPUs"),
        ("reserved-cpus: 0-4", "reservedSystemCPUs"),
        ("reservedMem: []", "reservedMemory"),
        ("kubeReserve: {}", "kubeReserved"),
        ("evictionHard: {memory.avail: 5%}", "memory.available"),
    ],
)
def test_a_misspelt_key_of_ours_is_refused_in_the_file_of_a_kubelet(line: str, meant: str) -> None:
    text = PASTED.replace('reservedSystemCPUs: "0"\n', "cpuManagerPolicy: none\n")
    assert f"did you mean {meant}?" in error_of(f"{text}{line}\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("reservedCores: 0", "did you mean reservedSystemCPUs?"),
        ("reservedCpuset: 0", "did you mean reservedSystemCPUs?"),
        ("featureGates: {DeviceManager: true}", "known are CPUManager, "),
        ("featureGates: {CPUManagers: true}", "did you mean CPUManager?"),
        ("deviceManagerPolicy: a", "known are cpuManagerPolicy, "),
    ],
)
def test_a_suggestion_is_about_the_same_resource(line: str, says: str) -> None:
    assert says in error_of(f"{line}\n")


def test_gates_of_stable_managers_are_known() -> None:
    gates = "featureGates: {CPUManager: true, MemoryManager: true, TopologyManager: true}\n"
    assert load_text(gates + 'reservedSystemCPUs: "0"\n', "f").feature_gates["CPUManager"]


def test_without_the_kind_a_key_of_the_kubelet_is_refused_with_what_to_do() -> None:
    error = error_of('reservedSystemCPUs: "0"\nmaxPods: 250\n')
    assert error.startswith(
        "f:2:1: maxPods: belongs to the kubelet and does not concern placement; remove it, or add"
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: ConfigMap\n", "f:1:7: kind: expected KubeletConfiguration, found ConfigMap; give a Kubelet"),
        ("kind:\n", "kind: expected KubeletConfiguration, found nothing"),
        ("kind: [a]\n", "kind: expected one value, found a list"),
        ("apiVersion: v1\n", "f:1:1: apiVersion: goes only with kind: KubeletConfiguration; add that"),
        (
            "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n",
            "f:1:13: apiVersion: expected kubelet.config.k8s.io/v1beta1, found kubelet.config.k8s.io/v1;",
        ),
    ],
)
def test_a_file_that_says_it_is_something_else_is_refused(text: str, error: str) -> None:
    assert error in error_of(text + 'reservedSystemCPUs: "0"\n')


def test_no_key_is_ours_and_passed_over() -> None:
    assert not OTHER_KEYS & (set(KEYS) | set(HEADER))


def test_all_known_keys_are_listed_once() -> None:
    lines = error_of("qqq: 1\nwww: 2\nreservedSystemCPU: 0\n").splitlines()
    assert "known are cpuManagerPolicy, " in lines[0]
    assert lines[1] == "f:2:1: www: unknown key; see the list above"
    assert lines[2].endswith("did you mean reservedSystemCPUs?")


MEMORY = """\
memoryManagerPolicy: Static
evictionHard: {nodefs.available: 5%}
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
reservedSystemCPUs: "0"
"""


def test_eviction_keeps_its_default_beside_a_list_without_memory_only_when_they_are_merged() -> None:
    assert load_text(MEMORY + "mergeDefaultEvictionSettings: true\n", "f").options.reserved_memory
    assert "evictionHard keep 0;" in error_of(MEMORY)
