"""The agents of a cluster: which pod runs the agent of a node, and which node or pod the user means.

A pod is an agent by its namespace. Labels, owners and names of containers can be copied by anyone who may create pods in
some namespace, and commands must not run in such a pod: what it prints would be taken for the health of the node.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import msgspec

from nri_plugin.cli.kubectl.transport import Kubectl, KubectlError
from nri_plugin.cli.output import count_of, told

SELECTOR = "app.kubernetes.io/name=nri-pin"
NAMESPACE = "nri-pin"
"""Of the agents in the chart and in all manifests."""
CONTAINER = "agent"
"""The container of the agent; its pod may have another one for the exporter, which lacks the machine's files."""

ANSWER_S = 60.0
"""A node that does not answer for so long is shown without its answer; API servers give up after 30 s."""

AT_ONCE = 16
"""Processes of kubectl at one time: each takes some 40 MiB."""

SHOWN = 40
"""Characters of an answer that cannot be read."""

Answer = TypeVar("Answer")
NODES = {"node", "nodes", "no"}
PODS = {"pod", "pods", "po"}


@dataclass(frozen=True, slots=True)
class AgentPod:
    """The pod of an agent.

    Attributes:
        node: the Kubernetes node.
        image: of the agent.
        trouble: why the agent does not run; empty while it runs.
        unready: why it is not ready though it runs; empty while it is ready.
    """

    node: str
    namespace: str
    name: str
    image: str = ""
    trouble: str = ""
    unready: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Pod and container for `kubectl exec`."""
        return "--namespace", self.namespace, self.name, "--container", CONTAINER

    @property
    def logs(self) -> str:
        """The command that shows its log."""
        return f"kubectl logs -n {self.namespace} {self.name} -c {CONTAINER}"

    @property
    def rank(self) -> tuple[bool, bool]:
        """The smaller, the better it works."""
        return bool(self.trouble), bool(self.unready)

    def must_run(self) -> None:
        """Check that the agent runs.

        Raises:
            KubectlError: it does not; says why.
        """
        if self.trouble:
            raise KubectlError(
                f"the agent of node {self.node} does not run ({self.trouble}); {self.logs} --previous, "
                f"or kubectl describe pod -n {self.namespace} {self.name}, tells why"
            )


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """What the user named.

    Attributes:
        node: the Kubernetes node.
        pod: NAMESPACE/POD; empty where a node was named.
        container: the one that was named, or the only one of the pod; else empty.
    """

    node: str
    pod: str = ""
    container: str = ""

    @property
    def path(self) -> str:
        """The container, else the pod: NAMESPACE/POD/CONTAINER or NAMESPACE/POD."""
        return f"{self.pod}/{self.container}" if self.container else self.pod


def find_agents(kubectl: Kubectl, namespace: str = "", node: str = "") -> dict[str, AgentPod]:
    """The agent of each node, by the node's name.

    Args:
        kubectl: of the cluster.
        namespace: of the agents; empty for `NAMESPACE`.
        node: only the agent of this node.

    Raises:
        KubectlError: pods cannot be listed, or only other namespaces have pods that look like agents.
    """
    chosen = namespace or NAMESPACE
    found = _by_node(
        one for one in _labelled(kubectl, node, "--namespace", chosen) if one.namespace == chosen
    )
    if not found and not namespace:
        _refuse_others(kubectl, node)
    return found


def _labelled(kubectl: Kubectl, node: str, *where: str) -> list[AgentPod]:
    only = ("--field-selector", f"spec.nodeName={node}") if node else ()
    found = kubectl.read("pods", *where, "--selector", SELECTOR, *only)["items"]
    return [agent for pod in found if (agent := agent_pod(pod)) is not None]


def _refuse_others(kubectl: Kubectl, node: str) -> None:
    """Name the namespaces whose pods look like agents: a person decides whether one of them is that of the agents."""
    try:
        others = {one.namespace for one in _labelled(kubectl, node, "--all-namespaces")}
    except KubectlError:
        return  # it may not be allowed, and is only for a better sentence
    if others:
        raise KubectlError(
            f"no agent in namespace {NAMESPACE}; namespaces with pods of the label {SELECTOR}: {', '.join(sorted(others))}. "
            "Anyone who may create pods can label them so: name the namespace of the agents with --agent-namespace"
        )


def agent_pod(pod: Mapping[str, Any]) -> AgentPod | None:
    """The agent of a pod's object; None for a pod without one, and for one that is on no node yet."""
    spec, status, metadata = pod.get("spec", {}), pod.get("status", {}), pod.get("metadata", {})
    container = next((one for one in spec.get("containers", []) if one.get("name") == CONTAINER), None)
    if container is None or not spec.get("nodeName"):
        return None
    rows = [row for row in status.get("containerStatuses", []) if row.get("name") == CONTAINER]
    row = rows[0] if rows else {}
    is_ready = bool(row.get("ready"))
    return AgentPod(
        node=spec["nodeName"],
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        image=container.get("image", ""),
        trouble=_trouble(row.get("state", {}), status.get("phase", "Unknown")),
        unready="" if is_ready and not metadata.get("deletionTimestamp") else _unready(metadata),
    )


