"""Puts the parts of the agent together, in the order of their making; applies a reload with the same functions.

`build_handler` reads the machine, loads the state, warns, and makes the handler: everything that can be wrong with the
configuration, the machine, the cgroup tree and the checkpoint is found there, before the agent registers with the
runtime. `Assembly` adds history, watches, metrics, HTTP pages and status socket. All parts share one loop and one state,
which only the handler changes. `nri_plugin.agent.agent` has the ways to start.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from nri_plugin.agent.cpusets import PartitionWriter, lift_floor, no_partitions
from nri_plugin.agent.observing.pod_news import PodNewsWatch, reject_pod
from nri_plugin.agent.observing.status_socket import FILE_NAME as STATUS_SOCKET
from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.agent.repair.affinity import InheritedAffinities
from nri_plugin.agent.repair.drift_watch import DriftReport, DriftWatch, Reporter
from nri_plugin.agent.repair.interrupts import QuietCPUs
from nri_plugin.agent.repair.interrupts_thread import QuietCPUsThread
from nri_plugin.agent.repair.kernel_settings import (
    UNWATCHED,
    Counted,
    KernelSettingsReconciler,
    QuotaReconciler,
)
from nri_plugin.agent.repair.other_owners import FailedCreations, OtherOwners, kubelet_policy, warn_of_kubelet
from nri_plugin.agent.repair.unreported import UnreportedContainers
from nri_plugin.agent.repair.watches import (
    EndedPodsWatch,
    HostMachine,
    LateWriter,
    LostRemovals,
    MachineWatch,
    warn_of_overcommitted,
)
from nri_plugin.agent.serving.checkpoint_saver import LOOK_PAUSE_S, CheckpointSaver, open_store
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.link import RuntimeLink, probe_pages
from nri_plugin.agent.serving.observe_only import ObservedWatch, ObservingHandler
from nri_plugin.agent.serving.outcome import Observer
from nri_plugin.agent.serving.pod_facts import PodFactsLookup, PodResourcesClient
from nri_plugin.agent.serving.recorder import Recorder, build_recorder
from nri_plugin.checkpoint.directory import removed_mount, unsafe, unwritable
from nri_plugin.checkpoint.file import (
    FILE_NAME,
    OBSERVED_FILE_NAME,
    CheckpointFile,
    Origin,
)
from nri_plugin.checkpoint.quiet_file import QuietFile
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.config.checks import HOST_MOUNT
from nri_plugin.config.loading import Config, NothingConfiguredError, load_hint_providers
from nri_plugin.core.drift import Target
from nri_plugin.core.engine import decide
from nri_plugin.core.outdated import outdated
from nri_plugin.host.cgroup import read_reach
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.host.cpu_claims import CPUClaims
from nri_plugin.host.cpu_quota import QUOTA_FILES, CPUQuotas
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.interrupts import KernelSettingFiles, boot_id
from nri_plugin.host.irqbalance import running
from nri_plugin.host.mounts import CpusetTree, find_cpuset_tree
from nri_plugin.host.nic_helper import NICHelper
from nri_plugin.host.sysfs import discover
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import CPUManagerPolicy, Effect, Isolation, Node
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import say, say_trace
from nri_plugin.process.loop import Loop, StartThread

if TYPE_CHECKING:
    from nri_plugin.agent.observing.metrics import Metrics

Made = TypeVar("Made")

MOST_TOLD = 10
"""The most log lines about placements of an earlier policy; a node may have hundreds of them."""


REBUILT_FROM = {
    Origin.BEGINNING: "the records before the damage",
    Origin.PREVIOUS: "the generation before it",
    Origin.NONE: "what the runtime reports",
}


def warn(node: Node, state: State, log: logging.Logger) -> None:
    """Warn of settings that are rarely intended, and of allocations that they would not have made."""
    warn_of_surprises(node, log)
    warn_of_outdated(node, state, log)


def warn_of_surprises(node: Node, log: logging.Logger) -> None:
    """Warn of settings that are allowed but rarely intended, and of CPUs that cannot be used."""
    warn_of_unreachable(node, log)
    offline = node.reserved - node.topology.kernel_online
    if offline:
        text = "reserved CPUs are offline"
        say(log, logging.WARNING, text, offline=offline, left=node.reserved - offline or None)
    threads = {len(cpus) for _, cpus in node.topology.cores}
    if node.options.full_pcpus_only and len(threads) > 1:
        say(
            log,
            logging.WARNING,
            "full-pcpus-only does not keep cores whole on this machine, as in the kubelet",
            threads_per_core=f"{min(threads)} to {max(threads)}",
        )
    if node.options.cpu_manager_policy is CPUManagerPolicy.STATIC and not node.allocatable:
        say(
            log,
            logging.WARNING,
            "no CPU is left for exclusive use: every Guaranteed container with whole CPUs will be refused",
            reserved=node.reserved,
        )


def warn_of_unreachable(node: Node, log: logging.Logger) -> None:
    """Warn of online CPUs that the kernel does not give to pods; nothing is allocated there."""
    topology, reserved = node.topology, node.reserved & node.topology.unreachable
    if not topology.unreachable:
        return
    say(
        log,
        logging.WARNING,
        "the cgroup above the pods does not have all online CPUs: a container, a partition of another program or AllowedCPUs= "
        "keeps the others",
        reaches=topology.online,
        unreachable=topology.unreachable,
        reserved_among_them=reserved or None,
        shared_pool="keeps at least one of the CPUs reached"
        if reserved and reserved == node.reserved
        else None,
    )


def warn_of_outdated(node: Node, state: State, log: logging.Logger) -> None:
    """Warn of allocations that this configuration would not have made. They are kept."""
    found = outdated(node, state)
    for one in found[:MOST_TOLD]:
        say(log, logging.WARNING, "a placement no longer satisfies the policy and is kept", which=str(one))
    warn_of_overcommitted(node, state, log)
    if len(found) > MOST_TOLD:
        rest = len(found) - MOST_TOLD
        say(
            log,
            logging.WARNING,
            "more placements no longer satisfy the policy: nri-pin state verify --config lists them",
            more=rest,
        )


def build_handler(
    config: Config,
    log: logging.Logger,
    clock: Callable[[], float],
    metrics: "Metrics | None" = None,
    history: Recorder | None = None,
    start: StartThread = Thread.start,
) -> Handler:
    """Return a handler for this configuration on this machine.

    Args:
        config: the configuration.
        log: the agent's log.
        clock: seconds, monotonic.
        metrics: count outcomes, saves and questions to the exporter; None where no address asks for them.
        history: records events; None for no recording.
        start: starts a thread.

    Raises:
        ConfigError: the configuration does not fit this machine.
        HostError: the machine cannot be read.
    """
    warn_of_slow_protobuf(log)
    if config.passed_over:
        say(
            log,
            logging.INFO,
            "keys of the KubeletConfiguration that do not concern placement are ignored",
            keys=",".join(config.passed_over),
        )
    if config.unknown_keys:
        say(
            log,
            logging.WARNING,
            "keys of the KubeletConfiguration that this version does not know are ignored",
            keys=",".join(config.unknown_keys),
        )
    tree, node = read_node(config, log)
    # The state that the last agent saved.
    file = CheckpointFile(config.state_dir, node, name=OBSERVED_FILE_NAME if config.observe else FILE_NAME)
    state = load_state(file, log)

    def describe(node: Node) -> None:
        """Store the facts of `node` beside every state that is saved from now on; readers of the checkpoint need them."""
        file.facts = NodeFacts.of(node)

    describe(node)
    say(
        log,
        logging.INFO,
        "ready",
        cpus=node.topology.online,
        unreachable=node.topology.unreachable or None,
        reserved=node.reserved,
        isolated=node.isolated or None,
        numa_nodes=len(node.topology.nodes),
        cpu_policy=node.options.cpu_manager_policy,
        topology_policy=node.options.topology_manager_policy,
        memory_policy=node.options.memory_manager_policy,
        effect=node.options.effect,
        allocations=len(state.allocations),
        state_dir=config.state_dir,
        observed="yes" if config.observe else None,
    )
    warn(node, state, log)
    if config.observe:
        say(
            log, logging.WARNING, "observing: nothing is pinned, refused or written", allocations_in=file.path
        )
    else:
        lift_floor(tree, node, state, log)
    # The checkpoint: a trial write finds out now whether it can be saved.
    store = open_store(file, file.held, start)
    saver = CheckpointSaver(
        store,
        file.held,  # not a former generation: the file itself has to be written then
        log,
        serves=config.serves_unsaved,
        directory=config.state_dir,
        took=metrics.saved if metrics else None,
    )
    if file.found is not None and file.found != file.facts:
        saver.outdate()  # its readers would take it for that of another machine
    warn_of_state_directory(config.state_dir, saver, log)
    kind = ObservingHandler if config.observe else Handler
    handler = kind(
        node,
        state,
        decide=decide,
        cpusets=kind.writer.on(tree),
        checkpoint=saver,
        log=log,
        clock=clock,
        describe=describe,
        inform=build_lookup(config, log, clock, metrics.asked if metrics else None),
        history=history,
    )
    if metrics is not None:
        handler.observers = (metrics,)
    return handler


def warn_of_state_directory(path: str, saver: CheckpointSaver, log: logging.Logger) -> None:
    """Warn if other users may change the directory or if the checkpoint cannot be saved there."""
    danger = unsafe(path)
    if danger:
        say(log, logging.WARNING, "the state directory is not safe", path=path, err=danger)
    trouble = removed_mount(path) or unwritable(path)
    if trouble:
        saver.doubt(f"{path}: {trouble}")


def build_lookup(
    config: Config,
    log: logging.Logger,
    clock: Callable[[], float],
    count: Callable[[str], None] | None = None,
) -> PodFactsLookup:
    """Return the lookup of pod facts and devices; it finds no devices where `deviceHints` is off.

    Raises:
        HostError: `nicLocality: netlink` and its helper process does not work.
    """
    client = PodResourcesClient(config.exporter_socket, clock)
    locator = _locator(config, log, clock) if config.device_hints else None
    claims = CPUClaims(KernelFiles(config.sysfs_root))
    return PodFactsLookup(locator, client, log, clock, count, claims)


def _locator(config: Config, log: logging.Logger, clock: Callable[[], float]) -> DeviceLocator:
    files = KernelFiles(config.sysfs_root)
    # In a pod, the host's proc is not mounted beside its sys. Drivers show the same files in the proc of the pod.
    own = KernelFiles("/") if config.sysfs_root == HOST_MOUNT else files
    if config.nic_locality != "netlink":
        return DeviceLocator(files, own, warn=log.warning)
    helper = NICHelper(clock)
    helper.start()  # before the agent registers: its library loads slowly
    return DeviceLocator(files, own, helper, log.warning)


def read_node(config: Config, log: logging.Logger) -> tuple[CpusetTree | None, Node]:
    """Return the cgroup tree, with a warning in the log where there is none, and the node; raises as `build_node`."""
    without = (
        "no cgroup tree: running containers are changed through the runtime, which is slower; mount the host's tree "
        "and set cgroupRoot"
    )
    tree = made_or_none(partial(find_cpuset_tree, config.cgroup_root), without, log)
    return tree, build_node(config, tree)


def made_or_none(make: Callable[[], Made], without: str, log: logging.Logger) -> Made | None:
    """Return what `make` makes; None, and the warning `without` in the log, where the host does not let it."""
    try:
        return make()
    except HostError as error:
        say(log, logging.WARNING, without, err=error)
        return None


def build_node(config: Config, tree: CpusetTree | None) -> Node:
    """Return the node that decisions are made for; `MachineWatch` follows it from there.

    Raises:
        ConfigError: the configuration names CPUs or NUMA nodes that this machine does not have, or a hint provider of
            another package cannot be loaded.
        HostError: the machine cannot be read.
    """
    reach = read_reach(tree).cpus if tree is not None else NO_CPUS
    node = replace(
        config.node(discover(config.sysfs_root).within(reach)), hint_providers=load_hint_providers()
    )
    if tree is None:
        return replace(node, options=replace(node.options, effect=Effect.UPDATE))
    # On v1 a slice cannot be narrower than the pod cgroups below it, and the kubelet gives those all CPUs.
    return replace(node, options=replace(node.options, pool_floor=False)) if tree.version == 1 else node


def load_state(file: CheckpointFile, log: logging.Logger) -> State:
    """Return the saved state. A damaged checkpoint is kept aside; Synchronize restores the state from the runtime's list."""
    loaded = file.load()
    if loaded.is_cut:
        text = (
            "the last record of the checkpoint was not finished and is left out, its event was not answered"
        )
        say(log, logging.INFO, text)
    if loaded.reason:
        source = REBUILT_FROM[loaded.origin]
        say(
            log,
            logging.ERROR,
            "the checkpoint cannot be used",
            kept_aside=loaded.kept_aside,
            rebuilt_from=source,
            err=loaded.reason,
        )
    return loaded.state or State()


