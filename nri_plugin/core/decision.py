"""What came out of an event: the next state, the answer, and the writes that make it true.

What is known of a container beside the runtime's message, as plain values.

The application finds it out before a decision and hands both over as one event, so that deciding
stays pure: the same event gives the same decision when it is asked again.

Facts come from two places. The host's sysfs tells where the devices of a container are attached. The
exporter, which alone may ask the kubelet and the cluster, knows which device of which resource it is, and what
the pod's object says.

**The exporter's socket.** `exporter/exporter.sock` in the state directory (`exporterSocket` names another) is a
stream socket. One connection carries one question and one answer, each a JSON object on one line of
UTF-8 text that ends with a newline, at most `LINE_BYTES` long:

    {"pod": UID, "namespace": "default", "name": "train-0", "container": "worker"}
    {"devices": [{"resource": "nvidia.com/gpu", "ids": ["GPU-1"], "nodes": [0]}, ...], "facts": {...}}

A question with `"devices": false` is about the facts alone: then the kubelet need not be asked, and the answer has none.

`devices` are the kubelet's devices of that container, as its PodResources API lists them: an entry for
each set of ids with the same `nodes`, a resource in as many entries as that takes, resources in the
order of the first. `nodes` left out, empty, or -1: attached to no NUMA node in particular. An entry
may have `totals`, an object of NUMA nodes (`0`, `0-1`) to the number of devices of the resource that are attached
to exactly these, given to somebody or not: they decide which nodes hints name and which width is preferred. An answer without `devices` says that the
exporter does not know the container; an empty list that it has none. `pod_devices`, in the same form, may
add those of all containers of the pod: under pod scope the first container decides for the others.

`facts` are the pod's, from a watch on the pods of the node; left out where the pod is not known (yet):

    {"uid": UID, "qos": "Guaranteed", "pod_resources": {"cpu_request_milli": 4000, ...},
     "containers": [
      {"name": "fetch", "kind": "init", "cpu_request_milli": 2000, "cpu_limit_milli": 2000,
       "memory_request_bytes": 1073741824, "memory_limit_bytes": 1073741824, "hugepages": {"hugepages-2Mi": 4194304}},
      {"name": "mesh", "kind": "sidecar", ...},
      {"name": "worker", "kind": "app", ...}]}

`containers` are all of the specification, in the order in which they start: init containers and sidecars (init
containers that restart always) as they are listed there, then app containers; `kind` left out means `app`.
Amounts left out are not set: 0. `pod_resources` is what the pod asks for as a whole (`spec.resources`), left out or
null where that is not set. `uid` is the pod's uid as the runtime knows it, which for a pod from a file of the kubelet is
not that of its mirror in the cluster; facts of another pod, and facts not of this form, are passed over, and the devices
beside them still count. Credentials are never part of them.

An answer may have devices and no facts, and facts and no devices. Keys not named here are passed over.

The answer has to come within 100 ms. Where it does not, or is not of this form, or nobody listens, the
devices are those of the runtime's message, and what it does not say of the pod is inferred.
"""

from dataclasses import dataclass

from nri_plugin.model.refusals import AdmissionRefusal
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import CgroupRef, PodFacts, State
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.wire.nri.events import (
    ACKNOWLEDGED,
    CreateContainer,
    NRIResponse,
    PostCreateContainer,
    PostStartContainer,
    StartContainer,
)

LINE_BYTES = 1 << 16
"""A longer question or answer is not listened to: a container has a few dozen devices, of 100 bytes each."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the exporter said.

    Attributes:
        devices: of the container; None where it does not know the container.
        pod_devices: of all containers of its pod; empty when nobody knows them.
        facts: of the pod; None where it does not know the pod.
        unusable: why facts that were sent do not count; empty otherwise.
    """

    devices: tuple[DeviceResource, ...] | None = None
    pod_devices: tuple[DeviceResource, ...] = ()
    facts: PodFacts | None = None
    unusable: str = ""


@dataclass(frozen=True, slots=True)
class InformedCreate:
    """A `CreateContainer`, and what else is known of the container.

    Attributes:
        event: what the runtime said.
        devices: where its devices are, by resource.
        pod_devices: the same of all containers of the pod, for pod scope; empty when nobody knows them.
        facts: what the pod's object says; None when nobody knows.
    """

    event: CreateContainer
    devices: tuple[DeviceResource, ...] = ()
    pod_devices: tuple[DeviceResource, ...] = ()
    facts: PodFacts | None = None


@dataclass(frozen=True, slots=True)
class UnsavedStart:
    """The first event of a container that was created while nobody listened, and the checkpoint cannot be saved.

    Neither the checkpoint nor the runtime's list would tell a restarted agent of an allocation that is made now, and
    the container would be moved. So it runs in the shared pool.

    Attributes:
        event: what the runtime said.
        why: what stands against saving.
    """

    event: PostCreateContainer | StartContainer | PostStartContainer
    why: str


# ----------------------------------------------------------------------------------------------------


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
    refusal: AdmissionRefusal | None = None
    overruled: AdmissionRefusal | None = None
    writes: tuple[CpusetWrite, ...] = ()
    checks: tuple[EffectiveCheck, ...] = ()
    steps: tuple[str, ...] = ()
