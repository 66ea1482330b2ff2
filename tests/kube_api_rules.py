"""Part of the tests' API server: what a real one refuses in the metadata of any object and in the kinds we use.

A rule yields causes: the field, the reason word and the message, in the real server's words and order.

Source: kubernetes v1.35 apimachinery pkg/util/validation and pkg/api/validation, pkg/apis/core/validation,
pkg/apis/apps/validation; answers recorded by hack/record-api.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.kube_api_fields import Object

Cause = dict[str, str]

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
PART = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN}')"
)
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL}')"
)
PART_TEXT = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
PART_SAMPLES = f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{PART}')"
VALUE_TEXT = (
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({PART})?')"
)
CONFIG_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
ANNOTATION_BYTES = 256 << 10
IMMUTABLE = "field is immutable"
NO_MATCH = "`selector` does not match template `labels`"
POD_FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def invalid_value(field: str, value: Any, message: str) -> Cause:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return {"reason": "FieldValueInvalid", "message": f"Invalid value: {text}: {message}", "field": field}


def required(field: str, message: str = "") -> Cause:
    return {
        "reason": "FieldValueRequired",
        "message": f"Required value: {message}" if message else "Required value",
        "field": field,
    }


def forbidden(field: str, message: str) -> Cause:
    return {"reason": "FieldValueForbidden", "message": f"Forbidden: {message}", "field": field}


def subdomain(name: str, unit: str = "characters") -> Iterator[str]:
    if len(name.encode()) > 253:
        yield f"must be no more than 253 {unit}"
    if not re.fullmatch(SUBDOMAIN, name):
        yield SUBDOMAIN_TEXT


def label_name(name: str) -> Iterator[str]:
    if len(name.encode()) > 63:
        yield "must be no more than 63 characters"
    if not re.fullmatch(LABEL, name):
        yield "must not contain dots" if re.fullmatch(SUBDOMAIN, name) else LABEL_TEXT


def path_segment(name: str) -> Iterator[str]:
    """The names of RBAC objects."""
    if name in (".", ".."):
        yield f"may not be '{name}'"
    yield from (f"may not contain '{sign}'" for sign in "/%" if sign in name)


def qualified_name(name: str) -> Iterator[str]:
    parts = name.split("/")
    if len(parts) > 2:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield f"a valid label key {PART_TEXT} {PART_SAMPLES} {optional}"
        return
    if len(parts) == 2:
        if not parts[0]:
            yield "prefix part must be non-empty"
        else:
            yield from (f"prefix part {text}" for text in subdomain(parts[0], "bytes"))
    last = parts[-1]
    if not last:
        yield "name part must be non-empty"
    elif len(last.encode()) > 63:
        yield "name part must be no more than 63 bytes"
    if not re.fullmatch(PART, last):
        yield f"name part {PART_TEXT} {PART_SAMPLES}"


def label_value(value: str) -> Iterator[str]:
    if len(value.encode()) > 63:
        yield "must be no more than 63 bytes"
    if value and not re.fullmatch(PART, value):
        yield VALUE_TEXT


def labels(given: Object, field: str) -> Iterator[Cause]:
    for key, value in sorted(given.items()):
        yield from (invalid_value(field, key, text) for text in qualified_name(key))
        yield from (invalid_value(field, value, text) for text in label_value(value))


NAME_RULES = {
    "Namespace": label_name,
    **dict.fromkeys(("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"), path_segment),
}


def name_causes(kind: str, metadata: Object) -> Iterator[Cause]:
    """The name and, where it is given, the prefix it is made of; a prefix may end in one hyphen."""
    rule, prefix, name = NAME_RULES.get(kind, subdomain), metadata.get("generateName"), metadata.get("name")
    if prefix:
        masked = f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        yield from (invalid_value("metadata.generateName", prefix, text) for text in rule(masked))
    if not name:
        yield required("metadata.name", "name or generateName is required")
    else:
        yield from (invalid_value("metadata.name", name, text) for text in rule(name))


def metadata_causes(metadata: Object) -> Iterator[Cause]:
    """What all kinds have alike, names apart."""
    yield from labels(metadata.get("labels") or {}, "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in sorted(annotations):
        yield from (invalid_value("metadata.annotations", key, text) for text in qualified_name(key.lower()))
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATION_BYTES:
        text = f"Too long: may not be more than {ANNOTATION_BYTES} bytes"
        yield {"reason": "FieldValueTooLong", "message": text, "field": "metadata.annotations"}
    yield from _owners(metadata.get("ownerReferences") or [])
    for finalizer in metadata.get("finalizers") or ():
        yield from (
            invalid_value("metadata.finalizers", finalizer, text) for text in qualified_name(finalizer)
        )


def _owners(references: list[Object]) -> Iterator[Cause]:
    where, controller = "metadata.ownerReferences", ""
    for reference in references:
        api_version = reference.get("apiVersion", "")
        if not api_version or api_version.count("/") > 1:
            yield invalid_value(f"{where}.apiVersion", api_version, "version must not be empty")
        for name in ("kind", "name", "uid"):
            if not reference.get(name):
                yield invalid_value(f"{where}.{name}", "", "must not be empty")
        if (api_version, reference.get("kind")) == ("v1", "Event"):
            yield invalid_value(where, reference, "/v1, Kind=Event is disallowed from being an owner")
        if reference.get("controller"):
            name = f"{reference.get('kind')}/{reference.get('name')}"
            if controller:
                text = f'Found "true" in references for {controller} and {name}'
                yield invalid_value(
                    where, references, f"Only one reference can have Controller set to true. {text}"
                )
            controller = name


def created(kind: str, obj: Object) -> Iterator[Cause]:
    """What is wrong with a new object of a built-in kind, its metadata apart."""
    if kind == "Event":
        yield from _event(obj)
    elif kind == "Pod":
        yield from _containers(obj.get("spec") or {})
    elif kind in ("DaemonSet", "Deployment"):
        yield from _workload(kind, obj.get("spec") or {})
    elif kind == "ConfigMap":
        for key in sorted(obj.get("data") or {}):
            if not re.fullmatch("[-._a-zA-Z0-9]+", key):
                yield invalid_value(f"data[{key}]", key, CONFIG_KEY_TEXT)


def updated(kind: str, before: Object, after: Object) -> Iterator[Cause]:
    """What must not have changed; then what `created` says, but for events."""
    if kind == "Event":
        yield from _event_kept(before, after)
        return
    yield from created(kind, after)
    was, now = before.get("spec") or {}, after.get("spec") or {}
    if kind in ("DaemonSet", "Deployment") and was.get("selector") != now.get("selector"):
        yield invalid_value("spec.selector", now.get("selector"), IMMUTABLE)
    if kind == "Pod" and _pod_core(was) != _pod_core(now):
        yield forbidden("spec", POD_FIXED)
    if kind in ("RoleBinding", "ClusterRoleBinding") and before.get("roleRef") != after.get("roleRef"):
        role = {name: after["roleRef"].get(key) for name, key in ROLE_WORDS}
        yield invalid_value("roleRef", role, "cannot change roleRef")
    if kind == "ConfigMap" and before.get("immutable") and before.get("data") != after.get("data"):
        yield forbidden("data", "field is immutable when `immutable` is set")


ROLE_WORDS = (("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name"))


def _pod_core(spec: Object) -> Object:
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "ephemeralContainers")
    core = {key: value for key, value in spec.items() if key not in free}
    for name in ("containers", "initContainers"):
        core[name] = [{**one, "image": ""} for one in spec.get(name) or ()]
    return core


def _containers(spec: Object) -> Iterator[Cause]:
    seen: set[str] = set()
    if not spec.get("containers"):
        yield required("spec.containers")
    for listed in ("containers", "initContainers"):
        for number, one in enumerate(spec.get(listed) or ()):
            field, name = f"spec.{listed}[{number}].name", one.get("name", "")
            if not name:
                yield required(field)
                continue
            yield from (invalid_value(field, name, text) for text in label_name(name))
            if name in seen:
                text = f"Duplicate value: {json.dumps(name)}"
                yield {"reason": "FieldValueDuplicate", "message": text, "field": field}
            seen.add(name)


def _workload(kind: str, spec: Object) -> Iterator[Cause]:
    selector = spec.get("selector")
    wanted = (selector or {}).get("matchLabels") or {}
    has = spec.get("template", {}).get("metadata", {}).get("labels") or {}
    if selector is None and kind == "Deployment":
        yield required("spec.selector")
    if selector is not None and not wanted and not selector.get("matchExpressions"):
        yield invalid_value("spec.selector", selector, f"empty selector is invalid for {kind.lower()}")
    elif selector is None or wanted.items() - has.items():
        yield invalid_value("spec.template.metadata.labels", has, NO_MATCH)
    yield from labels(has, "spec.template.labels")


LIMITS = (("action", "action", 128), ("reason", "reason", 128), ("note", "message", 1024))
UNSET = (
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("deprecatedSource", "source"),
)


def event_first(obj: Object) -> Iterator[Cause]:
    """What is looked at before an event's metadata; the server speaks of its fields as core/v1 calls them."""
    if "eventTime" in obj:
        namespace = (obj.get("regarding") or {}).get("namespace", "")
        if not namespace and obj["metadata"]["namespace"] not in ("default", "kube-system"):
            yield invalid_value("involvedObject.namespace", namespace, "does not match event.namespace")
        controller, instance = obj.get("reportingController", ""), obj.get("reportingInstance", "")
        if not controller:
            yield required("reportingController")
        yield from (
            invalid_value("reportingController", controller, text) for text in qualified_name(controller)
        )
        if not instance:
            yield required("reportingInstance")
        if len(instance.encode()) > 128:
            yield invalid_value("reportingInstance", "", "can have at most 128 characters")
        for name, field, limit in LIMITS:
            value = obj.get(name, "")
            if not value and name != "note":
                yield required(field)
            if len(value.encode()) > limit:
                yield invalid_value(field, "", f"can have at most {limit} characters")


