"""The entry point of the agent, and its three ways to start.

* `run_external`: `nri-pin run`. The agent connects to the runtime's socket, and again whenever the connection ends.
* `serve_given_connection`: the runtime starts the agent with an open socket, three environment variables and no
  arguments, and does not read its standard error. It does so once, and again only after a restart of the runtime.
* `run_as_successor`: an agent that the runtime started has ended. Its supervisor (`nri_plugin.agent.serving.supervisor`) starts
  an ordinary agent with the same name, index and configuration.

All three build an `Assembly` and end in `run`.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path

from nri_plugin.agent.arguments import Arguments, parse
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.link import (
    EXIT_CONFIGURATION,
    EXIT_STOPPED,
    UNNOTICED,
    RuntimeLink,
    SocketWatch,
    adopt,
    connect,
)
from nri_plugin.agent.serving.serving_lease import EXIT_YIELDED, ServingLease
from nri_plugin.agent.serving.supervisor import BEAT_S, CONFIG, FORMER, LIFE, Life
from nri_plugin.agent.start import (
    Assembly,
    build_node,
    collect_garbage_between_requests,
    made_or_none,
    reload,
)
from nri_plugin.checkpoint.file import DEFAULT_DIR
from nri_plugin.config.loading import Config, load, load_text
from nri_plugin.core.engine import DECIDED
from nri_plugin.host.runtime_lock import RuntimeLock
from nri_plugin.model.errors import ConfigError, LocalProtocolError, NriPinError
from nri_plugin.process.logs import LOGGER_NAME, say, say_trace, set_up
from nri_plugin.process.loop import Loop, LoopWatchdog
from nri_plugin.wire.nri.decode import Hears, deaf
from nri_plugin.wire.nri.events import EVENTS
from nri_plugin.wire.nri.session import PluginSession

SWITCH_INTERVAL_S = 0.0005
"""The longest time that another thread holds the interpreter while the runtime waits; the default is ten times that."""

SUBSCRIPTION = reduce(or_, (row.bit for kind, row in EVENTS.items() if kind in DECIDED))
"""The events that decisions need. Each further event would cost the node a round trip per container."""


@dataclass(frozen=True, slots=True)
class PluginIdentity:
    """The name and index under which the agent registers; `descriptor` is the socket that the runtime gave, if any."""

    name: str
    index: str
    descriptor: int | None = None

    def session(self, hears: Hears = deaf) -> PluginSession:
        """Return a session for a new connection; it reads pod annotations only in namespaces that `hears` accepts.

        Raises:
            LocalProtocolError: the runtime would refuse the name or the index.
        """
        prelaunched = self.descriptor is not None
        return PluginSession(self.name, self.index, SUBSCRIPTION, prelaunched=prelaunched, hears=hears)


def main(argv: Sequence[str]) -> int:
    """Run the agent; returns its exit code, 2 when the configuration has to be changed.

    Raises:
        NriPinError: the agent cannot start, and there is no log yet that could say so.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        arguments = parse(argv)
        if not argv and not os.environ.keys().isdisjoint({"NRI_PLUGIN_SOCKET", LIFE}):
            return run_for_runtime(arguments, os.environ)
        return run_external(arguments)
    except SystemExit:  # the parser has printed its help
        return EXIT_STOPPED
    except NriPinError as error:
        log = logging.getLogger(LOGGER_NAME)
        if not log.handlers:
            raise  # nri_plugin.__main__ writes it to standard error
        say(log, logging.ERROR, "cannot start", err=error)
        return EXIT_CONFIGURATION if isinstance(error, ConfigError) else 1


# An ordinary agent: it opens the connection itself


def run_external(arguments: Arguments) -> int:
    """Connect to the runtime's socket, and again whenever the connection ends; returns the exit code.

    Raises:
        NriPinError: the agent cannot start.
    """
    config = arguments.load()
    code = serve(config, arguments.load, checked_identity(config), record=arguments.record)
    if code == EXIT_YIELDED:
        # A new process waits for the lease: it inherits no thread, no state and no open file of the one that served.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command
    return code


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


