"""Builds the handler from the configuration, the machine, the cgroup tree and the checkpoint; applies a reload.

Everything that can be wrong with them is found here, before the agent registers with the runtime.
"""

import logging
from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from nri_plugin.agent.checkpoint_saver import CheckpointSaver, CheckpointStore, open_store
from nri_plugin.agent.cpusets import lift_floor
from nri_plugin.agent.drift_watch import DriftReport
from nri_plugin.agent.handler import Handler
from nri_plugin.agent.observing import ObservingHandler
from nri_plugin.agent.outcome import Observer, RequestOutcome
from nri_plugin.agent.pod_facts import PodFactsLookup, PodResourcesClient
from nri_plugin.agent.recorder import Recorder
from nri_plugin.agent.runtime_link import RuntimeLink
from nri_plugin.agent.status_socket import StatusFeed
from nri_plugin.checkpoint.directory import removed_mount, unsafe, unwritable
from nri_plugin.checkpoint.file import (
    FILE_NAME,
    OBSERVED_FILE_NAME,
    CheckpointFile,
    Origin,
)
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.config.checks import HOST_MOUNT
from nri_plugin.config.loading import Config, NothingConfiguredError, load_hint_providers
from nri_plugin.core.engine import decide
from nri_plugin.core.outdated import Overcommitted, allocatable_memory, outdated, overcommitted
from nri_plugin.host.cgroup import read_reach
from nri_plugin.host.cpu_claims import CPUClaims
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.mounts import CpusetTree, find_cpuset_tree
from nri_plugin.host.nic_helper import NICHelper
from nri_plugin.host.sysfs import discover
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import CPUManagerPolicy, Effect, Node
from nri_plugin.model.sets import NO_CPUS
from nri_plugin.model.state import State
from nri_plugin.process.logs import say, say_trace
from nri_plugin.process.loop import StartThread

if TYPE_CHECKING:
    from nri_plugin.agent.metrics import Metrics

MOST_TOLD = 10
"""The most log lines about placements of an earlier policy; a node may have hundreds of them."""


REBUILT_FROM = {
    Origin.BEGINNING: "the records before the damage",
    Origin.PREVIOUS: "the generation before it",
    Origin.NONE: "what the runtime reports",
}


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


def warn_of_overcommitted(
    node: Node, state: State, log: logging.Logger, former: Container[Overcommitted] = ()
) -> None:
    """Warn of NUMA nodes with more memory allocated than there is, except those that were in `former` already."""
    for one in overcommitted(state, allocatable_memory(node)):
        if one not in former:
            say(log, logging.WARNING, "more memory is allocated than there is, and is kept", which=str(one))


class Watchers:
    """The observers of a handler: metrics, the feed of the status socket, and those that need the handler themselves.

    Args:
        feed: of the status socket.
        metrics: None where no address asks for them.

    Attributes:
        also: observers that are made after the handler; set once.
    """

    def __init__(self, feed: StatusFeed, metrics: "Metrics | None") -> None:
        self._feed, self._metrics = feed, metrics
        self.also: tuple[Observer, ...] = ()

    def __call__(self, outcome: RequestOutcome) -> None:
        """Pass an outcome on to all."""
        if self._metrics is not None:
            self._metrics(outcome)
        self._feed(outcome)
        for observer in self.also:
            observer(outcome)

    def drifted(self, report: DriftReport) -> None:
        """Pass a drift and its repair on."""
        if self._metrics is not None:
            self._metrics.drifted(report)
        self._feed.drifted(report)

    def asked(self, result: str) -> None:
        """Count the result of a question to the exporter."""
        if self._metrics is not None:
            self._metrics.asked(result)

    def timed(self, store: CheckpointStore) -> CheckpointStore:
        """Return `store`, its saves measured where there are metrics."""
        return store if self._metrics is None else self._metrics.timed(store)


