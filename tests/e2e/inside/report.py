"""What the inner half says to the outer one: JSON lines on its output, one per fact, failed or not."""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

_MARK = "@@"  # whatever else is printed is for people

ONLY = "NRI_PIN_SCENARIOS"
"""The environment variable with parts of names, `;` between them: other scenarios are left out. Empty for all."""


def tell(kind: str, **values: object) -> None:
    """Print one message."""
    print(_MARK + json.dumps({"kind": kind, **values}), flush=True)  # noqa: T201 - this is the channel


class Expectations:
    """Collects facts: a wrong one is told and counted, and the scenario goes on to show the others."""

    def __init__(self) -> None:
        self.scenario = ""
        self.failed = 0

    def expect(self, fact: str, holds: bool, detail: object = "") -> None:
        """Tell whether `fact` holds; `detail` is what was seen, and is printed where it does not."""
        self.failed += not holds
        tell("fact", scenario=self.scenario, fact=fact, holds=holds, detail=str(detail))

    def equal(self, fact: str, seen: object, wanted: object) -> None:
        """Tell whether two values are the same."""
        self.expect(fact, seen == wanted, f"seen {seen}, wanted {wanted}")

    def figure(self, what: str, value: object) -> None:
        """Tell something measured; it is printed and never judged."""
        tell("figure", scenario=self.scenario, what=what, value=value)


def play(expectations: Expectations, scenarios: Iterable[Callable[..., None]], *arguments: Any) -> None:
    """Run scenarios one after the other; one that breaks off counts as a wrong fact."""
    parts = os.environ.get(ONLY, "").split(";")
    for scenario in scenarios:
        expectations.scenario = scenario.__name__.replace("_", " ")
        if not any(part in expectations.scenario for part in parts):
            continue
        tell("begin", scenario=expectations.scenario, about=(scenario.__doc__ or "").partition("\n")[0])
        began = time.monotonic()
        try:
            scenario(*arguments)
        except Exception:  # noqa: BLE001 - whatever it is, the next scenario still has something to say
            expectations.expect("the scenario ran to its end", False, traceback.format_exc(limit=-4))
        tell("end", scenario=expectations.scenario, seconds=round(time.monotonic() - began, 1))
