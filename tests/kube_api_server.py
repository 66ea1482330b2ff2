"""A small Kubernetes API server for tests: what a client sees of a real one, checked against recorded answers.

Knows create, get, list with pages, update, merge, JSON and apply patches, delete, watches with bookmarks, custom
resources with their schemas, dry runs, strict fields, binding of pods. Validates metadata, and the kinds that nri-pin
writes or deploys, as a real server does. No authentication unless a token is given, no controllers.
"""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.kube_api_binding import bind
from tests.kube_api_fields import Object, merged
from tests.kube_api_kinds import BUILT_IN, Kind, discovery, from_crd
from tests.kube_api_queries import check_query, check_type
from tests.kube_api_store import Key, RefusedError, Store, Write, check_name, not_found, shown
from tests.kube_api_views import PATIENCE_S, Target, listed, watch_events

PATCHES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
BODIES = ("application/json", "application/yaml")


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    token: str
    content_type: str


@dataclass
class Behaviour:
    """What is wrong with the server, and how it ends watches; changed by tests while it runs."""

    fail_next: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Answers (status, headers) given instead of the next ones."""
    spoil_next: list[Callable[[bytes], tuple[int, dict[str, str], bytes]]] = field(default_factory=list)
    """Each makes something else of one of the next answers, of the beginning of a watch, or of one of its lines."""
    token: str = ""
    """Wanted of every request, where it says something."""
    ends_watches_at_once: bool = False
    """A watch brings what there is and ends."""


class KubeAPI:
    """A server that runs from now until `close`; `url` is where."""

    def __init__(self, crds: Iterable[Object] = (), first_version: int = 100) -> None:
        self.store = Store(first_version)
        self.behaviour = Behaviour()
        self.asked: list[Asked] = []
        self.kinds: list[Kind] = list(BUILT_IN)
        self.is_closing = False
        self.watches = 0
        for crd in crds:
            self.define(crd)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def define(self, crd: Object) -> None:
        """Serve a custom resource from now on."""
        self.kinds.append(from_crd(crd))

    def end_watches(self) -> None:
        """End all watches, and every new one at once."""
        with self.store.changed:
            self.is_closing = True
            self.store.changed.notify_all()

    def close(self) -> None:
        self.end_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, obj: Object) -> Object:
        """Create or replace an object as somebody else would, with its status."""
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = next(kind for kind in self.kinds if (kind.group, kind.kind) == (group, obj["kind"]))
        namespace = obj["metadata"].get("namespace", "default") if kind.is_namespaced else ""
        key = (kind.group, kind.plural, namespace, obj["metadata"]["name"])
        write = Write("somebody", version)
        if key not in self.store.objects:
            new = json.loads(json.dumps(obj))
            new["metadata"].pop("resourceVersion", None)
            return self.store.create(kind, namespace, new, write)[0]
        old = self.store.objects[key]["metadata"]["resourceVersion"]
        new = {**obj, "metadata": {**obj["metadata"], "resourceVersion": old}}
        self.store.update(kind, key, json.loads(json.dumps(new)), write)
        status = Write("somebody", version, subresource="status")
        return self.store.modify(kind, key, lambda had: {**had, "status": obj.get("status", {})}, status)[0]

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig file for this server."""
        path = folder / "kubeconfig"
        user = {"name": "t", "user": {"token": self.behaviour.token} if self.behaviour.token else {}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": self.url}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
            "users": [user],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def wait_for_watches(self, count: int) -> None:
        """Return when so many watches are open."""
        with self.store.changed:
            assert self.store.changed.wait_for(lambda: self.watches >= count, PATIENCE_S)

    def target(self, path: str) -> Target | None:
        """What a path names, None for a path that is none of ours."""
        parts = path.strip("/").split("/")
        if len(parts) < 3 + (parts[0] == "apis") or parts[0] not in ("api", "apis"):
            return None
        group, parts = ("", parts[1:]) if parts[0] == "api" else (parts[1], parts[2:])
        version, parts = parts[0], parts[1:]
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        known = (kind for kind in self.kinds if parts and (kind.group, kind.plural) == (group, parts[0]))
        kind = next((kind for kind in known if version in kind.versions), None)
        if kind is None:
            return None
        name, subresource = [*parts[1:], "", ""][:2]
        return Target(kind, version, namespace, name, subresource)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: KubeAPI

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass

    def _serve(self) -> None:
        api, parts = self.server.api, urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content_type = (self.headers.get("Content-Type") or "").partition(";")[0]
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        asked = Asked(self.command, parts.path, query, raw, token, content_type)
        api.asked.append(asked)
        try:
            self._answer(api, asked)
        except RefusedError as refusal:
            self._send(refusal.code, refusal.status)

    def _answer(self, api: KubeAPI, asked: Asked) -> None:
        if api.behaviour.fail_next:
            code, headers = api.behaviour.fail_next.pop(0)
            self._send(code, b"come back later\n", headers=headers)
            return
        if api.behaviour.token and asked.token != api.behaviour.token:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        found = discovery(api.kinds, asked.path)
        if found is not None:
            self._send(200, found)
            return
        target = api.target(asked.path)
        if target is None:
            if any(asked.path.startswith(f"/apis/{kind.group}/") for kind in BUILT_IN if kind.group):
                raise RefusedError(404, "NotFound", "the server could not find the requested resource", {})
            self._send(404, b"404 page not found\n")
            return
        if (target.kind.plural, target.subresource, asked.method) == ("pods", "binding", "POST"):
            body = json.loads(asked.body)
            self._send(201, bind(api.store, target.kind, target.key, body, target.version))
            return
        if target.subresource and not (target.subresource == "status" and target.kind.with_status):
            raise not_found(target.kind, target.name)
        check_query(asked.method, asked.query)
        if asked.query.get("watch") in ("1", "true"):
            self._stream(api, target, asked.query)
            return
        default = (self.headers.get("User-Agent") or "").partition("/")[0]
        code, body, warnings = carry_out(api, target, asked, default)
        self._send(code, body, warnings)

    def _send(
        self, code: int, body: Any, warnings: Iterable[str] = (), headers: dict[str, str] | None = None
    ) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        spoiling = self.server.api.behaviour.spoil_next
        if spoiling and headers is None:
            code, headers, content = spoiling.pop(0)(content)
        self.send_response(code)
        kind = "text/plain" if isinstance(body, bytes) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for warning in warnings:
            self.send_header("Warning", f"299 - {json.dumps(warning)}")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, api: KubeAPI, target: Target, query: dict[str, str]) -> None:
        if api.behaviour.spoil_next:
            code, headers, content = api.behaviour.spoil_next.pop(0)(b"")
            if code != 200:
                self._send(code, content, headers=headers)
                return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in watch_events(api, target, query):
            line = json.dumps(event).encode() if event else b""
            if line:
                if api.behaviour.spoil_next:
                    _, _, line = api.behaviour.spoil_next.pop(0)(line)
                line += b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def carry_out(api: KubeAPI, target: Target, asked: Asked, manager: str) -> tuple[int, Object, list[str]]:
    """The answer to anything but a watch: status, body, warnings."""
    store, kind, query = api.store, target.kind, asked.query
    write = Write(
        query.get("fieldManager") or manager,
        target.version,
        "Apply" if asked.content_type == PATCHES[2] else "Update",
        query.get("force") == "true",
        query.get("dryRun") == "All",
        query.get("fieldValidation") == "Strict",
        target.subresource,
    )
    if asked.method == "GET":
        if target.name:
            return 200, shown(kind, store.get(kind, target.key), target.version), []
        return 200, listed(api, target, query), []
    if asked.method == "DELETE":
        return _deleted(api, target, asked, write)
    if asked.method == "PATCH":
        return _patched(api, target, asked, write)
    obj = _body(kind, asked, BODIES)
    if asked.method == "PUT" and not target.name:
        raise RefusedError(400, "BadRequest", "name must be provided")
    check_type(kind, target.version, asked.body, obj)
    if asked.method == "POST":
        if not write.dry_run and kind.plural == "customresourcedefinitions":
            api.define(obj)
        stored, warnings = store.create(kind, target.namespace, obj, write)
        return 201, shown(kind, stored, target.version), warnings
    check_name(obj.get("metadata", {}).get("name"), target.name)
    stored, warnings = store.update(kind, target.key, obj, write)
    return 200, shown(kind, stored, target.version), warnings


