"""The configuration of the agent: one YAML file, or the text that the runtime hands over.

Flow: YAML text -> tree with places (`yaml_tree`) -> keys that concern us -> flags over them -> values
(`keys`, `values`) -> checks over several keys (`checks`, `option_checks`) -> `Config`. A machine is checked last, in
`Config.node`.

Invariant: a configuration is taken whole or not at all. Every wrong value is listed with its place.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nri_plugin.config import option_checks
from nri_plugin.config import yaml_tree as source
from nri_plugin.config.checks import (
    HOST_MOUNT,
    Capacity,
    first_core,
    kept_bytes,
    machine_root,
    present,
    reserved_cpu_count,
    section_values,
    violations,
)
from nri_plugin.config.keys import KEYS, Settings, settings_of, values_of
from nri_plugin.config.values import (
    EVICTION_SIGNALS,
    FEATURE_GATES,
    LIKE,
    MISSPELT,
    RESERVABLE,
    closest,
    memory_node_place,
    unknown,
)
from nri_plugin.config.yaml_tree import Place, Scalar, Section, scalar
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import MANAGERS
from nri_plugin.model.options import REGISTRY, CPUManagerPolicy, HintProvider, Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_policy import reserved_cpus

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT_PATH = "/etc/nri-pin/config.yaml"
EXPORTER_SOCKET = "exporter/exporter.sock"
"""Below the state directory, which both processes mount."""

QUOTA_GATE = REGISTRY["lift_cpu_quota"].gate
POD_MANAGERS_GATE = REGISTRY["pod_level_managers"].gate

LINES_TO_ADD = """\
cpuManagerPolicy: static
reservedSystemCPUs: "{}"
topologyManagerPolicy: best-effort"""
"""They reserve a whole core: with half a core reserved, the other half could never be given as a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Settings):
    """The configuration, checked; frozen, so that a bad reload cannot leave half of it behind.

    Paths are resolved, and `options` holds the policy options of all sections.

    Attributes:
        reserved_cpu_count: how many CPUs are kept for the system.
        source: where the configuration came from.
        written: the configuration as it stands there, for the places of values that do not fit a machine.
        passed_over: keys of a KubeletConfiguration that do not concern placement.
        unknown_keys: further keys of it, which a later kubelet may have.
    """

    reserved_cpu_count: int
    source: str
    written: Section
    passed_over: tuple[str, ...] = ()
    unknown_keys: tuple[str, ...] = ()

    @property
    def serves_unsaved(self) -> bool:
        """Whether allocations that cannot be saved are kept in memory; observing, nothing is ever refused."""
        return self.on_checkpoint_failure == "serve" or self.observe

    def node(self, topology: Topology) -> Node:
        """The node that decisions are made for.

        Raises:
            ConfigError: the configuration names CPUs or NUMA nodes this machine does not have.
        """
        self._check_memory_nodes(topology)
        self._check_options(topology)
        return Node(topology, self.options, self.reserved(topology))

    def reserved(self, topology: Topology) -> CPUSet:
        """The CPUs kept for the system on this machine, some of which may be offline or out of the pods' reach.

        Raises:
            ConfigError: one does not exist, all are offline, or there are not so many.

        Source: kubelet static policy; without a list it takes them as it would for a container, with the
            same options.
        Differs: the kubelet does not start while a reserved CPU is offline; here: it is a warning while one of them is online.
            Why: containers that start while no agent runs are not pinned. Option: none.
        """
        if self.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
            return CPUSet()
        if self.reserved_system_cpus:
            self._check_reserved(topology)
            return self.reserved_system_cpus
        count, present = self.reserved_cpu_count, topology.online | topology.offline
        if count > len(present):
            detail = f"reserves {count} CPUs, {len(topology.kernel_online)} are online; reserve fewer"
            raise self._place("kubeReserved", "systemReserved").error(detail)
        return reserved_cpus(topology, self.options, min(count, len(topology.online)))

    def _place(self, *keys: str) -> Place:
        """The place of the first of these keys that the configuration has."""
        entries = self.written.entries
        return next((entries[key].place for key in keys if key in entries), Place(self.source))

    def _check_reserved(self, topology: Topology) -> None:
        online, reserved = topology.kernel_online, self.reserved_system_cpus
        absent = reserved - online - topology.offline
        if absent or reserved.isdisjoint(online):
            wrong = "do not exist" if absent else "are offline"
            raise self._place("reservedSystemCPUs").error(
                f"CPUs {absent or reserved} {wrong} on this machine, online are {online}; reserve some of these"
            )

    def _check_options(self, topology: Topology) -> None:
        for key, detail in option_checks.machine_refusals(self.options, topology):
            raise self._place(key).error(detail)

    def _check_memory_nodes(self, topology: Topology) -> None:
        for missing, detail in option_checks.absent_memory_nodes(self.options, topology):
            place = memory_node_place(self.written, missing) or self._place("reservedMemory")
            raise place.error(detail)


NO_FLAGS: Mapping[str, str] = {}


