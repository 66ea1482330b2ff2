"""`nri-pin explain`: the command, and its three kinds of answers.

A container is explained by the history of the agent, at the state of that time; where the history no longer has it, by the
current state. A pod is answered with the list of its containers. A what-if is decided now, and nothing is changed.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME
from nri_plugin.cli.explain.source import (
    Created,
    NamedContainer,
    checkpoint_path,
    checkpoint_state,
    created_by_today,
    ground,
    ground_options,
    known_containers,
)
from nri_plugin.cli.explain.text import as_dict, explanation_text, sentence
from nri_plugin.cli.explain.what_if import WhatIf, changed, doubts, event_of
from nri_plugin.cli.output import FOR_PROGRAMS, UNLIMITED, columns, echo, format_option, render, to_run
from nri_plugin.cli.state.rows import block_of, is_over, is_placed_singly, kept_by_ended, waiting
from nri_plugin.cli.state.source import NO_RUNTIME, AgentNow, agent_now
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.explain.explanation import ContainerOutcome, Explanation, explain
from nri_plugin.model.bounds import visible
from nri_plugin.model.errors import CheckpointError, NriPinError
from nri_plugin.model.options import REGISTRY
from nri_plugin.model.records import ContainerRecord, PodRecord, allocation_key, named, owner_of, pod_of
from nri_plugin.model.refusals import UNEXPECTED
from nri_plugin.model.sets import NO_CPUS
from nri_plugin.model.state import State
from nri_plugin.recording.file import DIRECTORY

if TYPE_CHECKING:
    from nri_plugin.agent.observing.status_client import IncompletePodRow

MOST_NAMED = 8
REFUSED = "refused: "
REQUESTS = ("cpu", "memory", "small_pages", "large_pages", "devices", "pod_cpu", "pod_memory", "others")
POD_PAGES = ("pod_small_pages", "pod_large_pages")
POLICY_OPTIONS = {
    "policy": REGISTRY["topology_manager_policy"].name,
    "scope": REGISTRY["topology_manager_scope"].name,
    "memory_policy": REGISTRY["memory_manager_policy"].name,
}
"""Options of the command line that stand for one of the configuration."""

PLACES = {"state_dir": "--state-dir", "state_file": "--state"}
SAID_AGAIN = {**PLACES, "config": "--config", "root": "--root"}
"""Options that say which node is meant, and so belong to a further command."""

WHAT_IF = (*REQUESTS, *POD_PAGES, *POLICY_OPTIONS, "given", "machine")
"""Options that only a what-if has."""


class NotOneError(NriPinError):
    """The name matches no container and no pod, or several."""


@dataclass(frozen=True, slots=True)
class DecisionExplained:
    """An explanation and where it comes from."""

    explanation: Explanation
    notes: tuple[str, ...]
    is_what_if: bool = False

    @property
    def is_refused_what_if(self) -> bool:
        """Whether it is a what-if, and refused."""
        return self.is_what_if and self.explanation.outcome is ContainerOutcome.REFUSED

    def as_dict(self) -> dict[str, Any]:
        """The explanation, and the notes."""
        return {**as_dict(self.explanation), "notes": list(self.notes)}

    def text(self, width: int) -> str:
        """One screen."""
        return explanation_text(self.explanation, width, self.notes)


@dataclass(frozen=True, slots=True)
class PodListed:
    """The containers of a pod.

    Attributes:
        incomplete: what is missing and what the containers hold, where the agent knows the pod as incomplete.
        options: of the command line, which the next command needs again.
    """

    containers: tuple[NamedContainer, ...]
    state: State
    incomplete: "IncompletePodRow | None" = None
    options: str = ""
    is_refused_what_if: bool = False

    def as_dict(self) -> dict[str, Any]:
        """A row for each container, and what the pod has as a whole."""
        rows = [{"container": one.path, "id": one.id, "what": self._what(one)} for one in self.containers]
        rows += [{"container": path, "id": "", "what": what} for path, what in self._not_created()]
        block = block_of(self.state, self._uid)
        return {
            "containers": rows,
            "block": None
            if block is None
            else {
                "cpus": block.allocation.cpus,
                "mems": block.allocation.mems,
                "pod_shared_pool": block.shared_pool,
            },
            "placed_at": self._first,
            "is_container_by_container": is_placed_singly(self.state, self._uid),
            "incomplete": self.incomplete,
        }

    def text(self, width: int) -> str:  # noqa: ARG002 - as of an explanation
        """A line for each container, what the pod has as a whole, and the next command."""
        rows = [(one.path, self._what(one)) for one in self.containers] + self._not_created()
        widest = max(len(path) for path, _ in rows)
        lines = [f"{path:<{widest}}  {what}" for path, what in rows]
        block = block_of(self.state, self._uid)
        lines += [f"the pod: {block.text}"] if block else []
        if is_placed_singly(self.state, self._uid):
            lines.append(f"placed container by container, for the pod has more than {MOST_CONTAINERS}")
        lines += [f"placed as a whole at the creation of {self._first}"] if self._first else []
        lines += [str(self.incomplete)] if self.incomplete else []
        refused = (one for one in self.containers if self._what(one).startswith(REFUSED))
        lines.append(f"next: {to_run('explain', next(refused, self.containers[0]).path)}{self.options}")
        return visible("\n".join(lines))

    @property
    def _uid(self) -> str:
        return self.containers[0].pod_uid

    @property
    def _first(self) -> str:
        """The container at whose creation the pod was placed; empty where that is not known."""
        return placed_at(self.containers)

    def _not_created(self) -> list[tuple[str, str]]:
        """Containers that do not exist and are allocated, and what each has: not created yet, or ended long ago."""
        named_here = {one.container for one in self.containers}
        state, awaited = self.state, waiting(self.state)
        return [
            (
                named(state.pods, key),
                f"allocated, not created: {_held(state, key)}" if key in awaited else _kept(state, key),
            )
            for key in sorted(state.allocations)
            if pod_of(key) == self._uid and owner_of(key)[1] not in {"", *named_here}
        ]

    def _what(self, one: NamedContainer) -> str:
        if one.record is None:
            return (
                f"{REFUSED}{one.created.reason or UNEXPECTED}"
                if one.created and one.created.refusal
                else "gone"
            )
        allocation = self.state.allocation_of(one.record)
        if allocation is None or not allocation.cpus:
            return "unplaced" if one.record.unplaced else "shared pool"
        if is_over(self.state, one.record.key):
            return _kept(self.state, one.record.key)
        return _held(self.state, one.record.key)


def _held(state: State, key: str) -> str:
    """The CPUs of an allocation, in words."""
    held = state.allocations[key]
    if held.is_pod_shared:
        return f"pod shared pool, CPUs {held.cpus}"
    if not held.cpus:
        return "shared pool"
    if held.claim:
        return f"CPUs {held.cpus} by the resource claim {held.claim}, which nri-pin leaves alone"
    is_part = allocation_key(pod_of(key), "") in state.allocations
    return f"exclusive CPUs {held.cpus}{', a slice of its pod' if is_part else ''}"


def _kept(state: State, key: str) -> str:
    """What became of the CPUs of an init container that is over."""
    held, kept = state.allocations[key].cpus, kept_by_ended(state).get(key, NO_CPUS)
    parts = ["ended"]
    if held - kept:
        parts.append(f"a later container has its CPUs {held - kept}")
    if kept:
        parts.append(f"CPUs {kept} stay allocated until the pod ends")
    return ", ".join(parts)


def placed_at(containers: Iterable[NamedContainer]) -> str:
    """The container at whose creation their pod was placed as a whole; empty where the history does not tell."""
    return next(
        (
            one.container
            for one in containers
            if one.created and one.created.with_pod and not one.created.refusal
        ),
        "",
    )


ExplainAnswer = DecisionExplained | PodListed


def of_what_if(asked: Mapping[str, Any]) -> DecisionExplained:
    """The decision about a container with these requests.

    Raises:
        ConfigError, HostError, CheckpointError: an option is wrong, or the node or the state cannot be read.
    """
    found = ground(asked["state_dir"], asked["config"], asked["machine"], asked["state_file"], asked["root"])

    named = [f"{name}={asked[key]}" for key, name in POLICY_OPTIONS.items() if asked[key]]
    node = changed(found.node, (*named, *asked["given"]))
    wanted = WhatIf(
        asked["cpu"],
        asked["memory"],
        _pages(asked, ""),
        asked["devices"],
        asked["qos"],
        asked["namespace"],
        asked["pod_cpu"],
        asked["pod_memory"],
        _pages(asked, "pod_"),
        asked["others"],
    )
    told = explain(node, found.state, event_of(wanted, node, found.description))
    return DecisionExplained(told, (*found.notes, *doubts(wanted, node)), is_what_if=True)


def _pages(asked: Mapping[str, Any], prefix: str) -> tuple[tuple[str, str], ...]:
    pages = (("2Mi", asked[f"{prefix}small_pages"]), ("1Gi", asked[f"{prefix}large_pages"]))
    return tuple((size, text) for size, text in pages if text)


def of_container(word: str, asked: Mapping[str, Any]) -> ExplainAnswer:
    """The decision about the container that the word names, or the containers of the pod that it names.

    Raises:
        NotOneError: it names nothing, or several.
        HostError, CheckpointError: the history and the checkpoint cannot be read.
    """
    state_dir = asked["state_dir"]
    state, damaged = _allocated(state_dir, asked["state_file"] or checkpoint_path(state_dir))
    containers, missing = known_containers(state_dir, state)
    now = agent_now(state_dir) if asked["state_file"] is None else AgentNow()
    is_alone = now.has_no_runtime
    notes = (*damaged, *missing, *((NO_RUNTIME,) if is_alone else ()))
    meant = [one for one in containers if one.is_called(word)]
    if meant and len({one.path for one in meant}) == 1:
        meant_one, earlier = _latest(meant, _said_again(asked))
        of_pod = [one for one in containers if one.pod_uid == meant_one.pod_uid]
        first = placed_at(of_pod)
        with_pod = (
            (f"placed with its pod at the creation of {first}",)
            if first not in {"", meant_one.container}
            else ()
        )
        refused = tuple(str(one) for one in now.incomplete if one.pod_uid == meant_one.pod_uid)
        return _explained(meant_one, (*with_pod, *refused, *earlier, *notes), state, asked)
    of_pod = [one for one in containers if one.is_of_pod(word)]
    if not meant and of_pod and len({one.pod_uid for one in of_pod}) == 1:
        part = next((one for one in now.incomplete if one.pod_uid == of_pod[0].pod_uid), None)
        return PodListed(tuple(of_pod), state, part, _said_again(asked))
    raise NotOneError(_not_one(word, meant or of_pod, containers, _said_again(asked, PLACES)))


def _said_again(asked: Mapping[str, Any], options: Mapping[str, str] = SAID_AGAIN) -> str:
    """The options that were given and that a further command needs, too, with a space before each."""
    given = (
        (option, asked[key])
        for key, option in options.items()
        if asked[key] is not None and not (key == "state_dir" and asked[key] == DEFAULT_DIR)
    )
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given)


def _allocated(state_dir: str, path: str) -> tuple[State, tuple[str, ...]]:
    """The state in the checkpoint; an empty one and the reason where it is damaged and there is a history.

    Raises:
        CheckpointError: there is neither a checkpoint nor a history.
    """
    has_history = os.path.isdir(os.path.join(state_dir, DIRECTORY))
    try:
        state = checkpoint_state(path)
    except CheckpointError as error:
        if not has_history:
            raise
        return State(), (str(error),)
    if state is None and not has_history:
        raise CheckpointError(
            path, "there is no checkpoint; name the agent's --state-dir, or start the agent, which writes one"
        )
    return state or State(), ()


def _latest(meant: list[NamedContainer], options: str) -> tuple[NamedContainer, tuple[str, ...]]:
    """The last of several pods that had the same name, and a note about the one before."""
    meant = sorted(
        meant, key=lambda one: (one.record is not None, one.created.when.timestamp() if one.created else 0)
    )
    if len(meant) == 1:
        return meant[0], ()
    earlier = meant[-2]
    fate = "was refused" if earlier.created and earlier.created.refusal else "was placed"
    return meant[-1], (f"an earlier pod of that name {fate}: {to_run('explain')} {earlier.id[:12]}{options}",)


def _other_owners(state: State, key: str, pod: PodRecord | None) -> Iterator[str]:
    """Notes about who else decides where the container runs."""
    held = state.allocations.get(key)
    if held is not None and held.claim:
        yield f"CPUs {held.cpus} come from the resource claim {held.claim}: nri-pin leaves the container alone"
    if pod is not None and pod.vm_handler:
        yield (
            f"runtime handler {pod.vm_handler} runs it in a virtual machine: not supported; the CPUs here are those of "
            "the host, and the machine's own CPUs are not aligned with them"
        )


def _explained(
    named: NamedContainer, earlier: tuple[str, ...], state: State, asked: Mapping[str, Any]
) -> DecisionExplained:
    """By the history where it has the creation, else by the current state."""
    created, record = named.created, named.record
    if record is not None:
        earlier = (*_other_owners(state, record.key, state.pods.get(record.pod_uid)), *earlier)
    if created is not None:
        when = f"decided {created.when:%Y-%m-%d %H:%M:%S}Z, explained by the state at that time"
        told = explain(created.node, created.state, created.event)
        return DecisionExplained(told, (when, *_since(named, created, told, state), *earlier))
    assert named.record is not None
    found = ground(asked["state_dir"], asked["config"], None, asked["state_file"], asked["root"])
    before, event = created_by_today(state, named.record)
    note = "its creation is no longer in the agent's history: explained by today's state, as if it came now"
    told = explain(found.node, before, event)
    return DecisionExplained(told, (note, *_doubts(state, named.record, told), *found.notes, *earlier))


def _since(named: NamedContainer, created: Created, told: Explanation, state: State) -> Iterator[str]:
    """Notes where the explanation or the current allocation differs from the decision of that time."""
    if created.observing:
        yield "nri-pin only observed: nothing of it was carried out"
    if (created.refusal, created.cpus) != ("" if told.cpus else sentence(told), told.cpus):
        at_the_time = created.refusal or f"CPUs {created.cpus or 'not set'}"
        yield (
            "decided again it ends differently, as other hint providers, another version or an error came in between; "
            f"at the time: {at_the_time}"
        )
    held = state.allocation_of(named.record) if named.record else None
    if held and held.cpus and str(held.cpus) != told.cpus:
        yield f"resized since: it holds CPUs {held.cpus} today"
    pool = str(state.shared_pool(created.node))
    if named.record and told.outcome is ContainerOutcome.SHARED and pool not in {"", told.shared_pool}:
        yield f"the shared pool has changed since: today it is CPUs {pool}"


def _doubts(state: State, record: ContainerRecord, told: Explanation) -> Iterator[str]:
    """Notes where the current state may give another explanation than the decision of that time."""
    allocation = state.allocation_of(record)
    if record.unplaced:
        yield f"it runs unplaced: {record.unplaced}"
    pod = state.pods.get(record.pod_uid)
    if allocation is None and not (pod and pod.facts):
        yield "what a shared container asked for is not in the checkpoint: its amounts are taken as none"
    elif allocation is None:
        yield "it holds nothing today"
    elif str(allocation.cpus) != told.cpus and allocation.cpus:
        yield f"it holds CPUs {allocation.cpus}: others came or went since"


def _not_one(word: str, found: Iterable[NamedContainer], known: list[NamedContainer], options: str) -> str:
    names = sorted({one.path for one in found})
    if names:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"{word} may be {', '.join(names[:MOST_NAMED])}{more}; give one of these names"
    examples = ", ".join(sorted(one.path for one in known)[:3])
    return (
        f"{word} is no container or pod that the agent remembers"
        + (f", such as {examples}" if examples else ": it remembers none")
        + f"; {to_run('state show')}{options} lists them, a pod that was refused longer ago is forgotten"
    )


EXIT_REFUSED = 1
MOST_COLUMNS = 120
"""A longer line of prose is hard to read on a terminal."""

EPILOG = """\b
Examples:
  nri-pin explain default/train-0/worker      why it has these CPUs, or was refused
  nri-pin explain worker                      the same, where only one is called so
  nri-pin explain default/train-0             the containers of a pod
  nri-pin explain --cpu 3 --memory 4Gi        what such a container would get here
  nri-pin explain --cpu 3 --policy restricted --option full-pcpus-only=true
  nri-pin explain --cpu 16 --device nvidia.com/gpu=2@0,1 --policy single-numa-node
  nri-pin explain --machine gb200-34-numa --cpu 80 --policy single-numa-node
  nri-pin explain --cpu 4 --memory 4Gi --with cpu=2,memory=1Gi   a pod of two containers
  nri-pin explain --pod-cpu 6 --pod-memory 8Gi --cpu 4 --memory 4Gi --with nothing
      a pod of six CPUs: four for one container, the rest for its sidecar
  nri-pin explain --state-dir ./state --cpu 12    on the node whose state directory this is, or a copy of it
  nri-pin explain worker -o json