def warn_of_slow_protobuf(log: logging.Logger) -> None:
    """Warn when messages are decoded in pure Python, which takes a hundred times longer."""
    from google.protobuf.internal import api_implementation

    kind = api_implementation.Type()
    if kind != "upb":
        say(
            log,
            logging.WARNING,
            "slow protobuf implementation, expected upb; install protobuf with its C extension",
            found=kind,
        )


MOST_YOUNG = 5_000
"""Objects made since the last garbage collection, less those that are gone. A look at so many takes 0.1 ms."""

COLLECT_PAUSE_S = 60.0
"""Seconds between two garbage collections where fewer objects are made."""

COLLECT_ALL_PAUSE_S = 3600.0
"""Seconds between two collections of everything. What they find was alive at an earlier collection and a cycle later, such
as a connection that ended: kilobytes in an hour. On a full node one takes as long as tens of requests."""


class Assembly:
    """The parts of one agent, built from its configuration.

    Args:
        config: the configuration.
        log: the agent's log.
        loop: runs all work.
        link: to the runtime; `make_handler` gives it the handler.
        record: the file of `--record`; empty for none.
    """

    def __init__(
        self, config: Config, log: logging.Logger, loop: Loop, link: RuntimeLink, record: str = ""
    ) -> None:
        self._config, self._log, self._loop, self._link, self._record = config, log, loop, link, record
        self._metrics: Metrics | None = None
        if config.metrics_bind_address is not None:
            # The metrics library is large, so it is loaded only where metrics are served.
            from nri_plugin.agent.observing import metrics

            self._metrics = metrics.Metrics(pod_level=config.options.pod_level_managers)

    def serve_http(self) -> None:
        """Serve metrics, and probes on another port, where the configuration has addresses.

        Separate ports keep clients of metrics from delaying probes. A port that another program has is tried again
        later: containers are placed without it.

        Raises:
            ConfigError: an address is wrong.
        """
        config, metrics = self._config, self._metrics
        if metrics is None and config.health_probe_bind_address is None:
            return
        from nri_plugin.process.http_server import ListenAddress, Routes, Server

        probes = probe_pages(self._loop, self._link)
        if config.health_probe_bind_address is not None:
            place = ListenAddress("healthProbeBindAddress", config.health_probe_bind_address, "probes")
            Server(place, Routes(probes), self._log, keeps_trying=True, start=self._loop.start_thread)
        if metrics is not None and config.metrics_bind_address is not None:
            place = ListenAddress("metricsBindAddress", config.metrics_bind_address, "metrics")
            pages = Routes({"/metrics": metrics.page(), **probes})
            Server(place, pages, self._log, keeps_trying=True, start=self._loop.start_thread)

    def wait(self, reason: str) -> None:
        """Show in the readiness probe why the agent waits for its lease; empty when it does not."""
        self._link.waits_for = reason and f"waiting: {reason}"

    def make_handler(self) -> None:
        """Make the handler, start its watches, and give it to the link.

        Raises:
            NriPinError: the agent cannot run with this configuration.
        """
        config, log, loop, link, metrics = self._config, self._log, self._loop, self._link, self._metrics
        history = build_recorder(config, self._record, loop, log)
        handler = build_handler(config, log, loop.clock, metrics, history, loop.start_thread)
        feed = StatusFeed(log)
        loop.repeat("checkpoint", LOOK_PAUSE_S, lambda: handler.checkpoint.look(handler.state))
        if metrics is not None:
            metrics.follow_state(handler, link, lambda: len(feed.incomplete.records), lambda: loop.failures)
            if config.cpu_noise_period_seconds:
                metrics.follow_noise(
                    handler, config.sysfs_root, config.cgroup_root, config.cpu_noise_period_seconds
                )
        ended = EndedPodsWatch(handler.release_ended, loop, LostRemovals(handler))
        ended.start()
        client = PodResourcesClient(config.exporter_socket, loop.clock)
        news = PodNewsWatch(handler, client.ask_about, loop, log)
        news.start()
        watches = self._observe_only if config.observe else self._watch_and_repair
        handler.observers += (feed, ended, news, *watches(handler, feed))
        StatusSocket(
            Path(config.state_dir, STATUS_SOCKET),
            lambda: (handler.node, handler.state),
            feed,
            lambda: link.runtime,
            reject=lambda row: loop.post(partial(reject_pod, handler, row)),
            log=log,
            observing=config.observe,
            start=loop.start_thread,
        )
        link.handler = handler

    def _observe_only(self, handler: Handler, feed: StatusFeed) -> tuple[Observer, ...]:
        """Start the watches of an agent that changes nothing (`observe: true`): of the machine, and of CPUs as decided."""
        config, log, loop = self._config, self._log, self._loop
        MachineWatch(handler, HostMachine(config, handler), log, loop.clock, feed.machine_changed).start(loop)
        watch = ObservedWatch(handler, loop, log)
        watch.start()
        if self._metrics is not None:
            self._metrics.follow_observed(watch)
        return ()

    def _watch_and_repair(self, handler: Handler, feed: StatusFeed) -> tuple[Observer, ...]:
        """Start the watches that repair; return the observers among them."""
        config, log, loop, link, metrics = self._config, self._log, self._loop, self._link, self._metrics

        def hears_other_annotations() -> bool:
            # Annotations of CRI-O do not count where it is the runtime: its own hooks act on them.
            return link.runtime is None or "cri-o" not in link.runtime.runtime_name.lower()

        def drifted(report: DriftReport) -> None:
            if metrics is not None:
                metrics.drifted(report)
            feed.drifted(report)

        count = metrics.count_quota if metrics else lambda _noticed_by: None
        settings = reconcile_kernel_settings(config, log, handler, loop, count)
        # The settings of quiet CPUs are written by a thread of its own.
        files, originals = KernelSettingFiles(config.sysfs_root), QuietFile(config.state_dir, boot_id())
        quiet = QuietCPUsThread(
            handler,
            loop,
            lambda clock: QuietCPUs(files, originals, log, clock, partial(running, config.sysfs_root)),
            originals,
            files,
            log,
            hears_other_annotations,
        )
        quiet.start()
        feed.quiet = lambda: quiet.report
        drift = watch_drift(config, log, handler, loop, feed, drifted, settings, quiet)
        unreported = UnreportedContainers(
            handler, loop, log, drift, lambda: link.is_synchronized, feed.machine_changed
        )
        feed.unreported = lambda: unreported.names
        affinities = InheritedAffinities(
            handler, loop, log, metrics.count_affinity if metrics else lambda _result: None
        )
        failures = FailedCreations()
        feed.failed_creations = lambda: failures.in_a_row
        owners = OtherOwners(log, loop.clock, metrics.count_other_owner if metrics else None, failures)
        warn_of_kubelet(log, kubelet_policy())
        if metrics is not None:
            metrics.follow(drift, unreported, settings)
            metrics.follow_quiet(quiet)
        late = LateWriter(handler, loop)
        late.start()
        others = (late, drift, owners, quiet, unreported, affinities)
        return (*others, settings) if settings else others


