"""`nri-pin noise --probe`: gaps that a busy program feels on its own CPUs, the manifest of a pod that measures, and its result.

A process on each CPU reads the clock in a loop. Two reads that are further apart than the threshold are a gap: something else
had the CPU, be it an interrupt, another thread, the firmware or the host of a virtual machine. The loop keeps its CPUs busy, so
it runs only in a container, and only on CPUs that can be that container's own.
"""

import gc
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nri_plugin import __version__
from nri_plugin.cli.output import table
from nri_plugin.cli.state.source import FailedError, WrongUsageError
from nri_plugin.model.sets import CPUSet

Clock = Callable[[], int]

ONLINE = "/sys/devices/system/cpu/online"
LEAST_NS = 1000
"""The width of the first bucket; each further one is twice as wide."""

_SWITCHES = re.compile(r"^nonvoluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


@dataclass(slots=True)
class Gaps:
    """The gaps on one CPU.

    Attributes:
        seconds: how long it was measured.
        reads: how often the clock was read.
        count: the gaps.
        total_ns: their sum.
        longest_ns: the longest.
        buckets: the number of gaps by the upper end of the bucket in microseconds.
        switches: times that the kernel preempted the loop for another thread; None where it does not tell.
    """

    seconds: float = 0.0
    reads: int = 0
    count: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    buckets: dict[int, int] = field(default_factory=dict)
    switches: int | None = None

    def add(self, gap_ns: int) -> None:
        """Count one gap."""
        self.count += 1
        self.total_ns += gap_ns
        self.longest_ns = max(self.longest_ns, gap_ns)
        bucket = upper_end_us(gap_ns)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1


def upper_end_us(gap_ns: int) -> int:
    """The upper end of the bucket of a gap: the least power of two of microseconds that is not below it."""
    return 1 << max(0, (gap_ns - 1) // LEAST_NS).bit_length()


def gaps(duration_ns: int, threshold_ns: int, clock: Clock = time.perf_counter_ns) -> Gaps:
    """Read the clock in a loop, and count the gaps."""
    found, reads = Gaps(), 0
    before = _switches()
    began = last = clock()
    end = began + duration_ns
    # The body is as short as Python allows, some 100 ns; what a gap costs to count is not measured as part of the next.
    while last < end:
        now = clock()
        reads += 1
        if now - last > threshold_ns:
            found.add(now - last)
            now = clock()
        last = now
    found.seconds, found.reads = (last - began) / 1e9, reads
    after = _switches()
    found.switches = None if before is None or after is None else after - before
    return found


def _switches() -> int | None:
    try:
        found = _SWITCHES.search(Path("/proc/thread-self/status").read_text("ascii", "replace"))
    except OSError:
        return None
    return int(found[1]) if found else None


def probe(cpus: CPUSet, seconds: float, threshold_us: int) -> dict[int, Gaps]:
    """Measure on all these CPUs at once, by a process on each.

    Raises:
        FailedError: a CPU cannot be measured.
    """
    started = [(cpu, *_start(cpu, seconds, threshold_us)) for cpu in cpus]
    found: dict[int, Gaps] = {}
    try:
        for cpu, _, reader in started:
            with os.fdopen(reader, "rb") as file:
                answer = file.read()
            if answer:
                found[cpu] = gaps_of(json.loads(answer))
    finally:
        for cpu, pid, _ in started:
            if cpu not in found:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    missing = cpus - CPUSet.from_ids(found)
    if missing:
        raise FailedError(f"CPUs {missing} could not be measured: the process cannot run there alone")
    return found


def _start(cpu: int, seconds: float, threshold_us: int) -> tuple[int, int]:
    """Start the process of one CPU; returns its id, and the end of a pipe that its answer comes from."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        os.sched_setaffinity(0, {cpu})
        gc.disable()
        answer = gaps(int(seconds * 1e9), threshold_us * 1000)
        os.write(writer, json.dumps(asdict(answer)).encode())
    finally:
        os._exit(0)


def gaps_of(told: Mapping[str, Any]) -> Gaps:
    """Gaps from JSON, where keys are texts.

    Raises:
        TypeError, ValueError: it is something else.
    """
    return Gaps(**{**told, "buckets": {int(end): int(count) for end, count in told["buckets"].items()}})


def checked_cpus(wanted: int | None, *, in_pod: bool, online: str = ONLINE) -> CPUSet:
    """The CPUs of this process, if they can be its own.

    Args:
        wanted: how many CPUs were requested; None where that is not said.
        in_pod: whether this runs in a container of Kubernetes.
        online: the file that lists the machine's CPUs.

    Raises:
        WrongUsageError: it would disturb others, and so measure them.
    """
    if not in_pod:
        raise WrongUsageError(
            "--probe keeps CPUs busy, so it runs only in a pod that has its own; --probe-manifest prints one"
        )
    cpus = CPUSet.from_ids(os.sched_getaffinity(0))
    try:
        everything = CPUSet.parse(Path(online).read_text("ascii"))
    except (OSError, ValueError) as error:
        raise FailedError(f"{online}: cannot be read: {error}") from None
    if not everything - cpus:
        raise WrongUsageError(
            f"this container may run on all CPUs {cpus} of the machine, so they are not its own; it needs equal requests "
            "and limits with whole CPUs (--probe-manifest prints such a pod), on a node where nri-pin runs"
        )
    if wanted is not None and len(cpus) != wanted:
        raise WrongUsageError(
            f"this container requested {wanted} CPUs and may run on {len(cpus)} ({cpus}), so they are not exclusive; "
            "nri-pin state show on the node tells why"
        )
    return cpus


def result_facts(found: Mapping[int, Gaps], threshold_us: int) -> dict[str, Any]:
    """The result for programs, and for `--probe-result`."""
    return {
        "probe": __version__,
        "threshold_us": threshold_us,
        "cpus": {str(cpu): asdict(one) for cpu, one in found.items()},
    }


def read_result(text: str, where: str) -> tuple[dict[int, Gaps], int]:
    """The result that a pod printed with `-o json`, and its threshold; other lines of its log are passed over.

    Raises:
        FailedError: the text has no result.
    """
    for line in reversed(text.splitlines()):
        try:
            told = json.loads(line)
            return {int(cpu): gaps_of(one) for cpu, one in told["cpus"].items()}, int(told["threshold_us"])
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    raise FailedError(
        f"{where}: holds no result of a probe; give the log of the pod: kubectl logs nri-pin-probe"
    )


def histogram(found: Mapping[int, Gaps], threshold_us: int) -> list[str]:
    """The gaps by length, a column for each CPU, then sums."""
    ends = sorted({end for one in found.values() for end in one.buckets})
    # A gap is longer than the threshold, so that its bucket may begin below it.
    rows = [("GAPS", *(f"CPU{cpu}" for cpu in found))]
    rows += [
        (f"up to {_length(end)}", *(str(one.buckets.get(end, 0)) for one in found.values())) for end in ends
    ]
    rows += [_row(label, found.values(), value) for label, value in SUMS.items()]
    seconds = max((one.seconds for one in found.values()), default=0.0)
    return [f"gaps longer than {threshold_us} us in {seconds:.1f} s", "", *table(rows, None)]


def _row(label: str, found: Iterable[Gaps], value: Callable[[Gaps], str]) -> tuple[str, ...]:
    return label, *map(value, found)


SUMS: Mapping[str, Callable[[Gaps], str]] = {
    "gaps": lambda one: str(one.count),
    "longest": lambda one: f"{one.longest_ns / 1000:.1f} us",
    "lost": lambda one: f"{one.total_ns / 1000:.1f} us",
    "share lost": lambda one: f"{one.total_ns / one.seconds / 1e7:.4f} %" if one.seconds else "-",
    "preempted": lambda one: "?" if one.switches is None else str(one.switches),
}


def _length(end_us: int) -> str:
    return f"{end_us} us" if end_us < 1000 else f"{end_us / 1000:.1f} ms"


def manifest(image: str, cpus: int, seconds: float, threshold_us: int) -> str:
    """The pod that measures."""
    return MANIFEST.format(image=image, cpus=cpus, seconds=f"{seconds:g}s", threshold=threshold_us)


DEFAULT_IMAGE = f"nri-pin:{__version__}"

MANIFEST = """\
# kubectl apply -f probe.yaml; when it has completed: kubectl logs nri-pin-probe | nri-pin noise --probe-result -
apiVersion: v1
kind: Pod
metadata:
  name: nri-pin-probe
spec:
  # nodeName: NODE  # the node to measure
  restartPolicy: Never
  automountServiceAccountToken: false
  enableServiceLinks: false
  containers:
    - name: probe
      image: {image}
      args: [noise, --probe, --cpus, "{cpus}", --for, "{seconds}", --threshold-us, "{threshold}", -o, json]
      resources:  # equal requests and limits with whole CPUs: exclusive CPUs
        requests: &amounts
          cpu: "{cpus}"
          memory: 128Mi
        limits: *amounts
      securityContext:
        runAsUser: 65534
        runAsGroup: 65534
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
        seccompProfile:
          type: RuntimeDefault
"""


def exclusive_owner(cpus: Iterable[int], owners: Sequence[tuple[str, CPUSet]]) -> str:
    """The container whose exclusive CPUs these are; empty where no container has exactly them."""
    measured = CPUSet.from_ids(cpus)
    return next((name for name, own in owners if own == measured), "")
