"""`nri-pin run` and the start by the runtime: from arguments and environment to a loop that runs until it is stopped.

There are three starts:

* `run_external`: an ordinary agent connects to the runtime's socket, and again whenever the connection ends.
* `serve_given_connection`: the runtime starts the agent with an open socket, three environment variables and no
  arguments. Its standard error is not read. The runtime starts it once, and again only after its own restart.
* `run_as_successor`: when that agent ends, its supervisor (`nri_plugin.agent.supervisor`) starts an ordinary agent with
  the same name, index and configuration.

`watched_handler` puts handler and watches together.
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
from typing import TYPE_CHECKING, Protocol

from nri_plugin.agent.arguments import HELP, Arguments, parse
from nri_plugin.agent.checkpoint_saver import look_by_the_clock
from nri_plugin.agent.handler import Handler
from nri_plugin.agent.other_owners import FailedCreations, OtherOwners, kubelet_policy, warn_of_kubelet
from nri_plugin.agent.recorder import build_recorder
from nri_plugin.agent.runtime_link import EXIT_CONFIGURATION, EXIT_STOPPED, RuntimeLink
from nri_plugin.agent.serving_lease import EXIT_YIELDED, ServingLease
from nri_plugin.agent.startup import Reload, build_handler
from nri_plugin.agent.status_socket import FILE_NAME, StatusFeed, StatusSocket, Watchers
from nri_plugin.agent.supervisor import BEAT_S, CONFIG, FORMER, LIFE, Life
from nri_plugin.agent.transport import adopt, connect
from nri_plugin.agent.watches import EndedPodsWatch, reconcile_kernel_settings, watch_drift, watch_observed
from nri_plugin.checkpoint.file import DEFAULT_DIR
from nri_plugin.config.loading import Config, load, load_text
from nri_plugin.host.runtime_lock import RuntimeLock
from nri_plugin.model.bounds import visible
from nri_plugin.model.errors import ConfigError, LocalProtocolError, NriPinError
from nri_plugin.process.logs import LOGGER_NAME, say, set_up
from nri_plugin.process.loop import Loop, LoopWatchdog
from nri_plugin.wire.nri.decode import Hears, deaf
from nri_plugin.wire.nri.events import Configure
from nri_plugin.wire.nri.messages import EventMask
from nri_plugin.wire.nri.session import PluginSession

if TYPE_CHECKING:
    from nri_plugin.agent.metrics import Monitoring


SWITCH_INTERVAL_S = 0.0005
"""Another thread keeps the runtime waiting this long at most; the interpreter's default is ten times that."""

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


class Closing(Protocol):
    """Something that is given up at the end."""

    def close(self) -> None:
        """Give it up."""


@dataclass(frozen=True, slots=True)
class PluginIdentity:
    """The name and index under which the agent registers; `descriptor` is the runtime's socket where it gave one."""

    name: str
    index: str
    descriptor: int | None = None

    def session(self, hears: Hears = deaf) -> PluginSession:
        """A session for a fresh connection, which reads annotations of pods only in namespaces that `hears` names.

        Raises:
            LocalProtocolError: the runtime would refuse the name or the index.
        """
        prelaunched = self.descriptor is not None
        return PluginSession(self.name, self.index, SUBSCRIPTION, prelaunched=prelaunched, hears=hears)


