"""The sources of `nri-pin explain`: a node, its state, and the containers that are known by name.

The agent's history tells what was decided, the checkpoint what is allocated. A decision of now follows from the
running agent, a configuration, the history, or a described machine, whichever comes first in that order.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME, read_checkpoint
from nri_plugin.cli.explain.what_if import resources_of
from nri_plugin.cli.output import told
from nri_plugin.cli.state.source import NO_RUNTIME, fits, read_agent, recorded_node, what_to_do
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import DEFAULT_PATH, NothingConfiguredError, load, load_hint_providers
from nri_plugin.core.decision import InformedCreate
from nri_plugin.explain.explanation import WITH_POD
from nri_plugin.model.errors import CheckpointError, ConfigError, HostError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, ContainerRecord, PodRecord, pod_of
from nri_plugin.model.state import State
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.recording.file import DIRECTORY
from nri_plugin.recording.reader import read
from nri_plugin.simulator.machine.description import Description
from nri_plugin.wire.nri.events import CreateContainer
from nri_plugin.wire.nri.messages import Container, Pod, Resources

F = TypeVar("F", bound=Callable[..., Any])

NO_CHECKPOINT = "there is no such checkpoint; name one, or leave --state out"
ID_CHARACTERS = 4
"""A shorter prefix of a container's id does not name it."""


