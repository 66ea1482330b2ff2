"""Ask the agents of many nodes at once, a few at a time, with progress."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import msgspec

from nri_plugin.cli.kubectl.agents import AgentPod
from nri_plugin.cli.kubectl.transport import Kubectl, KubectlError
from nri_plugin.cli.output import count_of, told

AT_ONCE = 16
"""Processes of kubectl at one time: each takes some 40 MiB."""

SHOWN = 40
"""Characters of an answer that cannot be read."""

Answer = TypeVar("Answer")


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


def ask(kubectl: Kubectl, agent: AgentPod, words: tuple[str, ...], timeout_s: float | None = None) -> str:
    """What `nri-pin WORDS` prints in the pod of the agent.

    Raises:
        KubectlError: it could not be run, or it failed.
    """
    answer = kubectl.execute(agent.words, ("nri-pin", *words), timeout_s=timeout_s)
    if answer.code:
        raise KubectlError(answer.complaint.removeprefix("nri-pin: ") or f"exit code {answer.code}")
    return answer.output


def ask_typed(
    kubectl: Kubectl, agent: AgentPod, words: tuple[str, ...], form: type[Answer], timeout_s: float
) -> Answer:
    """What `nri-pin WORDS -o json` answers in the pod of the agent.

    Raises:
        KubectlError: it could not be run, it failed, or its answer has another form.
    """
    return decoded(ask(kubectl, agent, (*words, "-o", "json"), timeout_s), form)


def decoded(text: str, form: type[Answer]) -> Answer:
    """An answer of `nri-pin` as the values that are needed of it.

    Raises:
        KubectlError: it has another form.
    """
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise KubectlError(
            f"cannot read its answer, which begins {text[:SHOWN]!r} ({error}); kubectl nri-pin version compares the versions"
        ) from None