def watch_drift(
    config: Config,
    log: logging.Logger,
    handler: Handler,
    loop: Loop,
    feed: StatusFeed,
    report: Reporter,
    reconciler: KernelSettingsReconciler | None = None,
    quiet: QuietCPUsThread | None = None,
) -> DriftWatch:
    """Start the watches of the machine and of all cgroups that the agent writes; each change wakes `reconciler`.

    A change of the machine also wakes `quiet`.
    """

    # Both may have ended a partition: the kernel invalidates one that loses a CPU or whose sibling gets one.
    def machine_changed() -> None:
        feed.machine_changed()
        if reconciler is not None:
            reconciler.reconcile_soon()
        if quiet is not None:
            quiet.follow_soon()

    def drifted(found: DriftReport) -> None:
        report(found)
        if reconciler is not None:
            reconciler.reconcile_soon()

    def returning() -> CPUSet:
        return reconciler.returning if reconciler is not None else NO_CPUS

    machine = MachineWatch(handler, HostMachine(config, handler, returning), log, loop.clock, machine_changed)
    try:
        top = find_cpuset_tree(config.cgroup_root).directory
    except HostError:
        cgroups = None  # logged already: there is no tree to watch
    else:
        unwatched = "cgroups cannot be watched; the periodic sweep finds drift"
        make: Callable[[], CgroupWatch[Target]] = partial(CgroupWatch, top)
        cgroups = made_or_none(make, unwatched, log)
    watch = DriftWatch(handler, loop, log, watch=cgroups, machine_moved=machine.moved, report=drifted)
    machine.start(loop)
    watch.start()
    return watch


