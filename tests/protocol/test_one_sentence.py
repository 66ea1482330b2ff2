"""A refusal is one sentence: the runtime's error, the agent's log, the pod's event and `nri-pin explain` say the same."""

import json
import logging
from pathlib import Path

from click.testing import CliRunner

from nri_plugin.agent.observing.status_client import AgentStatus, read_status
from nri_plugin.cli.explain.explain import command
from nri_plugin.exporter.events import Announcer
from nri_plugin.kube.api_client import KubeClient
from tests.kube_api_server import KubeAPI
from tests.lab.scenario.player import Player
from tests.lab.scenario.scenario import parse
from tests.patient_stage import patient_stage

SCENARIO = """\
machine: kep3545-4-numa
config: {reservedSystemCPUs: "0", topologyManagerPolicy: single-numa-node, logFormat: json}
steps:
  - run: shop/db
    containers: {postgres: {cpu: 2, memory: 1Gi}}
  - run: shop/big
    containers: {crunch: {cpu: 999m, memory: 1Gi}, numbers: {cpu: 30, memory: 1Gi}}
  - expect: shop/big/numbers
    refused: TopologyAffinityError
"""


def test_all_four_say_the_same(tmp_path: Path) -> None:
    scenario = parse(SCENARIO, "x.yaml")
    with patient_stage(scenario) as node:
        node.start_agent()
        player = Player(node)
        for step in scenario.steps:
            player.play(step)
        status = read_status(str(node.places.state / "agent.sock"))
        assert node.stop_agent() == 0
        logged = [json.loads(line) for line in node.places.log.read_text().splitlines()]
        asked = ["shop/big/numbers", "--state-dir", str(node.places.state), "-o", "json"]
        explained = json.loads(CliRunner().invoke(command, asked).output)["sentence"]
    (to_runtime,) = player.refusals.values()
    (in_log,) = [line["err"] for line in logged if "TopologyAffinityError" in line.get("err", "")]
    assert to_runtime.endswith(explained)
    assert explained.startswith("TopologyAffinityError: resources cannot be allocated")
    assert "would fit: " in explained
    assert in_log == explained
    assert note_of(status, tmp_path) == f"container numbers: {explained}"


def note_of(status: AgentStatus, folder: Path) -> str:
    """The event on the pod, as the API server gets it."""
    api = KubeAPI()
    client = KubeClient.connected(str(api.kubeconfig(folder)))
    try:
        announcer = Announcer(client, "n1", logging.getLogger("announcer under test"), lambda: 0.0)
        announcer.announce(AgentStatus(status.node, status.state))
        announcer.announce(status)
        found = [obj for key, obj in api.store.objects.items() if key[1] == "events"]
        # The container before the refused one runs: another event says that the pod is incomplete.
        (event,) = [obj for obj in found if obj["reason"] != "IncompletePod"]
        return str(event["note"])
    finally:
        client.close()
        api.close()
