"""The configuration of the agent: one YAML file, or the text the runtime hands over.

A configuration is taken whole or not at all: every wrong value is listed with its place, and nothing is touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nri_plugin.config import option_checks
from nri_plugin.config import yaml_tree as source
from nri_plugin.config.checks import (
    HOST_MOUNT,
    first_core,
    kept_bytes,
    machine_root,
    present,
    reserved_cpu_count,
    topology_choice,
    violations,
)
from nri_plugin.config.keys import KEYS, SET, Settings, values_of
from nri_plugin.config.values import FEATURE_GATES, KNOWN_ARE, memory_node_place, unknown
from nri_plugin.config.yaml_tree import Place, Scalar, Section, scalar
from nri_plugin.core.placement import reserved_cpus
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import CPUManagerPolicy, HintProvider, Node, Options
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import Topology

# ----------------------------------------------------------------------------------------------------
# Hint providers of other installed packages: found by entry point, loaded before the runtime is told of us.
#
# One that cannot be loaded stops the start: containers placed without it would be placed wrongly, silently.


GROUP = "nri_pin.hint_providers"


def load_hint_providers() -> tuple[HintProvider, ...]:
    """The providers of all installed packages, ordered by name.

    Raises:
        ConfigError: one cannot be imported, or is nothing that can be asked; names its entry point.
    """
    return tuple(_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _load(point: EntryPoint) -> HintProvider:
    where = f"entry point {point.name} of {GROUP}"
    try:
        provider = point.load()
    except Exception as error:  # noqa: BLE001 - importing runs code of others
        detail = f"{point.value} cannot be loaded: {error}; repair or remove the package that brings it"
        raise ConfigError(where, detail) from None
    if not callable(provider):
        raise ConfigError(where, f"{point.value} is no function; expected one that takes a question")
    found: HintProvider = provider
    return found


# ----------------------------------------------------------------------------------------------------
# A KubeletConfiguration file taken as it is: what in it concerns placement, and what is passed over.
#
# Only a file that says it is one is read this way. In any other, a key that is not ours is a mistake.
#
# Source: kubelet, staging/src/k8s.io/kubelet/config/v1beta1/types.go.


KIND = "KubeletConfiguration"
API_VERSION = "kubelet.config.k8s.io/v1beta1"
HEADER = ("kind", "apiVersion")

_OTHER_KEYS = """
address allowedUnsafeSysctls authentication authorization cgroupDriver cgroupsPerQOS clusterDNS clusterDomain
configMapAndSecretChangeDetectionStrategy containerLogMaxFiles containerLogMaxSize containerLogMaxWorkers
containerLogMonitorInterval containerRuntimeEndpoint contentType cpuCFSQuota cpuCFSQuotaPeriod
cpuManagerReconcilePeriod crashLoopBackOff enableContentionProfiling enableControllerAttachDetach
enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler enableServer enableSystemLogHandler
enableSystemLogQuery enforceNodeAllocatable eventBurst eventRecordQPS evictionMaxPodGracePeriod
evictionMinimumReclaim evictionPressureTransitionPeriod evictionSoft evictionSoftGracePeriod failCgroupV1
failSwapOn fileCheckFrequency hairpinMode healthzBindAddress healthzPort httpCheckFrequency
imageGCHighThresholdPercent imageGCLowThresholdPercent imageMaximumGCAge imageMinimumGCAge
imagePullCredentialsVerificationPolicy imageServiceEndpoint iptablesDropBit iptablesMasqueradeBit
kernelMemcgNotification kubeAPIBurst kubeAPIQPS kubeReservedCgroup kubeletCgroups
localStorageCapacityIsolation logging makeIPTablesUtilChains maxOpenFiles maxParallelImagePulls maxPods
memoryReservationPolicy memorySwap memoryThrottlingFactor nodeLeaseDurationSeconds nodeStatusMaxImages
nodeStatusReportFrequency nodeStatusUpdateFrequency oomScoreAdj podCIDR podLogsDir podPidsLimit podsPerCore
port preloadedImagesVerificationAllowlist protectKernelDefaults providerID qosReserved readOnlyPort
registerNode registerWithTaints registryBurst registryPullQPS resolvConf rotateCertificates runOnce
runtimeRequestTimeout seccompDefault serializeImagePulls serverTLSBootstrap showHiddenMetricsForVersion
shutdownGracePeriod shutdownGracePeriodByPodPriority shutdownGracePeriodCriticalPods singleProcessOOMKill
staticPodPath staticPodURL staticPodURLHeader streamingConnectionIdleTimeout syncFrequency systemCgroups
systemReservedCgroup tlsCertFile tlsCipherSuites tlsCurvePreferences tlsMinVersion tlsPrivateKeyFile tracing
userNamespaces volumePluginDir volumeStatsAggPeriod
"""
OTHER_KEYS = frozenset(_OTHER_KEYS.split())
"""Keys that the kubelet has and that never change a placement."""

CGROUP_ROOT = "cgroupRoot"
"""To the kubelet the cgroup above all pods; to us, in a file of our own, the mount point of the tree."""


def own_part(tree: Section) -> tuple[Section, tuple[str, ...]]:
    """What of a configuration is for us, and the keys of a KubeletConfiguration that are passed over.

    Raises:
        ConfigError: the file says that it is something else.
    """
    if not set(HEADER) & set(tree.entries):
        return tree, ()
    _check_header(tree)
    passed_over = [name for name in tree.entries if name in OTHER_KEYS | {CGROUP_ROOT}]
    rest = _without(tree, {*HEADER, *passed_over})
    gates = rest.entries.get("featureGates")
    if isinstance(gates, Section):
        others = [name for name in gates.entries if name not in FEATURE_GATES]
        passed_over += [f"featureGates.{name}" for name in others]
        rest = Section(rest.place, {**rest.entries, "featureGates": _without(gates, set(others))}, rest.keys)
    return rest, tuple(passed_over)


def _check_header(tree: Section) -> None:
    if "kind" not in tree.entries:
        raise tree.keys["apiVersion"].error(f"goes only with kind: {KIND}; add that, or remove this line")
    for name, wanted in zip(HEADER, (KIND, API_VERSION), strict=True):
        found = tree.entries.get(name)
        if found is not None and scalar(found).text != wanted:
            raise found.place.error(f"expected {wanted}, found {_text(scalar(found))}; {_ADVICE}")


_ADVICE = "give a KubeletConfiguration, or only keys and values with neither kind nor apiVersion"


def _text(found: Scalar) -> str:
    return found.text or "nothing"


def _without(tree: Section, names: set[str]) -> Section:
    entries = {name: value for name, value in tree.entries.items() if name not in names}
    return Section(tree.place, entries, {name: tree.keys[name] for name in entries})


# ----------------------------------------------------------------------------------------------------


DEFAULT_PATH = "/etc/nri-pin/config.yaml"
EXPORTER_SOCKET = "exporter/exporter.sock"
"""Its name in the state directory, which both processes mount."""

QUOTA_GATE = "DisableCPUQuotaWithExclusiveCPUs"
"""Source: kubelet v1.36, on by default."""

LINES_TO_ADD = """\
cpuManagerPolicy: static
reservedSystemCPUs: "{}"
topologyManagerPolicy: best-effort"""
"""With a whole core for the system: half of one can never be given as a core, and stays half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the operator chose, checked; frozen, so that a bad reload cannot leave half of it behind.

    Attributes:
        options: what decisions depend on.
        reserved_system_cpus: CPUs kept for the system by number; empty when only their count is given.
        reserved_cpu_count: how many CPUs are kept for the system.
        state_dir: where the checkpoint is.
        nri_socket: the runtime's socket, used when the runtime did not start us itself.
        plugin_name: what the runtime logs.
        plugin_index: two digits; the runtime calls plugins in this order.
        sysfs_root: the folder that holds `sys` (and `proc`), `/` or `/host`.
        cgroup_root: the mount point of the cgroup tree.
        device_hints: whether the places of devices count.
        nic_locality: `sysfs`, or `netlink` for a helper process that is asked where network interfaces are.
        exporter_socket: where the exporter is asked for them.
        metrics_bind_address: (host, port) of the page of metrics; None for none.
        health_probe_bind_address: (host, port) of the pages for probes; None for none.
        history_bytes: what the recording of the latest events may take; 0 for none.
        on_checkpoint_failure: `refuse` what would be allocated and cannot be saved, or `serve` it from memory.
        observe: decide and carry out nothing.
        log_format: `text` or `json`.
        log_level: `debug`, `info`, `warning` or `error`.
        source: where the configuration came from.
        written: the configuration as it stands there, for the places of what does not fit a machine.
        passed_over: keys of a KubeletConfiguration that do not concern placement.
    """

    options: Options
    reserved_system_cpus: CPUSet
    reserved_cpu_count: int
    state_dir: str
    nri_socket: str
    plugin_name: str
    plugin_index: str
    sysfs_root: str
    cgroup_root: str
    device_hints: bool
    nic_locality: str
    exporter_socket: str
    metrics_bind_address: tuple[str, int] | None
    health_probe_bind_address: tuple[str, int] | None
    history_bytes: int
    on_checkpoint_failure: str
    observe: bool
    log_format: str
    log_level: str
    source: str
    written: Section
    passed_over: tuple[str, ...]

    @property
    def serves_unsaved(self) -> bool:
        """Whether allocations that cannot be saved are kept in memory; observing, nothing is ever refused."""
        return self.on_checkpoint_failure == "serve" or self.observe

    def node(self, topology: Topology) -> Node:
        """The node decisions are made for.

        Raises:
            ConfigError: the configuration names CPUs or NUMA nodes this machine does not have.
        """
        self._check_memory_nodes(topology)
        self._check_options(topology)
        return Node(topology, self.options, self.reserved(topology))

    def reserved(self, topology: Topology) -> CPUSet:
        """The CPUs kept for the system on this machine.

        Raises:
            ConfigError: they are not all online, or there are not so many.

        Source: kubelet static policy; without a list it takes them as it would for a container, with the
            same options.
        """
        if self.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
            return CPUSet()
        online = topology.online
        if self.reserved_system_cpus:
            self._check_online(topology)
            return self.reserved_system_cpus
        if self.reserved_cpu_count > len(online):
            detail = f"reserves {self.reserved_cpu_count} CPUs, {len(online)} are online; reserve fewer"
            raise self._place("kubeReserved", "systemReserved").error(detail)
        return reserved_cpus(topology, self.options, self.reserved_cpu_count)

    def _place(self, *keys: str) -> Place:
        """Where the value of the first of these keys stands that is there."""
        entries = self.written.entries
        return next((entries[key].place for key in keys if key in entries), Place(self.source))

    def _check_online(self, topology: Topology) -> None:
        missing = self.reserved_system_cpus - topology.online
        if not missing:
            return
        absent = missing - topology.offline
        wrong = "do not exist" if absent else "are offline"
        raise self._place("reservedSystemCPUs").error(
            f"CPUs {absent or missing} {wrong} on this machine, online are {topology.online}; reserve some of these"
        )

    def _check_options(self, topology: Topology) -> None:
        refusal = option_checks.machine_refusal(self.options, topology)
        if refusal is not None:
            key, detail = refusal
            raise self._place(key).error(detail)

    def _check_memory_nodes(self, topology: Topology) -> None:
        known = NodeMask.from_ids(topology.node_ids)
        missing = next((row.node for row in self.options.reserved_memory if row.node not in known), None)
        if missing is not None:
            place = memory_node_place(self.written, missing) or self._place("reservedMemory")
            raise place.error(
                f"NUMA node {missing} does not exist on this machine, it has NUMA nodes {known}"
            )


NO_FLAGS: Mapping[str, str] = {}


def load(path: str = DEFAULT_PATH, flags: Mapping[str, str] = NO_FLAGS) -> Config:
    """The configuration in a file, with what command-line flags say instead.

    Raises:
        ConfigError: no such file (the text says what to write into it), unreadable, or anything in it is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(source.MAX_TEXT_CHARS + 1)
    except FileNotFoundError:
        raise nothing_configured(path) from None
    except OSError as error:
        raise ConfigError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(path, f"not UTF-8 text at byte {error.start}") from None
    return load_text(text, path, flags)


