"""A node in a folder on which nobody loses patience: for tests that are about anything but lateness."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.agent_process import PATIENCE_S, PATIENT_AGENT
from tests.lab.scenario.scenario import Scenario
from tests.lab.scenario.stage import ScenarioNode, stage


@contextmanager
def patient_stage(scenario: Scenario, keep: Path | None = None) -> Iterator[ScenarioNode]:
    """`stage`, with a runtime that lets its plugin register, and an agent that lets its exporter answer, in its own time."""
    with stage(scenario, keep) as node:
        behaviour = node.runtime.behaviour
        profile = replace(behaviour.profile, registration_timeout=PATIENCE_S)
        node.runtime.behaviour = replace(behaviour, profile=profile)
        words = node.command[node.command.index("run") :]
        node.command = [sys.executable, "-P", *PATIENT_AGENT, *words]
        yield node
