"""A client of the Kubernetes API with the verbs get, list, watch, apply, patch and create.

Objects are mappings as decoded from JSON: other programs store them, with fields of any version. Every failure is a
`KubeAPIError`; its `status` is that of the server's answer, or 0 if there was no answer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError as LibraryConfigError

from nri_plugin.kube import noderesourcetopology as nrt
from nri_plugin.kube.credentials import connect
from nri_plugin.model.errors import ConfigError, KubeAPIError

# Kinds of objects and their paths


@dataclass(frozen=True, slots=True)
class APIResource:
    """One kind of object.

    Attributes:
        version: of its group.
        plural: its name in paths.
        group: empty for the core group.
        is_namespaced: whether its objects live in namespaces.
    """

    version: str
    plural: str
    group: str = ""
    is_namespaced: bool = False

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of all objects, in one namespace if it is given."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.is_namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural, *(quote(part, safe="") for part in (name, subresource) if part)]
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NODE_RESOURCE_TOPOLOGIES = APIResource(nrt.V1ALPHA2, nrt.PLURAL, nrt.GROUP)
NODES = APIResource("v1", "nodes")
PODS = APIResource("v1", "pods", is_namespaced=True)
EVENTS = APIResource("v1", "events", "events.k8s.io", is_namespaced=True)


# The client


Object = dict[str, Any]
Parameters = Mapping[str, str]

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"

PAGE_ITEMS = 500
"""Objects of one page, as in kubectl."""

WATCH_SILENCE_S = 90.0
"""A watch gets a bookmark about once a minute; a watch that is silent for longer may have lost its connection."""

NOTHING: Parameters = {}


class KubeClient:
    """A client of one cluster. Threads may share it.

    Args:
        http: the connection, with base address and credentials.
    """

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    @classmethod
    def connected(cls, kubeconfig: str | None = None) -> "KubeClient":
        """Return a client of the cluster of `kubeconfig`, of the pod, or of the user's environment.

        Raises:
            ConfigError: no usable configuration names a cluster.
        """
        return cls(connect(kubeconfig))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, resource: APIResource, name: str, namespace: str = "") -> Object:
        """Return one object.

        Raises:
            KubeAPIError: it does not exist (status 404), or the request failed.
        """
        return self.send("GET", resource.path(name, namespace))

    def list(
        self,
        resource: APIResource,
        parameters: Parameters = NOTHING,
        read: Callable[[Object], Any] | None = None,
    ) -> tuple[list[Any], str]:
        """Return all objects, and the resource version to watch from.

        Args:
            resource: their kind.
            parameters: `fieldSelector` or `labelSelector`.
            read: converts each object. It is applied page by page: a hundred thousand whole objects take gigabytes.

        Raises:
            KubeAPIError: the request failed; status 404 if the cluster does not know the resource.
        """
        objects: list[Any] = []
        page = {**parameters, "limit": str(PAGE_ITEMS)}
        while True:
            answer = self.send("GET", resource.path(), page)
            items, metadata = answer.get("items") or (), answer.get("metadata") or {}
            objects += map(read, items) if read else items
            if not metadata.get("continue"):
                return objects, metadata.get("resourceVersion", "")
            page["continue"] = metadata["continue"]

    def create(self, resource: APIResource, obj: Mapping[str, Any], namespace: str = "") -> Object:
        """Create an object; returns it as stored.

        Raises:
            KubeAPIError: the server refused it, or there was no answer.
        """
        return self.send("POST", resource.path(namespace=namespace), body=obj)

    def apply(
        self, resource: APIResource, obj: Mapping[str, Any], manager: str, *, force: bool, namespace: str = ""
    ) -> Object:
        """Apply the fields of `obj`, and create the object if it does not exist (server-side apply).

        Args:
            resource: its kind.
            obj: has `apiVersion`, `kind` and `metadata.name`.
            manager: the field manager, which then owns the fields.
            force: take over fields that other managers own.
            namespace: of the object.

        Raises:
            KubeAPIError: the server refused it (status 409: another manager owns a field), or there was no answer.
        """
        parameters = {"fieldManager": manager, "force": "true" if force else "false"}
        path = resource.path(obj["metadata"]["name"], namespace)
        return self.send("PATCH", path, parameters, body=obj, content_type=APPLY_PATCH)

    def merge_patch(
        self,
        resource: APIResource,
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Merge `patch` into an object. Lists are replaced as a whole; null removes a field.

        Raises:
            KubeAPIError: the server refused it, or there was no answer.
        """
        path = resource.path(name, namespace, subresource)
        return self.send("PATCH", path, body=patch, content_type=MERGE_PATCH)

    def send(
        self,
        method: str,
        path: str,
        parameters: Parameters = NOTHING,
        *,
        body: object = None,
        content_type: str = JSON,
    ) -> Object:
        """Send one request; returns the decoded answer. A body of `bytes` is sent unchanged.

        Raises:
            KubeAPIError: the answer reports a failure or is not a JSON object, or there was no answer.
        """
        request = self._request(method, path, parameters, body, content_type)
        with _as_api_error(request):
            response = self._http.send(request)
        if not response.is_success:
            raise _failure(request, response)
        return _decoded(request, response.content)

    def watch(
        self, resource: APIResource, resource_version: str, parameters: Parameters = NOTHING
    ) -> Iterator[Object]:
        """Yield changes after `resource_version`, with bookmarks: `{"type": ..., "object": ...}`.

        Ends when the server ends the watch.

        Raises:
            KubeAPIError: the server refused the watch, or the connection broke; status 410: the version is too old.
        """
        wanted = {**parameters, "watch": "true", "allowWatchBookmarks": "true"}
        if resource_version:
            wanted["resourceVersion"] = resource_version
        request = self._request("GET", resource.path(), wanted, None, JSON)
        # The read timeout of other requests would end a quiet watch.
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": WATCH_SILENCE_S}
        with _as_api_error(request):
            response = self._http.send(request, stream=True)
            try:
                # The body of a failure has the reason; a streamed response must be read first.
                if not response.is_success:
                    response.read()
                    raise _failure(request, response)
                for line in response.iter_lines():
                    if line:
                        yield _event(request, line)
            finally:
                response.close()

    def _request(
        self, method: str, path: str, parameters: Parameters, body: object, content_type: str
    ) -> httpx2.Request:
        content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Accept": JSON} | ({"Content-Type": content_type} if content is not None else {})
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        return self._http.build_request(method, target, content=content, headers=headers)


