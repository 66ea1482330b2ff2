"""What goes wrong, and when: a fault strikes at one I/O step of one event.

The steps of an event are counted as they are made, so that a kill can come between any two of them.
"""

import errno
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random


class Killed(BaseException):
    """The process is gone; nothing of it runs any more. No `Exception`, so that nobody can hold it up."""


class Fault(StrEnum):
    """One kind of trouble; the values are the rows of the report."""

    KILL = "agent killed between two I/O steps"
    KILL_LOSING = "agent killed, data not yet synced lost"
    TORN = "checkpoint write torn by a kill"
    NO_SPACE = "checkpoint: no space left"
    IO_ERROR = "checkpoint: input/output error"
    STALL = "checkpoint: fsync stalls beyond the request's time"
    CGROUP_ERROR = "cgroup write refused"
    REPLY_LOST = "reply lost with the agent"
    AGENT_RESTART = "agent restarted"
    RUNTIME_RESTART = "runtime restarted"
    BOTH_RESTART = "agent and runtime restarted at once"
    LAUNCHED_KILLED = "pre-launched agent killed"
    BORN_AWAY = "container born while the agent was away"
    BORN_DURING_SYNC = "container born while Synchronize was in flight"
    NEVER_TOLD = "container that nobody told of"
    SAME_NAME = "name used twice after a runtime crash"
    FAILED_CREATION = "creation failed after our reply"
    FAILED_UNTOLD = "creation failed after our reply, no event"
    FAILED_RESIZE = "resize failed after our reply, no event"
    FOREIGN_WRITE = "cpuset written by somebody else"
    CPUS_OFFLINE = "CPUs went offline, and came back later"
    ROOT_SHRANK = "root cpuset shrank, and grew later"
    LOST_CHECKPOINT = "checkpoint removed"
    DAMAGED_CHECKPOINT = "checkpoint damaged: bit flipped or cut short"
    DIRECTORY_LOST = "state directory removed"
    DIRECTORY_REPLACED = "state directory replaced by an older copy"
    DIRECTORY_FULL = "state directory full for a while"
    DIRECTORY_READ_ONLY = "state directory read-only for a while"
    SAME_UID = "a second living sandbox of a uid"
    LOST_REMOVAL = "removal not reported"
    NO_THREAD = "no thread left when the agent starts"


AT_A_DISK_STEP = {
    Fault.NO_SPACE: errno.ENOSPC,
    Fault.IO_ERROR: errno.EIO,
}

SYNCS = ("fsync", "fdatasync")
NEEDS_SPACE = ("write", *SYNCS, "link", "replace")

DEEPEST_STEP = 80
"""An event with a checkpoint and a few cgroups has about 20 steps, what happens to a pod a few events."""


@dataclass(slots=True)
class Faults:
    """Decides for each step of the agent whether it fails.

    Attributes:
        random: the only source of chance.
        injected: how often each kind really struck.
        steps: names of the steps since something was planned.
    """

    random: Random
    injected: Counter[Fault] = field(default_factory=Counter)
    steps: list[str] = field(default_factory=list)
    planned: Fault | None = None
    at: int = 0

    def plan(self, fault: Fault | None) -> None:
        """`fault` strikes at one of the next steps, chosen now; None: nothing fails from now on."""
        self.steps.clear()
        self.planned = fault
        # Squaring makes the early steps as likely to be hit as they are to be made.
        self.at = int(DEEPEST_STEP * self.random.random() ** 2)

    def at_disk(self, name: str) -> Fault | None:
        """The disk makes a step; what it has to do besides, if anything.

        Raises:
            Killed: the agent ends before this step.
            OSError: the step fails.
        """
        fault = self._struck(name)
        if fault in (Fault.CGROUP_ERROR, Fault.REPLY_LOST, Fault.NO_THREAD):
            self.at += 1  # at the next step, until it is one of its kind
            return None
        if fault is Fault.NO_SPACE and name not in NEEDS_SPACE:
            self.at += 1
            return None
        if fault in AT_A_DISK_STEP:
            self._count(fault)
            raise OSError(AT_A_DISK_STEP[fault], "injected", name)
        if fault is Fault.TORN and name != "write":
            self.at += 1
            return None
        if fault is Fault.STALL and name not in SYNCS:
            self.at += 1
            return None
        return fault

    def at_cgroup(self, name: str) -> None:
        """A cgroup file is read or written.

        Raises:
            Killed: the agent ends before this step.
            OSError: the kernel refuses.
        """
        fault = self._struck(name)
        is_this_one = self.random.random() < 0.4  # the first write leaves nothing half done
        if fault is Fault.CGROUP_ERROR and name == "cgroup write" and is_this_one:
            self._count(fault)
            raise OSError(errno.EBUSY, "injected", name)
        if fault is not None:
            self.at += 1

    def at_reply(self) -> None:
        """The answer is ready and not yet sent.

        Raises:
            Killed: nobody will hear it.
        """
        fault = self._struck("reply")
        if fault is Fault.REPLY_LOST:
            self._count(Fault.REPLY_LOST)
            raise Killed
        if fault is not None:
            self.at += 1

    def struck(self, fault: Fault) -> None:
        """Count a fault that was brought about elsewhere."""
        self._count(fault)

    def _struck(self, name: str) -> Fault | None:
        if self.planned is None:
            return None
        self.steps.append(name)
        if len(self.steps) - 1 != self.at:
            return None
        fault = self.planned
        if fault in (Fault.KILL, Fault.KILL_LOSING):
            self._count(fault)
            raise Killed
        return fault

    def _count(self, fault: Fault) -> None:
        self.injected[fault] += 1
        if fault is self.planned:
            self.planned = None
