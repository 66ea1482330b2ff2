"""Resources of pods: the defaults of the API server of Kubernetes 1.36, and its validation.

Objects are plain values as YAML or JSON gives them. An error has the path of the wrong value; the caller, who has the
text, finds its line.

Source: Kubernetes v1.36 pkg/apis/core/v1/defaults.go and core/validation.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from nri_plugin.config.values import either
from nri_plugin.kube.pod_demand import (
    CPU,
    HUGEPAGES,
    MEMORY,
    is_affine,
    is_native,
    pod_demand,
)
from nri_plugin.model.errors import NriPinError
from nri_plugin.model.quantity import parse_quantity

Path: TypeAlias = tuple[str | int, ...]
"""From the number of the document to a key."""
Object: TypeAlias = Mapping[str, Any]

STORAGE = "ephemeral-storage"
STANDARD = (CPU, MEMORY, STORAGE)

OF_A_POD = ("containers", "initContainers", "overhead", "resources")
OF_A_CONTAINER = ("name", "resources", "restartPolicy")
OF_RESOURCES = ("limits", "requests", "claims")
"""Keys that decide about resources. A misspelt key is refused, because ignoring it would simulate another pod."""

LONGEST_LABEL = 63
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

LOOK_LIKE_THEM = ("resizePolicy", "restartPolicyRules")
"""Valid keys of containers that resemble those above."""


class ManifestError(NriPinError):
    """An object that the API server would refuse.

    Attributes:
        path: where; begins with the number of the document.
    """

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{words(path)}: {detail}")
        self.path = path
        self.detail = detail


def words(path: Path) -> str:
    """A path as text, `spec.containers[0].name`, without the number of the document."""
    text = ""
    for part in path[1:]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def checked_mapping(value: object, path: Path) -> Object:
    """Keys and values.

    Raises:
        ManifestError: it is something else.
    """
    if isinstance(value, Mapping):
        return value
    raise ManifestError(path, f"expected keys and values, found {_found(value)}")


def refuse_slips(found: Object, path: Path, read: Sequence[str]) -> None:
    """Check that no key resembles one of `read`; all other keys are ignored.

    Raises:
        ManifestError: one does; names the key that it resembles.
    """
    by_lower = {key.lower(): key for key in read}
    for key in map(str, found):
        if key in read or key in LOOK_LIKE_THEM:
            continue
        close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.8)
        if close:
            raise ManifestError((*path, key), f"unknown key; did you mean {by_lower[close[0]]}?")


def checked_list(value: object, path: Path) -> Sequence[Any]:
    """A list; null is an empty one.

    Raises:
        ManifestError: it is something else.
    """
    if value is None or isinstance(value, list):
        return value or []
    raise ManifestError(path, f"expected a list, found {_found(value)}")


def checked_text(value: object, path: Path, what: str) -> str:
    """Text.

    Raises:
        ManifestError: it is something else.
    """
    if isinstance(value, str):
        return value
    raise ManifestError(path, f"expected {what}, found {_found(value)}")


def defaulted(obj: Object, path: Path) -> Object:
    """The pod with every request that follows from a limit.

    Raises:
        ManifestError: containers or resources are not what they should be.
    """
    spec = checked_mapping(obj.get("spec"), (*path, "spec"))
    refuse_slips(spec, (*path, "spec"), OF_A_POD)
    seen: set[str] = set()
    filled = dict(spec)
    for part in ("initContainers", "containers"):
        where = (*path, "spec", part)
        filled[part] = [
            _defaulted_container(one, (*where, number), seen)
            for number, one in enumerate(checked_list(spec.get(part), where))
        ]
    if not filled["containers"]:
        raise ManifestError((*path, "spec", "containers"), "a pod has at least one container")
    if spec.get("resources"):
        filled["resources"] = _pod_level({**obj, "spec": filled}, (*path, "spec", "resources"))
    return {**obj, "spec": filled}


def _defaulted_container(value: object, path: Path, seen: set[str]) -> Object:
    found = checked_mapping(value, path)
    refuse_slips(found, path, OF_A_CONTAINER)
    name = checked_text(found.get("name") or None, (*path, "name"), "the name of a container")
    if len(name) > LONGEST_LABEL or not _LABEL.fullmatch(name):
        raise ManifestError(
            (*path, "name"),
            f"expected at most {LONGEST_LABEL} small letters, digits and inner '-', found {name[:80]!r}",
        )
    if name in seen:
        raise ManifestError((*path, "name"), f"container {name} is there already; rename one of them")
    seen.add(name)
    where = (*path, "resources")
    resources = _resources(found.get("resources") or {}, where)
    _check(_amounts(resources, "limits", where), _amounts(resources, "requests", where), where)
    limits, requests = (_as_text(resources.get(part) or {}) for part in ("limits", "requests"))
    # Source: core/v1/defaults.go, SetDefaults_Pod: a limit is the request if none is set
    return {**found, "resources": {"limits": limits, "requests": limits | requests}}


def _resources(value: object, path: Path) -> Object:
    found = checked_mapping(value, path)
    refuse_slips(found, path, OF_RESOURCES)
    odd = next((str(key) for key in found if key not in OF_RESOURCES), None)
    if odd is not None:
        raise ManifestError((*path, odd), f"unknown key; known are {either(*OF_RESOURCES)}")
    return found


def _as_text(amounts: Object) -> dict[str, str]:
    """Numbers as text: YAML reads 0.5 as a floating-point number."""
    return {name: str(value) for name, value in amounts.items()}


def _amounts(resources: Object, part: str, path: Path) -> dict[str, Fraction]:
    where = (*path, part)
    given = checked_mapping(resources.get(part) or {}, where)
    return {name: _amount(name, value, (*where, name)) for name, value in given.items()}


def _amount(name: str, value: object, path: Path) -> Fraction:
    if is_native(name) and name not in STANDARD and not name.startswith(HUGEPAGES) and "/" not in name:
        close = difflib.get_close_matches(name, STANDARD, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close else "devices are named as in vendor.example/device"
        raise ManifestError(path, f"is no resource of containers; {hint}")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ManifestError(path, f"expected an amount such as 500m or 2Gi, found {_found(value)}")
    size = name.removeprefix(HUGEPAGES)
    try:
        amount = parse_quantity(str(value))
        page = parse_quantity(size) if size != name else Fraction(0)
    except ValueError as error:
        raise ManifestError(path, str(error)) from None
    if amount < 0:
        raise ManifestError(path, f"{value} is negative; the smallest amount is 0")
    if not is_native(name) and amount.denominator != 1:
        raise ManifestError(path, f"{value} is no whole number; devices are counted")
    if page and amount % page:
        raise ManifestError(path, f"{value} is no multiple of {size}, the size of a page")
    return amount


def _check(limits: Mapping[str, Fraction], requests: Mapping[str, Fraction], path: Path) -> None:
    """The API server's validation of requests against limits."""
    named = {*limits, *requests}
    if any(name.startswith(HUGEPAGES) for name in named) and not named & {CPU, MEMORY}:
        raise ManifestError(path, "huge pages need cpu or memory beside them")
    for name, amount in requests.items():
        where, limit = (*path, "requests", name), limits.get(name)
        if limit is not None and amount > limit:
            raise ManifestError(where, f"{_short(amount)} is more than the limit, {_short(limit)}; lower it")
        overcommits = name in STANDARD
        if not overcommits and limit != amount:
            said = "no limit" if limit is None else f"limit {_short(limit)}"
            raise ManifestError(where, f"must equal its limit, found {_short(amount)} and {said}")


