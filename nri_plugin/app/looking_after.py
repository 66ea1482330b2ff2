"""What the agent does without being asked: it notices drift and a changed machine. Put together here, run by the loop."""

import logging
from collections.abc import Callable
from functools import partial

from nri_plugin.app.config import Config
from nri_plugin.app.drift_report import DriftReport, Reporter
from nri_plugin.app.drift_watch import DriftWatch
from nri_plugin.app.handler import Handler
from nri_plugin.app.kernel_side_keeper import KernelSideKeeper
from nri_plugin.app.logs import say
from nri_plugin.app.loop import Loop
from nri_plugin.app.machine_watch import MachineWatch
from nri_plugin.app.observing import ObservedWatch
from nri_plugin.app.quota_keeper import UNWATCHED, Counted, QuotaKeeper
from nri_plugin.app.status_socket import StatusFeed
from nri_plugin.drift import Target
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.host.cgroup_root import find_cpuset_tree
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.host.cpu_quota import QUOTA_FILES, CPUQuotas
from nri_plugin.host.partitions import ON_V1, Partitions, with_isolated
from nri_plugin.host.sysfs import discover, outline
from nri_plugin.options import Isolation
from nri_plugin.state import CgroupRef
from nri_plugin.topology import Topology


def look_after(
    config: Config,
    log: logging.Logger,
    handler: Handler,
    loop: Loop,
    feed: StatusFeed,
    report: Reporter,
    keeper: KernelSideKeeper | None = None,
) -> DriftWatch:
    """Begin to look at the machine and at all cgroups that are ours to say; `keeper` looks whenever they changed."""

    def machine_changed() -> None:
        feed.machine_changed()
        if keeper is not None:
            keeper.look_again()

    def drifted(what: DriftReport) -> None:
        report(what)
        if keeper is not None:
            keeper.look_again()

    machine = _machine_watch(config, log, handler, loop, machine_changed)
    watch = DriftWatch(
        handler,
        loop,
        log,
        watch=_kernel_watch(config.cgroup_root, log),
        machine_moved=machine.moved,
        report=drifted,
    )
    machine.start(loop)
    watch.start()
    return watch


def look_on(
    config: Config, log: logging.Logger, handler: Handler, loop: Loop, feed: StatusFeed
) -> ObservedWatch:
    """Begin to look at the machine and to compare what runs with what would."""
    _machine_watch(config, log, handler, loop, feed.machine_changed).start(loop)
    watch = ObservedWatch(handler, loop, log)
    watch.start()
    return watch


def _machine_watch(
    config: Config, log: logging.Logger, handler: Handler, loop: Loop, changed: Callable[[], None]
) -> MachineWatch:
    return MachineWatch(
        handler,
        partial(outline, config.sysfs_root),
        partial(_discovered, config, handler),
        log,
        loop.clock,
        changed,
        _seen(config.sysfs_root, handler),
    )


def keep_kernel_side(
    config: Config, log: logging.Logger, handler: Handler, loop: Loop, counted: Counted
) -> KernelSideKeeper | None:
    """Begin to keep quotas and sandboxes; None where there is no cgroup tree to write to.

    `counted` is told of quotas that somebody wrote back.
    """
    try:
        cgroups = Cgroups.open(config.cgroup_root)
    except HostError:
        return None  # said already
    why_none = ON_V1 if cgroups.version == 1 else ""
    asked = handler.node.options.isolation
    if why_none and asked is not Isolation.NONE:
        say(log, logging.WARNING, "no partitions here, isolation does nothing", isolation=asked, err=why_none)
    domains = Partitions(cgroups.tree.directory, why_none)
    files = CPUQuotas.beside(cgroups.tree)
    quotas = QuotaKeeper(files, _quota_watch(files, log), loop, log, counted) if files is not None else None
    keeper = KernelSideKeeper(handler, loop, log, cgroups, quotas, domains)
    keeper.start()
    return keeper


def _quota_watch(files: CPUQuotas, log: logging.Logger) -> CgroupWatch[CgroupRef] | None:
    try:
        return CgroupWatch(files.directory, QUOTA_FILES, with_above=False)
    except HostError as error:
        say(log, logging.WARNING, UNWATCHED, err=error)
        return None


def _discovered(config: Config, handler: Handler) -> Topology:
    topology = discover(config.sysfs_root)
    try:
        top = find_cpuset_tree(config.cgroup_root).directory
    except HostError:
        return topology  # said already
    return with_isolated(topology, top, handler.state.exclusive)


def _seen(sysfs_root: str, handler: Handler) -> object:
    """The outline of the machine the handler decides for, None when it may have changed since."""
    try:
        now = outline(sysfs_root)
    except HostError:
        return None
    return now if now[0] == str(handler.node.topology.online) else None


def _kernel_watch(cgroup_root: str, log: logging.Logger) -> CgroupWatch[Target] | None:
    try:
        top = find_cpuset_tree(cgroup_root).directory
    except HostError:
        return None  # said already: there is nothing to look after
    try:
        return CgroupWatch(top)
    except HostError as error:
        say(log, logging.WARNING, "drift is noticed by the sweep only", err=error)
        return None
