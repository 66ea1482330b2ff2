"""What the API server makes of a pod's resources: it checks them and fills in what was left out.

Objects are plain values as YAML or JSON gives them. An error knows the path to what is wrong; whoever has the text
finds the line.

Source: Kubernetes v1.36 pkg/apis/core/v1/defaults.go and core/validation.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from nri_plugin.errors import NriPinError
from nri_plugin.kube.pod_demand import CPU, HUGEPAGES, MEMORY, is_native, pod_demand
from nri_plugin.quantity import parse_quantity

Path: TypeAlias = tuple[str | int, ...]
"""From the number of the document to a key."""
Object: TypeAlias = Mapping[str, Any]

STORAGE = "ephemeral-storage"
STANDARD = (CPU, MEMORY, STORAGE)
POD_LEVEL = (CPU, MEMORY)

OF_A_POD = ("containers", "initContainers", "overhead", "resources")
OF_A_CONTAINER = ("name", "resources", "restartPolicy")
OF_RESOURCES = ("limits", "requests", "claims")
"""Keys that say what a pod gets. Misspelt they would be taken for left out, and the answer would be about another pod."""

LONGEST_LABEL = 63
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

LOOK_LIKE_THEM = ("resizePolicy", "restartPolicyRules")
"""Keys of containers that are meant as they are written."""


class ManifestError(NriPinError):
    """An object is not what the API server would take.

    Attributes:
        path: where; begins with the number of the document.
    """

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{words(path)}: {detail}")
        self.path = path
        self.detail = detail


def words(path: Path) -> str:
    """A path as people write it: `spec.containers[0].name`; without the number of the document."""
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
    """Check that no key is nearly one of those that count; others of the many that there are count for nothing here.

    Raises:
        ManifestError: one is; names the key it looks like.
    """
    by_lower = {key.lower(): key for key in read}
    for key in map(str, found):
        if key in read or key in LOOK_LIKE_THEM:
            continue
        close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.8)
        if close:
            raise ManifestError((*path, key), f"unknown key; did you mean {by_lower[close[0]]}?")


def checked_list(value: object, path: Path) -> Sequence[Any]:
    """A list; nothing counts as an empty one.

    Raises:
        ManifestError: it is something else.
    """
    if value is None or isinstance(value, list):
        return value or []
    raise ManifestError(path, f"expected a list, found {_found(value)}")


def checked_text(value: object, path: Path, what: str) -> str:
    """Text that is not empty, or at least is text.

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
            _container(one, (*where, number), seen)
            for number, one in enumerate(checked_list(spec.get(part), where))
        ]
    if not filled["containers"]:
        raise ManifestError((*path, "spec", "containers"), "a pod has at least one container")
    if spec.get("resources"):
        filled["resources"] = _pod_level({**obj, "spec": filled}, (*path, "spec", "resources"))
    return {**obj, "spec": filled}


def _container(value: object, path: Path, seen: set[str]) -> Object:
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
    limits = _amounts(resources, "limits", where)
    requests = _amounts(resources, "requests", where)
    _check(limits, requests, where)
    texts = {part: dict(resources.get(part) or {}) for part in ("limits", "requests")}
    return {
        **found,
        "resources": {
            "limits": _as_text(texts["limits"]),
            "requests": _as_text({**texts["limits"], **texts["requests"]}),
        },
    }


def _resources(value: object, path: Path) -> Object:
    found = checked_mapping(value, path)
    refuse_slips(found, path, OF_RESOURCES)
    odd = next((str(key) for key in found if key not in OF_RESOURCES), None)
    if odd is not None:
        raise ManifestError(
            (*path, odd), f"unknown key; known are {', '.join(OF_RESOURCES[:-1])} or {OF_RESOURCES[-1]}"
        )
    return found


def _as_text(amounts: Object) -> dict[str, str]:
    """Numbers as text: YAML reads 0.5 as a fraction."""
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
    try:
        amount = parse_quantity(str(value))
    except ValueError as error:
        raise ManifestError(path, str(error)) from None
    if amount < 0:
        raise ManifestError(path, f"{value} is negative; the smallest amount is 0")
    if not is_native(name) and amount.denominator != 1:
        raise ManifestError(path, f"{value} is no whole number; devices are counted")
    return amount


def _check(limits: Mapping[str, Fraction], requests: Mapping[str, Fraction], path: Path) -> None:
    """What the API server asks of requests beside limits."""
    for name, amount in requests.items():
        where, limit = (*path, "requests", name), limits.get(name)
        if limit is not None and amount > limit:
            raise ManifestError(where, f"{_short(amount)} is more than the limit, {_short(limit)}; lower it")
        overcommits = name in STANDARD
        if not overcommits and limit != amount:
            said = "no limit" if limit is None else f"limit {_short(limit)}"
            raise ManifestError(where, f"must equal its limit, found {_short(amount)} and {said}")


def _pod_level(obj: Object, path: Path) -> Object:
    """The pod's own resources; what is left out is what its containers request, else its limit."""
    resources = _resources(obj["spec"]["resources"], path)
    limits, requests = _amounts(resources, "limits", path), _amounts(resources, "requests", path)
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            if name not in POD_LEVEL and not name.startswith(HUGEPAGES):
                raise ManifestError(
                    (*path, part, name), "a pod as a whole has cpu, memory and hugepages-SIZE only"
                )
    below = pod_demand({**obj, "spec": {**obj["spec"], "resources": None}}).effective_with_sidecars
    summed = {
        name: f"{amount}m"
        for name, amount in below.items()
        if amount and (name in POD_LEVEL or name.startswith(HUGEPAGES))
    }
    filled = {
        **_as_text(resources.get("limits") or {}),
        **summed,
        **_as_text(resources.get("requests") or {}),
    }
    _check(limits, {name: parse_quantity(value) for name, value in filled.items()}, path)
    return {"limits": _as_text(resources.get("limits") or {}), "requests": filled}


def _short(amount: Fraction) -> str:
    return str(float(amount)) if amount.denominator != 1 else str(int(amount))


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "keys and values"
    return "a list" if isinstance(value, list) else repr(value)[:60]