def main(argv: Sequence[str]) -> int:
    """Run the agent; returns its exit code, 2 when something has to be configured differently."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        arguments = parse(argv)
        if arguments.wants_help:
            sys.stdout.write(HELP)
            return EXIT_STOPPED
        if not argv and not os.environ.keys().isdisjoint({"NRI_PLUGIN_SOCKET", LIFE}):
            return run_for_runtime(arguments, os.environ)
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
    code = serve(config, arguments.load, checked_identity(config), record=arguments.record)
    if code == EXIT_YIELDED:
        # Nothing of the agent that served is to be left in the one that waits: no thread, no state, no open file.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command
    return code


def serve(
    config: Config,
    load_again: Callable[[], Config],
    identity: PluginIdentity,
    *,
    record: str = "",
    life: Life | None = None,
) -> int:
    """Wait for the right to serve the runtime, then connect to it, until stopped; returns the exit code.

    Raises:
        NriPinError: the agent cannot start.
    """
    log = set_up(config.log_level, config.log_format, Path(config.state_dir))
    loop = Loop()
    link = RuntimeLink(
        loop,
        open_socket=partial(connect, config.nri_socket),
        new_session=identity.session,
        log=log,
    )
    monitoring = new_monitoring(config)

    def begin() -> None:
        link.handler = watched_handler(config, log, loop, link, record, monitoring)
        collect_garbage_by_the_clock(loop)
        link.connect()

    def wait(reason: str) -> None:
        link.waits_for = reason and f"waiting: {reason}"

    lock = RuntimeLock(config.nri_socket)
    # An agent with a supervisor gives way to the next one that the runtime starts, which has a supervisor of its own.
    lease = ServingLease(lock, config.state_dir, loop, log, begin, wait, stays=life is None)

    def take_lease() -> None:
        # An agent that waits answers probes, too. The modules for that load slowly, so they load before it connects.
        serve_http(config, log, loop, link, monitoring)
        lease.begin()

    return run(loop, link, Reload(load_again, link, log), log, take_lease, lease, life)


def new_monitoring(config: Config) -> "Monitoring | None":
    """Return the metrics; without an address their library is not loaded."""
    if config.metrics_bind_address is None:
        return None
    from nri_plugin.agent.metrics import Monitoring

    return Monitoring()


def watched_handler(
    config: Config,
    log: logging.Logger,
    loop: Loop,
    link: RuntimeLink,
    record: str = "",
    monitoring: "Monitoring | None" = None,
) -> Handler:
    """A handler, and what watches it; `record` is a file for its history.

    Raises:
        NriPinError: the agent cannot run with this configuration.
    """
    feed = StatusFeed()
    watchers = Watchers(feed, monitoring)
    history = build_recorder(config, record, loop, log)
    handler = build_handler(config, log, loop.clock, watchers, history)
    look_by_the_clock(loop, lambda: handler.checkpoint.look(handler.state))
    if monitoring is not None:
        monitoring.follow_checkpoint(handler)
        monitoring.follow_state(handler, link)
    ended = EndedPodsWatch(handler.release_ended, loop)
    ended.start()
    watchers.also = (ended,)
    if config.observe:
        watch = watch_observed(config, log, handler, loop, feed)
        if monitoring is not None:
            monitoring.follow_observed(watch)
    else:
        count = monitoring.count_quota if monitoring else lambda _noticed_by: None
        settings = reconcile_kernel_settings(config, log, handler, loop, count)
        drift = watch_drift(config, log, handler, loop, feed, watchers.drifted, settings)
        failures = FailedCreations()
        feed.failed_creations = lambda: failures.in_a_row
        owners = OtherOwners(log, loop.clock, monitoring.count_other_owner if monitoring else None, failures)
        watchers.also = (ended, drift, owners, *((settings,) if settings else ()))
        warn_of_kubelet(log, kubelet_policy())
        if monitoring is not None:
            monitoring.follow(drift, settings)
    serve_status(config, log, handler, feed, lambda: link.runtime)
    return handler


def serve_http(
    config: Config,
    log: logging.Logger,
    loop: Loop,
    link: RuntimeLink,
    monitoring: "Monitoring | None",
) -> None:
    """Serve metrics, and probes on a port of their own, where addresses say so.

    No client of one port has a part in the other. Containers do not wait for a port that another program has.

    Raises:
        ConfigError: an address is wrong.
    """
    if monitoring is None and config.health_probe_bind_address is None:
        return
    from nri_plugin.agent.runtime_link import probe_pages
    from nri_plugin.process.http_pages import Routes
    from nri_plugin.process.http_server import ListenAddress, Server

    probes = probe_pages(loop, link)
    if config.health_probe_bind_address is not None:
        place = ListenAddress("healthProbeBindAddress", config.health_probe_bind_address, "probes")
        Server(place, Routes(probes), log, keeps_trying=True)
    if monitoring is not None and config.metrics_bind_address is not None:
        place = ListenAddress("metricsBindAddress", config.metrics_bind_address, "metrics")
        Server(place, Routes({"/metrics": monitoring.page(), **probes}), log, keeps_trying=True)


def serve_status(
    config: Config,
    log: logging.Logger,
    handler: Handler,
    feed: StatusFeed,
    runtime: Callable[[], Configure | None],
) -> None:
    """Tell the exporter and `nri-pin state` on a socket; pods are placed without it just as well."""
    path = Path(config.state_dir) / FILE_NAME
    StatusSocket(
        path, lambda: (handler.node, handler.state), feed, runtime, log=log, observing=config.observe
    )


def run(
    loop: Loop,
    link: RuntimeLink,
    reload: Reload,
    log: logging.Logger,
    begin: Callable[[], None],
    lease: Closing,
    life: Life | None = None,
) -> int:
    """Serve until stopped, then give up the right to serve.

    Args:
        loop: what everything runs in.
        link: to the runtime; it has a handler once the agent serves.
        reload: on SIGHUP.
        log: for the end.
        begin: called once, when signals are heard.
        lease: the right to serve.
        life: the connection to the supervisor.

    Raises:
        NriPinError: the agent cannot start.
    """

    def stop() -> None:
        say(log, logging.INFO, "stopping, nothing is undone")
        loop.stop(EXIT_STOPPED)

    loop.handle_signals({signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload})
    if life is not None:
        give_signs_of_life(loop, life, log)
    watchdog = None
    try:
        begin()
        watchdog = LoopWatchdog(loop, log)
        code = loop.run()
    finally:
        if watchdog is not None:
            watchdog.close()
        link.close()
        if link.handler is not None:
            link.handler.close()
        lease.close()  # last: the next agent begins with the finished checkpoint
        loop.close()
    if life is not None and code in (EXIT_STOPPED, EXIT_YIELDED, EXIT_CONFIGURATION):
        life.quit()
    return code


def give_signs_of_life(loop: Loop, life: Life, log: logging.Logger) -> None:
    """Let the supervisor know, again and again, that the loop comes round."""

    def beat() -> None:
        if life.beat():
            loop.set_timer("sign of life", loop.clock() + BEAT_S, beat)
        else:
            say(
                log,
                logging.WARNING,
                "the agent's supervisor has ended; if the agent ends, only a restart of the runtime starts it again",
            )

    beat()


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


def checked_identity(config: Config) -> PluginIdentity:
    """Return the configured name and index.

    Raises:
        ConfigError: the runtime would refuse it.
    """
    identity = PluginIdentity(config.plugin_name, config.plugin_index)
    try:
        identity.session()
    except LocalProtocolError as error:
        raise ConfigError(config.source, str(error)) from None
    return identity


def complain(error: NriPinError) -> None:
    """Report the error where it is read: in the log once there is one, else on standard error."""
    log = logging.getLogger(LOGGER_NAME)
    if log.handlers:
        say(log, logging.ERROR, "cannot start", err=error)
    elif sys.stderr is not None:
        first, *others = str(error).splitlines()
        start = "  " if first.endswith(":") else "nri-pin: "  # after a colon come lines to be copied
        sys.stderr.write(visible("".join([f"nri-pin: {first}\n", *(f"{start}{line}\n" for line in others)])))


def run_for_runtime(arguments: Arguments, environment: Mapping[str, str]) -> int:
    """Run the agent that the runtime started, or the one that takes its place; returns its exit code.

    Raises:
        NriPinError: the agent cannot start.
    """
    life = given_life(environment)
    if life is not None and "NRI_PLUGIN_SOCKET" not in environment:
        return run_as_successor(arguments, environment, life)
    try:
        return serve_given_connection(arguments, environment, life)
    except ConfigError:
        if life is not None:
            life.quit()  # an agent that comes back would have the same configuration
        raise


def serve_given_connection(arguments: Arguments, environment: Mapping[str, str], life: Life | None) -> int:
    """Serve the one connection the runtime handed over; it also brings the configuration.

    Raises:
        NriPinError: the agent cannot start.
    """
    log = set_up("info", "text", Path(DEFAULT_DIR))
    loop = Loop()
    identity = given_identity(environment, log)
    start = RuntimeStart(arguments, log, loop, life)
    link = RuntimeLink(
        loop,
        open_socket=partial(adopt, identity.descriptor or 0),
        new_session=identity.session,
        prepare=start.prepare,
        can_reconnect=False,
        log=log,
    )
    start.link = link

    def begin() -> None:
        collect_garbage_by_the_clock(loop)
        link.connect()

    return run(loop, link, Reload(start.load, link, log), log, begin, start, life)


class RuntimeStart:
    """Makes the handler when the runtime has sent the configuration."""

    def __init__(self, arguments: Arguments, log: logging.Logger, loop: Loop, life: Life | None) -> None:
        self._arguments = arguments
        self._log = log
        self._loop = loop
        self._life = life
        self._text = ""
        self._turn: ServingLease | None = None
        self.link: RuntimeLink

    def load(self) -> Config:
        """The runtime's text, or the default file when it sent none.

        Raises:
            ConfigError: anything in it is wrong.
        """
        return load_drop_in(self._text, self._arguments)

    def prepare(self, text: str) -> Handler | None:
        """The handler for this configuration; None while another agent serves and cannot be ended.

        Raises:
            NriPinError: the agent cannot run with it.
        """
        self._text = text
        config = self.load()
        if self._life is not None:
            self._life.drop_in(text)
        set_up(config.log_level, config.log_format, Path(config.state_dir))

        monitoring = new_monitoring(config)

        def begin() -> None:
            self.link.handler = watched_handler(
                config, self._log, self._loop, self.link, monitoring=monitoring
            )

        lock = RuntimeLock(config.nri_socket)

        def wait(reason: str) -> None:
            self.link.waits_for = reason

        self._turn = ServingLease(
            lock, config.state_dir, self._loop, self._log, begin, wait, is_replaceable=False
        )
        serve_http(config, self._log, self._loop, self.link, monitoring)
        self._turn.demand()
        return self.link.handler

    def close(self) -> None:
        """Give up the right to serve."""
        if self._turn is not None:
            self._turn.close()


def run_as_successor(arguments: Arguments, environment: Mapping[str, str], life: Life) -> int:
    """Take the place of an agent that the runtime started and that ended; the same as that one to the runtime.

    Raises:
        NriPinError: the agent cannot start.
    """
    log = set_up("info", "text", Path(DEFAULT_DIR))
    identity = given_identity(environment, log)
    text = given_drop_in(environment)
    load_again = partial(load_drop_in, text, arguments)
    say(
        log,
        logging.WARNING,
        "the agent that the runtime started has ended, this one takes its place",
        former=environment.get(FORMER),
    )
    return serve(load_again(), load_again, identity, life=life)


def load_drop_in(text: str, arguments: Arguments) -> Config:
    """The configuration that the runtime handed over, or the default file when it handed over none.

    Raises:
        ConfigError: anything in it is wrong.
    """
    return load_text(text, "NRI drop-in") if text.strip() else load(arguments.config)


def given_life(environment: Mapping[str, str]) -> Life | None:
    """The connection to our supervisor; None where there is none."""
    number = environment.get(LIFE, "")
    return Life(int(number)) if number.isdecimal() else None


def given_drop_in(environment: Mapping[str, str]) -> str:
    """Return the configuration that the runtime gave to the former agent; empty when it ended too soon."""
    number = environment.get(CONFIG, "")
    if not number.isdecimal():
        return ""
    with os.fdopen(int(number), encoding="utf-8") as file:
        file.seek(0)
        return file.read()


def given_identity(environment: Mapping[str, str], log: logging.Logger) -> PluginIdentity:
    """Return the name and index that the runtime gave; one that it would refuse is replaced by the default.

    Raises:
        ConfigError: the socket is no descriptor number.
    """
    number = environment.get("NRI_PLUGIN_SOCKET")
    if number is not None and not number.isdecimal():
        raise ConfigError(
            "NRI_PLUGIN_SOCKET", f"expected the number of an open socket such as 3, found {number}"
        )
    descriptor = None if number is None else int(number)
    identity = PluginIdentity(
        environment.get("NRI_PLUGIN_NAME", "nri-pin"), environment.get("NRI_PLUGIN_IDX", "90"), descriptor
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
        return PluginIdentity("nri-pin", "90", descriptor)
    return identity