def reconcile_kernel_settings(
    config: Config, log: logging.Logger, handler: Handler, loop: Loop, counted: Counted
) -> KernelSettingsReconciler | None:
    """Start the reconciler of quotas, sandboxes and partitions; None where there is no cgroup tree.

    `counted` is called for each quota that was written back.
    """
    try:
        tree = find_cpuset_tree(config.cgroup_root)
    except HostError:
        return None  # logged already
    why_none = no_partitions(tree)
    asked = handler.node.options.isolation
    if why_none and asked is not Isolation.NONE:
        say(log, logging.WARNING, "no partitions here, isolation does nothing", isolation=asked, err=why_none)
    files, quotas = CPUQuotas.beside(tree), None
    if files is not None:
        make: Callable[[], CgroupWatch[CgroupRef]] = partial(
            CgroupWatch, files.directory, QUOTA_FILES, with_above=False
        )
        quotas = QuotaReconciler(files, made_or_none(make, UNWATCHED, log), loop, log, counted)
    reconciler = KernelSettingsReconciler(handler, loop, log, PartitionWriter.on(tree), quotas)
    reconciler.start()
    return reconciler


def collect_garbage_between_requests(loop: Loop) -> None:
    """Move garbage collection out of requests: it runs at the end of a turn of the loop, when the answers are out.

    Values of this program hold no cycles; only failures leave some behind. A search for cycles among the containers of a
    full node takes longer than most decisions. So what survives a collection is left out of later ones, but for a rare
    one of everything. The number of objects that wait for the next collection is bounded, also where requests never pause.
    """
    gc.collect()
    gc.freeze()
    gc.disable()

    def collect_young() -> None:
        gc.collect(0)
        gc.freeze()

    def collect_many() -> None:
        if gc.get_count()[0] > MOST_YOUNG:
            collect_young()

    def collect_all() -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    loop.after_each_turn(collect_many)
    loop.repeat("collect", COLLECT_PAUSE_S, collect_young)
    loop.repeat("collect all", COLLECT_ALL_PAUSE_S, collect_all)