def load_text(text: str, where: str, flags: Mapping[str, str] = NO_FLAGS) -> Config:
    """The configuration in a text; `where` names its origin in errors; `flags` win over it.

    Raises:
        ConfigError: anything in it is wrong; the first line is the first error, others follow line by line.
    """
    tree = source.parse(text, where)
    if not tree.entries:
        raise nothing_configured(where)
    own, passed_over = own_part(tree)
    tree = _with_flags(own, flags)
    chosen, errors = _read(tree)
    if errors:
        raise _joined(errors)
    settings = Settings(**chosen)
    errors = list(violations(settings, lambda key: tree.keys.get(key, Place(where, path=key))))
    if errors:
        raise _joined(errors)
    return _config(settings, tree, passed_over)


def _with_flags(tree: Section, flags: Mapping[str, str]) -> Section:
    values = values_of(flags)
    places = {key: value.place for key, value in values.items()}
    return Section(tree.place, {**tree.entries, **values}, {**tree.keys, **places})


class NothingConfiguredError(ConfigError):
    """There is no configuration at all."""


def nothing_configured(where: str, reserved: str = "") -> NothingConfiguredError:
    """The error for no configuration at all, with the lines that make a good first one.

    Args:
        where: it would be.
        reserved: the CPUs to keep for the system; by default the first core of this machine.
    """
    lines = LINES_TO_ADD.format(reserved or first_core(machine_root()))
    return NothingConfiguredError(
        where,
        f"no configuration: the static policy needs CPUs kept for the system; write these lines to it:\n{lines}",
    )


