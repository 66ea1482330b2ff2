"""A stand-in for the kubelet's PodResources service: a real gRPC server that answers what it is told to."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from nri_plugin.kube._pb import podresources_pb2 as pb

SERVICE = "v1.PodResourcesLister"


def devices(resource: str, ids: str, *nodes: int) -> pb.ContainerDevices:
    """`ids` separated by blanks, near `nodes`."""
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=number) for number in nodes])
    return pb.ContainerDevices(resource_name=resource, device_ids=ids.split(), topology=topology)


def pod(name: str, **containers: list[pb.ContainerDevices]) -> pb.PodResources:
    """A pod of namespace default; containers by name with their devices."""
    rows = [pb.ContainerResources(name=one, devices=held) for one, held in containers.items()]
    return pb.PodResources(name=name, namespace="default", containers=rows)


class Kubelet:
    """Serves from the moment it is made until `close`.

    Attributes:
        pods: of its list.
        all_devices: that it could give.
        refuses: in these words to list.
        knows_get: whether it answers for one pod; older ones do not.
        asked: the methods called.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "kubelet.sock")
        self.pods: list[pb.PodResources] = []
        self.all_devices: list[pb.ContainerDevices] = []
        self.knows_get = True
        self.refuses = ""
        self.asked: list[str] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        handlers = {
            "List": self._method(self._list, pb.ListPodResourcesRequest),
            "GetAllocatableResources": self._method(self._allocatable, pb.AllocatableResourcesRequest),
            "Get": self._method(self._get, pb.GetPodResourcesRequest),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._server.add_insecure_port(f"unix://{self.path}")
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()

    def _method(self, answer: Any, request: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _list(self, request: Any, context: Any) -> Any:
        self.asked.append("List")
        if self.refuses:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self.refuses)
        return pb.ListPodResourcesResponse(pod_resources=self.pods)

    def _allocatable(self, request: Any, context: Any) -> Any:
        self.asked.append("GetAllocatableResources")
        return pb.AllocatableResourcesResponse(devices=self.all_devices, cpu_ids=[77])

    def _get(self, request: Any, context: Any) -> Any:
        self.asked.append("Get")
        if not self.knows_get:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for one in self.pods:
            if (one.namespace, one.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=one)
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        context.abort(grpc.StatusCode.UNKNOWN, text)
        return None
