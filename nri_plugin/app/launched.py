"""The two starts of an agent that belongs to the runtime: by the runtime itself, and by its supervisor afterwards."""

import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from nri_plugin.app.agent import (
    Identity,
    collect_garbage_by_the_clock,
    new_monitoring,
    run,
    serve,
    serve_http,
    watched_handler,
)
from nri_plugin.app.arguments import Arguments
from nri_plugin.app.config import Config, load, load_text
from nri_plugin.app.handler import Handler
from nri_plugin.app.logs import say, set_up
from nri_plugin.app.loop import Loop
from nri_plugin.app.reload import Reload
from nri_plugin.app.runtime_link import RuntimeLink
from nri_plugin.app.supervisor import CONFIG, FORMER, LIFE, Life
from nri_plugin.app.transport import adopt
from nri_plugin.app.turn import Turn
from nri_plugin.errors import ConfigError, LocalProtocolError
from nri_plugin.host.checkpoint import DEFAULT_DIR
from nri_plugin.host.runtime_lock import RuntimeLock


def run_launched(arguments: Arguments, environment: Mapping[str, str]) -> int:
    """Run the agent that the runtime started, or the one that takes its place; returns its exit code.

    Raises:
        NriPinError: the agent cannot start.
    """
    life = given_life(environment)
    if life is not None and "NRI_PLUGIN_SOCKET" not in environment:
        return run_returned(arguments, environment, life)
    try:
        return run_prelaunched(arguments, environment, life)
    except ConfigError:
        if life is not None:
            life.quit()  # an agent that comes back would have the same configuration
        raise


def run_prelaunched(arguments: Arguments, environment: Mapping[str, str], life: Life | None) -> int:
    """Serve the one connection the runtime handed over; it also brings the configuration.

    Raises:
        NriPinError: the agent cannot start.
    """
    log = set_up("info", "text", Path(DEFAULT_DIR))
    loop = Loop()
    identity = given_identity(environment, log)
    start = PrelaunchedStart(arguments, log, loop, life)
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


class PrelaunchedStart:
    """Makes the handler when the runtime has told the configuration."""

    def __init__(self, arguments: Arguments, log: logging.Logger, loop: Loop, life: Life | None) -> None:
        self._arguments = arguments
        self._log = log
        self._loop = loop
        self._life = life
        self._text = ""
        self._turn: Turn | None = None
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

        self._turn = Turn(lock, config.state_dir, self._loop, self._log, begin, wait, is_replaceable=False)
        serve_http(config, self._log, self._loop, self.link, monitoring)
        self._turn.demand()
        return self.link.handler

    def close(self) -> None:
        """Give up the right to serve."""
        if self._turn is not None:
            self._turn.close()


def run_returned(arguments: Arguments, environment: Mapping[str, str], life: Life) -> int:
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
    """What the runtime handed over to the agent before this one; empty when it ended too soon."""
    number = environment.get(CONFIG, "")
    if not number.isdecimal():
        return ""
    with os.fdopen(int(number), encoding="utf-8") as file:
        file.seek(0)
        return file.read()


def given_identity(environment: Mapping[str, str], log: logging.Logger) -> Identity:
    """What the runtime calls the agent; a name it would not take from others is no reason to give up here.

    Raises:
        ConfigError: the socket is no descriptor number.
    """
    number = environment.get("NRI_PLUGIN_SOCKET")
    if number is not None and not number.isdecimal():
        raise ConfigError(
            "NRI_PLUGIN_SOCKET", f"expected the number of an open socket such as 3, found {number}"
        )
    descriptor = None if number is None else int(number)
    identity = Identity(
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
        return Identity("nri-pin", "90", descriptor)
    return identity
