"""`nri-pin run` and the start by the runtime itself: from words and environment to a loop that runs for ever.

Started by the runtime: an open socket on a descriptor, an environment of three variables, no arguments, nobody who
reads standard error, and no second chance: it is never started again before the runtime is. So it ends only when it must.
"""

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nri_plugin.app.arguments import HELP, Arguments, parse
from nri_plugin.app.config import Config, load, load_text
from nri_plugin.app.ended_pods import LOOK_PAUSE_S
from nri_plugin.app.handler import Handler
from nri_plugin.app.logs import LOGGER_NAME, say, set_up
from nri_plugin.app.looking_after import keep_kernel_side, look_after, look_on
from nri_plugin.app.loop import Loop
from nri_plugin.app.recorder import build_recorder
from nri_plugin.app.reload import Reload
from nri_plugin.app.rivals import Rivals, kubelet_policy, warn_of_kubelet
from nri_plugin.app.runtime_link import EXIT_CONFIGURATION, EXIT_STOPPED, RuntimeLink
from nri_plugin.app.startup import (
    build_handler,
    lock_state_dir,
)
from nri_plugin.app.status_socket import FILE_NAME, StatusFeed, StatusSocket, Watchers
from nri_plugin.app.transport import adopt, connect
from nri_plugin.app.watchdog import Watchdog
from nri_plugin.errors import ConfigError, HostError, LocalProtocolError, NriPinError
from nri_plugin.host.checkpoint import DEFAULT_DIR
from nri_plugin.nri.events import Configure
from nri_plugin.nri.messages import EventMask
from nri_plugin.nri.session import PluginSession

SWITCH_INTERVAL_S = 0.0005
"""Another thread keeps the runtime waiting this long at most; the interpreter's default is ten times that."""

FORMER_INSTANCE_S = 3.0
"""A restarted runtime starts us while the instance of its former life is just ending; it waits 5 s for us."""

COLLECT_PAUSE_S = 60.0
"""Only failures leave cycles behind; a minute of them is little."""

SUBSCRIPTION = (
    EventMask.RUN_POD_SANDBOX
    | EventMask.STOP_POD_SANDBOX
    | EventMask.REMOVE_POD_SANDBOX
    | EventMask.CREATE_CONTAINER
    | EventMask.POST_CREATE_CONTAINER
    | EventMask.START_CONTAINER
    | EventMask.POST_START_CONTAINER
    | EventMask.UPDATE_CONTAINER
    | EventMask.POST_UPDATE_CONTAINER
    | EventMask.STOP_CONTAINER
    | EventMask.REMOVE_CONTAINER
    | EventMask.UPDATE_POD_SANDBOX
)
"""What decisions need; every further event would cost the node a round trip per container."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What we register as; `descriptor` is the runtime's socket when it started us."""

    name: str
    index: str
    descriptor: int | None = None

    def session(self) -> PluginSession:
        """A session for a fresh connection.

        Raises:
            LocalProtocolError: the runtime would refuse the name or the index.
        """
        prelaunched = self.descriptor is not None
        return PluginSession(self.name, self.index, SUBSCRIPTION, prelaunched=prelaunched)


