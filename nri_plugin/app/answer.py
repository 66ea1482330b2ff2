"""What a request is answered with, and the answer that changes nothing."""

from dataclasses import dataclass

from nri_plugin.decision import EffectiveCheck
from nri_plugin.nri.events import (
    ACKNOWLEDGED,
    CreateContainer,
    CreateContainerResponse,
    NRIEvent,
    NRIResponse,
    StopContainer,
    StopContainerResponse,
    Synchronize,
    SynchronizeResponse,
    UpdateContainer,
    UpdateContainerResponse,
    ValidateContainerAdjustment,
    ValidateContainerAdjustmentResponse,
)

EMPTY_RESPONSES: tuple[tuple[type, NRIResponse], ...] = (
    (CreateContainer, CreateContainerResponse()),
    (UpdateContainer, UpdateContainerResponse()),
    (StopContainer, StopContainerResponse()),
    (Synchronize, SynchronizeResponse()),
    (ValidateContainerAdjustment, ValidateContainerAdjustmentResponse()),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send: `refusal` when it says something, else `response`; `checks` once it is out.

    `failed`: nothing came of the event, and this is only the answer that harms nobody.
    """

    response: NRIResponse = ACKNOWLEDGED
    refusal: str = ""
    checks: tuple[EffectiveCheck, ...] = ()
    failed: bool = False


def empty_response(event: NRIEvent) -> NRIResponse:
    """The answer to `event` that changes nothing."""
    return next((response for kind, response in EMPTY_RESPONSES if isinstance(event, kind)), ACKNOWLEDGED)
