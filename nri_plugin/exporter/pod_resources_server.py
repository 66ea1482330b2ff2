"""Serves the PodResources API on a socket of our own, asking the kubelet for what it knows.

The only module that speaks gRPC.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from nri_plugin.exporter import pod_resources
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.errors import HostError, KubeletError
from nri_plugin.model.options import Node
from nri_plugin.model.state import State

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
SERVICE = "v1.PodResourcesLister"
LONGEST_BYTES = 16 << 20
"""Of an answer, as node feature discovery takes them."""

LONGEST_PATH = 107
"""Bytes of a socket's path. Source: unix(7), `sun_path`."""

ASK_S = 10.0
ANSWERERS = 4
"""Monitoring asks now and then; the kubelet answers no faster to more."""

NO_ANSWER = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)

Message = TypeVar("Message")
View = Callable[[], tuple[Node, State] | None]


class KubeletClient:
    """Asks the kubelet.

    Args:
        path: of its socket; it need not exist yet.
    """

    def __init__(self, path: str = KUBELET_SOCKET) -> None:
        self.path = path
        self._channel = grpc.insecure_channel(
            f"unix://{os.path.abspath(path)}",
            options=[
                ("grpc.max_receive_message_length", LONGEST_BYTES),
                ("grpc.max_reconnect_backoff_ms", 2000),
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._list: Callable[..., pb.ListPodResourcesResponse] = self._method(
            "List", pb.ListPodResourcesResponse
        )
        self._allocatable: Callable[..., pb.AllocatableResourcesResponse] = self._method(
            "GetAllocatableResources", pb.AllocatableResourcesResponse
        )
        self._get: Callable[..., pb.GetPodResourcesResponse] = self._method("Get", pb.GetPodResourcesResponse)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def list(self, timeout_s: float = ASK_S) -> pb.ListPodResourcesResponse:
        """What every container was given.

        Raises:
            KubeletError: no answer.
        """
        return self._asked(self._list, pb.ListPodResourcesRequest(), timeout_s)

    def allocatable(self, timeout_s: float = ASK_S) -> pb.AllocatableResourcesResponse:
        """What there is to give.

        Raises:
            KubeletError: no answer.
        """
        return self._asked(self._allocatable, pb.AllocatableResourcesRequest(), timeout_s)

    def get(self, namespace: str, name: str, timeout_s: float = ASK_S) -> pb.GetPodResourcesResponse:
        """What one pod was given; from the list where the kubelet is too old to be asked for one.

        Raises:
            KubeletError: no answer, or it does not know the pod (`is_unknown`).
        """
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            return self._asked(self._get, request, timeout_s)
        except KubeletError as error:
            if not error.is_unsupported:
                raise
        pod = pod_resources.pod_of(self.list(timeout_s), namespace, name)
        if pod is None:
            raise KubeletError(self.path, f"pod {name} in namespace {namespace} not found", is_unknown=True)
        return pb.GetPodResourcesResponse(pod_resources=pod)

    def _method(self, name: str, answer: Any) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def _asked(self, method: Callable[..., Message], request: object, timeout_s: float) -> Message:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _refusal(self.path, error.code(), error.details()) from None  # a call, which has both


def _refusal(path: str, code: grpc.StatusCode, text: str) -> KubeletError:
    """What came instead of an answer.

    Source: kubelet v1.35 pkg/kubelet/apis/podresources/server_v1.go: that the feature gate is off, and that a pod is
    not there, is said only in words, with status UNKNOWN.
    """
    if code in NO_ANSWER:
        return KubeletError(path, f"the kubelet does not answer: {text}")
    if code is grpc.StatusCode.NOT_FOUND or text.endswith("not found"):
        return KubeletError(path, text, is_unknown=True)
    is_unsupported = code is grpc.StatusCode.UNIMPLEMENTED or "disabled" in text
    return KubeletError(path, f"the kubelet answers {code.name}: {text}", is_unsupported=is_unsupported)


class PodResourcesServer:
    """Answers from the moment it is made until `close`.

    Args:
        path: of our socket; whatever socket is there is replaced.
        kubelet: is asked first.
        view: what the agent has promised; None while it has not said anything.

    Raises:
        HostError: the socket cannot be made there.
    """

    def __init__(self, path: str, kubelet: KubeletClient, view: View) -> None:
        self._kubelet, self._view = kubelet, view
        self._server = grpc.server(
            ThreadPoolExecutor(ANSWERERS, "pod resources"),
            options=[("grpc.max_send_message_length", LONGEST_BYTES), ("grpc.so_reuseport", 0)],
        )
        handlers = {
            "List": _handler(self._on_list, pb.ListPodResourcesRequest),
            "GetAllocatableResources": _handler(self._on_allocatable, pb.AllocatableResourcesRequest),
            "Get": _handler(self._on_get, pb.GetPodResourcesRequest),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        with suppress(FileNotFoundError):
            os.unlink(path)
        address = os.path.abspath(path)
        if len(os.fsencode(address)) > LONGEST_PATH:
            raise HostError(
                path, f"cannot be listened on: longer than {LONGEST_PATH} bytes, use a shorter path"
            )
        before = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix://{address}")
        except RuntimeError as error:
            raise HostError(path, f"cannot be listened on: {error}") from None
        finally:
            os.umask(before)
        self._server.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.stop(None).wait()

    def _on_list(self, _request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        _, state = self._known(context)
        return pod_resources.merged_list(_said(context, self._kubelet.list), state)

    def _on_get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:
        _, state = self._known(context)
        answer = _said(context, lambda: self._kubelet.get(request.pod_namespace, request.pod_name))
        return pod_resources.merged_pod(answer, state)

    def _on_allocatable(
        self, _request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        node, _ = self._known(context)
        return pod_resources.merged_allocatable(_said(context, self._kubelet.allocatable), node)

    def _known(self, context: Any) -> tuple[Node, State]:
        known = self._view()
        if known is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the agent has not said anything yet; ask again")
        assert known is not None
        return known


def _said(context: Any, ask: Callable[[], Any]) -> Any:
    """The kubelet's answer, or its failure handed on: an empty list would be taken for the truth.

    A pod that the kubelet does not know is an answer: it is handed on in the kubelet's own words.
    """
    try:
        return ask()
    except KubeletError as error:
        if error.is_unknown:
            context.abort(grpc.StatusCode.NOT_FOUND, error.detail)
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def _handler(answer: Callable[[Any, Any], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