def build_handler(
    config: Config,
    log: logging.Logger,
    clock: Callable[[], float],
    watchers: Watchers | None = None,
    history: Recorder | None = None,
    start: StartThread = Thread.start,
) -> Handler:
    """Return a handler for this configuration on this machine.

    Args:
        config: the configuration.
        log: the agent's log.
        clock: seconds, monotonic.
        watchers: observe outcomes, saves and questions to the exporter.
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
    # The machine: its topology, and the cgroup tree to write to.
    tree = find_tree(config.cgroup_root, log)
    node = build_node(config, tree)
    # The state that the last agent saved.
    file = CheckpointFile(config.state_dir, node, name=OBSERVED_FILE_NAME if config.observe else FILE_NAME)
    state = load_state(file, log)
    describe(file, node)
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
    warn_of_surprises(node, log)
    warn_of_outdated(node, state, log)
    if config.observe:
        say(
            log, logging.WARNING, "observing: nothing is pinned, refused or written", allocations_in=file.path
        )
    else:
        lift_floor(tree, node, state, log)
    # The checkpoint: a trial write finds out now whether it can be saved.
    store = open_store(file, file.held, start)
    saver = CheckpointSaver(
        watchers.timed(store) if watchers else store,
        file.held,  # not a former generation: the file itself has to be written then
        log,
        serves=config.serves_unsaved,
        directory=config.state_dir,
    )
    if file.found is not None and file.found != file.facts:
        saver.outdate()  # its readers would take it for that of another machine
    warn_of_state_directory(config.state_dir, saver, log)
    kind = ObservingHandler if config.observe else Handler
    return kind(
        node,
        state,
        decide=decide,
        cpusets=kind.writer.on(tree),
        checkpoint=saver,
        log=log,
        clock=clock,
        describe=partial(describe, file),
        inform=build_lookup(config, log, clock, watchers.asked if watchers else None),
        observe=watchers,
        history=history,
    )


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


def describe(file: CheckpointFile, node: Node) -> None:
    """Store the facts of `node` beside every state that is saved from now on; readers of the checkpoint need them."""
    file.facts = NodeFacts.of(node)


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


def find_tree(root: str, log: logging.Logger) -> CpusetTree | None:
    """Return the cgroup tree; None, and a warning in the log, where there is none."""
    try:
        return find_cpuset_tree(root)
    except HostError as error:
        say(
            log,
            logging.WARNING,
            "no cgroup tree: running containers are changed through the runtime, which is slower; mount the host's tree "
            "and set cgroupRoot",
            err=error,
        )
        return None


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


class Reload:
    """Applies the configuration again at SIGHUP: as a whole, or not at all with the reason in the log."""

    def __init__(self, read: Callable[[], Config], link: RuntimeLink, log: logging.Logger) -> None:
        self._read = read
        self._link = link
        self._log = log

    def __call__(self) -> None:
        """Read the configuration and apply it to containers that are created from now on."""
        handler = self._link.handler
        if handler is None:
            return  # not serving yet; the configuration is read when it does
        # Everything that may fail comes first, so that a failure changes nothing.
        try:
            config = self._read()
            tree = find_tree(config.cgroup_root, self._log)
            node = build_node(config, tree)
        except NothingConfiguredError as error:
            say(
                self._log,
                logging.ERROR,
                "there is no configuration to read again, the former one stays in force",
                file=error.where,
            )
            return
        except NriPinError as error:
            say(
                self._log,
                logging.ERROR,
                "configuration not reloaded, the former one stays in force",
                err=error,
            )
            return
        except Exception:  # noqa: BLE001 - an error in a reload must not end the agent
            say_trace(self._log, "internal error, configuration not reloaded, the former one stays in force")
            return
        handler.change_node(node, handler.writer.on(tree))
        handler.machine_moved()
        is_observing = isinstance(handler, ObservingHandler)
        if not is_observing:
            lift_floor(tree, node, handler.state, self._log)
        handler.checkpoint.serves = config.serves_unsaved
        self._log.setLevel(config.log_level.upper())
        say(
            self._log,
            logging.INFO,
            "configuration reloaded",
            cpu_policy=node.options.cpu_manager_policy,
            topology_policy=node.options.topology_manager_policy,
            memory_policy=node.options.memory_manager_policy,
            reserved=node.reserved,
            note="paths, plugin name, log format, observe and historyBytes change with the next start",
        )
        if config.observe != is_observing:
            say(self._log, logging.WARNING, "observe changes with the next start", observing=is_observing)
        warn_of_surprises(node, self._log)
        warn_of_outdated(node, handler.state, self._log)