def _read(tree: Section) -> tuple[dict[str, Any], list[ConfigError]]:
    chosen: dict[str, Any] = {}
    errors: list[ConfigError] = []
    is_list_told = False
    for name, value in tree.entries.items():
        try:
            key = KEYS.get(name)
            if key is None:
                error = _unknown(tree.keys[name], name, is_list_told=is_list_told)
                is_list_told |= KNOWN_ARE in error.detail
                raise error
            chosen[key.attribute] = key.read(value)
        except ConfigError as error:
            errors.append(error)
    return chosen, errors


def _unknown(place: Place, name: str, *, is_list_told: bool) -> ConfigError:
    if name in OTHER_KEYS:
        return place.error(
            f"belongs to the kubelet and does not concern placement; remove it, or add kind: {KIND} "
            "so that such keys are passed over"
        )
    error = unknown(place, name, tuple(KEYS))
    if str(place).startswith(SET) and KNOWN_ARE in error.detail:
        return place.error("unknown key; the README's chapter Configuration lists the keys there are")
    return (
        place.error("unknown key; see the list above")
        if is_list_told and KNOWN_ARE in error.detail
        else error
    )


def _joined(errors: list[ConfigError]) -> ConfigError:
    first, *others = errors
    return ConfigError(first.where, "\n".join([first.detail, *map(str, others)]))