def reload(read: Callable[[], Config], link: RuntimeLink, log: logging.Logger) -> None:
    """Apply the configuration again at SIGHUP: as a whole, or not at all with the reason in the log.

    It applies to containers that are created from now on.
    """
    handler = link.handler
    if handler is None:
        return  # not serving yet; the configuration is read when it does
    # Everything that may fail comes first, so that a failure changes nothing.
    try:
        config = read()
        tree, node = read_node(config, log)
    except NothingConfiguredError as error:
        text = "there is no configuration to read again, the former one stays in force"
        say(log, logging.ERROR, text, file=error.where)
        return
    except NriPinError as error:
        say(log, logging.ERROR, "configuration not reloaded, the former one stays in force", err=error)
        return
    except Exception:  # noqa: BLE001 - an error in a reload must not end the agent
        say_trace(log, "internal error, configuration not reloaded, the former one stays in force")
        return
    handler.change_node(node, handler.writer.on(tree))
    handler.machine_moved()
    is_observing = isinstance(handler, ObservingHandler)
    if not is_observing:
        lift_floor(tree, node, handler.state, log)
    handler.checkpoint.serves = config.serves_unsaved
    log.setLevel(config.log_level.upper())
    say(
        log,
        logging.INFO,
        "configuration reloaded",
        cpu_policy=node.options.cpu_manager_policy,
        topology_policy=node.options.topology_manager_policy,
        memory_policy=node.options.memory_manager_policy,
        reserved=node.reserved,
        note="paths, plugin name, log format, observe and historyBytes change with the next start",
    )
    if config.observe != is_observing:
        say(log, logging.WARNING, "observe changes with the next start", observing=is_observing)
    warn(node, handler.state, log)
