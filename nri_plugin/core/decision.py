"""The input of a decision beside the runtime's message, and its result.

In: `InformedCreate` and `UnsavedStart` are events of our own around an event of the runtime. The agent collects what is
known of a container before the decision and passes it on with the event. So deciding stays pure: the same event gives
the same decision when it is decided again.

Out: a `Decision` is the next state, the answer, and the writes that make the answer true.

The facts of an `InformedCreate` come from two places. The host's sysfs tells where the devices of a container are attached.
The exporter, which alone may ask the kubelet and the cluster, knows the resource of each device, and the pod's object.

**The exporter's socket.** `exporter/exporter.sock` in the state directory (`exporterSocket` names another) is a stream
socket. One connection carries one question and one answer. Each is a JSON object on one line of UTF-8 text that ends with
a newline. An answer is at most `LINE_BYTES` long:

    {"pod": UID, "namespace": "default", "name": "train-0", "container": "worker"}
    {"devices": [{"resource": "nvidia.com/gpu", "ids": ["GPU-1"], "nodes": [0]}, ...], "facts": {...}}

A question with `"devices": false` is about the facts alone: the kubelet is not asked, and the answer has no devices. A
question with an empty `container` is about the pod alone.

`devices` are the kubelet's devices of that container, as its PodResources API lists them. There is an entry for each set
of ids with the same `nodes`, so a resource may have several entries; resources are in the order of their first entry.
`nodes` absent, empty, or -1: attached to no NUMA node in particular. An entry may have `totals`, an object of NUMA nodes
(`0`, `0-1`) to the number of devices of the resource that are attached to exactly these, in use or not. They decide
which nodes hints name and which width is preferred. An answer without `devices` says that the exporter does not know the
container; an empty list says that it has none. `pod_devices`, in the same form, may add those of all containers of the
pod: under pod scope the first container decides for the others. `devices_by_container` may add those of the other
containers, an object of their names to lists in the same form, without totals (`pod_devices` has them); containers
without devices are left out. A pod that is admitted as a whole is placed with them. An answer that would be too long goes
without `devices_by_container`, then without `facts`.

`facts` are the pod's, from a watch on the pods of the node; absent where the pod is not known (yet):

    {"uid": UID, "qos": "Guaranteed", "pod_resources": {"cpu_request_milli": 4000, ...},
     "containers": [
      {"name": "fetch", "kind": "init", "cpu_request_milli": 2000, "cpu_limit_milli": 2000,
       "memory_request_bytes": 1073741824, "memory_limit_bytes": 1073741824, "hugepages": {"hugepages-2Mi": 4194304}},
      {"name": "mesh", "kind": "sidecar", ...},
      {"name": "worker", "kind": "app", ...}]}

`containers` are all of the specification in the order in which they start: init containers and sidecars (init
containers that restart always) as they are listed there, then app containers. An absent `kind` means `app`, absent
amounts mean 0. `pod_resources` is the pod's `spec.resources`, absent or null where that is not set. `uid` is the pod's
uid as the runtime knows it; for a pod from a file of the kubelet that is not the uid of its mirror in the cluster. Facts
of another pod and facts in another form are ignored, and the devices beside them still count. Credentials are never part
of them.

`"has_ended": true` says that the pod has ended for sure: its phase is Succeeded or Failed, or its object, which the
exporter has seen, is deleted. No container of it is admitted any more. Absent or false says nothing: the exporter may not have
read the cluster yet, and a static pod may run again.

An answer may have devices without facts, and facts without devices. Unknown keys are ignored, so agent and exporter may be
of different releases.

The answer has to arrive within 100 ms. Where it does not, or has another form, or nothing listens, the devices are those
of the runtime's message, and the rest is inferred.
"""

from msgspec import Struct

from nri_plugin.model.records import CgroupRef, PodFacts
from nri_plugin.model.refusals import AdmissionRefusal
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.wire.nri.events import (
    ACKNOWLEDGED,
    CreateContainer,
    NRIResponse,
    PostCreateContainer,
    PostStartContainer,
    StartContainer,
)

LINE_BYTES = 1 << 17
"""The longest answer that is read. Facts of 128 containers with names of 63 characters take 45 KiB, the devices that count
(`bounds.DEVICE_CHARS`) 25 KiB for the containers and as much again for the pod."""