def ground_options(command: F) -> F:
    """The options that name a node and its state; see `ground`."""
    for option in (
        click.option(
            "--state-dir",
            metavar="DIR",
            default=DEFAULT_DIR,
            show_default=True,
            help="The agent's state directory.",
        ),
        click.option(
            "--state",
            "state_file",
            metavar="FILE",
            help="Beside the allocations of this checkpoint, or of that in this directory.",
        ),
        click.option(
            "--root", metavar="DIR", help="The machine whose /sys and /proc are below this directory."
        ),
        click.option("--config", "config", metavar="FILE", help="By this configuration, not by the agent's."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Ground:
    """A node, its state, and where both come from.

    Attributes:
        notes: what a reader has to know about the source.
        description: of a described machine, for its devices.
    """

    node: Node
    state: State
    notes: tuple[str, ...] = ()
    description: Description | None = None


@dataclass(frozen=True, slots=True)
class NamedContainer:
    """A known container and its names.

    Attributes:
        created: its creation in the history, with node and state before; None where the history no longer has it.
        record: its record in the checkpoint; None where it was refused or is gone.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str
    id: str
    created: "Created | None" = None
    record: ContainerRecord | None = None

    @property
    def path(self) -> str:
        """NAMESPACE/POD/CONTAINER."""
        return f"{self.namespace}/{self.pod}/{self.container}"

    def is_called(self, word: str) -> bool:
        """Whether the word is its path, the end of it, or its id or a beginning of that."""
        names = {
            self.path,
            f"{self.pod}/{self.container}",
            self.container,
            f"{self.pod_uid}/{self.container}",
        }
        return word in names or (len(word) >= ID_CHARACTERS and self.id.startswith(word))

    def is_of_pod(self, word: str) -> bool:
        """Whether the word names its pod."""
        return word in {self.pod, f"{self.namespace}/{self.pod}", self.pod_uid}


@dataclass(frozen=True, slots=True)
class Created:
    """A creation, and everything that its decision depends on.

    Attributes:
        with_pod: all containers of its pod were placed at it.
    """

    when: datetime
    node: Node
    state: State
    event: CreateContainer | InformedCreate
    refusal: str
    reason: str = ""
    cpus: str = ""
    has_kept: bool = False
    with_pod: bool = False
    observing: bool = False


def known_containers(state_dir: str, state: State) -> tuple[list[NamedContainer], tuple[str, ...]]:
    """Every container of the history and of `state`, the latest creation of each; and why some may be missing.

    Raises:
        HostError: the history is there and cannot be read, and nothing else is known.
    """
    found: dict[tuple[str, str], NamedContainer] = {}
    problems: list[str] = []
    try:
        for one in _created(os.path.join(state_dir, DIRECTORY), problems):
            key = one.pod_uid, one.container
            before = found.get(key)
            # A repeated creation was given its CPUs earlier, which is what has to be explained.
            is_repeated = one.created is not None and one.created.has_kept
            found[key] = dataclasses.replace(before, id=one.id) if before and is_repeated else one
    except HostError as error:
        if not state.containers:
            raise
        problems.append(f"the history cannot be read: {error}")
    for record in state.containers.values():
        key = record.pod_uid, record.name
        pod = state.pods.get(record.pod_uid)
        known = found.get(key)
        named = known or NamedContainer(
            pod.namespace if pod else "", pod.name if pod else "", record.name, record.pod_uid, record.id
        )
        if known is None or known.id == record.id:
            found[key] = dataclasses.replace(named, record=record)
    return list(found.values()), tuple(problems)


def checkpoint_state(path: str) -> State | None:
    """The state in a checkpoint; None where there is no such file.

    Raises:
        CheckpointError: it is damaged or cannot be read.
    """
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(path, f"{error.detail}; {what_to_do(error, path)}") from error
    return None if checkpoint is None else checkpoint.state


def checkpoint_path(state_dir: str) -> str:
    """The agent's checkpoint in its state directory."""
    return os.path.join(state_dir, FILE_NAME)


def ground(
    state_dir: str, config: str | None, machine: str | None, state_file: str | None, root: str | None = None
) -> Ground:
    """The node of a what-if: a described machine, else this node by its agent, else by its configuration.

    A state directory other than the default one is read with its own history before the configuration of this node.

    Raises:
        ConfigError: there is neither an agent nor a configuration, or it is wrong or does not fit the machine.
        HostError: the machine cannot be read.
        CheckpointError: the checkpoint is damaged.
    """
    found = _found(state_dir, config, machine, state_file, root)
    # Neither the agent nor a file can tell their code; the agent asks those that are installed.
    return dataclasses.replace(
        found, node=dataclasses.replace(found.node, hint_providers=load_hint_providers())
    )


def created_by_today(state: State, record: ContainerRecord) -> tuple[State, InformedCreate]:
    """The current state without the container, and a creation that asks for its allocation.

    The runtime's message is no longer known, so the allocation stands for the request.
    """
    pod = state.pods[record.pod_uid]
    allocation = state.allocation_of(record) or Allocation()
    before = state.without_allocation(record.key).without_container(record.id)
    if not any(pod_of(key) == pod.uid for key in before.allocations):
        pod = replace(pod, affinity=None)
    before = before.with_pod(pod)
    container = Container(
        id=record.id, name=record.name, pod_id=pod.sandbox_id, resources=_resources(allocation)
    )
    return before, InformedCreate(CreateContainer(_pod(pod), container), facts=pod.facts)


def _created(folder: str, problems: list[str]) -> Iterator[NamedContainer]:
    """The creations in the history, oldest first; appends to `problems` what could not be read."""
    if not os.path.isdir(folder):
        return
    recording = read(folder, load_hint_providers())
    for moment in told(recording.moments(), "read {} events of the history"):
        known = moment.event
        if not isinstance(known, CreateContainer | InformedCreate):
            continue
        event = known.event if isinstance(known, InformedCreate) else known
        pod, container = event.pod, event.container
        created = Created(
            moment.when,
            moment.node,
            moment.state_before,
            known,
            moment.outcome.refusal,
            moment.outcome.reason,
            moment.outcome.cpus,
            "kept" in moment.decision.steps,
            not WITH_POD.isdisjoint(moment.decision.steps),
            moment.observing,
        )
        yield NamedContainer(
            pod.namespace, pod.name, container.name, pod.uid or pod.id, container.id, created
        )
    problems += recording.problems


def _found(
    state_dir: str, config: str | None, machine: str | None, state_file: str | None, root: str | None
) -> Ground:
    if machine is not None:
        return _on_machine(machine, config, state_file)
    if config is None and state_file is None and root is None:
        status = read_agent(state_dir)
        if status is not None:
            return Ground(status.node, status.state, () if status.runtime else (NO_RUNTIME,))
    return _by_configuration(state_dir, config, state_file, root)


def _by_history(state_dir: str, state_file: str | None) -> Ground | None:
    """The last machine and configuration of the history; None where there is none, or it cannot be read."""
    node = recorded_node(state_dir)
    if node is None:
        return None
    by = f"no agent answers: by the machine and the configuration of {os.path.join(state_dir, DIRECTORY)}"
    return _beside_checkpoint(node, by, state_dir, state_file)


def _beside_checkpoint(node: Node, by: str, state_dir: str, state_file: str | None) -> Ground:
    """The node with the state of the named checkpoint, or of that in the state directory if there is one.

    Raises:
        CheckpointError: it is damaged, or it was named and is not there.
    """
    path = state_file or checkpoint_path(state_dir)
    state = checkpoint_state(path)
    if state is None and state_file is not None:
        raise CheckpointError(path, NO_CHECKPOINT)
    where = f"the checkpoint {path}" if state else "nothing allocated"
    return Ground(node, state or State(), (f"{by} and {where}",))


def _by_configuration(state_dir: str, config: str | None, state_file: str | None, root: str | None) -> Ground:
    from nri_plugin.host.cgroup import discover_reachable

    if config is None and root is None and os.path.abspath(state_dir) != DEFAULT_DIR:
        # It may be a copy from another node, which no file of this one describes.
        recorded = _by_history(state_dir, state_file)
        if recorded is not None:
            return recorded
    try:
        chosen = load(config or DEFAULT_PATH, machine=Capacity.below(root) if root else None)
    except NothingConfiguredError:
        if config is not None:
            raise
        recorded = None if root is not None else _by_history(state_dir, state_file)
        if recorded is not None:
            return recorded
        raise ConfigError(
            "",
            f"no agent answers in {state_dir} and there is no {DEFAULT_PATH}; "
            f"{'run as root, or ' if os.geteuid() else ''}name the agent's --state-dir, "
            "a configuration with --config, or a machine with --machine",
        ) from None
    places = (root,) if root else (chosen.sysfs_root, chosen.cgroup_root)
    node = chosen.node(discover_reachable(*places))
    return _beside_checkpoint(node, f"by {config or DEFAULT_PATH}", state_dir, state_file)


def _on_machine(machine: str, config: str | None, state_file: str | None) -> Ground:
    from nri_plugin.simulator.machine.source import read_machine

    found = read_machine(machine)
    reserved = found.topology.first_core  # as in a simulation
    if config:
        node = load(config, machine=Capacity.of(found.topology)).node(found.topology)
    else:
        node = Node(found.topology, Options(), reserved)
    place = f"on the machine {found.name}{'' if config else ', with default options'}"
    if state_file is None:
        kept = "" if config else f" and the first core ({reserved}) reserved"
        return Ground(node, State(), (f"{place}{kept}, nothing allocated",), found.description)
    checkpoint = read_checkpoint(state_file)
    if checkpoint is None:
        raise CheckpointError(state_file, NO_CHECKPOINT)
    facts = checkpoint.facts
    if facts is not None and not fits(facts, found.topology):
        raise ConfigError(
            "--state",
            f"{state_file} is about another machine than {found.name}, with CPUs {facts.online}; name that with --machine",
        )
    if facts is not None and not config:
        node = Node(found.topology, node.options, facts.reserved)
    return Ground(
        node, checkpoint.state, (f"{place}, with the allocations of {state_file}",), found.description
    )


def _pod(pod: PodRecord) -> Pod:
    return Pod(
        id=pod.sandbox_id,
        name=pod.name,
        uid=pod.uid,
        namespace=pod.namespace,
        annotations=dict(pod.annotations),
        cgroup_parent=pod.cgroup_parent,
        resources=None
        if pod.cpu_milli is None
        else resources_of(pod.cpu_milli, pod.memory_bytes or 0, pod.hugepages),
    )


def _resources(allocation: Allocation) -> Resources:
    """A request for the allocation."""
    pages = tuple(
        (block.resource, block.size_bytes) for block in allocation.memory if block.resource != MEMORY
    )
    memory = sum(block.size_bytes for block in allocation.memory if block.resource == MEMORY)
    return resources_of(allocation.cpu_milli, memory, pages)
