"""`nri-pin simulate` as a user waits for it: the whole command, from its start to its end."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.figures import Figure, milliseconds

MACHINE = "gb200-34-numa"
PODS = """\
- {pod: train, count: 8, cpu: 6, memory: 24Gi}
- {pod: infer, count: 24, cpu: 2, memory: 4Gi}
- {pod: cache, count: 8, cpu: 3, memory: 16Gi}
- {pod: web, count: 100, requests: {cpu: 100m, memory: 128Mi}}
- {pod: batch, count: 60, requests: {cpu: 50m}}
"""
"""200 pods that fit, 40 of them with CPUs of their own."""


def figures(rounds: int) -> Iterator[Figure]:
    """34 NUMA nodes and 200 pods, by several configurations."""
    count = max(5, rounds // 100)
    kinds = {
        "200 pods on 34 NUMA nodes": (),
        "the same, single-numa-node, memory Static": (
            "--policy",
            "single-numa-node",
            "--set",
            "memoryManagerPolicy=Static",
        ),
        "the same, two configurations compared": ("--compare", "topologyManagerPolicy=restricted"),
        "the same, JSON": ("-o", "json"),
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pods.yaml"
        file.write_text(PODS)
        for what, words in kinds.items():
            yield milliseconds(f"simulate {what}", [_took_s(str(file), words) for _ in range(count)])


def _took_s(file: str, words: tuple[str, ...]) -> float:
    command = [sys.executable, "-P", "-m", "nri_plugin", "simulate", MACHINE, file, *words]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
