"""Lives of pods for a recording of a runtime's events, as steps that a real runtime and the embedded one both take.

`run_events.py` plays them over CRI, `tests/unit/lab/runtime/test_recorded_events.py` on the embedded runtime.
"""

CPUS = "0"
"""What the plugin gives to every container, but for those of `BROKEN`."""

REFUSED, BROKEN = "refused", "broken"
"""Pods whose container the plugin refuses, and whose container gets CPUs that no kernel has, so that its start fails."""

NO_CPUS = "4000"

MIB = 1 << 20
SIZES = {"setup": (100, 64 * MIB), "main": (250, 64 * MIB)}
"""Thousandths of a CPU and bytes of the containers, which are requests and limits."""

LARGER = (500, 128 * MIB)
"""The size of `main` after its resize."""

STEPS: tuple[tuple[str, ...], ...] = (
    ("connect",),
    # A pod with an init container.
    ("run", "web"),
    ("create", "web", "setup"),
    ("start", "web", "setup"),
    ("exit", "web", "setup"),
    ("create", "web", "main"),
    ("start", "web", "main"),
    ("resize", "web", "main"),
    # It crashes, and its next instance comes before the earlier one is removed.
    ("exit", "web", "main"),
    ("create", "web", "main"),
    ("start", "web", "main"),
    ("remove", "web", "main"),
    # It is stopped, and removed before it comes again.
    ("stop", "web", "main"),
    ("remove", "web", "main"),
    ("create", "web", "main"),
    ("start", "web", "main"),
    # A creation that the plugin refuses, and a start that fails.
    ("run", REFUSED),
    ("create", REFUSED, "main"),
    ("stop-pod", REFUSED),
    ("remove-pod", REFUSED),
    ("run", BROKEN),
    ("create", BROKEN, "main"),
    ("start", BROKEN, "main"),
    ("remove", BROKEN, "main"),
    ("stop-pod", BROKEN),
    ("remove-pod", BROKEN),
    # The plugin comes back: once with a running container and one that has ended, then with one that waits for its start.
    ("disconnect",),
    ("connect",),
    ("run", "late"),
    ("create", "late", "main"),
    ("disconnect",),
    ("start", "late", "main"),
    ("connect",),
    ("resize", "late", "main"),
    # The runtime starts again: the ends of pods that it had before.
    ("disconnect",),
    ("restart",),
    ("connect",),
    ("exit", "late", "main"),
    ("create", "late", "main"),
    ("start", "late", "main"),
    ("stop-pod", "late"),
    ("remove-pod", "late"),
    ("run", "fresh"),
    ("create", "fresh", "main"),
    ("start", "fresh", "main"),
    # The kubelet stops a pod while its container runs.
    ("stop-pod", "fresh"),
    ("remove-pod", "fresh"),
    ("stop-pod", "web"),
    ("remove-pod", "web"),
    ("disconnect",),
)