def main(argv: Sequence[str]) -> int:
    """Run the agent; returns its exit code, 2 when something has to be configured differently."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        arguments = parse(argv)
        if arguments.wants_help:
            sys.stdout.write(HELP)
            return EXIT_STOPPED
        if "NRI_PLUGIN_SOCKET" in os.environ and not argv:
            return run_prelaunched(arguments, os.environ)
        return run_external(arguments)
    except ConfigError as error:
        complain(error)
        return EXIT_CONFIGURATION
    except NriPinError as error:
        complain(error)
        return 1


def run_external(arguments: Arguments) -> int:
    """Connect to the runtime's socket, and again whenever that ends.

    Raises:
        NriPinError: the agent cannot start.
    """
    config = arguments.load()
    identity = checked_identity(config)
    holder = lock_state_dir(config.state_dir)
    log = set_up(config.log_level, config.log_format, Path(config.state_dir))
    loop = Loop()
    link = RuntimeLink(
        loop,
        open_socket=partial(connect, config.nri_socket),
        new_session=identity.session,
        log=log,
    )
    link.handler = watched_handler(config, log, loop, link, arguments.record)
    reload = Reload(arguments.load, link, log)
    return run(loop, link, reload, log, holder)


def run_prelaunched(arguments: Arguments, environment: Mapping[str, str]) -> int:
    """Serve the one connection the runtime handed over; it also brings the configuration.

    Raises:
        NriPinError: the agent cannot start.
    """
    log = set_up("info", "text", Path(DEFAULT_DIR))
    loop = Loop()
    identity = given_identity(environment, log)
    start = PrelaunchedStart(arguments, log, loop)
    link = RuntimeLink(
        loop,
        open_socket=partial(adopt, identity.descriptor or 0),
        new_session=identity.session,
        prepare=start.prepare,
        can_reconnect=False,
        log=log,
    )
    start.link = link
    return run(loop, link, Reload(start.load, link, log), log, start)


class PrelaunchedStart:
    """Makes the handler when the runtime has told the configuration."""

    def __init__(self, arguments: Arguments, log: logging.Logger, loop: Loop) -> None:
        self._arguments = arguments
        self._log = log
        self._loop = loop
        self._text = ""
        self.lock: int | None = None
        self.link: RuntimeLink

    def load(self) -> Config:
        """The runtime's text, or the default file when it sent none.

        Raises:
            ConfigError: anything in it is wrong.
        """
        return load_text(self._text, "NRI drop-in") if self._text.strip() else load(self._arguments.config)

    def prepare(self, text: str) -> Handler:
        """The handler for this configuration.

        Raises:
            NriPinError: the agent cannot run with it.
        """
        self._text = text
        config = self.load()
        self.lock = lock_state_dir(config.state_dir, FORMER_INSTANCE_S)
        set_up(config.log_level, config.log_format, Path(config.state_dir))
        return watched_handler(config, self._log, self._loop, self.link)


def watched_handler(
    config: Config, log: logging.Logger, loop: Loop, link: RuntimeLink, record: str = ""
) -> Handler:
    """A handler and, where an address is configured, the page of what it does; `record` is a file for its history.

    Without an address what that needs is not even loaded.

    Raises:
        NriPinError: the agent cannot run with this configuration.
    """
    feed = StatusFeed()
    monitoring = None
    if config.metrics_bind_address is not None:
        from nri_plugin.app.monitoring import Monitoring

        monitoring = Monitoring()
    watchers = Watchers(feed, monitoring)
    history = build_recorder(config, record, loop, log)
    handler = build_handler(config, log, loop.clock, watchers, history)
    if config.observe:
        watch = look_on(config, log, handler, loop, feed)
        if monitoring is not None:
            monitoring.follow_observed(watch)
    else:
        keeper = keep_kernel_side(config, log, handler, loop)
        drift = look_after(config, log, handler, loop, feed, watchers.drifted, keeper)
        rivals = Rivals(log, loop.clock, monitoring.count_rival if monitoring else None)
        watchers.also = (drift, rivals, *((keeper,) if keeper else ()))
        warn_of_kubelet(log, kubelet_policy())
        if monitoring is not None:
            monitoring.follow(drift)
            if keeper is not None:
                monitoring.follow_kernel_side(keeper)
    if monitoring is not None and config.metrics_bind_address is not None:
        server = monitoring.serve(config.metrics_bind_address, handler, link, loop)
        say(log, logging.INFO, "serving metrics", port=server.port)
    serve_status(config, log, handler, feed, lambda: link.runtime)
    return handler


def serve_status(
    config: Config,
    log: logging.Logger,
    handler: Handler,
    feed: StatusFeed,
    runtime: Callable[[], Configure | None],
) -> None:
    """Tell the exporter and `nri-pin state` on a socket; pods are placed without it just as well."""
    try:
        path = Path(config.state_dir) / FILE_NAME
        StatusSocket(path, lambda: (handler.node, handler.state), feed, runtime, observing=config.observe)
    except HostError as error:
        say(log, logging.WARNING, "nothing can be exported to the cluster", err=error)


def run(loop: Loop, link: RuntimeLink, reload: Reload, log: logging.Logger, holder: object) -> int:
    """Serve until stopped. `holder` keeps the lock alive as long as this runs."""

    def stop() -> None:
        say(log, logging.INFO, "stopping, nothing is undone")
        loop.stop(EXIT_STOPPED)

    loop.handle_signals({signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload})
    collect_garbage_by_the_clock(loop)
    look_for_ended_pods(loop, link)
    link.connect()
    watchdog = Watchdog(loop, log)
    try:
        return loop.run()
    finally:
        watchdog.close()
        link.close()
        if link.handler is not None:
            link.handler.close()
        loop.close()
        del holder


def collect_garbage_by_the_clock(loop: Loop) -> None:
    """Take garbage collection out of decisions.

    Values here hold no cycles, and looking for some among the containers of a full node costs more than many a
    decision. What lives now lives for ever and is left out.
    """
    gc.collect()
    gc.freeze()
    gc.disable()

    def collect() -> None:
        gc.collect()
        loop.set_timer("collect", loop.clock() + COLLECT_PAUSE_S, collect)

    loop.set_timer("collect", loop.clock() + COLLECT_PAUSE_S, collect)


def look_for_ended_pods(loop: Loop, link: RuntimeLink) -> None:
    """Let go, now and then, of what pods hold that are over although nobody told."""

    def look() -> None:
        if link.handler is not None:
            link.handler.release_ended()
        loop.set_timer("ended pods", loop.clock() + LOOK_PAUSE_S, look)

    loop.set_timer("ended pods", loop.clock() + LOOK_PAUSE_S, look)


def checked_identity(config: Config) -> Identity:
    """What we register as.

    Raises:
        ConfigError: the runtime would refuse it.
    """
    identity = Identity(config.plugin_name, config.plugin_index)
    try:
        identity.session()
    except LocalProtocolError as error:
        raise ConfigError(config.source, str(error)) from None
    return identity


def given_identity(environment: Mapping[str, str], log: logging.Logger) -> Identity:
    """What the runtime calls us; a name it would not take from others is no reason to give up here.

    Raises:
        ConfigError: the socket is no descriptor number.
    """
    number = environment["NRI_PLUGIN_SOCKET"]
    if not number.isdecimal():
        raise ConfigError(
            "NRI_PLUGIN_SOCKET", f"expected the number of an open socket such as 3, found {number}"
        )
    identity = Identity(
        environment.get("NRI_PLUGIN_NAME", "nri-pin"), environment.get("NRI_PLUGIN_IDX", "90"), int(number)
    )
    try:
        identity.session()
    except LocalProtocolError as error:
        say(
            log,
            logging.WARNING,
            "registering under the default name; the runtime goes by the file name",
            err=error,
        )
        return Identity("nri-pin", "90", int(number))
    return identity


def complain(error: NriPinError) -> None:
    """The error where somebody reads it: among the log lines once there are any, else on standard error."""
    log = logging.getLogger(LOGGER_NAME)
    if log.handlers:
        say(log, logging.ERROR, "cannot start", err=error)
    elif sys.stderr is not None:
        first, *others = str(error).splitlines()
        start = "  " if first.endswith(":") else "nri-pin: "  # after a colon come lines to be copied
        sys.stderr.write("".join([f"nri-pin: {first}\n", *(f"{start}{line}\n" for line in others)]))