def _deleted(api: KubeAPI, target: Target, asked: Asked, write: Write) -> tuple[int, Object, list[str]]:
    store, kind, query = api.store, target.kind, asked.query
    options = json.loads(asked.body or b"{}")
    if not target.name:
        gone = listed(api, target, query)
        for obj in gone["items"]:
            store.delete(kind, _key_of(kind, obj), {}, write)
        return 200, gone, []
    before = store.delete(kind, target.key, options, write)
    if kind.plural == "pods":
        return 200, shown(kind, before, target.version), []
    details = {
        "name": target.name,
        "group": kind.group,
        "kind": kind.plural,
        "uid": before["metadata"]["uid"],
    }
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }
    return 200, status, []


def _patched(api: KubeAPI, target: Target, asked: Asked, write: Write) -> tuple[int, Object, list[str]]:
    kind, store = target.kind, api.store
    patch = _body(kind, asked, PATCHES)
    if write.operation != "Apply":
        change = _json_patched if asked.content_type == PATCHES[0] else merged
        stored, warnings = store.modify(kind, target.key, lambda obj: change(obj, patch), write)
        return 200, shown(kind, stored, target.version), warnings
    if "fieldManager" not in asked.query:
        text = "Required value: is required for apply patch"
        cause = {"reason": "FieldValueRequired", "message": text, "field": "fieldManager"}
        details = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause]}
        raise RefusedError(
            422, "Invalid", f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {text}', details
        )
    if "managedFields" in patch.get("metadata", {}):
        raise RefusedError(400, "BadRequest", "metadata.managedFields must be nil")
    check_name(patch.get("metadata", {}).get("name"), target.name)
    stored, warnings, is_new = store.apply(kind, target.key, patch, write)
    return 201 if is_new else 200, shown(kind, stored, target.version), warnings


