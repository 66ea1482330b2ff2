"""What a runtime makes of a plugin's wishes: how an adjustment changes a container, and what gets lost.

Source: NRI pkg/adaptation and runtime-tools, and how containerd and CRI-O apply updates.
Differs: a changed cgroups path is told, but the cgroup stays where it was; a memory policy changes nothing here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from nri_plugin.nri import spec
from nri_plugin.nri.adjustment import NOTHING, Adjustment, is_removal
from nri_plugin.nri.events import CreateContainerResponse
from nri_plugin.nri.messages import EMPTY, Container, ContainerDetails, Resources
from nri_plugin.nri.releases import LOST_IN_UPDATES, fields_since

_T = TypeVar("_T")
_UNSET: Final = Resources()
_MERGED_BY_KEY: Final = frozenset({"hugepage_limits", "unified", "device_rules"})
_REPLACED: Final = tuple(each.name for each in fields(Resources) if each.name not in _MERGED_BY_KEY)


def merged(base: Resources, change: Resources) -> Resources:
    """`base` with what `change` sets; absent, zero and empty leave alone, device rules are appended."""
    changes = {name: content for name in _REPLACED if (content := getattr(change, name))}
    return replace(
        base,
        hugepage_limits=tuple({**dict(base.hugepage_limits), **dict(change.hugepage_limits)}.items()),
        unified={**base.unified, **change.unified},
        device_rules=base.device_rules + change.device_rules,
        **changes,
    )


def heeded(change: Resources, runtime_name: str, *, is_own: bool) -> Resources:
    """What a runtime applies of an update; `is_own`: given in answer to the container's own update."""
    lost = LOST_IN_UPDATES.get((runtime_name, is_own), frozenset())
    return replace(change, **{name: getattr(_UNSET, name) for name in lost})


def known(response: CreateContainerResponse, release: tuple[int, ...]) -> CreateContainerResponse:
    """What a runtime of that NRI release reads of an answer: newer fields are gone without a word."""
    unknown = [name for name, since in fields_since(response.whole()).items() if since > release]
    if not unknown:
        return response
    rest = {name: getattr(NOTHING, name) for name in unknown if "." not in name}
    left = replace(response.adjustment or NOTHING, **rest)
    resources = response.resources
    if resources is not None and len(rest) < len(unknown):
        resources = replace(resources, pids_limit=None)
    return replace(response, resources=resources, adjustment=None if left == NOTHING else left)


def adjusted(container: Container, change: Adjustment) -> Container:
    """The container as an adjustment leaves it; what it removes goes first."""
    return replace(
        container,
        annotations=_changed_map(container.annotations, change.annotations),
        env=_changed_env(container.env, change.env),
        devices=_changed_list(container.devices, change.devices, lambda device: device.path),
        cdi_devices=container.cdi_devices + change.cdi_devices,
        net_devices=tuple(sorted(_changed_map(dict.fromkeys(container.net_devices, ""), change.net_devices))),
        resources=merged(container.resources, change.resources or _UNSET),
        oom_score_adj=container.oom_score_adj if change.oom_score_adj is None else change.oom_score_adj,
        cgroups_path=change.cgroups_path or container.cgroups_path,
        details=_changed_details(container.details, change),
    )


def _changed_details(details: ContainerDetails | None, change: Adjustment) -> ContainerDetails | None:
    base = details or ContainerDetails()
    changed = replace(
        base,
        args=change.args[1:] if change.args[:1] == ("",) else change.args or base.args,
        mounts=_changed_list(base.mounts, change.mounts, lambda mount: mount.destination),
        hooks=_more_hooks(base.hooks, change.hooks),
        rlimits=_changed_list(base.rlimits, change.rlimits, lambda limit: limit.type),
        namespaces=_changed_list(base.namespaces, change.namespaces, lambda namespace: namespace.type),
        sysctl=_changed_map(base.sysctl, change.sysctl),
        net_devices=_changed_map(base.net_devices, change.net_devices),
        io_priority=change.io_priority or base.io_priority,
        seccomp_policy=change.seccomp_policy or base.seccomp_policy,
        scheduler=change.scheduler or base.scheduler,
        rdt=_changed_rdt(base.rdt, change.rdt),
    )
    return details if changed == base else changed


def _changed_map(base: Mapping[str, str], change: Mapping[str, str]) -> Mapping[str, str]:
    gone = {key[1:] for key in change if is_removal(key)}
    kept = {key: text for key, text in base.items() if key not in gone}
    return {**kept, **{key: text for key, text in change.items() if not is_removal(key)}} or EMPTY


def _changed_list(base: Iterable[_T], change: Iterable[_T], key_of: Callable[[_T], str]) -> tuple[_T, ...]:
    """A list with keys: what is set again takes the place of the old entry."""
    touched = {key_of(each).removeprefix("-") for each in change}
    kept = [each for each in base if key_of(each) not in touched]
    return (*kept, *(each for each in change if not is_removal(key_of(each))))


def _changed_env(env: tuple[str, ...], change: Mapping[str, str]) -> tuple[str, ...]:
    added = tuple(f"{name}={text}" for name, text in change.items() if not is_removal(name))
    touched = {name.removeprefix("-") for name in change}
    return tuple(entry for entry in env if entry.partition("=")[0] not in touched) + added


def _more_hooks(base: spec.Hooks, more: spec.Hooks) -> spec.Hooks:
    moments = [each.name for each in fields(spec.Hooks)]
    return spec.Hooks(**{name: getattr(base, name) + getattr(more, name) for name in moments})


def _changed_rdt(base: spec.RDT | None, change: spec.RDT | None) -> spec.RDT | None:
    if change is None:
        return base
    kept = spec.RDT() if base is None or change.remove else base
    names = ("clos_id", "schemata", "enable_monitoring")
    news: dict[str, Any] = {
        name: getattr(change, name) for name in names if getattr(change, name) is not None
    }
    result = replace(kept, **news)
    return None if result == spec.RDT() else result
