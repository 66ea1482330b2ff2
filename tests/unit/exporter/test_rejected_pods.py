"""A refused pod is Failed and ended, and stays so, whatever the kubelet's status manager writes and whoever is late."""

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing.status_client import AgentStatus, RefusalRow
from nri_plugin.exporter.refused_pods import FAILED, LEFT, LONGEST_AGAIN_S, WAITS, RefusedPods
from nri_plugin.kube.api_client import PODS, KubeClient
from nri_plugin.kube.pod_facts import PodsHere
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import PodRecord, PodRefusal
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine
from tests.kube_api_server import KubeAPI
from tests.pod_kubelet import WAITING, PodKubelet

NODE = Node(machine(), Options(), CPUSet.parse("0"))
WORDS = "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2; ask for 2 or 4"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "rs-1", "controller": True}


class Cluster:
    """One node with a pod that its agent has refused, its exporter, its kubelet, and the API server."""

    def __init__(self, api: KubeAPI, client: KubeClient) -> None:
        self.api, self.client, self.kubelet = api, client, PodKubelet(api)
        self.now, self.state, self.count, self.runs = 0.0, State(), 0, False
        self.rejects = self.agent_rejects
        self.exporter_starts()

    def exporter_starts(self) -> None:
        self.pods = PodsHere(lambda _: None)
        self.exporter = RefusedPods(
            self.client,
            "n1",
            lambda: self.now,
            wall_clock=lambda: 0.0,
            reject=self.asks_the_agent,
            pods=self.pods,
        )

    def asks_the_agent(self, row: RefusalRow) -> PodRefusal | None:
        return self.rejects(row)

    def agent_rejects(self, row: RefusalRow) -> PodRefusal | None:
        """What the agent does."""
        if self.runs:
            return None
        refusal = PodRefusal(row.reason, row.message, is_final=True)
        record = PodRecord(row.pod_uid, "s", row.pod, row.namespace, refusal=refusal)
        self.state = self.state.with_pod(record)
        return refusal

    def creates(self, **metadata: object) -> RefusalRow:
        """A pod that the kubelet has begun with and the agent has refused."""
        self.count += 1
        name = f"web-{self.count}"
        obj = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", **metadata},
            "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "i"}]},
        }
        uid = self.api.put(obj)["metadata"]["uid"]
        self.kubelet.hears()
        self.kubelet.writes_back()
        return RefusalRow(
            self.count, uid, "default", name, "app", "SMTAlignmentError", f"SMTAlignmentError: {WORDS}", WORDS
        )

    def exporter_looks(self) -> None:
        """It hears of all pods and of a status of the agent, 31 s later than the last time."""
        self.now += LONGEST_AGAIN_S + 1.0
        self.pods.listed(self.kubelet.pods())
        self.exporter.take(AgentStatus(NODE, self.state))
        self.exporter.follow()

    def api_fails(self) -> None:
        self.api.behaviour.fail_next.append((500, {}))

    def status(self, row: RefusalRow) -> dict[str, object]:
        return self.client.get(PODS, row.pod, "default")["status"]


@pytest.fixture
def cluster(api: KubeAPI, client: KubeClient) -> Cluster:
    return Cluster(api, client)


def test_the_kubelet_takes_a_status_alone_as_no_news(cluster: Cluster) -> None:
    """So it would be with a patch without an annotation: this is why there is one."""
    row = cluster.creates()
    cluster.client.merge_patch(
        PODS, row.pod, {"status": {"phase": "Failed"}}, namespace="default", subresource="status"
    )
    cluster.kubelet.hears()
    cluster.kubelet.writes_back()
    assert (cluster.status(row)["phase"], cluster.kubelet.ended) == ("Pending", set())


STEPS = {
    "looks": Cluster.exporter_looks,
    "restarts": Cluster.exporter_starts,
    "fails": Cluster.api_fails,
    "hears": lambda cluster: cluster.kubelet.hears(),
    "writes": lambda cluster: cluster.kubelet.writes_back(),
}