def _trouble(state: Mapping[str, Any], phase: str) -> str:
    if "running" in state:
        return ""
    for kind in ("waiting", "terminated"):
        if kind in state:
            return str(state[kind].get("reason") or kind)
    return phase


def _unready(metadata: Mapping[str, Any]) -> str:
    return "it is being deleted" if metadata.get("deletionTimestamp") else "its readiness probe fails"


def _by_node(agents: Iterable[AgentPod]) -> dict[str, AgentPod]:
    """One agent for each node: during a rollout the one that works."""
    found: dict[str, AgentPod] = {}
    for agent in agents:
        known = found.get(agent.node)
        if known is None or agent.rank < known.rank:
            found[agent.node] = agent
    return found


def agent_of(kubectl: Kubectl, node: str, namespace: str = "") -> AgentPod:
    """The agent of a node, which runs.

    Raises:
        KubectlError: there is none, or it does not run.
    """
    agent = find_agents(kubectl, namespace, node).get(node)
    if agent is None:
        raise KubectlError(
            f"node {node} has no pod of the agent (namespace {namespace or NAMESPACE}, label {SELECTOR}, "
            f"container {CONTAINER}); "
            f"kubectl label node {node} nri-pin/enabled=true brings one where the DaemonSet is installed; "
            "where systemd or the runtime starts the agent, run nri-pin on the node itself"
        )
    agent.must_run()
    return agent


def target_of(
    kubectl: Kubectl, word: str, namespace: str, container: str = "", agent_namespace: str = ""
) -> NamedTarget:
    """The node or pod that a word names: node/NODE, pod/POD, NAMESPACE/POD, NAMESPACE/POD/CONTAINER, or a name alone.

    A name alone is that of a pod, else that of a node with an agent.

    Raises:
        KubectlError: there is no such pod or node, or the pod is on no node yet.
        UsageError: the word is none of these.
    """
    head, *rest = word.split("/")
    if head in NODES and len(rest) == 1:
        return NamedTarget(rest[0])
    if head in PODS and len(rest) == 1:
        return _pod(kubectl, rest[0], namespace, container)
    if len(rest) in (1, 2):
        return _pod(kubectl, rest[0], head, container or "".join(rest[1:]))
    if rest:
        raise click.UsageError(f"expected node/NODE, pod/POD, POD or NAMESPACE/POD, found {word}")
    try:
        return _pod(kubectl, word, namespace, container)
    except KubectlError as error:
        if error.is_missing and find_agents(kubectl, agent_namespace, word):
            return NamedTarget(word)
        raise


def _pod(kubectl: Kubectl, name: str, namespace: str, container: str) -> NamedTarget:
    found = kubectl.read("pod", name, *(("--namespace", namespace) if namespace else ()))
    node = found.get("spec", {}).get("nodeName")
    own = found.get("metadata", {}).get("namespace", namespace)
    if not node:
        phase = found.get("status", {}).get("phase", "Pending")
        raise KubectlError(
            f"pod {own}/{name} is on no node yet ({phase}); kubectl describe pod -n {own} {name} tells why"
        )
    names = [one["name"] for one in found["spec"].get("containers", [])]
    inits = [one["name"] for one in found["spec"].get("initContainers", [])]
    if container and container not in names + inits:
        raise KubectlError(
            f"pod {own}/{name} has no container {container}; it has {', '.join(names + inits)}"
        )
    return NamedTarget(node, f"{own}/{name}", container or (names[0] if len(names) == 1 else ""))


def ask_all(
    agents: Mapping[str, AgentPod], ask: Callable[[AgentPod], Answer]
) -> dict[str, Answer | KubectlError]:
    """The answer or the error of each agent, by node, in the order of the names."""

    def one(agent: AgentPod) -> Answer | KubectlError:
        try:
            agent.must_run()
            return ask(agent)
        except KubectlError as error:
            return error

    found: dict[str, Answer | KubectlError] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = {pool.submit(one, agent): node for node, agent in agents.items()}
        try:
            for done in told(as_completed(asked), f"asked {{}} of {count_of(len(asked), 'node')}"):
                found[asked[done]] = done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {node: found[node] for node in sorted(found)}


def ask(kubectl: Kubectl, agent: AgentPod, words: tuple[str, ...], form: type[Answer]) -> Answer:
    """What `nri-pin WORDS -o json` answers in the pod of the agent.

    Raises:
        KubectlError: it could not be run, it failed, or its answer has another form.
    """
    answer = kubectl.execute(agent.words, ("nri-pin", *words, "-o", "json"), timeout_s=ANSWER_S)
    if answer.code:
        raise KubectlError(answer.complaint.removeprefix("nri-pin: ") or f"exit code {answer.code}")
    return decoded(answer.output, form)


def decoded(text: str, form: type[Answer]) -> Answer:
    """An answer of `nri-pin` as the values that are needed of it.

    Raises:
        KubectlError: it has another form.
    """
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise KubectlError(
            f"cannot read its answer, which begins {text[:SHOWN]!r} ({error}); kubectl nri-pin version --all-nodes tells the versions"
        ) from None