def load(
    path: str = DEFAULT_PATH, flags: Mapping[str, str] = NO_FLAGS, machine: Capacity | None = None
) -> Config:
    """The configuration in a file, with the values of command-line flags over it.

    Args:
        path: the file.
        flags: values by flag.
        machine: the machine that it is for; None for the one below its `sysfsRoot`, else this computer.

    Raises:
        ConfigError: no such file (the text says what to write into it), unreadable, or any value in it is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(source.MAX_TEXT_CHARS + 1)
    except FileNotFoundError:
        raise nothing_configured(path, machine) from None
    except OSError as error:
        raise ConfigError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(path, f"not UTF-8 text at byte {error.start}") from None
    return load_text(text, path, flags, machine)


def load_text(
    text: str, where: str, flags: Mapping[str, str] = NO_FLAGS, machine: Capacity | None = None
) -> Config:
    """The configuration in a text; `where` names its origin in errors; `flags` win over it; see `load`.

    Raises:
        ConfigError: any value in it is wrong; the first line is the first error, others follow line by line.
    """
    tree = source.parse(text, where)
    if not tree.entries:
        raise nothing_configured(where, machine)
    own, passed_over, unknown_keys = own_part(tree)
    tree = _with_flags(own, flags)
    chosen, errors = _read(tree)
    if errors:
        raise _joined(errors)
    settings = settings_of(chosen)
    machine = machine or Capacity.below(settings.sysfs_root or machine_root())
    errors = list(violations(settings, lambda key: tree.keys.get(key, Place(where, path=key)), machine))
    if errors:
        raise _joined(errors)
    return replace(_config(settings, tree, machine), passed_over=passed_over, unknown_keys=unknown_keys)


def _with_flags(tree: Section, flags: Mapping[str, str]) -> Section:
    values = values_of(flags)
    places = {key: value.place for key, value in values.items()}
    return Section(tree.place, {**tree.entries, **values}, {**tree.keys, **places})


class NothingConfiguredError(ConfigError):
    """There is no configuration."""


def first_lines(reserved: str = "") -> str:
    """The lines of a good first configuration.

    Args:
        reserved: the CPUs to keep for the system; by default the first core of this machine.
    """
    return LINES_TO_ADD.format(reserved or first_core(machine_root()))


def nothing_configured(where: str, machine: Capacity | None = None) -> NothingConfiguredError:
    """The error for no configuration at that place, with the lines of a good first one."""
    return NothingConfiguredError(
        where,
        "no configuration: the static policy needs CPUs kept for the system; write these lines to it:",
        first_lines(machine.first_core if machine else "").splitlines(),
    )


def _read(tree: Section) -> tuple[dict[str, Any], list[ConfigError]]:
    """The values by key, and the errors of all that cannot be read."""
    chosen: dict[str, Any] = {}
    errors: list[ConfigError] = []
    is_list_shown = False
    for name, value in tree.entries.items():
        if name in KEYS:
            try:
                chosen[name] = KEYS[name].read(value)
            except ConfigError as error:
                errors.append(error)
        elif name in OTHER_KEYS or closest(name, KEYS):
            errors.append(_misplaced(tree.keys[name], name))
        else:
            errors.append(_unknown(tree.keys[name], name, is_list_shown=is_list_shown))
            is_list_shown = True
    return chosen, errors


def _misplaced(place: Place, name: str) -> ConfigError:
    """A key of the kubelet that is not ours, or a misspelt one."""
    if name in OTHER_KEYS:
        return place.error(
            f"belongs to the kubelet and does not concern placement; remove it, or add kind: {KIND} "
            "so that such keys are passed over"
        )
    return unknown(place, name, tuple(KEYS))


def _unknown(place: Place, name: str, *, is_list_shown: bool) -> ConfigError:
    """A key that resembles none. The list of all keys is long, so it is shown once, and not for a flag."""
    if not place.line:
        return place.error("unknown key; deploy/guide/configure.md lists the keys there are")
    return (
        place.error("unknown key; see the list above") if is_list_shown else unknown(place, name, tuple(KEYS))
    )


def _joined(errors: list[ConfigError]) -> ConfigError:
    first, *others = errors
    further = [line for error in others for line in (error.sentence, *error.more)]
    return ConfigError(first.where, first.detail, (*first.more, *further))


def _config(settings: Settings, tree: Section, machine: Capacity) -> Config:
    found = {one.name: getattr(settings, one.name) for one in fields(settings)}
    found["options"] = _options(settings, machine)
    found["sysfs_root"] = settings.sysfs_root or next(present(HOST_MOUNT, "/sys/devices/system/cpu"), "/")
    found["cgroup_root"] = (
        settings.cgroup_root or f"{next(present(HOST_MOUNT, '/sys/fs/cgroup'), '')}/sys/fs/cgroup"
    )
    found["exporter_socket"] = settings.exporter_socket or f"{settings.state_dir}/{EXPORTER_SOCKET}"
    return Config(
        **found,
        reserved_cpu_count=reserved_cpu_count(settings),
        source=tree.place.file,
        written=tree,
    )


def _options(settings: Settings, machine: Capacity) -> Options:
    """The options with those of all sections, and those that follow from other keys."""
    options = settings.options
    for manager in MANAGERS:
        options = replace(options, **section_values(settings, manager))
    return replace(
        options,
        lift_cpu_quota=settings.feature_gates.get(QUOTA_GATE, True),
        pod_level_managers=settings.feature_gates.get(POD_MANAGERS_GATE, False),
        kept_memory_bytes=kept_bytes(settings, machine),
        # A Burstable container with exclusive CPUs would be bounded by a floor without them.
        pool_floor=options.pool_floor and not options.annotation_namespaces,
    )


# ---- a KubeletConfiguration file taken as it is
#
# Only a file that says it is one is read this way. In any other, a key that is not ours is a mistake. Keys that no list
# has are passed over too, so that a node starts with the file of a later kubelet; all but those that look like one of
# ours, which are misspelt.
# Source: k8s.io/kubelet v0.37.2, config/v1beta1/types.go.

KIND = "KubeletConfiguration"
API_VERSION = "kubelet.config.k8s.io/v1beta1"
HEADER = ("kind", "apiVersion")

_OTHER_KEYS = """
address allowedUnsafeSysctls authentication authorization cgroupDriver cgroupsPerQOS clusterDNS clusterDomain
configMapAndSecretChangeDetectionStrategy containerLogMaxFiles containerLogMaxSize containerLogMaxWorkers
containerLogMonitorInterval containerRuntimeEndpoint contentType cpuCFSQuota cpuCFSQuotaPeriod
cpuManagerReconcilePeriod crashLoopBackOff defaultPodSysctls enableContentionProfiling enableControllerAttachDetach
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
"""Keys of the kubelet that never change a placement."""

