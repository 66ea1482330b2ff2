"""A node in a folder on which nobody loses patience: for tests that are about anything but lateness."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.simulator import stage as module
from nri_plugin.simulator.scenario import Scenario
from nri_plugin.simulator.stage import Stage, stage
from tests.agent_process import PATIENCE_S, PATIENT_AGENT


@contextmanager
def patient_stage(scenario: Scenario, keep: Path | None = None) -> Iterator[Stage]:
    """`stage`, with a runtime that gives its plugin, and an agent that gives its exporter, as long as it takes."""
    with pytest.MonkeyPatch.context() as patch, stage(scenario, keep) as node:
        patch.setattr(module, "AGENT_START_S", PATIENCE_S)
        patch.setattr(module, "AGENT_STOP_S", PATIENCE_S)
        behaviour = node.runtime.behaviour
        profile = replace(behaviour.profile, registration_timeout=PATIENCE_S, request_timeout=2 * PATIENCE_S)
        node.runtime.behaviour = replace(behaviour, profile=profile)
        words = node.command[node.command.index("run") :]
        node.command = [sys.executable, "-P", *PATIENT_AGENT, *words]
        yield node