def _config(settings: Settings, tree: Section, passed_over: tuple[str, ...]) -> Config:
    return Config(
        options=_options(settings),
        reserved_system_cpus=settings.reserved_system_cpus,
        reserved_cpu_count=reserved_cpu_count(settings),
        state_dir=settings.state_dir,
        nri_socket=settings.nri_socket,
        plugin_name=settings.plugin_name,
        plugin_index=settings.plugin_index,
        sysfs_root=settings.sysfs_root or next(present(HOST_MOUNT, "/sys/devices/system/cpu"), "/"),
        cgroup_root=settings.cgroup_root
        or f"{next(present(HOST_MOUNT, '/sys/fs/cgroup'), '')}/sys/fs/cgroup",
        device_hints=settings.device_hints,
        nic_locality=settings.nic_locality,
        exporter_socket=settings.exporter_socket or f"{settings.state_dir}/{EXPORTER_SOCKET}",
        metrics_bind_address=settings.metrics_bind_address,
        health_probe_bind_address=settings.health_probe_bind_address,
        history_bytes=settings.history_bytes,
        on_checkpoint_failure=settings.on_checkpoint_failure,
        observe=settings.observe,
        log_format=settings.log_format,
        log_level=settings.log_level,
        source=tree.place.file,
        written=tree,
        passed_over=passed_over,
    )


def _options(settings: Settings) -> Options:
    on = option_checks.cpu_options_on(settings.cpu_manager_policy_options, settings.feature_gates)
    topology = topology_choice(settings, Place(""))
    return Options(
        cpu_manager_policy=settings.cpu_manager_policy,
        full_pcpus_only=option_checks.FULL_PCPUS in on,
        distribute_cpus_across_numa=option_checks.ACROSS_NUMA in on,
        distribute_cpus_across_cores=option_checks.ACROSS_CORES in on,
        align_by_socket=option_checks.BY_SOCKET in on,
        strict_cpu_reservation=option_checks.STRICT in on,
        prefer_align_cpus_by_uncore_cache=option_checks.BY_CACHE in on,
        uncore_cache_rule=settings.uncore_cache_rule,
        uncore_cache_fit=settings.uncore_cache_fit,
        strict_uncore_cache=settings.strict_uncore_cache,
        smt_odd_counts=settings.smt_odd_counts,
        full_pcpus_rule=settings.full_pcpus_rule,
        annotation_namespaces=settings.annotation_namespaces,
        topology_tie_break=settings.topology_tie_break,
        device_proportional_cpus=settings.device_proportional_cpus,
        lift_cpu_quota=settings.feature_gates.get(QUOTA_GATE, True),
        isolation=settings.isolation,
        isolated_cpus=settings.isolated_cpus,
        prefer_closest_numa_nodes=topology.prefer_closest,
        max_allowable_numa_nodes=topology.node_limit,
        topology_manager_policy=settings.topology_manager_policy,
        topology_manager_scope=settings.topology_manager_scope,
        memory_manager_policy=settings.memory_manager_policy,
        reserved_memory=settings.reserved_memory,
        kept_memory_bytes=kept_bytes(settings),
        # A Burstable container with exclusive CPUs would be bounded by a floor without them.
        pool_floor=settings.pool_floor and not settings.annotation_namespaces,
        never_refuse=settings.never_refuse,
    )
