"""Where fuzzing begins: one sound input or a few for each target, so that it need not invent our formats."""

import json
import zlib
from pathlib import Path

from nri_plugin.checkpoint.format import Encoder
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    MemoryBlock,
    Phase,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.wire.nri._pb import nri_pb2
from nri_plugin.wire.nri.mux import mux_frames
from nri_plugin.wire.ttrpc.frame import Frame, RequestEnvelope, encode_request
from tests.builders import node
from tests.fuzz.targets import HEAD, METHODS, TARGETS
from tests.largest_pods import SHAPES

HERE = Path(__file__)
STATE = State(
    {
        "u": PodRecord(
            "u",
            "s",
            "web",
            "shop",
            QOSClass.BURSTABLE,
            "/kubepods/podu",
            2000,
            1 << 30,
            (("hugepages-2Mi", 4),),
        )
    },
    {
        "c1": ContainerRecord(
            "c1", "u", "c", Phase.RUNNING, CgroupRef("/kubepods/podu", "/kubepods/podu/c1"), CPUSet.of(2)
        )
    },
    {"u/c": Allocation(CPUSet.of(2, 3), NodeMask.of(0), (MemoryBlock(NodeMask.of(0), "memory", 7),), 2000)},
)
CONFIGURATIONS = (
    'reservedSystemCPUs: "0-1"\ncpuManagerPolicy: static\ntopologyManagerPolicy: restricted\n',
    "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\nkubeReserved: {cpu: 500m}\nsystemReserved: {memory: 1Gi}\n",
    "reservedMemory:\n- numaNode: 0\n  limits: {memory: 100Mi}\nmemoryManagerPolicy: Static\nreservedSystemCPUs: '0'\n",
    "featureGates: {CPUManagerPolicyAlphaOptions: true}\nevictionHard: {memory.available: 5%}\nannotationNamespaces: [a]\n",
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreservedSystemCPUs: '0'\nmaxPods: 110\n",
)
ANSWER = {
    "devices": [{"resource": "x/gpu", "ids": ["a", "b"], "nodes": [0], "totals": {"0": 2, "1": 2}}],
    "pod_devices": [{"resource": "x/nic", "ids": ["n"], "nodes": [-1]}],
}


def write(name: str, folder: Path) -> None:
    """Put the seeds of a target into `folder`."""
    for number, data in enumerate(SEEDS[name]()):
        (folder / f"seed-{number}").write_bytes(data[: TARGETS[name].longest])


def _frames() -> list[bytes]:
    calls = [
        encode_request(RequestEnvelope("nri.pkg.api.v1alpha1.Plugin", method, b"", 2_000_000_000))
        for method in METHODS
    ]
    return [b"\x1f" + Frame(1, 1, 0, call).encode() for call in calls[:4]] + [
        b"\x00" + Frame(2, 2, 1, b"x").encode()
    ]


def _trunk() -> list[bytes]:
    return [b"\x1f" + b"".join(mux_frames(kind, seed[1:])) for seed in _frames() for kind in (1, 2)]


def _requests() -> list[bytes]:
    pod = nri_pb2.PodSandbox(id="s", name="p", uid="u", namespace="n")
    container = nri_pb2.Container(id="c", pod_sandbox_id="s", name="c", state=nri_pb2.CONTAINER_RUNNING)
    bodies = {
        "CreateContainer": nri_pb2.CreateContainerRequest(pod=pod, container=container),
        "Synchronize": nri_pb2.SynchronizeRequest(pods=[pod], containers=[container]),
        "StateChange": nri_pb2.StateChangeEvent(event=2, pod=pod, container=container),
        "Configure": nri_pb2.ConfigureRequest(
            config="a: b", runtime_name="containerd", runtime_version="2.1"
        ),
    }
    return [
        bytes([METHODS.index(name)]) + body.SerializeToString()
        for name, body in bodies.items()
        if name in METHODS
    ]


def _checkpoints() -> list[bytes]:
    whole = b"".join(Encoder().encode(STATE, 7, NodeFacts.of(node())))
    rows = whole[len(HEAD) : whole.rindex(b',\n"checksum"')]
    assert whole.startswith(HEAD)
    return [rows, whole, rows + b" " + str(zlib.crc32(rows)).encode()]


def _kubelet_files() -> list[bytes]:
    folder = HERE.parents[1] / "vectors" / "kubelet" / "checkpoints"
    return [path.read_bytes() for path in sorted(folder.glob("*_state.*"))]


def _listed() -> list[bytes]:
    topology = pb.NUMATopology if hasattr(pb, "NUMATopology") else None
    devices = pb.ContainerDevices(resource_name="x/gpu", device_ids=["a", "b"])
    if topology is not None:
        devices.topology.nodes.add(ID=0)
    one = pb.ContainerResources(name="c", devices=[devices], cpu_ids=[1, 2])
    answer = pb.ListPodResourcesResponse(
        pod_resources=[pb.PodResources(name="p", namespace="n", containers=[one])]
    )
    return [
        answer.SerializeToString(),
        pb.AllocatableResourcesResponse(devices=[devices]).SerializeToString(),
    ]


def _texts(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


SEEDS = {
    "frame": _frames,
    "mux": _trunk,
    "codec": _requests,
    "largest-pods": lambda: [bytes([number]) + b"\0\0" for number in range(len(SHAPES))],
    "session": _trunk,
    "cpulist": lambda: _texts("0-3,8", "0", "", "1,3,5-7\n", "0-8191"),
    "checkpoint": _checkpoints,
    "kubelet-files": _kubelet_files,
    "configuration": lambda: _texts(*CONFIGURATIONS),
    "annotations": lambda: _texts("reject\nallow\nround-up\n2\n1\n3", "\n\nkubelet\n4"),
    "exporter-answers": lambda: _texts(json.dumps(ANSWER), "{}", json.dumps({"devices": []})),
    "pod-resources": _listed,
}
"""By target."""
