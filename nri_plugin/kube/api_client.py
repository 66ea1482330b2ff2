"""A client of the Kubernetes API with the verbs get, list, watch, apply, patch and create.

Objects are mappings as decoded from JSON: other programs store them, with fields of any version. Every failure is a
`KubeAPIError`; its `status` is that of the server's answer, or 0 if there was no answer. An answer of another form, as a
proxy may give, is a failure, too: `_decoded` and `_checked` compare each answer with the form that readers rely on.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError as LibraryConfigError

from nri_plugin.kube import noderesourcetopology as nrt
from nri_plugin.kube.credentials import connect
from nri_plugin.model.errors import KubeAPIError

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


# The forms of answers


Object = dict[str, Any]


class _Metadata(msgspec.Struct, rename="camel"):
    """The fields of `metadata` that readers use."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Object] | None = None
    managed_fields: list[Object] | None = None


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    items: list[Object] | None = None
    metadata: _ListMetadata | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Cause(msgspec.Struct):
    field: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct):
    """The answer of a server that refuses a request. Source: Kubernetes, meta/v1 Status."""

    message: str | None = None
    reason: str | None = None
    details: _Details | None = None
    code: int | None = None


Form = TypeVar("Form")

_NOT_OF_THE_FORM = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised by msgspec for bytes that are no JSON, for another form, and for too many brackets."""


# The client


Parameters = Mapping[str, str]

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"

OK = 200
"""Status of an answer that says it is good, and is not."""

SERVER_FAULT = 500
"""Status of a watch that ends with an error of unknown code."""

LONGEST_MESSAGE = 500
"""Characters of a server's message that an error quotes."""

LONGEST_PAUSE_S = 600.0
"""Longest pause that a server can request. Servers request seconds; a proxy may request anything."""

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
            request = self._request("GET", resource.path(), page, None, JSON)
            answer = _decoded(request, self._sent(request), _List)
            items = (_checked(request, one) for one in answer.items or ())
            objects += map(read, items) if read else items
            metadata = answer.metadata or _ListMetadata()
            if not metadata.next_page:
                return objects, metadata.resource_version
            if metadata.next_page == page.get("continue"):
                text = "the list goes on with the page that was read"
                raise KubeAPIError(_asked(request), text, status=OK)
            page["continue"] = metadata.next_page

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
        return _checked(request, _decoded(request, self._sent(request), Object))

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
                    raise _failure(request, response.content, response.status_code, response.headers)
                for line in response.iter_lines():
                    if line:
                        yield _event(request, line)
            finally:
                response.close()

    def _sent(self, request: httpx2.Request) -> bytes:
        with _as_api_error(request):
            response = self._http.send(request)
        if not response.is_success:
            raise _failure(request, response.content, response.status_code, response.headers)
        return response.content

    def _request(
        self, method: str, path: str, parameters: Parameters, body: object, content_type: str
    ) -> httpx2.Request:
        content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Accept": JSON} | ({"Content-Type": content_type} if content is not None else {})
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        return self._http.build_request(method, target, content=content, headers=headers)


def _event(request: httpx2.Request, line: str) -> Object:
    event = _decoded(request, line.encode(errors="replace"), _Event)
    if event.type == "ERROR":
        raise _failure(request, bytes(event.object))
    obj = _decoded(request, bytes(event.object), Object)
    return {"type": event.type, "object": _checked(request, obj)}


def _failure(
    request: httpx2.Request, content: bytes, code: int = 0, headers: Parameters = NOTHING
) -> KubeAPIError:
    """Return the error for an answer that reports one; a watch has its code in the content."""
    try:
        status = msgspec.json.decode(content, type=_Status)
    except _NOT_OF_THE_FORM:
        text = " ".join(content[:LONGEST_MESSAGE].decode(errors="replace").split())[:200]
        status = _Status(message=f"status {code}: {text}" if text else None)
    code = code or status.code or SERVER_FAULT
    details = status.details or _Details()
    after, pause_s = headers.get("Retry-After", ""), details.retry_after_seconds
    if after.isdecimal() and after.isascii():  # as in client-go, a date is ignored
        pause_s = float(after)
    return KubeAPIError(
        _asked(request),
        (status.message or f"status {code}")[:LONGEST_MESSAGE],
        status=code,
        reason=status.reason or "",
        causes=[(cause.field, cause.message) for cause in details.causes or ()],
        retry_after_s=None if pause_s is None else max(0.0, min(pause_s, LONGEST_PAUSE_S)),
    )


def _decoded(request: httpx2.Request, content: bytes, form: type[Form]) -> Form:
    try:
        return msgspec.json.decode(content, type=form)
    except _NOT_OF_THE_FORM as error:
        text = f"the answer is not JSON of the expected form: {error}"
        raise KubeAPIError(_asked(request), text, status=OK) from None


def _checked(request: httpx2.Request, obj: Object) -> Object:
    """Return the object if its metadata has the form that readers rely on. They check the rest themselves."""
    try:
        msgspec.convert(obj.get("metadata"), _Metadata | None)
    except _NOT_OF_THE_FORM as error:
        raise KubeAPIError(_asked(request), f"metadata of an object: {error}", status=OK) from None
    return obj


def _asked(request: httpx2.Request) -> str:
    return f"{request.method} {request.url.path}"


@contextmanager
def _as_api_error(request: httpx2.Request) -> Iterator[None]:
    """Convert the library's errors and broken connections to `KubeAPIError`."""
    try:
        yield
    except KubeAPIError:
        raise
    except Exception as error:  # noqa: BLE001 - the library's parts raise their own
        name, text = type(error).__name__, str(error)[:LONGEST_MESSAGE]
        if "Bearer" in text:  # a token that no header can hold; the log must not have it
            text = "the token is not one line of plain text"
        if isinstance(error, (LibraryConfigError, OSError)):
            text = f"credentials cannot be read: {text}"
        elif isinstance(error, httpx2.HTTPError):
            text = f"no answer from {request.url.host}: {text or name}"
        else:
            text = f"no answer from {request.url.host}: {name}: {text}"
        raise KubeAPIError(_asked(request), text) from None
