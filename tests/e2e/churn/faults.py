"""The faults of a churn; each is one function, called again and again while pods come and go."""

import random
import signal
import threading
import time
from collections.abc import Callable

from tests.e2e.lab.progress import say

from .parts import Parts

_KILLS = (signal.SIGKILL, signal.SIGTERM)


def _away(draw: random.Random) -> None:
    time.sleep(draw.choice([0, 0.1, 0.5, 1, 2, 3]))


def agent_kill(parts: Parts, draw: random.Random) -> None:
    parts.end("agent", draw.choice(_KILLS))
    _away(draw)
    parts.start_agent()


def agent_stop(parts: Parts, draw: random.Random) -> None:
    """Shorter than the two seconds that the runtime waits."""
    parts.pause("agent", draw.choice([0.05, 0.3, 1, 1.5]))


def agent_upgrade(parts: Parts, draw: random.Random) -> None:
    """The agent ends, and another checkout takes over, with its exporter."""
    parts.checkouts.reverse()
    parts.end("agent", signal.SIGTERM)
    _away(draw)
    parts.start_agent()
    with parts.lock("exporter"):
        parts.end("exporter", signal.SIGTERM)
        parts.start_exporter()


def exporter_kill(parts: Parts, draw: random.Random) -> None:
    parts.end("exporter", draw.choice(_KILLS))
    _away(draw)
    parts.start_exporter()


def exporter_stop(parts: Parts, draw: random.Random) -> None:
    parts.pause("exporter", draw.choice([0.05, 0.1, 0.15, 0.3, 0.7, 1.5, 3, 5]))


def kubelet_restart(parts: Parts, draw: random.Random) -> None:
    parts.end("kubelet", draw.choice(_KILLS))
    _away(draw)
    parts.start_kubelet()


def containerd_restart(parts: Parts, draw: random.Random) -> None:
    parts.end("containerd", draw.choice(_KILLS))
    _away(draw)
    parts.start_containerd()


def api_pause(parts: Parts, draw: random.Random) -> None:
    parts.pause_api_server(draw.choice([1, 2, 4, 7, 10]))


def _proxy(*orders: dict[str, object]) -> Callable[[Parts, random.Random], None]:
    def fault(parts: Parts, draw: random.Random) -> None:
        order, seconds = draw.choice(orders), draw.choice([1, 3, 6])
        parts.notes.add("faults", part="proxy", what="stopped", orders=order, for_s=seconds)
        parts.say_to_proxy(order)
        time.sleep(seconds)
        parts.say_to_proxy({})
        parts.notes.add("faults", part="proxy", what="continued")

    return fault


def disk_full(parts: Parts, draw: random.Random) -> None:
    parts.fill_state_directory(draw.choice([0.5, 2, 5]))


def clock_jump(parts: Parts, draw: random.Random) -> None:
    parts.set_clock(draw.choice([-86400, -3600, -30, 0, 5, 600, 86400]))


def reboot(parts: Parts, draw: random.Random) -> None:
    parts.reboot(draw.choice([0, 1]))


FAULTS: dict[str, tuple[float, str, Callable[[Parts, random.Random], None]]] = {
    "agent-kill": (3, "agent", agent_kill),
    "agent-stop": (2, "agent", agent_stop),
    "agent-upgrade": (5, "agent", agent_upgrade),
    "exporter-kill": (3, "exporter", exporter_kill),
    "exporter-stop": (1, "exporter", exporter_stop),
    "kubelet-restart": (8, "kubelet", kubelet_restart),
    "containerd-restart": (8, "containerd", containerd_restart),
    "api-pause": (6, "api", api_pause),
    "api-late": (4, "proxy", _proxy({"late_s": 0.5}, {"late_s": 2})),
    "api-refuses": (4, "proxy", _proxy({"status": 429})),
    "api-gone": (4, "proxy", _proxy({"status": 410})),
    "api-old": (4, "proxy", _proxy({"old": True})),
    "disk-full": (4, "agent", disk_full),
    "clock-jump": (3, "clock", clock_jump),
    "reboot": (12, "", reboot),
}
"""By name: the mean pause before it in seconds, the part that it concerns ("": all), and what does it."""

MIXED = "mixed"
NONE = "none"
REFUSED = "refused"
"""No fault, and hundreds of pods that cannot fit."""

UNMIXED = ("agent-stop", "reboot")


class Faults:
    """Threads that let faults happen until `stop`.

    Args:
        kinds: names of `FAULTS`, of which each time one is drawn.
        threads: so many at once.
    """

    def __init__(self, parts: Parts, kinds: list[str], seed: str, threads: int) -> None:
        self._parts, self._kinds = parts, kinds
        self._stopping = threading.Event()
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"),))
            for number in range(threads if kinds else 0)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let those that happen end, and no more begin."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._parts.say_to_proxy({})

    def _run(self, draw: random.Random) -> None:
        while True:
            kind = draw.choice(self._kinds)
            pause, part, fault = FAULTS[kind]
            if self._stopping.wait(draw.uniform(0.3, 2) * (pause if len(self._kinds) == 1 else 4)):
                return
            try:
                with self._parts.lock(part):
                    fault(self._parts, draw)
            except Exception as error:  # noqa: BLE001 - the round goes on, and the report has it
                say(f"{self._parts.name}: {kind}: {type(error).__name__}: {error}")
                self.failures.append(f"{kind}: {type(error).__name__}: {error}")