def _event(request: httpx2.Request, line: str) -> Object:
    event = _decoded(request, line.encode())
    obj = event.get("object")
    if not isinstance(obj, dict):
        raise KubeAPIError(_asked(request), "a watch event without an object")
    if event.get("type") == "ERROR":
        raise _from_status(request, obj, int(obj.get("code") or 500))
    return event


def _failure(request: httpx2.Request, response: httpx2.Response) -> KubeAPIError:
    after = response.headers.get("Retry-After", "")
    retry_after_s = float(after) if after.isdecimal() else None
    try:
        status = _decoded(request, response.content)
    except KubeAPIError:
        text = " ".join(response.text.split())[:200]
        return KubeAPIError(
            _asked(request),
            f"status {response.status_code}{f': {text}' if text else ''}",
            status=response.status_code,
            retry_after_s=retry_after_s,
        )
    return _from_status(request, status, response.status_code, retry_after_s)


def _from_status(
    request: httpx2.Request, status: Mapping[str, Any], code: int, retry_after_s: float | None = None
) -> KubeAPIError:
    details = status.get("details") or {}
    if retry_after_s is None and isinstance(details.get("retryAfterSeconds"), int):
        retry_after_s = float(details["retryAfterSeconds"])
    return KubeAPIError(
        _asked(request),
        str(status.get("message") or f"status {code}"),
        status=code,
        reason=str(status.get("reason") or ""),
        causes=[(row.get("field", ""), row.get("message", "")) for row in details.get("causes") or ()],
        retry_after_s=retry_after_s,
    )


def _decoded(request: httpx2.Request, content: bytes) -> Object:
    try:
        decoded = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubeAPIError(_asked(request), f"the answer is not JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise KubeAPIError(_asked(request), f"the answer is a JSON {type(decoded).__name__}, not an object")
    return decoded


def _asked(request: httpx2.Request) -> str:
    return f"{request.method} {request.url.path}"


@contextmanager
def _as_api_error(request: httpx2.Request) -> Iterator[None]:
    """Convert the library's errors and broken connections to `KubeAPIError`."""
    try:
        yield
    except httpx2.HTTPError as error:
        text = str(error) or type(error).__name__
        raise KubeAPIError(_asked(request), f"no answer from {request.url.host}: {text}") from error
    except (LibraryConfigError, ConfigError, OSError) as error:
        raise KubeAPIError(_asked(request), f"credentials cannot be read: {error}") from error
