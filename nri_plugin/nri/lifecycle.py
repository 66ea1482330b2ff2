"""Where a plugin's connection stands, as a table.

Our own registration call and the runtime's calls are independent: Configure may come before the runtime's
reply to RegisterPlugin, so that reply is no step here.
"""

from enum import Enum
from typing import Final


class Stage(Enum):
    """How far the connection has come."""

    CONNECTED = "connected"
    REGISTERING = "registering"
    CONFIGURING = "being configured"
    CONFIGURED = "configured"
    COLLECTING = "receiving the list of containers"
    SYNCHRONIZING = "being synchronized"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


class Step(Enum):
    """What moves it."""

    REGISTER = "register"
    CONFIGURE = "Configure"
    SYNCHRONIZE_PART = "part of Synchronize"
    SYNCHRONIZE = "Synchronize"
    EVENT = "event"
    ANSWERED = "answer"
    REFUSED = "error answer"


NEXT_STAGE: Final[dict[tuple[Stage, Step], Stage]] = {
    (Stage.CONNECTED, Step.REGISTER): Stage.REGISTERING,
    (Stage.REGISTERING, Step.CONFIGURE): Stage.CONFIGURING,
    (Stage.CONFIGURING, Step.ANSWERED): Stage.CONFIGURED,
    (Stage.CONFIGURING, Step.REFUSED): Stage.FAILED,
    # A plugin launched by a runtime before NRI 0.7 is never synchronized: events follow at once.
    (Stage.CONFIGURED, Step.EVENT): Stage.CONFIGURED,
    (Stage.CONFIGURED, Step.SYNCHRONIZE_PART): Stage.COLLECTING,
    (Stage.CONFIGURED, Step.SYNCHRONIZE): Stage.SYNCHRONIZING,
    (Stage.COLLECTING, Step.SYNCHRONIZE_PART): Stage.COLLECTING,
    (Stage.COLLECTING, Step.SYNCHRONIZE): Stage.SYNCHRONIZING,
    (Stage.SYNCHRONIZING, Step.ANSWERED): Stage.READY,
    (Stage.SYNCHRONIZING, Step.REFUSED): Stage.FAILED,
    (Stage.READY, Step.EVENT): Stage.READY,
}
