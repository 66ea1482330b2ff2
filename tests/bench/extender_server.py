"""The process that `hack/bench extender` asks: a cluster in memory, changing all the time, behind the real server."""

import argparse
import random
import sys
import threading
import time

from nri_plugin.extender.cache import Accounting, read_topology
from nri_plugin.extender.cluster_scores import Scoring, Strategy
from nri_plugin.extender.process import ExtenderOptions, ExtenderProcess, PodSink, TopologySink, run

POLICIES = ("single-numa-node", "restricted", "best-effort")


def node_object(number: int, zones: int, draw: random.Random) -> dict:
    """A node like no other: its own amounts and its own distances."""
    far = [[10 if a == b else draw.randrange(11, 33) for b in range(zones)] for a in range(zones)]
    return {
        "metadata": {"name": name_of(number)},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": POLICIES[number % len(POLICIES)]},
            {"name": "topologyManagerScope", "value": ("container", "pod")[number // 3 % 2]},
        ],
        "zones": [
            {
                "name": f"node-{zone}",
                "type": "Node",
                "costs": [{"name": f"node-{other}", "value": far[zone][other]} for other in range(zones)],
                "resources": resources(draw),
            }
            for zone in range(zones)
        ],
    }


def resources(draw: random.Random) -> list[dict]:
    sizes = (("cpu", 16), ("memory", 64 << 30), ("hugepages-1Gi", 8 << 30), ("vendor.example/gpu", 4))
    return [
        {
            "name": name,
            "capacity": str(most),
            "allocatable": str(most),
            "available": str(draw.randrange(most + 1)),
        }
        for name, most in sizes
    ]


def name_of(number: int) -> str:
    return f"worker-{number:05d}.example"


class Churn:
    """The watch: all nodes once, then `rate` changed nodes a second."""

    def __init__(self, nodes: int, zones: int, rate: float) -> None:
        self.nodes, self.zones, self.rate = nodes, zones, rate
        self.changes = 0
        self._draw = random.Random(1)
        self._done = threading.Event()

    def start(self, topologies: TopologySink, pods: PodSink) -> None:
        made = (node_object(n, self.zones, random.Random(n)) for n in range(self.nodes))
        topologies.listed([read_topology(one) for one in made])
        pods.listed(())
        threading.Thread(target=self._run, args=(topologies,), daemon=True).start()

    def stop(self) -> None:
        self._done.set()

    def _run(self, topologies: TopologySink) -> None:
        due = time.monotonic()
        while self.rate and not self._done.is_set():
            due += 1 / self.rate
            time.sleep(max(0.0, due - time.monotonic()))
            number = self._draw.randrange(self.nodes)
            obj = node_object(number, self.zones, random.Random(number))
            for zone in obj["zones"]:
                zone["resources"] = resources(self._draw)
            topologies.changed(obj)
            self.changes += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--zones", type=int, default=8)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--strategy", type=Strategy, default=Strategy.LEAST_NUMA_NODES)
    given = parser.parse_args()
    options = ExtenderOptions(
        address=("127.0.0.1", 0), scoring=Scoring(given.strategy), accounting=Accounting()
    )
    process = ExtenderProcess(options, Churn(given.nodes, given.zones, given.rate))
    sys.stdout.write(f"{process.server.port}\n")
    sys.stdout.flush()
    threading.Thread(target=_end_with_input, args=(process,), daemon=True).start()
    run(process)


def _end_with_input(process: ExtenderProcess) -> None:
    sys.stdin.read()
    process.stop()


if __name__ == "__main__":
    main()