def _pod_level(obj: Object, path: Path) -> Object:
    """Pod-level resources. With limits, a missing request is the sum of the containers' requests, else the limit.

    Huge pages that the pod does not name are those of its containers, as limit and request.

    Source: kubernetes v1.36 core/v1/defaults.go, defaultPodRequests and defaultHugePagePodLimits.
    """
    resources = _resources(obj["spec"]["resources"], path)
    if resources.get("claims") is not None:
        raise ManifestError((*path, "claims"), "a pod as a whole has no claims")
    for part in ("limits", "requests"):
        for name in _amounts(resources, part, path):
            if not is_affine(name):
                raise ManifestError(
                    (*path, part, name), "a pod as a whole has cpu, memory and hugepages-SIZE only"
                )
    summed = _summed(obj["spec"], "requests")
    texts = {part: _as_text(resources.get(part) or {}) for part in ("limits", "requests")}
    pages = {
        name: amount
        for name, amount in summed.items()
        if name.startswith(HUGEPAGES) and name not in texts["requests"]
    }
    said = pages | texts["limits"] if any(texts.values()) else {}
    overcommitted = {name: amount for name, amount in summed.items() if said and name in STANDARD}
    filled = said | overcommitted | texts["requests"]
    bounds, asked = (
        {name: parse_quantity(value) for name, value in amounts.items()} for amounts in (said, filled)
    )
    _check(bounds, asked, path)
    _check_containers(
        obj["spec"], bounds, asked, {name: parse_quantity(one) for name, one in summed.items()}, path
    )
    return {"limits": said, "requests": filled}


