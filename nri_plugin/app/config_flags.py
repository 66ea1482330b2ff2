"""Command-line flags as values that stand in for keys of the configuration.

They pass the same readers and checks as the file, and replace a key as a whole; an error names the flag.
Source: kubelet, for the flags of its managers and for a flag that wins over KubeletConfiguration.
"""

import os
from collections.abc import Mapping

from nri_plugin.app.config_yaml import Place, Scalar, Section, Value, parse

OBSERVE = "--observe"
"""The one flag that needs no value."""

OWN_FLAGS: Mapping[str, str] = {
    "--nri-socket": "nriSocket",
    "--state-dir": "stateDir",
    "--sysfs-root": "sysfsRoot",
    "--cgroup-root": "cgroupRoot",
    "--plugin-name": "pluginName",
    "--plugin-index": "pluginIndex",
    "--log-level": "logLevel",
    "--log-format": "logFormat",
    OBSERVE: "observe",
}
KUBELET_FLAGS: Mapping[str, str] = {
    "--cpu-manager-policy": "cpuManagerPolicy",
    "--cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "--topology-manager-policy": "topologyManagerPolicy",
    "--topology-manager-policy-options": "topologyManagerPolicyOptions",
    "--topology-manager-scope": "topologyManagerScope",
}
FLAGS: Mapping[str, str] = {**OWN_FLAGS, **KUBELET_FLAGS}
"""By flag: the key it replaces."""

PATHS = ("--nri-socket", "--state-dir", "--sysfs-root", "--cgroup-root")
"""Their values may be relative: a shell completes them so."""


SET = "--set "
"""Begins a flag that replaces the key named behind it, by a value written as in the file."""


def values_of(flags: Mapping[str, str]) -> dict[str, Value]:
    """By key: what the flags say instead.

    Raises:
        ConfigError: a list of options that is not NAME=VALUE,NAME=VALUE; a value that is no YAML.
    """
    return {FLAGS.get(flag, flag.removeprefix(SET)): _value(flag, text) for flag, text in flags.items()}


def _value(flag: str, text: str) -> Value:
    if flag.startswith(SET):
        return _written(flag, text)
    if flag.endswith("-options"):
        return _options(flag, text)
    if flag in PATHS:
        text = os.path.abspath(text)
    return Scalar(Place(flag), text, "bool" if flag == OBSERVE else "str")


def _written(flag: str, text: str) -> Value:
    value = parse(f"value: {text}", flag).entries["value"]
    return Scalar(Place(flag), value.text, value.kind) if isinstance(value, Scalar) else value


def _options(flag: str, text: str) -> Section:
    """The last of two with one name counts."""
    entries: dict[str, Value] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise Place(flag).error(f"expected name=value,name=value; found {pair}")
        entries[name] = Scalar(Place(flag, path=name), value, "str")
    return Section(Place(flag), entries, {name: Place(flag, path=name) for name in entries})
