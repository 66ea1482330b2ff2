"""The steps that take a node from the kubelet's static managers to the agent; pure.

At every step the node works, or the step says how it works again: the kubelet is stopped only after a rehearsal of the
import has succeeded, and each step between its stop and its start says how to start it as it was. The kubelet starts
once, on a configuration that it accepts, and after the agent. A kubelet that starts the agent itself, as a DaemonSet,
cannot start after it: there the node is cordoned meanwhile.

Source: kubelet v1.36 cm/cpumanager/policy_none.go: the none policy refuses to start with any cpuManagerPolicyOptions.
topologymanager/topology_manager.go and memorymanager/memory_manager.go: none and None read neither
topologyManagerPolicyOptions nor reservedMemory, so these may stay. cpumanager/state, memorymanager/state: a kubelet
does not start on a state file of another policy.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nri_plugin.cli.doctor_findings import Step
from nri_plugin.host.node_evidence_kubelet import FOLDER, KubeletSettings, Setting

ASIDE = "before-nri-pin"
"""The end of the names of files that are kept for the way back."""

NEXT = "nri-pin-next"
OFF: Mapping[str, str] = {
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "topologyManagerPolicy": "none",
}
"""What each manager of the kubelet has to be set to."""

START = "systemctl start kubelet"
OR_NOT = "where it is refused, do what it says before you go on: nothing has changed"


@dataclass(frozen=True, slots=True)
class Migration:
    """A node on its way.

    Attributes:
        settings: of the kubelet.
        state_files: those of a static policy that are there.
        config_path: of the agent's configuration.
        has_configuration: whether it is there.
        agent_runs: it has placed what runs, so that nothing has to be imported.
        restart_runtime: the command that starts an agent that the runtime starts itself; empty for any other.
        in_pod: the agent is to come from a DaemonSet, and this is a pod with the node's root below `root`.
        root: of the node.
    """

    settings: KubeletSettings
    state_files: Sequence[str]
    config_path: str
    has_configuration: bool = True
    agent_runs: bool = False
    restart_runtime: str = ""
    in_pod: bool = False
    root: str = "/"

    @property
    def must_import(self) -> bool:
        """Whether the kubelet has promises that no agent knows."""
        return bool(self.state_files) and not self.agent_runs


def steps(node: Migration) -> tuple[Step, ...]:
    """What to do, in order."""
    before = (*(_cordon() if node.in_pod else ()), *_promises_first(node), *_next_configuration(node))
    inner = tuple(_hand_over(node))
    last = len(before) + 1 + len(inner)
    stop = Step(
        f"stop the kubelet; containers go on running, and no pod starts or ends until step {last}",
        "systemctl stop kubelet",
        START,
    )
    return (*before, stop, *inner, *_afterwards(node))


def _cordon() -> Iterator[Step]:
    yield Step(
        "keep new pods away, because the kubelet has to start before the agent can: NODE is this node",
        "kubectl cordon NODE",
    )


def _promises_first(node: Migration) -> Iterator[Step]:
    """Before the kubelet is touched: that its promises can be kept."""
    if node.agent_runs:
        yield Step("see that the agent has placed what runs: it says sound", "nri-pin state verify")
    elif node.in_pod and node.must_import:
        yield Step(
            f"take the kubelet's promises over, by its own options where the agent has no file here; {OR_NOT}",
            f"nri-pin state import {node.root}{FOLDER} --state-dir {node.root}/run/nri-pin",
        )
    elif not node.in_pod:
        if not node.has_configuration:
            yield from _first_configuration(node)
        if node.must_import:
            yield Step(
                f"rehearse the import, into a directory of its own, while the kubelet runs; {OR_NOT}",
                f'{_import(node)} --state-dir "$(mktemp -d)"',
            )


def _first_configuration(node: Migration) -> Iterator[Step]:
    theirs = node.settings.files[:1]
    flags = [one.where.split()[0] for one in node.settings.by_key.values() if not one.path]
    more = f"; add what the kubelet's command line says ({', '.join(flags)})" if flags else ""
    if theirs:
        yield Step(
            f"give the agent the options that the kubelet has; it takes the kubelet's own file{more}",
            f"install -D -m 0644 {shlex.quote(theirs[0])} {shlex.quote(node.config_path)}",
        )
    else:
        yield Step(
            f"write {node.config_path} with the options that the kubelet has on its command line ({', '.join(flags)})"
        )


def _import(node: Migration) -> str:
    return f"nri-pin state import {FOLDER} --config {shlex.quote(node.config_path)}"


def _next_configuration(node: Migration) -> Iterator[Step]:
    """The kubelet's next configuration, beside the present one: what it reads at its start is not touched yet."""
    for path, edits in _edits(node.settings).items():
        name = shlex.quote(path)
        words = " ".join(f"-e {shlex.quote(edit)}" for edit in edits)
        where = ", on the node itself (ssh, console)" if node.in_pod else ""
        yield Step(f"copy the kubelet's configuration{where}", f"cp -p {name} {name}.{NEXT}")
        yield Step(
            f"switch the managers off in the copy; compare with diff {name} {name}.{NEXT}",
            f"sed -i {words} {name}.{NEXT}",
        )


