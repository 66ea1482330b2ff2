"""Puts the parts of the agent together: handler, history, watches, metrics, HTTP pages and status socket.

`startup.py` builds the handler itself, from configuration, machine and checkpoint; `watches.py` builds the watches. All
parts share one loop and one state, which only the handler changes.
"""

import gc
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nri_plugin.agent.affinity import InheritedAffinities
from nri_plugin.agent.checkpoint_saver import LOOK_PAUSE_S
from nri_plugin.agent.handler import Handler
from nri_plugin.agent.other_owners import FailedCreations, OtherOwners, kubelet_policy, warn_of_kubelet
from nri_plugin.agent.outcome import Observer
from nri_plugin.agent.pod_facts import PodResourcesClient
from nri_plugin.agent.pod_news import PodNewsWatch, reject_pod
from nri_plugin.agent.recorder import build_recorder
from nri_plugin.agent.runtime_link import RuntimeLink, probe_pages
from nri_plugin.agent.startup import Watchers, build_handler
from nri_plugin.agent.status_socket import FILE_NAME, StatusFeed, StatusSocket
from nri_plugin.agent.untold import UntoldContainers
from nri_plugin.agent.watches import (
    EndedPodsWatch,
    LateWriter,
    LostRemovals,
    keep_cpus_quiet,
    reconcile_kernel_settings,
    watch_drift,
    watch_observed,
)
from nri_plugin.config.loading import Config
from nri_plugin.process.loop import Loop

if TYPE_CHECKING:
    from nri_plugin.agent import metrics

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
        self._metrics: metrics.Metrics | None = None
        if config.metrics_bind_address is not None:
            # The metrics library is large, so it is loaded only where metrics are served.
            from nri_plugin.agent.metrics import Metrics

            self._metrics = Metrics(pod_level=config.options.pod_level_managers)

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
        # The handler takes its observers at construction, and most observers take the handler. `Watchers` stands
        # between them: those that need the handler are added below.
        feed = StatusFeed(log)
        watchers = Watchers(feed, metrics)
        history = build_recorder(config, self._record, loop, log)
        handler = build_handler(config, log, loop.clock, watchers, history, loop.start_thread)
        loop.repeat("checkpoint", LOOK_PAUSE_S, lambda: handler.checkpoint.look(handler.state))
        if metrics is not None:
            metrics.follow_state(handler, link, lambda: len(feed.incomplete.records), lambda: loop.failures)
            if config.cpu_noise_period_seconds:
                metrics.follow_noise(
                    handler, config.sysfs_root, config.cgroup_root, config.cpu_noise_period_seconds
                )
        ended = EndedPodsWatch(handler.release_ended, loop, LostRemovals(handler))
        ended.start()
        watches = self._observe_only if config.observe else self._watch_and_repair
        client = PodResourcesClient(config.exporter_socket, loop.clock)
        news = PodNewsWatch(handler, client.ask_about, loop, log)
        news.start()
        watchers.also = (ended, news, *watches(handler, feed, watchers))
        StatusSocket(
            Path(config.state_dir, FILE_NAME),
            lambda: (handler.node, handler.state),
            feed,
            lambda: link.runtime,
            reject=lambda row: loop.post(partial(reject_pod, handler, row)),
            log=log,
            observing=config.observe,
            start=loop.start_thread,
        )
        link.handler = handler

    def _observe_only(self, handler: Handler, feed: StatusFeed, _: Watchers) -> tuple[Observer, ...]:
        """Start the watches of an agent that changes nothing (`observe: true`)."""
        watch = watch_observed(self._config, self._log, handler, self._loop, feed)
        if self._metrics is not None:
            self._metrics.follow_observed(watch)
        return ()

    def _watch_and_repair(
        self, handler: Handler, feed: StatusFeed, watchers: Watchers
    ) -> tuple[Observer, ...]:
        """Start the watches that repair; return the observers among them."""
        config, log, loop, link, metrics = self._config, self._log, self._loop, self._link, self._metrics
        count = metrics.count_quota if metrics else lambda _noticed_by: None
        settings = reconcile_kernel_settings(config, log, handler, loop, count)
        quiet = keep_cpus_quiet(config, log, handler, loop, self._hears_other_annotations)
        feed.quiet = lambda: quiet.report
        drift = watch_drift(config, log, handler, loop, feed, watchers.drifted, settings, quiet)
        untold = UntoldContainers(
            handler, loop, log, drift, lambda: link.is_synchronized, feed.machine_changed
        )
        feed.untold = lambda: untold.names
        affinities = InheritedAffinities(
            handler, loop, log, metrics.count_affinity if metrics else lambda _result: None
        )
        failures = FailedCreations()
        feed.failed_creations = lambda: failures.in_a_row
        owners = OtherOwners(log, loop.clock, metrics.count_other_owner if metrics else None, failures)
        warn_of_kubelet(log, kubelet_policy())
        if metrics is not None:
            metrics.follow(drift, untold, settings)
            metrics.follow_quiet(quiet)
        late = LateWriter(handler, loop)
        late.start()
        others = (late, drift, owners, quiet, untold, affinities)
        return (*others, settings) if settings else others

    def _hears_other_annotations(self) -> bool:
        """Return whether annotations of CRI-O count: its own hooks act on them where it is the runtime."""
        runtime = self._link.runtime
        return runtime is None or "cri-o" not in runtime.runtime_name.lower()


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
