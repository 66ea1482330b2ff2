"""The scheduler's questions to the extender, over HTTP, while nodes change: time, spread and memory."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.extender_server import name_of
from tests.bench.figures import Figure, at
from tests.bench.svg import Line, Panel, chart

NODES, ZONES, RATE = 5000, 8, 100
SIZES = (100, 300, 1000, 3000, 5000, 10000)
PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Asked:
    """A server process and a kept connection to it."""

    pid: int
    connection: http.client.HTTPConnection

    def ask(self, path: str, body: bytes) -> bytes:
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return data

    def rss_mib(self) -> float:
        """Resident memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text("utf-8").splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        return kib / 1024


@contextmanager
def server(nodes: int, *, rate: float = RATE, strategy: str = "LeastNUMANodes") -> Iterator[Asked]:
    """A server that is ready."""
    command = [sys.executable, "-m", "tests.bench.extender_server", f"--nodes={nodes}", f"--rate={rate}"]
    child = subprocess.Popen(
        [*command, f"--strategy={strategy}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(child.stdout.readline()), timeout=PATIENCE_S)
        _wait_until_ready(connection)
        yield Asked(child.pid, connection)
        connection.close()
    finally:
        child.stdin.close()
        child.wait(PATIENCE_S)
        child.stdout.close()


def _wait_until_ready(connection: http.client.HTTPConnection) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            return
        time.sleep(0.05)
    raise TimeoutError("the extender did not get ready")


def pod(number: int) -> dict:
    """A pod; every number is another shape, so that no answer of before helps."""
    amounts = {"cpu": f"{2 + number % 30}", "memory": f"{(1 << 30) + number * 4096}"}
    if number % 3 == 0:
        amounts["vendor.example/gpu"] = str(1 + number % 4)
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "metadata": {"name": f"p{number}", "namespace": "bench", "uid": str(number)},
        "spec": {"containers": [container]},
    }


def question(number: int, nodes: int) -> bytes:
    names = [name_of(n) for n in range(nodes)]
    return json.dumps({"Pod": pod(number), "Nodes": None, "NodeNames": names}).encode()


def timed(asked: Asked, path: str, bodies: Sequence[bytes], pause_s: float = 0.0) -> list[int]:
    """Nanoseconds of each call; pauses let nodes change in between."""
    took = []
    for body in bodies:
        if pause_s:
            time.sleep(pause_s)
        began = time.perf_counter_ns()
        asked.ask(path, body)
        took.append(time.perf_counter_ns() - began)
    return took


def figures(rounds: int, strategy: str = "LeastNUMANodes") -> Iterator[Figure]:
    """5,000 nodes: cold, every pod of another shape; warm, one shape again and again."""
    with server(NODES, strategy=strategy) as asked:
        cold = [question(number, NODES) for number in range(rounds)]
        for path in ("/filter", "/prioritize"):
            yield _figure(f"{path[1:]}, cold, {strategy}", timed(asked, path, cold))
        warm = [question(7, NODES)] * rounds
        for path in ("/filter", "/prioritize"):
            asked.ask(path, warm[0])
            yield _figure(f"{path[1:]}, warm, {strategy}", timed(asked, path, warm, 0.02))
        yield Figure(f"resident memory, {strategy}", "MiB", asked.rss_mib())


def all_figures(rounds: int) -> Iterator[Figure]:
    """The default strategy, and the one that the scheduler plugin has as its default."""
    yield from figures(rounds)
    yield from figures(max(20, rounds // 4), "LeastAllocated")


def ratios(measured: Sequence[Figure]) -> str:
    """How far the slow ones are from the usual ones."""
    rows = [one for one in measured if one.p99 is not None]
    lines = [f"p99/p50 {(one.p99 or 0) / one.p50:.1f}  {one.what}" for one in rows]
    return "\n".join(lines)


def _figure(what: str, took_ns: Sequence[int]) -> Figure:
    return Figure(what, "ms", at(took_ns, 0.5) / 1e6, at(took_ns, 0.99) / 1e6, len(took_ns))


def plot(file: Path, rounds: int) -> Iterator[str]:
    """Time against nodes, cold and warm, written as SVG; says what it measured."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for nodes in SIZES:
        with server(nodes) as asked:
            for path in ("/filter", "/prioritize"):
                cold = timed(asked, path, [question(number, nodes) for number in range(rounds)])
                warm = timed(asked, path, [question(7, nodes)] * rounds, 0.01)[1:]
                for kind, took in (("cold", cold), ("warm", warm)):
                    value = at(took, 0.5) / 1e6
                    lines.setdefault(f"{path[1:]}, {kind}", []).append((nodes, value))
                    yield f"{nodes:>6} nodes  {path[1:]:<10} {kind}  {value:8.2f} ms"
    panel = Panel(
        f"p50 with {RATE} changes a second",
        "nodes",
        "ms",
        (100, 300, 1000, 3000, 10000),
        (0.1, 1, 10, 100),
        [Line(name, points) for name, points in lines.items()],
    )
    file.write_text(chart("Extender: time against nodes", [panel]), "utf-8")