class ExporterAnswer(Struct, frozen=True):
    """The exporter's answer about a container.

    Attributes:
        devices: of the container; None where the exporter does not know the container.
        pod_devices: of all containers of its pod; empty when they are not known.
        facts: of the pod; None where the exporter does not know the pod.
        unusable: why facts that were sent do not count; empty otherwise.
        devices_by_container: of the other containers of its pod, by name; empty when they are not known.
        has_ended: the pod has ended for sure.
    """

    devices: tuple[DeviceResource, ...] | None = None
    pod_devices: tuple[DeviceResource, ...] = ()
    facts: PodFacts | None = None
    unusable: str = ""
    devices_by_container: tuple[tuple[str, tuple[DeviceResource, ...]], ...] = ()
    has_ended: bool = False


class InformedCreate(Struct, frozen=True):
    """A `CreateContainer` with everything else that is known of the container.

    Attributes:
        event: the runtime's message.
        devices: where its devices are, by resource.
        pod_devices: the same of all containers of the pod, for pod scope; empty when they are not known.
        facts: from the pod's object; None when they are not known.
        devices_by_container: the devices of the other containers of the pod, by name; empty when they are not known.
        has_ended: the pod has ended for sure.
    """

    event: CreateContainer
    devices: tuple[DeviceResource, ...] = ()
    pod_devices: tuple[DeviceResource, ...] = ()
    facts: PodFacts | None = None
    devices_by_container: tuple[tuple[str, tuple[DeviceResource, ...]], ...] = ()
    has_ended: bool = False


class UnsavedStart(Struct, frozen=True):
    """The first event of a container that was created while no agent listened, and the checkpoint cannot be saved.

    An allocation made now would be unknown to a restarted agent, because neither the checkpoint nor the runtime's list
    has it, and the container would be moved. So it runs in the shared pool.

    Attributes:
        event: the runtime's message.
        why: why the checkpoint cannot be saved.
    """

    event: PostCreateContainer | StartContainer | PostStartContainer
    why: str


class CpusetWrite(Struct, frozen=True):
    """Set `cpuset.cpus` of one cgroup.

    Attributes:
        target: the cgroup.
        cpus: the value; never empty.
        container_id: whose cgroup it is; empty for a QoS slice.
        must_exist: a missing cgroup is an error (False: the container has none yet or is gone).
        compare: skip a cgroup that already has the value; False where the value is known to change, which saves
            reading thousands of files while a container waits.
        make_room: first widen the cgroups above where they hold less, or enable the cpuset controller there; reads
            each of them.
        narrows: only take CPUs away: CPUs of `cpus` that the cgroup does not hold are left out.
        bounds: of a QoS slice. The files of containers below it wait until the answer is out, because this write bounds
            them all at once; where it fails, they are written instead.
    """

    target: CgroupRef
    cpus: CPUSet
    container_id: str = ""
    must_exist: bool = False
    compare: bool = True
    make_room: bool = False
    narrows: bool = False
    bounds: bool = False


class EffectiveCheck(Struct, frozen=True):
    """After the reply, `cpuset.cpus.effective` of this cgroup should equal `cpus`."""

    target: CgroupRef
    cpus: CPUSet
    container_id: str


class Decision(Struct, frozen=True):
    """The result of one event.

    Order of effects: save `state` (when it changed), apply `writes`, answer with `response` or, when `refusal` is set,
    refuse with it. A refused event changes no cgroup and allocates nothing; where the facts of the pod came with it, its state
    has them and the refusal.

    Attributes:
        state: the state from now on.
        response: the answer when not refused.
        refusal: why the event is refused; only ever for CreateContainer and UpdateContainer.
        overruled: why it would have been refused, in a namespace that is never refused.
        writes: those that the answer waits for, narrowing before widening; `core.pool` says which may come later.
        checks: to be read back once the answer is sent.
        steps: why, in short codes, in the order they happened.
    """

    state: State
    response: NRIResponse = ACKNOWLEDGED
    refusal: AdmissionRefusal | None = None
    overruled: AdmissionRefusal | None = None
    writes: tuple[CpusetWrite, ...] = ()
    checks: tuple[EffectiveCheck, ...] = ()
    steps: tuple[str, ...] = ()
