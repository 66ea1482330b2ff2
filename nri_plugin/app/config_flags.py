"""Command-line flags as values that stand in for keys of the configuration.

They pass the same readers and checks as the file, and replace a key as a whole; an error names the flag.
Source: kubelet, for the flags of its managers and for a flag that wins over KubeletConfiguration.
"""

import os
from collections.abc import Mapping

from nri_plugin.app.config_yaml import Place, Scalar, Section, Value

OWN_FLAGS: Mapping[str, str] = {
    "--nri-socket": "nriSocket",
    "--state-dir": "stateDir",
    "--sysfs-root": "sysfsRoot",
    "--cgroup-root": "cgroupRoot",
    "--plugin-name": "pluginName",
    "--plugin-index": "pluginIndex",
    "--log-level": "logLevel",
    "--log-format": "logFormat",
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


def values_of(flags: Mapping[str, str]) -> dict[str, Value]:
    """By key: what the flags say instead.

    Raises:
        ConfigError: a list of options that is not NAME=VALUE,NAME=VALUE.
    """
    return {FLAGS[flag]: _value(flag, text) for flag, text in flags.items()}


def _value(flag: str, text: str) -> Value:
    if flag.endswith("-options"):
        return _options(flag, text)
    if flag in PATHS:
        text = os.path.abspath(text)
    return Scalar(Place(flag), text, "str")


def _options(flag: str, text: str) -> Section:
    """The last of two with one name counts."""
    entries: dict[str, Value] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise Place(flag).error(f"expected name=value,name=value; found {pair}")
        entries[name] = Scalar(Place(flag, path=name), value, "str")
    return Section(Place(flag), entries, {name: Place(flag, path=name) for name in entries})