def _event(obj: Object) -> Iterator[Cause]:
    yield from _series(obj)
    if "eventTime" not in obj:
        yield required("eventTime")
    if obj.get("type") not in ("Normal", "Warning"):
        yield invalid_value("type", "", f"has invalid value: {obj.get('type', '')}")
    for name, field in UNSET:
        if obj.get(name):
            yield invalid_value(field, "", "needs to be unset")


def _series(obj: Object) -> Iterator[Cause]:
    series = obj.get("series")
    if series is not None:
        if series.get("count", 0) < 2:
            yield invalid_value("series.count", "", "should be at least 2")
        if not series.get("lastObservedTime"):
            yield required("series.lastObservedTime")


KEPT = (
    ("regarding", "involvedObject"), ("reason", "reason"), ("note", "message"), ("type", "type"),
    ("eventTime", "eventTime"), ("action", "action"), ("related", "related"),
    ("reportingController", "reportingController"), ("reportingInstance", "reportingInstance"),
)  # fmt: skip
REFERENCE_WORDS = (
    ("Kind", "kind"), ("Namespace", "namespace"), ("Name", "name"), ("UID", "uid"), ("APIVersion", "apiVersion"),
    ("ResourceVersion", "resourceVersion"), ("FieldPath", "fieldPath"),
)  # fmt: skip