def _hand_over(node: Migration) -> Iterator[Step]:
    """From the kubelet's stop to its start; `undo` grows with what has been done."""
    undo: list[str] = []
    if not node.agent_runs and not node.in_pod:
        if node.must_import:
            yield Step("take the kubelet's promises over", _import(node), START)
        undo += [] if node.restart_runtime else ["systemctl stop nri-pin"]
        yield from _start_agent(node, _undone(undo))
    by_hand = _by_hand(node.settings)
    if by_hand:
        yield Step(by_hand)
    for path in _edits(node.settings):
        name = shlex.quote(path)
        yield Step(
            "put the kubelet's configuration in place; the former one is kept",
            f"mv -b -S .{ASIDE} {name}.{NEXT} {name}",
            _undone(undo),
        )
        undo.append(f"mv {name}.{ASIDE} {name}")
    for path in node.state_files:
        yield Step(
            "move its state file away: a kubelet does not start on that of another policy",
            f"mv {path} {path}.{ASIDE}",
            _undone(undo),
        )
        undo.append(f"mv {path}.{ASIDE} {path}")
    yield Step("start the kubelet; journalctl -u kubelet -n 20 tells how it went", START, _undone(undo))


def _undone(steps_back: Sequence[str]) -> str:
    return "; ".join([*steps_back, START])


def _start_agent(node: Migration, back: str) -> Iterator[Step]:
    if node.restart_runtime:
        yield Step("start the agent with the runtime; containers go on running", node.restart_runtime, back)
    else:
        yield Step(
            "start the agent, by its unit where it has one; this unit is gone after a reboot",
            "systemd-run --unit nri-pin --property Restart=always "
            f"nri-pin run --config {shlex.quote(node.config_path)}",
            back,
        )
    yield Step(
        "see that it has met its containers: it says sound, and nothing of promises that wait",
        "nri-pin state verify",
        back,
    )


def _afterwards(node: Migration) -> Iterator[Step]:
    if not node.in_pod:
        return
    if not node.agent_runs:
        yield Step("let the DaemonSet come to this node", "kubectl label node NODE nri-pin/enabled=true")
        yield Step(
            "wait for the agent; ask again where there is no such pod yet",
            "kubectl -n nri-pin wait --for condition=Ready pod --field-selector spec.nodeName=NODE --timeout 120s",
        )
    yield Step("let pods come again", "kubectl uncordon NODE")


def _edits(settings: KubeletSettings) -> dict[str, list[str]]:
    """By file: the expressions for sed that switch the managers off."""
    found: dict[str, list[str]] = {}
    for key, one in _on(settings):
        if one.lines is not None:
            found.setdefault(one.path, []).append(f"{one.lines[0]}s/:.*/: {OFF[key]}/")
    for one in settings.cpu_options:
        if one.lines is not None:
            first, last = one.lines
            found.setdefault(one.path, []).append(f"{first}d" if first == last else f"{first},{last}d")
    return found


def _by_hand(settings: KubeletSettings) -> str:
    """What cannot be edited line by line; empty for nothing."""
    words = [f"{key} {OFF[key]} instead of {one.where}" for key, one in _on(settings) if one.lines is None]
    words += [
        f"no cpuManagerPolicyOptions ({one.where})" for one in settings.cpu_options if one.lines is None
    ]
    if not words:
        return ""
    return f"set by hand: {'; '.join(words)}; systemctl cat kubelet shows its command line; put it back where a later step fails"


def _on(settings: KubeletSettings) -> Iterator[tuple[str, Setting]]:
    """The managers of the kubelet that are not off."""
    for key, off in OFF.items():
        one = settings.by_key.get(key)
        if one is not None and one.value.lower() != off.lower():
            yield key, one