def _body(kind: Kind, asked: Asked, accepted: tuple[str, ...]) -> Any:
    if asked.content_type not in accepted:
        names = [*accepted, "application/vnd.kubernetes.protobuf"] if accepted is BODIES else accepted
        text = "the body of the request was in an unknown format - accepted media types include: "
        raise RefusedError(415, "UnsupportedMediaType", text + ", ".join(names))
    try:
        return yaml.safe_load(asked.body) if asked.content_type.endswith("yaml") else json.loads(asked.body)
    except json.JSONDecodeError:
        text = (
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind; json "
            f"parse error: unexpected end of JSON input ({asked.body.decode()})"
        )
        raise RefusedError(400, "BadRequest", text) from None


def _json_patched(obj: Object, operations: list[Object]) -> Object:
    for operation in operations:
        *path, last = operation["path"].strip("/").split("/")
        inner: Any = obj
        for part in path:
            inner = inner[int(part) if isinstance(inner, list) else part]
        index: Any = int(last) if isinstance(inner, list) and last != "-" else last
        if operation["op"] == "test" and inner[index] != operation["value"]:
            raise RefusedError(
                422, "Invalid", "the server rejected our request due to an error in our request", {}
            )
        if operation["op"] == "remove":
            del inner[index]
        elif operation["op"] == "add" and isinstance(inner, list):
            inner.insert(len(inner) if last == "-" else index, operation["value"])
        elif operation["op"] in ("add", "replace"):
            inner[index] = operation["value"]
    return obj


def _key_of(kind: Kind, obj: Object) -> Key:
    metadata = obj["metadata"]
    return (kind.group, kind.plural, metadata.get("namespace", ""), metadata["name"])