def _event_kept(before: Object, after: Object) -> Iterator[Cause]:
    if before.get("series") != after.get("series"):
        yield from _series(after)
    for name, field in KEPT:
        value = after.get(name)
        if before.get(name) != value:
            if isinstance(value, dict):
                value = {word: value.get(key, "") for word, key in REFERENCE_WORDS}
            yield invalid_value(field, value, IMMUTABLE)


NAMED_TYPES = {list: "array", dict: "object", int: "number", float: "number", bool: "bool", str: "string"}


def undecodable(kind: str, obj: Object) -> str:
    """Why an object cannot be read at all, empty where it can: fields of another type, times that are none."""
    metadata = obj.get("metadata") or {}
    for name in ("labels", "annotations"):
        given = metadata.get(name) or {}
        if not isinstance(given, dict):
            return _unmarshal(given, f"ObjectMeta.{name}", "map[string]string")
        wrong = [value for value in given.values() if not isinstance(value, str)]
        if wrong:
            return _unmarshal(wrong[0], f"ObjectMeta.{name}", "string")
    if kind != "Event":
        return ""
    for name, value in (obj.get("regarding") or {}).items():
        if not isinstance(value, str):
            return _unmarshal(value, f"ObjectReference.regarding.{name}", "string")
    return _no_time(obj.get("eventTime"))


def _unmarshal(value: Any, field: str, wanted: str) -> str:
    return f"json: cannot unmarshal {NAMED_TYPES[type(value)]} into Go struct field {field} of type {wanted}"


MICRO_TIME = "2006-01-02T15:04:05.000000Z07:00"


def _no_time(value: Any) -> str:
    if value is None or re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", value):
        return ""
    seconds = re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z.*)", value)
    rest, wanted = (seconds[1], ".000000") if seconds else (value, "2006")
    return f'parsing time "{value}" as "{MICRO_TIME}": cannot parse "{rest}" as "{wanted}"'


EVENT_FIELDS = {
    "metadata", "apiVersion", "kind", "eventTime", "series", "reportingController", "reportingInstance", "action",
    "reason", "regarding", "related", "note", "type", *(name for name, _ in UNSET),
}  # fmt: skip
METADATA_FIELDS = {
    "name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers", "uid",
    "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
    "managedFields", "selfLink",
}  # fmt: skip


def unknown_fields(kind: str, obj: Object) -> tuple[Object, list[str]]:
    """The object without fields that events and metadata do not have, and the names of those."""
    kept, names = dict(obj), []
    if kind == "Event":
        known = {key for _, key in REFERENCE_WORDS}
        regarding = obj.get("regarding")
        if isinstance(regarding, dict):
            names += [f"regarding.{key}" for key in regarding if key not in known]
            kept["regarding"] = {key: value for key, value in regarding.items() if key in known}
        names += [key for key in obj if key not in EVENT_FIELDS]
        kept = {key: value for key, value in kept.items() if key in EVENT_FIELDS}
    metadata = obj.get("metadata") or {}
    names += [f"metadata.{key}" for key in metadata if key not in METADATA_FIELDS]
    kept["metadata"] = {key: value for key, value in metadata.items() if key in METADATA_FIELDS}
    return kept, names
