"""Nodes with something on them, and containers that come to them, for tests of explanations."""

from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import Node
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri.events import CreateContainer
from tests.builders import container, pod


def creation(
    uid: str = "new",
    cpu: float = 0,
    memory: int = 0,
    *,
    qos: str = "Guaranteed",
    gpus: tuple[int, ...] = (),
    total: float | None = None,
    namespace: str = "default",
) -> InformedCreate:
    """A container comes; `gpus` are the NUMA nodes of its devices, `total` the CPUs of its pod."""
    of = pod(uid, qos, cpu=total, namespace=namespace)
    devices = tuple(Device(str(number), NodeMask.of(node)) for number, node in enumerate(gpus))
    given = (DeviceResource("example.com/gpu", devices),) if devices else ()
    return InformedCreate(CreateContainer(of, container(of, cpu=cpu, memory=memory)), devices=given)


def after(on: Node, *events: InformedCreate) -> State:
    """The state once these containers were placed."""
    state = State()
    for event in events:
        decision = decide(on, state, event)
        assert decision.refusal is None, decision.refusal
        state = decision.state
    return state
