"""The kubelet's command-line flags for these managers, as values that stand in for keys of the configuration.

They pass the same readers and checks as the file, and replace a key as a whole. Source: kubelet, where a flag
wins over KubeletConfiguration.
"""

from collections.abc import Mapping

from nri_plugin.app.config_yaml import Place, Scalar, Section, Value

FLAGS: Mapping[str, str] = {
    "--cpu-manager-policy": "cpuManagerPolicy",
    "--cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "--topology-manager-policy": "topologyManagerPolicy",
    "--topology-manager-policy-options": "topologyManagerPolicyOptions",
    "--topology-manager-scope": "topologyManagerScope",
}
"""By flag: the key it replaces."""


def values_of(flags: Mapping[str, str]) -> dict[str, Value]:
    """By key: what the flags say instead.

    Raises:
        ConfigError: a list of options that is not NAME=VALUE,NAME=VALUE.
    """
    return {FLAGS[flag]: _value(flag, text) for flag, text in flags.items()}


def _value(flag: str, text: str) -> Value:
    if flag.endswith("-options"):
        return _options(flag, text)
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
