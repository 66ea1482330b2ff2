"""What tells pods of events, for the tests of each kind of event."""

import logging

import pytest

from nri_plugin.exporter.events import Announcer
from nri_plugin.kube.api_client import KubeClient


@pytest.fixture
def announcer(client: KubeClient) -> Announcer:
    return Announcer(client, "n1", logging.getLogger("announcer under test"), lambda: 0.0)
