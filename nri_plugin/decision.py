"""What came out of an event: the next state, the answer, and the writes that make it true."""

from dataclasses import dataclass

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import AdmissionError
from nri_plugin.nri.events import ACKNOWLEDGED, NRIResponse
from nri_plugin.state import CgroupRef, State


@dataclass(frozen=True, slots=True)
class CpusetWrite:
    """Set `cpuset.cpus` of one cgroup.

    Attributes:
        target: the cgroup.
        cpus: the value; never empty.
        container_id: whose cgroup it is; empty for a QoS slice.
        must_exist: a missing cgroup is an error (False: the container has none yet or is gone).
        compare: leave a cgroup alone that already says so; False where the value is known to change,
            which saves reading thousands of files while a container waits.
        make_room: where cgroups above hold less, or took the cpuset files away, put that right first; costs a look
            at each of them.
    """

    target: CgroupRef
    cpus: CPUSet
    container_id: str = ""
    must_exist: bool = False
    compare: bool = True
    make_room: bool = False


@dataclass(frozen=True, slots=True)
class EffectiveCheck:
    """After the reply, `cpuset.cpus.effective` of this cgroup should equal `cpus`."""

    target: CgroupRef
    cpus: CPUSet
    container_id: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One event, decided.

    Order of effects: save `state` (when it changed), carry out `writes`, answer with `response`
    or, when `refusal` is set, refuse with it. A refused event changes neither state nor cgroups.

    Attributes:
        state: the state from now on.
        response: the answer when not refused.
        refusal: why the event is refused; only ever for CreateContainer and UpdateContainer.
        overruled: why it would have been, where a namespace is never refused.
        writes: shrinking before growing.
        checks: to be read back once the answer is out.
        steps: why, in short codes, in the order they happened.
    """

    state: State
    response: NRIResponse = ACKNOWLEDGED
    refusal: AdmissionError | None = None
    overruled: AdmissionError | None = None
    writes: tuple[CpusetWrite, ...] = ()
    checks: tuple[EffectiveCheck, ...] = ()
    steps: tuple[str, ...] = ()
