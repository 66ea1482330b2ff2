"""Quiet CPUs where programs run in pods: the agent with and without its mounts, and the pod that measures gaps."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import interrupts
from .irqbalance import DIRECTORY, IRQBalance
from .manifest import AGENT_POD, agent_pod
from .node import Node
from .observe import capabilities
from .pods import guaranteed
from .quiet_facts import METRICS, SOON_S, metrics, nothing_reaches, quiet_cpus, timed
from .waiting import wait_for

_GUIDE = Path("/opt/e2e/deploy/guide/quiet-cpus.md")
_ROW = re.compile(r"^\| `(/\S+)` \| `(/host/\S+)`(, read-only)? \|", re.MULTILINE)
_WHOLE_PROC = {"/host/proc": "/proc"}
_OPTIONS = {
    "reservedSystemCPUs": "0",
    "irqs": "exclusive",
    "workqueues": "exclusive",
    "metricsBindAddress": METRICS,
}


def the_agent_s_pod_needs_its_mounts(node: Node) -> None:
    """With the mounts of the guide, with the whole of /proc beside them, and without any of them."""
    node.agent.stop()
    before = interrupts.settings()
    mounts = {at: of for of, at, _ in _guide_rows()}
    read_only = frozenset(at for _, at, mode in _guide_rows() if mode)
    DIRECTORY.mkdir(exist_ok=True)
    _without(node, before)
    _with(node, "the guide's mounts", mounts, read_only, before)
    _with(node, "the whole of /proc, too", {**_WHOLE_PROC, **mounts}, read_only | set(_WHOLE_PROC), before)
    node.agent.start()


def _guide_rows() -> list[tuple[str, str, str]]:
    return [match.groups(default="") for match in _ROW.finditer(_GUIDE.read_text())]  # type: ignore[misc]


def _run_agent(node: Node, mounts: dict[str, str], read_only: frozenset[str]) -> Any:
    spec = agent_pod(**_OPTIONS)
    (container,) = spec.containers
    added = replace(
        container, mounts={**container.mounts, **mounts}, read_only=container.read_only | read_only
    )
    joined = node.agent.times_joined()
    agent = node.run(replace(spec, containers=(added,)))
    node.agent.wait_until_joined(joined)
    return agent


def _without(node: Node, before: dict[str, str]) -> None:
    agent = _run_agent(node, {}, frozenset())
    pod = node.run(guaranteed("db", 2))
    node.equal("without mounts: a container gets its exclusive CPUs", len(quiet_cpus(node)), 2)
    wait_for(lambda: metrics().get("nri_pin_quiet_trouble") == 1, SOON_S, "the metric tells of trouble")
    node.equal("without mounts: nothing is written", interrupts.settings(), before)
    _, said = node.agent.doctor("-o", "json")
    (finding,) = [one for one in json.loads(said)["checks"] if one["check"] == "quiet-cpus"]
    node.figure("without mounts: doctor says", finding)
    node.equal("without mounts: doctor has something to do", finding["verdict"], "TO DO")
    node.expect("without mounts: it names the file", "/host/proc/irq" in json.dumps(finding), finding)
    node.remove(pod)
    node.remove(agent)


def _with(
    node: Node, what: str, mounts: dict[str, str], read_only: frozenset[str], before: dict[str, str]
) -> None:
    log = Path(f"/out/pods/{AGENT_POD}/agent.log")
    logged = len(log.read_text().splitlines()) if log.exists() else 0
    balancer = IRQBalance("3")
    balancer.start()
    try:
        wait_for(lambda: balancer.banned() == {3}, SOON_S, "irqbalance has its own ban")
        before = before | interrupts.settings()
        agent = _run_agent(node, mounts, read_only)
        held = capabilities(node.pid(agent.id))
        node.equal(f"{what}: no capability", [held["CapEff"], held["CapPrm"], held["CapBnd"]], [0, 0, 0])
        pod = node.run(guaranteed("db", 1))
        cpus = quiet_cpus(node)
        timed(node, lambda: not nothing_reaches(cpus), f"{what}: movable interrupts leave the quiet CPUs")
        timed(node, lambda: balancer.banned() == cpus | {3}, f"{what}: irqbalance leaves them alone")
        node.equal(f"{what}: no trouble", metrics()["nri_pin_quiet_trouble"], 0)
        node.remove(pod)
        timed(node, lambda: balancer.banned() == {3}, f"{what}: irqbalance has its own ban again")
    finally:
        balancer.end()
    wait_for(lambda: not metrics().get("nri_pin_quiet_settings"), SOON_S, f"{what}: all is given back")
    node.remove(agent)
    said = log.read_text().splitlines()[logged:]
    node.figure(f"{what}: what its log holds", [line[-300:] for line in said if '"level":"info"' not in line])
