"""A pod with resources of its own and a fraction of a CPU: nothing of it is exclusive, and no container is refused later."""

from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Amounts, ContainerFacts, PodFacts, QOSClass
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, node, pod


def test_a_pod_of_a_fraction_of_a_cpu_is_admitted_and_none_of_its_containers_gets_cpus_of_its_own() -> None:
    on = node(
        pod_level_managers=True,
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        topology_manager_scope=TopologyManagerScope.POD,
    )
    of, two = pod(), Amounts(2000, 2000, GIB, GIB)
    rows = (ContainerFacts("first", amounts=two), ContainerFacts("second", amounts=two))
    facts = PodFacts("p1", QOSClass.GUARANTEED, rows, Amounts(4500, 4500, 2 * GIB, 2 * GIB))
    state = decide(on, State(), nri.RunPodSandbox(of)).state
    for name in ("first", "second"):
        event = nri.CreateContainer(of, container(of, name, cpu=2, memory=GIB))
        decision = decide(on, state, InformedCreate(event, facts=facts))
        assert decision.refusal is None
        state = decision.state
        assert state.allocations == {}
    assert state.pods["p1"].is_admitted
