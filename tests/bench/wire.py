"""The agent as its runtime feels it: through a unix socket, checkpoint and all."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import Synchronize
from tests.bench.agent import Running, make_cgroups, running, running_at, site, stamps, written_since
from tests.bench.figures import Figure, at, milliseconds
from tests.bench.whole_agent import BURSTABLE, GUARANTEED, container, pod
from tests.lab.runtime.profile import CONTAINERD_1_7, CONTAINERD_2_1, CONTAINERD_2_4

NOTHING = Synchronize((), ())


def figures(rounds: int) -> Iterator[Figure]:
    """Start, round trips, Synchronize and memory."""
    starts = []
    for _ in range(max(3, rounds // 100)):
        with running(CONTAINERD_2_1, NOTHING) as agent:
            starts.append(agent.start_s)
    yield milliseconds("process start to registered", starts)
    with running(CONTAINERD_2_1, NOTHING) as agent:
        yield Figure("resident memory, idle", "MiB", agent.rss_mib())
        yield milliseconds("CreateContainer, back to back", _creations(agent, rounds, 0))
        yield milliseconds("CreateContainer, every 20 ms", _creations(agent, rounds // 4, 0.02))
    yield from _history(rounds // 2)
    yield from _pods(rounds // 10)
    for pods, each in ((100, 3), (600, 5)):
        for profile in (CONTAINERD_1_7, CONTAINERD_2_1, CONTAINERD_2_4):
            with running(profile, crowd(pods, each)) as agent:
                name = f"Synchronize {pods}+{pods * each}, NRI {profile.nri_version}"
                yield milliseconds(name, [agent.synchronize_s])
                if pods == 600 and profile is CONTAINERD_2_1:
                    yield Figure("resident memory, 3,000 containers", "MiB", agent.rss_mib())
                    yield milliseconds(
                        "CreateContainer beside 3,000 containers", _creations(agent, rounds // 4, 0)
                    )

    yield from _restart()
    patient = replace(CONTAINERD_2_1, request_timeout=30.0)  # so many take longer than the default of 2 s
    with running(patient, crowd(2000, 5)) as agent:
        yield Figure("resident memory, 10,000 containers", "MiB", agent.rss_mib())


def _history(rounds: int) -> Iterator[Figure]:
    """What keeping the history costs: two agents side by side, asked in turn, so that noise meets both."""
    with site() as kept, site() as none:
        with open(none / "config.yaml", "a", encoding="utf-8") as config:
            config.write("historyBytes: 0\n")
        with (
            running_at(kept, CONTAINERD_2_1, NOTHING) as one,
            running_at(none, CONTAINERD_2_1, NOTHING) as other,
        ):
            with_history, without = [], []
            for number in range(rounds):
                with_history += _creations(one, 1, 0, number)
                without += _creations(other, 1, 0, number)
    yield milliseconds("CreateContainer with history, in turn with", with_history)
    yield milliseconds("CreateContainer without history", without)
    yield Figure("the former in percent of the latter", "%", 100 * at(with_history, 0.5) / at(without, 0.5))


def _restart() -> Iterator[Figure]:
    """200 running containers, 10 of them exclusive: an agent pins them, another one comes after it."""
    truth = crowd(200, 1)
    with site() as base:
        make_cgroups(base, truth)
        clean = stamps(base)
        with running_at(base, CONTAINERD_2_1, truth):
            first = written_since(base, clean)
        before = stamps(base)
        with running_at(base, CONTAINERD_2_1, truth) as agent:
            ready_s = agent.start_s + agent.synchronize_s
            yield Figure("cpuset writes of a first start, 200 running containers", "", first)
            yield Figure(
                "cpuset writes of a restart, 200 running containers", "", written_since(base, before)
            )
            yield milliseconds("restart with 200 running containers: start to ready", [ready_s])


def _pods(rounds: int) -> Iterator[Figure]:
    """Pods whose objects are known, one after the other: the first creation places all their containers.

    A pod whose containers own a CPU each, in turn with one whose containers share.
    """
    for count in (1, 5, 20, 128):
        took: dict[str, tuple[list[float], list[float]]] = {}
        with ExitStack() as stack:
            agents = {what: _with_facts(stack, count, cpu) for what, cpu in _SIZES.items()}
            for number in range(max(3, rounds // count)):
                for what, agent in agents.items():
                    first, later = took.setdefault(what, ([], []))
                    one, *others = _whole_pod(agent, f"bench-{number}", count, _SIZES[what])
                    first.append(one)
                    later += others
        for what, (first, later) in took.items():
            name = f"pod of {count} {what}, facts known"
            yield milliseconds(f"{name}: first creation", first)
            if later:
                yield milliseconds(f"{name}: later creations", later)
        if count > 1:
            shared, exclusive = (at(later, 0.5) for _, later in took.values())
            yield Figure("later creations: exclusive in percent of shared", "%", 100 * exclusive / shared)


_SIZES = {"shared": 0.1, "exclusive": 1}
"""CPUs of each container."""


def _with_facts(stack: ExitStack, count: int, cpu: float) -> Running:
    base = stack.enter_context(site())
    stack.enter_context(_exporter(base, count, cpu))
    return stack.enter_context(running_at(base, CONTAINERD_2_1, NOTHING))


def _whole_pod(agent: Running, name: str, count: int, cpu: float) -> list[float]:
    """The time of each creation of a pod that lives and ends."""
    of, took = pod(name, GUARANTEED), []
    agent.link.ask(nri.RunPodSandbox(of))
    for number in range(count):
        one = container(of, f"c{number}", cpu)
        began = time.monotonic()
        agent.link.ask(nri.CreateContainer(of, one))
        took.append(time.monotonic() - began)
        for event in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
            agent.link.ask(event(of, one))
    for last in (nri.StopPodSandbox(of), nri.RemovePodSandbox(of)):
        agent.link.ask(last)
    return took


@contextmanager
def _exporter(base: Path, count: int, cpu: float) -> Iterator[None]:
    """A stand-in that knows every pod: so many containers of one size."""
    milli = round(cpu * 1000)
    amounts = {"cpu_request_milli": milli, "cpu_limit_milli": milli}
    rows = [{"name": f"c{number}", **amounts} for number in range(count)]

    class Answers(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            uid = json.loads(self.rfile.readline())["pod"]
            facts = {"uid": uid, "qos": "Guaranteed", "containers": rows}
            self.wfile.write(json.dumps({"devices": [], "facts": facts}).encode() + b"\n")

    path = base / "state" / "exporter" / "exporter.sock"
    path.parent.mkdir(parents=True)
    with socketserver.UnixStreamServer(str(path), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def _creations(agent: Running, rounds: int, pause_s: float, first: int = 0) -> list[float]:
    """Every second one exclusive; each pod ends before the next begins."""
    took = []
    for number in range(first, first + rounds):
        of = pod(f"bench-{number}", GUARANTEED)
        one = container(of, "app", 4 if number % 2 else 0.5)
        agent.link.ask(nri.RunPodSandbox(of))
        time.sleep(pause_s)
        began = time.monotonic()
        agent.link.ask(nri.CreateContainer(of, one))
        took.append(time.monotonic() - began)
        for event in (nri.StopContainer(of, one), nri.StopPodSandbox(of), nri.RemovePodSandbox(of)):
            agent.link.ask(event)
    return took


def crowd(pods: int, each: int) -> Synchronize:
    """A full node: one pod in twenty has an exclusive container."""
    all_pods = [pod(f"crowd-{number}", BURSTABLE if number % 20 else GUARANTEED) for number in range(pods)]
    containers = [
        container(of, f"c{number}", 2 if guaranteed and number == 0 else 0.25)
        for of, guaranteed in ((of, "burstable" not in of.cgroup_parent) for of in all_pods)
        for number in range(each)
    ]
    return Synchronize(tuple(all_pods), tuple(containers))