CGROUP_ROOT = "cgroupRoot"
"""For the kubelet the cgroup above all pods; in a file of our own the mount point of the cgroup tree."""


NAMES = (
    ("evictionHard", EVICTION_SIGNALS, ("memory.available",)),
    ("kubeReserved", RESERVABLE, ("cpu", "memory")),
    ("systemReserved", RESERVABLE, ("cpu", "memory")),
)
"""Sections, the names that they may have today, and those of them that concern us."""


def own_part(tree: Section) -> tuple[Section, tuple[str, ...], tuple[str, ...]]:
    """The part of a configuration that concerns us, and the keys of a KubeletConfiguration that are passed over.

    Returns:
        The part, the keys that are known not to concern placement, and those that this version does not know.

    Raises:
        ConfigError: the header names another kind.
    """
    if not set(HEADER) & set(tree.entries):
        return tree, (), ()
    _check_header(tree)
    passed_over = [name for name in tree.entries if name in OTHER_KEYS | {CGROUP_ROOT}]
    unknown_keys = _others(tree, {*HEADER, *KEYS, *OTHER_KEYS}, KEYS, MISSPELT)
    rest = _without(tree, {*HEADER, *passed_over, *unknown_keys})
    for key, known, ours in (("featureGates", FEATURE_GATES, ()), *NAMES):
        section = rest.entries.get(key)
        if isinstance(section, Section):
            others = _others(section, known, ours)
            (unknown_keys if ours else passed_over).extend(f"{key}.{name}" for name in others)
            rest = Section(rest.place, {**rest.entries, key: _without(section, set(others))}, rest.keys)
    return rest, tuple(passed_over), tuple(unknown_keys)


def _others(section: Section, known: Collection[str], ours: Iterable[str], cutoff: float = LIKE) -> list[str]:
    """The names of a section that are not known, and not like one of ours."""
    return [name for name in section.entries if name not in known and not closest(name, ours, cutoff)]


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


# ---- hint providers of other installed packages
#
# They are found by entry point and loaded before the agent registers with the runtime. One that cannot be loaded stops
# the start: containers placed without it would be placed wrongly, without any sign of it.

GROUP = "nri_pin.hint_providers"


def load_hint_providers() -> tuple[HintProvider, ...]:
    """The providers of all installed packages, ordered by name.

    Raises:
        ConfigError: one cannot be imported or called; names its entry point.
    """
    if not any(map(_may_have_providers, sys.path)):
        return ()
    # It brings parsers of mail and archives, two megabytes that few nodes need.
    from importlib.metadata import entry_points

    return tuple(_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _may_have_providers(place: str) -> bool:
    """Whether a package in this place of the search path may have entry points of the group; an archive may."""
    folder = Path(place or ".")
    files = (*folder.glob("*-info/entry_points.txt"), *folder.glob("*.egg/EGG-INFO/entry_points.txt"))
    try:
        return folder.is_file() or any(GROUP in file.read_text("utf-8", "replace") for file in files)
    except OSError:
        return True  # `importlib.metadata` passes over what it cannot read


def _load(point: "EntryPoint") -> HintProvider:
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