def serve(
    config: Config,
    load_again: Callable[[], Config],
    identity: PluginIdentity,
    *,
    record: str = "",
    life: Life | None = None,
) -> int:
    """Wait for the lease of the runtime, connect, and serve until stopped; returns the exit code.

    Args:
        config: the configuration.
        load_again: loads it again at SIGHUP.
        identity: the name and index to register under.
        record: the file of `--record`; empty for none.
        life: the connection to the supervisor; None without one.

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
        made=made_or_none(partial(SocketWatch, config.nri_socket), UNNOTICED, log),
    )
    assembly = Assembly(config, log, loop, link, record)

    def serve_runtime() -> None:
        assembly.make_handler()
        collect_garbage_between_requests(loop)
        link.connect()  # last: from here on the runtime waits for every answer

    # A successor does not wait for a newer agent to end: the runtime started that one, with another supervisor.
    lease = ServingLease(
        RuntimeLock(config.nri_socket),
        config.state_dir,
        loop,
        log,
        serve_runtime,
        assembly.wait,
        stays=life is None,
    )

    def begin() -> None:
        # Probes are answered while the agent waits for the lease, too. Their modules load slowly, and after `connect`
        # the runtime would wait for that.
        assembly.serve_http()
        lease.begin()
        if not lease.is_serving:
            # A configuration that does not fit the machine is refused now, and not when the wait is over.
            build_node(config, None)

    return run(loop, link, load_again, log, begin, lease, life)


# The loop of every agent


def run(
    loop: Loop,
    link: RuntimeLink,
    load_again: Callable[[], Config],
    log: logging.Logger,
    begin: Callable[[], None],
    lease: "ServingLease | RuntimeStart",
    life: Life | None = None,
) -> int:
    """Run the loop until it is stopped, then close everything; returns the exit code.

    Args:
        loop: runs all work of the agent.
        link: to the runtime; it has a handler once the agent serves.
        load_again: loads the configuration again at SIGHUP.
        log: for the end.
        begin: called once, after the signal handlers are in place.
        lease: the right to serve the runtime.
        life: the connection to the supervisor; None without one.

    Raises:
        NriPinError: the agent cannot start.
    """

    def stop() -> None:
        loop.stop(EXIT_STOPPED)
        say(log, logging.INFO, "stopping, nothing is undone")

    loop.handle_signals(
        {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: partial(reload, load_again, link, log)}
    )
    if life is not None:
        beat_by_the_clock(loop, life, log)
    watchdog = None
    try:
        begin()
        # After `begin`: loading modules may hold the loop for longer than a request may.
        watchdog = LoopWatchdog(loop, log)
        code = loop.run()
    finally:
        # No further request arrives before the state is saved. The lease goes last: the next agent reads the finished
        # checkpoint.
        for part in (watchdog, link, link.handler, lease, loop):
            try:
                if part is not None:
                    part.close()
            except Exception:  # noqa: BLE001 - one that fails leaves the others
                say_trace(log, "internal error while ending")
    # The supervisor starts an agent again that failed, not one that ended on purpose.
    if life is not None and code in (EXIT_STOPPED, EXIT_YIELDED, EXIT_CONFIGURATION):
        life.quit()
    return code


def beat_by_the_clock(loop: Loop, life: Life, log: logging.Logger) -> None:
    """Send the supervisor a sign of life every `BEAT_S` seconds, from the loop: a stuck loop sends none."""

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


# An agent that the runtime started, and its successor


def run_for_runtime(arguments: Arguments, environment: Mapping[str, str]) -> int:
    """Run the agent that the runtime started, or its successor; returns the exit code.

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
            life.quit()  # a successor would have the same configuration
        raise


def serve_given_connection(arguments: Arguments, environment: Mapping[str, str], life: Life | None) -> int:
    """Serve the one connection that the runtime handed over; returns the exit code.

    Raises:
        NriPinError: the agent cannot start.
    """
    # Before the configuration arrives, log lines go where the defaults say.
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
        collect_garbage_between_requests(loop)
        link.connect()

    return run(loop, link, start.load, log, begin, start, life)


class RuntimeStart:
    """Makes the handler once the runtime has sent the configuration.

    Attributes:
        link: to the runtime; set before the loop runs.
    """

    link: RuntimeLink

    def __init__(self, arguments: Arguments, log: logging.Logger, loop: Loop, life: Life | None) -> None:
        self._arguments, self._log, self._loop, self._life = arguments, log, loop, life
        self._text = ""
        self._lease: ServingLease | None = None

    def load(self) -> Config:
        """Return the configuration that the runtime sent, or that of the default file when it sent none.

        Raises:
            ConfigError: a value in it is wrong.
        """
        return load_drop_in(self._text, self._arguments)

    def prepare(self, text: str) -> Handler | None:
        """Return the handler for the configuration `text`; None while another agent serves and cannot be ended.

        Raises:
            NriPinError: the agent cannot run with it.
        """
        self._text = text
        config = self.load()
        # The supervisor gives the text to a successor, which gets no Configure call.
        if self._life is not None:
            self._life.drop_in(text)
        set_up(config.log_level, config.log_format, Path(config.state_dir))
        assembly = Assembly(config, self._log, self._loop, self.link)
        self._lease = ServingLease(
            RuntimeLock(config.nri_socket),
            config.state_dir,
            self._loop,
            self._log,
            assembly.make_handler,
            assembly.wait,
            is_replaceable=False,
        )
        assembly.serve_http()
        # The runtime waits for this answer, so an agent that serves now is told to end, and killed if it does not.
        self._lease.demand()
        return self.link.handler

    def close(self) -> None:
        """Give up the lease."""
        if self._lease is not None:
            self._lease.close()


def run_as_successor(arguments: Arguments, environment: Mapping[str, str], life: Life) -> int:
    """Replace an agent that the runtime started and that has ended, under its name and index; returns the exit code.

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
    """Return the configuration in `text`, or that of the default file when `text` is blank.

    Raises:
        ConfigError: a value in it is wrong.
    """
    return load_text(text, "NRI drop-in") if text.strip() else load(arguments.config)


# The environment of an agent that the runtime or the supervisor started


def given_life(environment: Mapping[str, str]) -> Life | None:
    """Return the connection to the supervisor; None without one."""
    number = environment.get(LIFE, "")
    return Life(int(number)) if number.isdecimal() else None


def given_drop_in(environment: Mapping[str, str]) -> str:
    """Return the configuration that the runtime gave to the former agent; empty when that ended before it came."""
    number = environment.get(CONFIG, "")
    if not number.isdecimal():
        return ""
    with os.fdopen(int(number), encoding="utf-8") as file:
        file.seek(0)
        return file.read()


def given_identity(environment: Mapping[str, str], log: logging.Logger) -> PluginIdentity:
    """Return the name and index that the runtime gave; the default ones where the runtime would refuse those.

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