A name is NAMESPACE/POD/CONTAINER, the end of that, or the beginning of a
container's id.

Exit code: 0, also for a container that was refused; 1 when a what-if would be refused, or
the checkpoint or the history cannot be read; 2 when the options are wrong, or the name
matches nothing that the agent remembers, or several containers.
"""


class WrongQuestionError(click.ClickException):
    """The name matches nothing, or several."""

    exit_code = 2


@click.command(epilog=EPILOG)
@click.argument("name", required=False, metavar="[CONTAINER]")
@click.option("--cpu", metavar="QUANTITY", default="", help="What if a container asked for so many CPUs?")
@click.option("--memory", metavar="QUANTITY", default="", help="... for so much memory, as its limit?")
@click.option("--hugepages-2Mi", "small_pages", metavar="QUANTITY", default="", help="... of pages of 2 MiB?")
@click.option("--hugepages-1Gi", "large_pages", metavar="QUANTITY", default="", help="... of pages of 1 GiB?")
@click.option(
    "--device",
    "devices",
    metavar="RESOURCE=COUNT[@NODES]",
    multiple=True,
    help="... with such devices? NODES are their NUMA nodes, one for all or one for each; "
    "a described machine knows them itself.",
)
@click.option(
    "--pod-cpu",
    metavar="QUANTITY",
    default="",
    help="... in a pod that asks for so many CPUs as a whole (spec.resources)?",
)
@click.option("--pod-memory", metavar="QUANTITY", default="", help="... for so much memory as a whole?")
@click.option(
    "--pod-hugepages-2Mi", "pod_small_pages", metavar="QUANTITY", default="", help="... of pages of 2 MiB?"
)
@click.option(
    "--pod-hugepages-1Gi", "pod_large_pages", metavar="QUANTITY", default="", help="... of pages of 1 GiB?"
)
@click.option(
    "--with",
    "others",
    metavar="AMOUNTS",
    multiple=True,
    help="... beside such another container of its pod, cpu=500m,memory=64Mi or nothing? "
    "Give it once for each; the pod is then admitted as a whole.",
)
@click.option(
    "--qos",
    type=click.Choice(("Guaranteed", "Burstable", "BestEffort")),
    default="Guaranteed",
    show_default=True,
    help="... in a pod of this class?",
)
@click.option(
    "--namespace", metavar="NAME", default="default", show_default=True, help="... in this namespace?"
)
@click.option(
    "--policy",
    type=click.Choice(("none", "best-effort", "restricted", "single-numa-node")),
    help="... under this topologyManagerPolicy?",
)
@click.option("--scope", type=click.Choice(("container", "pod")), help="... under this topologyManagerScope?")
@click.option(
    "--memory-policy", type=click.Choice(("None", "Static")), help="... under this memoryManagerPolicy?"
)
@click.option(
    "--option",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="... under this option, by its name in the configuration?",
)
@click.option(
    "--machine", metavar="NAME|FILE", help="On this machine with nothing allocated, not on this node."
)
@ground_options
@format_option()
@click.pass_context
def command(context: click.Context, /, name: str | None, output_format: str, **asked: Any) -> None:
    """Explain why a container got its CPUs and memory or was refused, or what another one would get.

    With a CONTAINER, the decision is explained by the state at that time. With --cpu, --memory and the like, the
    decision that would be made now is explained; nothing is changed.
    """
    asked["state_file"] = _checkpoint(context, asked)
    is_what_if = any(asked[key] for key in WHAT_IF)
    if bool(name) == is_what_if:
        both = "a container is explained as it was decided; leave --cpu, --machine and the like out"
        raise click.UsageError(
            both if name else "name a container, or ask for one with --cpu, --memory or --device"
        )
    if is_what_if and not any(asked[key] for key in (*REQUESTS, *POD_PAGES)):
        raise click.UsageError("the container asks for nothing; ask for one with --cpu, --memory or --device")
    try:
        answer = of_what_if(asked) if is_what_if else of_container(name or "", asked)
    except NotOneError as error:
        raise WrongQuestionError(str(error)) from None
    if output_format in FOR_PROGRAMS:
        echo(render(answer.as_dict(), output_format))
    else:
        width = columns()
        echo(answer.text(width if width == UNLIMITED else min(width, MOST_COLUMNS)), styled=True)
    context.exit(EXIT_REFUSED if answer.is_refused_what_if else 0)


def _checkpoint(context: click.Context, asked: Mapping[str, Any]) -> str | None:
    """The checkpoint that is named: by --state, which may be its directory, or by --state-dir beside --machine."""
    named: str | None = asked["state_file"]
    is_given = context.get_parameter_source("state_dir") is ParameterSource.COMMANDLINE
    if named is None and asked["machine"] and is_given:
        named = asked["state_dir"]
    return os.path.join(named, FILE_NAME) if named is not None and os.path.isdir(named) else named
