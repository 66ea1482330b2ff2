"""A KubeletConfiguration file taken as it is: what in it concerns placement, and what is passed over.

Only a file that says it is one is read this way. In any other, a key that is not ours is a mistake.

Source: kubelet, staging/src/k8s.io/kubelet/config/v1beta1/types.go.
"""

from nri_plugin.app.config_kubelet import FEATURE_GATES
from nri_plugin.app.config_yaml import Scalar, Section, scalar

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