@pytest.mark.parametrize(
    "steps",
    [
        "hears",
        "hears writes",
        "writes hears",
        "writes looks writes hears",
        "writes looks writes looks writes looks hears writes",
        "writes restarts looks writes hears",
        "restarts writes restarts looks hears writes",
        "writes fails looks hears",
        "writes fails restarts looks fails looks writes hears",
    ],
)
@pytest.mark.parametrize("before", ["", "fails"])
def test_a_rejected_pod_is_failed_and_ended_and_stays_so(cluster: Cluster, before: str, steps: str) -> None:
    row = cluster.creates()
    if before:
        # The read before the rejection is answered, the write is not.
        cluster.rejects = lambda row: (cluster.api_fails(), cluster.agent_rejects(row))[1]
    assert cluster.exporter.fail(row).result == (LEFT if before else FAILED)
    for step in steps.split():
        STEPS[step](cluster)
    # However it began: all go on as they do.
    cluster.api.behaviour.fail_next.clear()
    for _ in range(3):
        cluster.exporter_looks()
        cluster.kubelet.hears()
        cluster.kubelet.writes_back()
    assert cluster.kubelet.ended == {row.pod}
    status = cluster.status(row)
    assert (status["phase"], status["reason"], status["message"]) == (
        "Failed",
        "SMTAlignmentError",
        f"Pod was rejected: {WORDS}",
    )


def test_the_kubelet_ends_it_at_its_first_news(cluster: Cluster) -> None:
    row = cluster.creates()
    cluster.exporter.fail(row)
    cluster.kubelet.hears()
    cluster.kubelet.writes_back()
    assert (cluster.kubelet.ended, cluster.status(row)["phase"]) == ({row.pod}, "Failed")
    assert cluster.exporter.due_s() is None


def test_a_pod_that_others_write_at_the_same_time_is_read_again(cluster: Cluster) -> None:
    """The kubelet's status comes between our read and our write."""
    row = cluster.creates()
    status = {"phase": "Pending", **WAITING, "message": "trying again"}

    def rejects(of: RefusalRow) -> PodRefusal | None:
        cluster.api.put({**cluster.client.get(PODS, of.pod, "default"), "status": status})
        return cluster.agent_rejects(of)

    cluster.rejects = rejects
    assert cluster.exporter.fail(row).result == FAILED
    assert cluster.status(row)["phase"] == "Failed"


def test_a_pod_of_which_a_container_runs_is_not_failed_although_its_status_is_late(cluster: Cluster) -> None:
    row, cluster.runs = cluster.creates(), True
    outcome = cluster.exporter.fail(row)
    assert (outcome.result, cluster.status(row)["phase"]) == (LEFT, "Pending")
    assert "a container of it runs" in outcome.advice


def test_an_agent_that_does_not_answer_rejects_nothing(cluster: Cluster) -> None:
    def rejects(_row: RefusalRow) -> PodRefusal | None:
        raise HostError("agent.sock", "no answer")

    row, cluster.rejects = cluster.creates(), rejects
    assert "no answer" in cluster.exporter.fail(row).advice
    assert cluster.status(row)["phase"] == "Pending"


def test_only_the_first_write_of_a_pod_counts_for_the_back_off(cluster: Cluster) -> None:
    row = cluster.creates(ownerReferences=[OWNER])
    assert cluster.exporter.fail(row).result == FAILED
    for _ in range(3):
        cluster.kubelet.writes_back()
        cluster.exporter_looks()
    assert cluster.status(row)["phase"] == "Failed"
    # Ten seconds after the first failure of its owner the next one may fail; many more are over.
    assert cluster.exporter.fail(cluster.creates(ownerReferences=[OWNER])).result == FAILED
    assert cluster.exporter.fail(cluster.creates(ownerReferences=[OWNER])).result == WAITS


def test_while_writes_are_forbidden_pods_are_left_to_try_again(cluster: Cluster) -> None:
    first, second = cluster.creates(), cluster.creates()
    asked = []

    def rejects(row: RefusalRow) -> PodRefusal | None:
        asked.append(row.pod)
        cluster.api.behaviour.fail_next.append((403, {}))
        return cluster.agent_rejects(row)

    cluster.rejects = rejects
    assert "403" in cluster.exporter.fail(first).advice
    assert cluster.exporter.fail(second).result == FAILED, "the right is there now"
    assert asked == [first.pod]
    cluster.exporter_looks()
    assert cluster.status(first)["phase"] == "Failed"


def test_a_pod_that_is_gone_is_followed_no_more(cluster: Cluster) -> None:
    row = cluster.creates()
    cluster.exporter.fail(row)
    cluster.kubelet.writes_back()
    cluster.pods.listed(cluster.kubelet.pods())
    cluster.exporter.take(AgentStatus(NODE, cluster.state))
    assert cluster.exporter.due_s() == 1.0
    cluster.state = State()
    cluster.exporter.take(AgentStatus(NODE, replace(cluster.state)))
    assert cluster.exporter.undone == []
