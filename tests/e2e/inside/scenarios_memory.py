"""What the agent remembers is taken from it or contradicted; containers that run do not notice."""

import shutil
from pathlib import Path

from .cri import CRIError
from .laws import check_laws
from .node import Node
from .observe import format_list
from .pods import burstable, guaranteed
from .promises import promises

_STATE = Path("/run/nri-pin")


def a_lost_checkpoint_moves_nobody(node: Node) -> None:
    """The agent finds the placements again in what the runtime tells."""
    _unmoved_by(node, _lose_everything)


def a_damaged_checkpoint_moves_nobody(node: Node) -> None:
    """The same for a file with a flipped bit; it is kept aside and said loudly."""
    told = len(node.agent.complaints())
    _unmoved_by(node, _flip_a_bit)
    said = node.agent.complaints()[told:]
    node.expect("the damage is said", any("checkpoint" in line for line in said), said)
    node.agent.excuse(said)


def a_new_policy_moves_nobody(node: Node, policy: str, reserved: str) -> None:
    """Another policy and other reserved CPUs, among them some that are held: they are for pods to come."""
    before = dict(node.agent.config)
    _unmoved_by(
        node, lambda: node.agent.write_config(topologyManagerPolicy=policy, reservedSystemCPUs=reserved)
    )
    newcomer = node.run(burstable("newcomer"))
    check_laws(node)
    node.remove(newcomer)
    _unmoved_by(node, lambda: node.agent.write_config(**before))


def the_shared_pool_is_never_emptied(node: Node) -> None:
    """With the last CPU not reserved any more, a pod that would take it from the shared containers is refused."""
    before = dict(node.agent.config)
    held = max(promise.cpus for promise in promises(node.agent.state()).values() if promise.exclusive)
    _unmoved_by(node, lambda: node.agent.write_config(reservedSystemCPUs=format_list(held)))
    shared = node.running()["web/main"]
    pool = len(node.observe(shared).allowed_cpus)
    try:
        node.remove(node.run(guaranteed("greedy", pool)))
        node.expect("a pod that wants the whole shared pool is refused", False, f"it got all {pool} CPUs")
    except CRIError as error:
        node.expect(
            "a pod that wants the whole shared pool is refused", "shared" in error.reason, error.reason
        )
        node.remove(node.pods[-1])
    check_laws(node)
    node.agent.excuse([line for line in node.agent.complaints() if "pod=default/greedy" in line])
    _unmoved_by(node, lambda: node.agent.write_config(**before))


def _unmoved_by(node: Node, change: object) -> None:
    before = {name: node.observe(identity) for name, identity in node.running().items()}
    promised = promises(node.agent.state())
    node.agent.stop()
    assert callable(change)
    change()
    node.agent.start()
    check_laws(node)
    after = {name: node.observe(identity) for name, identity in node.running().items()}
    node.equal("every container runs where it ran", after, before)
    node.equal("the promises are the same", promises(node.agent.state()), promised)


def _lose_everything() -> None:
    for path in _STATE.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _flip_a_bit() -> None:
    for path in _STATE.glob("*.json"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