def newer_differs(spec: Object) -> bool:
    """Whether Kubernetes 1.37 gives the defaulted pod other resources, or another QoS class.

    It sums requests also without a limit of the pod, fills in the limits that every container has, and takes the class from
    the containers if the pod's own amounts are empty.

    Source: kubernetes v1.37 api/pod/util.go, DefaultPodLevelResources; core/v1/helper/qos, ComputePodQOS.
    """
    if spec.get("resources") is None:
        return False
    requests, limits = (spec["resources"].get(part) or {} for part in ("requests", "limits"))
    everybody = [one["resources"] for part in ("initContainers", "containers") for one in spec[part]]
    inside = {name for one in everybody for name in one["requests"] if name in (CPU, MEMORY)}
    if not requests and not limits:
        return bool(inside)
    return any(
        name not in requests or (name not in limits and all(name in one["limits"] for one in everybody))
        for name in {*requests, *inside}
    )


def _summed(spec: Object, part: str) -> dict[str, str]:
    """What the containers request, or have as limits, together."""
    inside = {
        kind: [{**one, "resources": {"requests": one["resources"][part]}} for one in spec[kind]]
        for kind in ("initContainers", "containers")
    }
    amounts = pod_demand(
        {"spec": {**spec, **inside, "resources": None, "overhead": None}}
    ).effective_with_sidecars
    return {name: f"{amount}m" for name, amount in amounts.items() if is_affine(name)}


def _check_containers(
    spec: Object,
    limits: Mapping[str, Fraction],
    requests: Mapping[str, Fraction],
    summed: Mapping[str, Fraction],
    path: Path,
) -> None:
    """The API server's validation of containers against the pod as a whole.

    Source: kubernetes v1.36 core/validation/validation.go, validatePodResourceConsistency.
    """
    for name, amount in summed.items():
        if name in requests and amount > requests[name]:
            where = (*path, "requests", name)
            detail = f"{_short(requests[name])} is less than its containers ask for; ask for {_short(amount)} or more"
            raise ManifestError(where, detail)
    for number, one in enumerate(spec["containers"]):
        for name, text in one["resources"]["limits"].items():
            if name in limits and parse_quantity(text) > limits[name]:
                where = (*path[:-1], "containers", number, "resources", "limits", name)
                raise ManifestError(
                    where, f"{text} is more than the limit of the pod, {_short(limits[name])}"
                )


def _short(amount: Fraction) -> str:
    return str(float(amount)) if amount.denominator != 1 else str(int(amount))


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "keys and values"
    return "a list" if isinstance(value, list) else repr(value)[:60]
