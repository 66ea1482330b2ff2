"""Plain values to protobuf messages.

Only fields that are set are written: a runtime takes a field that is present as claimed by this plugin, and two plugins that
claim one field fail the request. A value that a runtime would drop silently, or that would make it fail, is refused here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from nri_plugin.model.errors import LocalProtocolError
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.messages import ContainerUpdate, Resources

_UNSET = Resources()
_RESOURCE_FIELDS = Resources.__struct_fields__


_CPU = (("shares", "cpu_shares"), ("quota", "cpu_quota_us"), ("period", "cpu_period_us"))


def resource_fields(values: Resources) -> dict[str, Any]:
    """Returns the fields that are set, as the message's constructor takes them; the rest stays absent.

    Wrappers have presence: one that holds 0 claims the field and sets it to 0.
    """
    cpu: dict[str, Any] = {
        name: {"value": value} for name, ours in _CPU if (value := getattr(values, ours)) is not None
    }
    if values.cpus:
        cpu["cpus"] = values.cpus
    if values.mems:
        cpu["mems"] = values.mems
    written: dict[str, Any] = {"cpu": cpu} if cpu else {}
    if values.memory_limit_bytes is not None:
        written["memory"] = {"limit": {"value": values.memory_limit_bytes}}
    if values.hugepage_limits:
        written["hugepage_limits"] = [
            {"page_size": size, "limit": limit} for size, limit in values.hugepage_limits
        ]
    return written


def adjustment_fields(resources: Resources | None, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns what a new container gets, as the message's constructor takes it."""
    written: dict[str, Any] = {}
    if resources is not None:
        written["linux"] = {"resources": resource_fields(resources)}
    if env:
        written["env"] = [{"key": name, "value": text} for name, text in env.items()]
    return written


def updates(values: Iterable[ContainerUpdate], created_id: str = "") -> list[pb.ContainerUpdate]:
    """Writes updates, one per container: several for one container become one.

    Args:
        values: the updates.
        created_id: the container that is being created, which a reply must not update.

    Raises:
        LocalProtocolError: an update without container id, one of `created_id`, or two updates of one
            container that want different values.
    """
    # NRI compares names of plugins, and a second update of one container conflicts with the first of the same plugin.
    # The whole request fails then, in every release.
    merged: dict[str, ContainerUpdate] = {}
    for value in values:
        _check_target(value, created_id)
        known = merged.get(value.container_id)
        merged[value.container_id] = value if known is None else _merge_update(known, value)
    return [_update(value) for value in merged.values()]


def _check_target(value: ContainerUpdate, created_id: str) -> None:
    if not value.container_id:
        raise LocalProtocolError("an update names no container; runtimes would skip it silently")
    # NRI fails the creation for this, whether `ignore_failure` is set or not.
    if value.container_id == created_id:
        msg = f"container {created_id} is being created and cannot be updated too; put it into the adjustment"
        raise LocalProtocolError(msg)


def _merge_update(one: ContainerUpdate, other: ContainerUpdate) -> ContainerUpdate:
    changes = {name: _merge_field(one, other, name) for name in _RESOURCE_FIELDS}
    # A failure may be ignored only if both updates allow that.
    ignore_failure = one.ignore_failure and other.ignore_failure
    return ContainerUpdate(one.container_id, replace(one.resources, **changes), ignore_failure)


def _merge_field(one: ContainerUpdate, other: ContainerUpdate, name: str) -> Any:
    mine, theirs = getattr(one.resources, name), getattr(other.resources, name)
    unset = getattr(_UNSET, name)
    # Zero is a value, and differs from the None of an unset field.
    if theirs in (unset, mine):
        return mine
    if mine == unset:
        return theirs
    msg = f"two updates of container {one.container_id} set {name} to {mine!r} and to {theirs!r}; send one"
    raise LocalProtocolError(msg)


def _update(value: ContainerUpdate) -> pb.ContainerUpdate:
    """Writes one update.

    Differs: the Go library leaves out an empty `memory`; here: it goes along when none is set. Why: an update
        without one crashed old CRI-O. Option: none.
    """
    linux = {"resources": resource_fields(value.resources)}
    message = pb.ContainerUpdate(
        container_id=value.container_id, ignore_failure=value.ignore_failure, linux=linux
    )
    # Present but empty: no field of it is set, so no runtime changes anything.
    message.linux.resources.memory.SetInParent()
    return message
