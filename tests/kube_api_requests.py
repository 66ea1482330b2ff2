"""What is asked of an API server to see what it accepts: every kind of request that nri-pin makes, and for each rule
an object that breaks it. `hack/record-api` asks a real one; the tests' own has to answer the same.

A request may name what an earlier answer held: `${SAVED.uid}`, `${SAVED.resourceVersion}`.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

Object = dict[str, Any]
Request = dict[str, Any]

JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
NRT_GROUP = "topology.node.k8s.io/v1alpha2"
NRTS = f"/apis/{NRT_GROUP}/noderesourcetopologies"
NAMESPACE = "rules"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
NODES = "/api/v1/nodes"
UID = "11111111-2222-3333-4444-555555555555"


def request(note: str, method: str, path: str, body: Any = None, kind: str = JSON, save: str = "") -> Request:
    return {
        "note": note,
        "method": method,
        "path": path,
        "contentType": kind if body is not None else None,
        "body": body,
        "save": save,
    }


def changed(obj: Mapping[str, Any], **fields: Any) -> Object:
    """A copy with fields by path, `__` for a dot; None removes one."""
    result = deepcopy(dict(obj))
    for path, value in fields.items():
        *outer, last = path.split("__")
        inner = result
        for name in outer:
            inner = inner.setdefault(name, {})
        if value is None:
            inner.pop(last, None)
        else:
            inner[last] = value
    return result


def requests() -> Iterator[Request]:
    """All of them, in their order; what one makes, later ones use."""
    yield request("a namespace", "POST", "/api/v1/namespaces", _object("v1", "Namespace", NAMESPACE))
    yield request("another namespace", "POST", "/api/v1/namespaces", _object("v1", "Namespace", "other"))
    account = _object("v1", "ServiceAccount", "default")
    yield request("its account", "POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
    yield from _nodes()
    yield from _metadata()
    yield from _topologies()
    yield from _ownership()
    yield from _pods()
    yield from _events()
    yield from _event_updates()
    yield from _workloads()
    yield from _others()
    yield from _addresses()


def _object(api_version: str, kind: str, name: str, **fields: Any) -> Object:
    return changed({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}, **fields)


def _nodes() -> Iterator[Request]:
    node = _object("v1", "Node", "n1")
    yield request("a node that is not there", "GET", f"{NODES}/n1")
    yield request("a node", "POST", NODES, node, save="node")
    yield request("the node again", "POST", NODES, node)
    yield request("the node is read", "GET", f"{NODES}/n1")
    yield request("a node's name is no subdomain", "POST", NODES, _object("v1", "Node", "N_1"))
    yield request("the node is deleted", "DELETE", f"{NODES}/n1")
    yield request("the node is gone", "GET", f"{NODES}/n1")
    yield request("the node is registered again", "POST", NODES, node, save="node")


NRT = _object(
    NRT_GROUP,
    "NodeResourceTopology",
    "n1",
    topologyPolicies=["None"],
    zones=[
        {
            "name": "node-0",
            "type": "Node",
            "costs": [{"name": "node-0", "value": 10}],
            "resources": [{"name": "cpu", "capacity": "8", "allocatable": "8", "available": "6"}],
        }
    ],
    attributes=[{"name": "topologyManagerPolicy", "value": "none"}],
)


def _metadata() -> Iterator[Request]:
    """Names, labels, annotations, owners and finalizers, which all kinds have alike."""
    for name in ("N1", "-n1", "n1-", "n1.", "n_1", "n 1", "a..b", "a/b", "..", "%", "é", "a" * 254):
        yield request(f"name {name[:9]}", "POST", NRTS, changed(NRT, metadata__name=name))
    yield request("name of 253", "POST", f"{NRTS}?dryRun=All", changed(NRT, metadata__name="a" * 253))
    for prefix in ("big.", "big-", "big--", "Big-", "big_", ".big", "-big", "b.-", "b" * 253, "b" * 254, "-"):
        obj = changed(NRT, metadata={"generateName": prefix})
        yield request(f"generateName {prefix[:9]} {len(prefix)}", "POST", f"{NRTS}?dryRun=All", obj)
    both = changed(NRT, metadata__generateName="x.")
    yield request("name and invalid generateName", "POST", f"{NRTS}?dryRun=All", both)
    labels: tuple[tuple[str, str], ...] = (
        ("a", "ok"), ("a.b/c", "A_b.c-9"), ("a", ""), ("", "x"), ("-a", "x"), ("a b", "x"), ("A/b/c", "x"),
        ("A/b", "x"), ("/b", "x"), ("a/", "x"), ("a", "-x"), ("a", "x y"), ("a", "x" * 64), ("a" * 64, "x"),
        ("p" * 254 + "/a", "x"), ("a", "é"),
    )  # fmt: skip
    for key, value in labels:
        obj = changed(NRT, metadata__labels={key: value})
        yield request(f"label {key[:9]}={value[:9]}", "POST", f"{NRTS}?dryRun=All", obj)
    for key in ("a.b/C", "-a", "A/b", "a" * 64, ""):
        obj = changed(NRT, metadata__annotations={key: "\n any text"})
        yield request(f"annotation {key[:9]}", "POST", f"{NRTS}?dryRun=All", obj)
    obj = changed(NRT, metadata__annotations={"a": "x" * (256 << 10)})
    yield request("annotations of more than 256 KiB", "POST", f"{NRTS}?dryRun=All", obj)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": UID}
    owners = (
        [owner],
        [owner, owner | {"uid": UID[::-1]}],
        [changed(owner, uid=None)],
        [owner | {"uid": ""}],
        [owner | {"name": ""}],
        [owner | {"kind": ""}],
        [owner | {"apiVersion": ""}],
        [owner | {"apiVersion": "a/b/c"}],
        [owner | {"kind": "Event"}],
        [owner | {"controller": True}, owner | {"uid": UID[::-1], "controller": True}],
    )
    for number, references in enumerate(owners):
        obj = changed(NRT, metadata__ownerReferences=references)
        yield request(f"owners {number}", "POST", f"{NRTS}?dryRun=All", obj)
    for finalizer in ("a.b/c", "plain", "a b", "/x"):
        obj = changed(NRT, metadata__finalizers=[finalizer])
        yield request(f"finalizer {finalizer}", "POST", f"{NRTS}?dryRun=All", obj)
    yield request("labels that are no map", "POST", NRTS, changed(NRT, metadata__labels=["a"]))
    yield request("a label that is a number", "POST", NRTS, changed(NRT, metadata__labels={"a": 1}))
    yield request(
        "a namespace for what has none", "POST", f"{NRTS}?dryRun=All", changed(NRT, metadata__namespace="x")
    )
    yield request("a uid of our own", "POST", f"{NRTS}?dryRun=All", changed(NRT, metadata__uid=UID))
    yield request("a version at creation", "POST", NRTS, changed(NRT, metadata__resourceVersion="5"))
    yield request("neither name nor generateName", "POST", NRTS, changed(NRT, metadata={}))


def _topologies() -> Iterator[Request]:
    """The schema of NodeResourceTopology."""
    zone = NRT["zones"][0]
    row = zone["resources"][0]
    cases: dict[str, Object] = {
        "no zones": changed(NRT, zones=None),
        "zones are null": NRT | {"zones": None},
        "zones are a map": NRT | {"zones": {}},
        "no zone": NRT | {"zones": []},
        "a zone without a name": NRT | {"zones": [changed(zone, name=None)]},
        "a zone without a type": NRT | {"zones": [changed(zone, type=None)]},
        "a zone of numbers": NRT | {"zones": [changed(zone, name=1, type=2)]},
        "a cost that is no whole number": NRT
        | {"zones": [changed(zone, costs=[{"name": "a", "value": "x"}])]},
        "a cost without a value": NRT | {"zones": [changed(zone, costs=[{"name": "a"}])]},
        "policies that are no list": NRT | {"topologyPolicies": "None"},
        "an attribute without a value": NRT | {"attributes": [{"name": "a"}]},
        "two things wrong": NRT | {"zones": [changed(zone, name=None)], "attributes": [{"name": "a"}]},
    }
    for field in ("name", "capacity", "allocatable", "available"):
        cases[f"a resource without {field}"] = NRT | {
            "zones": [changed(zone, resources=[changed(row, **{field: None})])]
        }
    for value in ("-1", "1.5", "1e3", "12Ki", "twelve", "1 Ki", ""):
        cases[f"a quantity {value}"] = NRT | {
            "zones": [changed(zone, resources=[row | {"available": value}])]
        }
    for note, obj in cases.items():
        yield request(note, "POST", f"{NRTS}?dryRun=All", obj)
    unknown = changed(NRT, extra=1, zones=[zone | {"more": 2}])
    yield request("unknown fields", "POST", f"{NRTS}?dryRun=All", unknown)
    yield request("unknown fields, strictly", "POST", f"{NRTS}?dryRun=All&fieldValidation=Strict", unknown)
    unknown = changed(NRT, metadata__extra="x")
    yield request("unknown metadata, strictly", "POST", f"{NRTS}?dryRun=All&fieldValidation=Strict", unknown)
    yield request("another kind", "POST", NRTS, NRT | {"kind": "Node"})
    yield request("another version", "POST", NRTS, NRT | {"apiVersion": "topology.node.k8s.io/v1alpha1"})
    yield request("no kind", "POST", NRTS, changed(NRT, kind=None))


def _ownership() -> Iterator[Request]:
    """Server-side apply, what others change meanwhile, and what must not change."""
    one = f"{NRTS}/n1"
    owned = changed(NRT, metadata__ownerReferences=[
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "${node.uid}"}
    ])  # fmt: skip
    yield request("apply creates", "PATCH", f"{one}?fieldManager=nri-pin&force=false", owned, APPLY, "nrt")
    yield request("apply again", "PATCH", f"{one}?fieldManager=nri-pin&force=false", owned, APPLY)
    edit = {"zones": [], "metadata": {"labels": {"by": "hand"}}}
    yield request("somebody edits", "PATCH", f"{one}?fieldManager=kubectl-edit", edit, MERGE, "edited")
    yield request("apply in vain", "PATCH", f"{one}?fieldManager=nri-pin&force=false", owned, APPLY)
    stale = changed(owned, metadata__resourceVersion="${nrt.resourceVersion}")
    yield request("apply, stale version", "PATCH", f"{one}?fieldManager=nri-pin&force=true", stale, APPLY)
    fresh = changed(owned, metadata__resourceVersion="${edited.resourceVersion}")
    yield request("apply with force", "PATCH", f"{one}?fieldManager=nri-pin&force=true", fresh, APPLY, "nrt")
    edit = {"zones": [], "topologyPolicies": ["Restricted"], "attributes": []}
    yield request("somebody edits much", "PATCH", f"{one}?fieldManager=kubectl-edit", edit, MERGE)
    yield request("apply in vain, thrice", "PATCH", f"{one}?fieldManager=nri-pin&force=false", owned, APPLY)
    yield request("another applies", "PATCH", f"{one}?fieldManager=them&force=true", NRT, APPLY)
    yield request(
        "apply against two", "PATCH", f"{one}?fieldManager=nri-pin&force=false", owned | {"zones": []}, APPLY
    )
    yield request(
        "apply with force again", "PATCH", f"{one}?fieldManager=nri-pin&force=true", owned, APPLY, "nrt"
    )
    yield from _owner_changes(one, owned)
    wrong = changed(owned, metadata__uid=UID)
    yield request("apply, wrong uid", "PATCH", f"{one}?fieldManager=nri-pin&force=true", wrong, APPLY)
    invalid = changed(owned, metadata__labels={"a b": "x"})
    yield request("apply, invalid label", "PATCH", f"{one}?fieldManager=nri-pin&force=true", invalid, APPLY)
    for name in ("m" * 129, "%0A"):
        yield request(f"manager {name[:9]}", "PATCH", f"{one}?fieldManager={name}", owned, APPLY)
    absent = changed(NRT, metadata__name="n9", metadata__resourceVersion="7")
    yield request("apply creates, version", "PATCH", f"{NRTS}/n9?fieldManager=a&force=true", absent, APPLY)
    upper = changed(NRT, metadata__name="N9")
    yield request("apply creates, name", "PATCH", f"{NRTS}/N9?fieldManager=a&force=true", upper, APPLY)
    unknown = changed(NRT, extra=1)
    yield request(
        "apply, unknown field", "PATCH", f"{one}?fieldManager=nri-pin&force=true&dryRun=All", unknown, APPLY
    )
    strict = f"{one}?fieldManager=nri-pin&force=true&dryRun=All&fieldValidation=Strict"
    yield request("apply, unknown field, strictly", "PATCH", strict, unknown, APPLY)
    for field, value in (
        ("name", "n2"), ("uid", UID), ("namespace", "x"), ("resourceVersion", "1"), ("generateName", "x."),
        ("creationTimestamp", "2020-01-01T00:00:00Z"), ("labels", {"a b": "x"}),
    ):  # fmt: skip
        yield request(f"patch of {field}", "PATCH", one, {"metadata": {field: value}}, MERGE)
    yield request("read", "GET", one, save="nrt")
    base = changed(NRT, metadata__resourceVersion="${nrt.resourceVersion}")
    yield request("update of the name", "PUT", one, changed(base, metadata__name="n2"))
    yield request("update of the uid", "PUT", one, changed(base, metadata__uid=UID))
    yield request("update of an absent one", "PUT", f"{NRTS}/n7", changed(base, metadata__name="n7"))
    yield request("update without a version", "PUT", one, NRT)
    yield request("update of an invalid kind", "PUT", one, base | {"zones": None})
    yield request("delete, wrong uid", "DELETE", one, {"preconditions": {"uid": UID}})
    yield request("delete", "DELETE", one)
    yield request("delete again", "DELETE", one)


def _owner_changes(one: str, owned: Object) -> Iterator[Request]:
    """Owner references are taken one by one: those of others stay, another uid is another reference."""
    ours = owned["metadata"]["ownerReferences"][0]
    theirs = {"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": UID}
    apply, read = f"{one}?fieldManager=nri-pin&force=false", ("GET", one)
    edit = {"metadata": {"ownerReferences": [ours, theirs]}}
    yield request("another owner is added", "PATCH", f"{one}?fieldManager=kubectl-edit", edit, MERGE)
    yield request("apply beside another owner", "PATCH", apply, owned, APPLY)
    again = changed(owned, metadata__ownerReferences=[ours | {"uid": UID[::-1]}])
    yield request("the node was registered again", "PATCH", apply, again, APPLY)
    edit = {"metadata": {"ownerReferences": None}}
    yield request("owners are removed", "PATCH", f"{one}?fieldManager=kubectl-edit", edit, MERGE)
    yield request("the owner is put back", "PATCH", apply, owned, APPLY)
    edit = {"metadata": {"ownerReferences": [ours | {"name": "n3"}]}}
    yield request("the owner is changed", "PATCH", f"{one}?fieldManager=kubectl-edit", edit, MERGE)
    yield request("apply against a changed owner", "PATCH", apply, owned, APPLY)
    forced = apply.replace("false", "true")
    yield request("apply against a changed owner with force", "PATCH", forced, owned, APPLY)
    yield request("what became of it", *read)


POD = _object("v1", "Pod", "web", metadata__namespace=NAMESPACE, spec={
    "containers": [{"name": "app", "image": "i"}],
    "automountServiceAccountToken": False,
    "terminationGracePeriodSeconds": 0,
})  # fmt: skip


def _pods() -> Iterator[Request]:
    """Pods, their binding to a node, and their failing."""
    yield request("a pod", "POST", PODS, POD, save="pod")
    yield request(
        "a pod with a name of 253", "POST", f"{PODS}?dryRun=All", changed(POD, metadata__name="p" * 253)
    )
    for name in ("Web", "web.", "p" * 254):
        yield request(f"a pod called {name[:9]}", "POST", PODS, changed(POD, metadata__name=name))
    yield request("a pod elsewhere", "POST", PODS, changed(POD, metadata__namespace="other"))
    yield request(
        "no such namespace",
        "POST",
        "/api/v1/namespaces/nowhere/pods",
        changed(POD, metadata__namespace="nowhere"),
    )
    yield request("no containers", "POST", PODS, changed(POD, metadata__name="x", spec__containers=[]))
    for name in ("App", "a.b", "a" * 64, ""):
        containers = [{"name": name, "image": "i"}]
        yield request(
            f"container {name[:9]}",
            "POST",
            PODS,
            changed(POD, metadata__name="x", spec__containers=containers),
        )
    twice = [{"name": "a", "image": "i"}] * 2
    yield request("a container twice", "POST", PODS, changed(POD, metadata__name="x", spec__containers=twice))
    init = changed(POD, metadata__name="x", spec__initContainers=[{"name": "app", "image": "i"}])
    yield request("an init container with a container's name", "POST", PODS, init)
    one = f"{PODS}/web"

    def binding(node: str = "n1", **fields: Any) -> Object:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        return changed(
            _object("v1", "Binding", "web", metadata__namespace=NAMESPACE, target=target), **fields
        )

    yield request("bind without a target", "POST", f"{one}/binding", changed(binding(), target={}))
    yield request("bind to no node", "POST", f"{one}/binding", binding(target={"kind": "Pod", "name": "n1"}))
    yield request("bind, wrong uid", "POST", f"{one}/binding", binding(metadata__uid=UID))
    yield request("bind what is not there", "POST", f"{PODS}/gone/binding", binding(metadata__name="gone"))
    right = binding(metadata__uid="${pod.uid}", metadata__annotations={"a": "b"})
    yield request("bind", "POST", f"{one}/binding", right)
    yield request("bind again", "POST", f"{one}/binding", right)
    yield request("the pod is read", "GET", one, save="pod")
    yield request("another node", "PATCH", one, {"spec": {"nodeName": "n2"}}, MERGE)
    yield request(
        "another container", "PATCH", one, {"spec": {"containers": [{"name": "b", "image": "i"}]}}, MERGE
    )
    yield request("a label", "PATCH", one, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    status = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "Pod was rejected: x"}

    def failing(uid: str, version: str) -> Object:
        return {"metadata": {"uid": uid, "resourceVersion": version}, "status": status}

    patch = failing("${pod.uid}", "${pod.resourceVersion}")
    yield request("fail, stale version", "PATCH", f"{one}/status", patch, MERGE)
    yield request("the pod is read again", "GET", one, save="pod")
    yield request("fail, wrong uid", "PATCH", f"{one}/status", failing(UID, "${pod.resourceVersion}"), MERGE)
    yield request("fail", "PATCH", f"{one}/status", patch, MERGE)
    yield request("fail what is not there", "PATCH", f"{PODS}/gone/status", {"status": status}, MERGE)
    yield request("delete the pod", "DELETE", one)


EVENT = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"generateName": "web-", "namespace": NAMESPACE},
    "eventTime": "2026-01-02T03:04:05.000006Z",
    "type": "Warning",
    "reason": "TopologyAffinityError",
    "action": "Placing",
    "note": "container app: TopologyAffinityError: no node",
    "reportingController": "nri-pin/export",
    "reportingInstance": "n1",
    "regarding": {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": NAMESPACE,
        "name": "web",
        "uid": UID,
        "resourceVersion": "17",
        "fieldPath": "spec.initContainers{app}",
    },
}


def _events() -> Iterator[Request]:
    yield request("an event", "POST", EVENTS, EVENT)
    for prefix in (
        "big.",
        "big",
        "b" * 58 + ".",
        "b" * 57 + ".b-",
        "b" * 252 + "-",
        "b" * 253 + "-",
        "Big-",
        "b.-",
    ):
        obj = changed(EVENT, metadata__generateName=prefix)
        yield request(f"event {prefix[:9]} {len(prefix)}", "POST", f"{EVENTS}?dryRun=All", obj)
    for name in ("web.17a2", "web.", "Web", "w" * 254):
        obj = changed(EVENT, metadata={"name": name, "namespace": NAMESPACE})
        yield request(f"event called {name[:9]}", "POST", f"{EVENTS}?dryRun=All", obj)
    cases: dict[str, Object] = {
        "no time": changed(EVENT, eventTime=None),
        "a time that is none": changed(EVENT, eventTime="yesterday"),
        "a time in seconds": changed(EVENT, eventTime="2026-01-02T03:04:05Z"),
        "no type": changed(EVENT, type=None),
        "type Error": changed(EVENT, type="Error"),
        "no reason": changed(EVENT, reason=None),
        "reason of 128": changed(EVENT, reason="R" * 128),
        "reason of 129": changed(EVENT, reason="R" * 129),
        "no action": changed(EVENT, action=None),
        "action of 129": changed(EVENT, action="A" * 129),
        "no note": changed(EVENT, note=None),
        "note of 1024 bytes": changed(EVENT, note="é" * 512),
        "note of 1025 bytes": changed(EVENT, note="é" * 512 + "x"),
        "no controller": changed(EVENT, reportingController=None),
        "controller a b": changed(EVENT, reportingController="a b"),
        "controller a/b/c": changed(EVENT, reportingController="a/b/c"),
        "controller of 64": changed(EVENT, reportingController="c" * 64),
        "no instance": changed(EVENT, reportingInstance=None),
        "instance of 128": changed(EVENT, reportingInstance="i" * 128),
        "instance of 129": changed(EVENT, reportingInstance="i" * 129),
        "no regarding": changed(EVENT, regarding=None),
        "regarding another namespace": changed(EVENT, regarding__namespace="other"),
        "regarding no namespace": changed(EVENT, regarding__namespace=None),
        "field path of nothing": changed(EVENT, regarding__fieldPath="spec.nowhere[3]"),
        "field path a number": changed(EVENT, regarding__fieldPath=3),
        "a series": changed(EVENT, series={"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}),
        "a series of one": changed(
            EVENT, series={"count": 1, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}
        ),
        "a series without a time": changed(EVENT, series={"count": 2}),
        "a former time": changed(EVENT, deprecatedFirstTimestamp="2026-01-02T03:04:05Z"),
        "a last time": changed(EVENT, deprecatedLastTimestamp="2026-01-02T03:04:05Z"),
        "a count": changed(EVENT, deprecatedCount=1),
        "a source": changed(EVENT, deprecatedSource={"component": "x"}),
        "everything wrong": changed(
            EVENT, type="E", reason="R" * 129, metadata__generateName="b.", action=None
        ),
        "an invalid label": changed(EVENT, metadata__labels={"a b": "x"}),
        "another namespace": changed(EVENT, metadata__namespace="other"),
        "no namespace": changed(EVENT, metadata__namespace=None),
        "neither name nor prefix": changed(EVENT, metadata__generateName=None),
    }
    for note, obj in cases.items():
        yield request(f"event: {note}", "POST", f"{EVENTS}?dryRun=All", obj)
    unknown = changed(EVENT, extra=1, regarding__more="x")
    yield request("event: unknown fields", "POST", f"{EVENTS}?dryRun=All", unknown)
    yield request("event: unknown, strictly", "POST", f"{EVENTS}?dryRun=All&fieldValidation=Strict", unknown)
    elsewhere = EVENTS.replace(NAMESPACE, "nowhere")
    nowhere = changed(EVENT, metadata__namespace="nowhere", regarding__namespace="nowhere")
    yield request("event: no such namespace", "POST", elsewhere, nowhere)


def _event_updates() -> Iterator[Request]:
    named = changed(EVENT, metadata={"name": "e1", "namespace": NAMESPACE})
    yield request("an event by name", "POST", EVENTS, named, save="event")
    yield request("the event again", "POST", EVENTS, named)
    one = f"{EVENTS}/e1"
    series = {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}
    for field, value in (
        ("note", "other"), ("reason", "Other"), ("type", "Normal"), ("action", "Other"), ("reportingInstance", "n2"),
        ("regarding", {"name": "other"}), ("eventTime", "2026-01-02T03:04:06.000006Z"),
        ("reportingController", "x/y"), ("series", {"count": 1}), ("series", series),
    ):  # fmt: skip
        yield request(f"event's {field} changes", "PATCH", one, {field: value}, MERGE)
    yield request("delete the event", "DELETE", one)


def _workloads() -> Iterator[Request]:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "app", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    for kind, path in (("DaemonSet", DAEMON_SETS), ("Deployment", DEPLOYMENTS)):
        obj = _object("apps/v1", kind, "agent", spec=spec)
        one, manager = f"{path}/agent", "fieldManager=m&force=true"
        yield request(f"{kind}", "POST", path, obj)
        yield request(f"{kind} without a selector", "POST", path, changed(obj, spec__selector=None))
        other = {"matchLabels": {"app": "b"}}
        yield request(
            f"{kind}: another selector at creation",
            "POST",
            path,
            changed(obj, metadata__name="x", spec__selector=other),
        )
        yield request(
            f"{kind}: empty selector", "POST", path, changed(obj, metadata__name="x", spec__selector={})
        )
        both = changed(obj, spec__selector=other, spec__template__metadata__labels={"app": "b"})
        yield request(f"{kind}: selector changes", "PATCH", one, {"spec": both["spec"]}, MERGE)
        yield request(f"{kind}: selector changes, applied", "PATCH", f"{one}?{manager}", both, APPLY)
        yield request(
            f"{kind}: template does not match",
            "PATCH",
            one,
            {"spec": {"template": {"metadata": {"labels": {"app": "c"}}}}},
            MERGE,
        )
        yield request(
            f"{kind}: bad template label",
            "PATCH",
            one,
            {"spec": {"template": {"metadata": {"labels": {"a b": "c"}}}}},
            MERGE,
        )
        yield request(f"{kind}: another image", "PATCH", one, {"metadata": {"labels": {"x": "y"}}}, MERGE)


def _others() -> Iterator[Request]:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    subject = {"kind": "ServiceAccount", "name": "s", "namespace": NAMESPACE}
    obj = _object(
        "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "rules", roleRef=role, subjects=[subject]
    )
    yield request("a role binding", "POST", BINDINGS, obj)
    yield request("another role", "PATCH", f"{BINDINGS}/rules", {"roleRef": {"name": "q"}}, MERGE)
    yield request("another subject", "PATCH", f"{BINDINGS}/rules", {"subjects": []}, MERGE)
    config = _object("v1", "ConfigMap", "rules", data={"a.yaml": "x"})
    yield request("a config map", "POST", CONFIG_MAPS, config)
    yield request("a config map called a_b", "POST", CONFIG_MAPS, changed(config, metadata__name="a_b"))
    yield request("a key with a slash", "PATCH", f"{CONFIG_MAPS}/rules", {"data": {"a/b": "x"}}, MERGE)
    yield request("immutable from now on", "PATCH", f"{CONFIG_MAPS}/rules", {"immutable": True}, MERGE)
    yield request("a value changes", "PATCH", f"{CONFIG_MAPS}/rules", {"data": {"a.yaml": "y"}}, MERGE)
    for name in ("Ns", "a.b", "n" * 64):
        yield request(f"namespace {name[:9]}", "POST", "/api/v1/namespaces", _object("v1", "Namespace", name))


def _addresses() -> Iterator[Request]:
    """Queries, bodies and addresses that are wrong."""
    for query in (
        "labelSelector=a%20b", "labelSelector=a%3Db%3Dc", "fieldSelector=a", "fieldSelector=spec.x%3Dy",
        "limit=x", "resourceVersion=x", "continue=x", "watch=1&resourceVersion=x",
    ):  # fmt: skip
        yield request(f"topologies with {query}", "GET", f"{NRTS}?{query}")
    yield request("pods by an unknown field", "GET", f"{PODS}?fieldSelector=spec.x%3Dy")
    yield request("pods of a node", "GET", f"{PODS}?fieldSelector=spec.nodeName%3Dnone")
    yield request("fieldValidation Lax", "POST", f"{NRTS}?fieldValidation=Lax", NRT)
    yield request("dryRun Some", "POST", f"{NRTS}?dryRun=Some", NRT)
    yield request("a body that is a list", "POST", NRTS, [])
    yield request("a body that is a text", "POST", NRTS, '"x"')
    yield request("a patch that is no object", "PATCH", f"{NRTS}/n1", "[1]", MERGE)
    yield request("a patch of what is not there", "PATCH", f"{NRTS}/n1", {"zones": []}, MERGE)
    yield request("no such resource", "GET", "/apis/events.k8s.io/v1/nothing")
    yield request("no such group", "GET", "/apis/nothing.example/v1/things")
    yield request("a verb that is none", "PUT", NRTS, NRT)
