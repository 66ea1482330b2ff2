"""The words after `nri-pin run`, read by hand: an argument library would cost every start more than this file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nri_plugin.app.config import DEFAULT_PATH, Config, load
from nri_plugin.app.config_flags import FLAGS
from nri_plugin.app.logs import FORMATS, LEVELS
from nri_plugin.errors import ConfigError

HELP = f"""\
Usage: nri-pin run [OPTIONS]

  Run the agent: connect to the container runtime and place every container it creates.

Options:
  --config FILE          The configuration file.  [default: {DEFAULT_PATH}]

  Each of these wins over the configuration file:
  --nri-socket PATH      The runtime's NRI socket.
  --state-dir DIR        Where the checkpoint is kept.
  --sysfs-root DIR       The folder that holds the machine's sys and proc.
  --cgroup-root DIR      The mount point of the cgroup tree.
  --plugin-name NAME     The name the runtime logs.
  --plugin-index NN      Two digits; the runtime calls plugins in this order.
  --log-level LEVEL      {", ".join(LEVELS)}.
  --log-format FORMAT    {" or ".join(FORMATS)}.
  --cpu-manager-policy POLICY, --cpu-manager-policy-options NAME=VALUE,...
  --topology-manager-policy POLICY, --topology-manager-policy-options NAME=VALUE,...
  --topology-manager-scope SCOPE
                         As for the kubelet; options replace those of the file altogether.
  -h, --help             Show this text and leave.

Signals: SIGHUP reads the configuration again, SIGTERM stops the agent and changes nothing.

Examples:
  nri-pin run
  nri-pin run --config ./config.yaml --log-level debug
  nri-pin run --state-dir /var/lib/nri-pin --log-format json
"""

OPTIONS: Mapping[str, str] = {
    "--config": "config",
    "--nri-socket": "nri_socket",
    "--state-dir": "state_dir",
    "--sysfs-root": "sysfs_root",
    "--cgroup-root": "cgroup_root",
    "--plugin-name": "plugin_name",
    "--plugin-index": "plugin_index",
    "--log-level": "log_level",
    "--log-format": "log_format",
}
"""By name: the attribute of `Config` that it replaces."""

CHOICES: Mapping[str, tuple[str, ...]] = {"--log-level": LEVELS, "--log-format": FORMATS}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line says.

    Attributes:
        config: path of the configuration file.
        overrides: attributes of `Config` to replace.
        wants_help: print the help and leave.
        flags: the kubelet's flags, by name.
    """

    config: str
    overrides: Mapping[str, str]
    wants_help: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Config:
        """The configuration in the file, with everything the command line says.

        Raises:
            ConfigError: anything in either is wrong.
        """
        return self.apply(load(self.config, self.flags))

    def apply(self, config: Config) -> Config:
        """`config` with the overrides in it."""
        from dataclasses import replace

        return replace(config, **self.overrides)  # type: ignore[arg-type]  # all of them are texts


def parse(words: Sequence[str]) -> Arguments:
    """Read `--name value` and `--name=value`.

    Raises:
        ConfigError: an unknown option, a missing or a wrong value; names the option.
    """
    values: dict[str, str] = {}
    flags: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            return Arguments(DEFAULT_PATH, {}, wants_help=True)
        if name not in OPTIONS and name not in FLAGS:
            raise ConfigError(name, "no such option of nri-pin run; see nri-pin run --help")
        if not equals:
            value = rest.pop(0) if rest else ""
        if name in FLAGS:
            flags[name] = _checked(name, value)
        else:
            values[OPTIONS[name]] = _checked(name, value)
    return Arguments(values.pop("config", DEFAULT_PATH), values, flags=flags)


def _checked(name: str, value: str) -> str:
    if not value:
        raise ConfigError(name, "needs a value; see nri-pin run --help")
    allowed = CHOICES.get(name)
    if allowed and value not in allowed:
        raise ConfigError(name, f"expected {', '.join(allowed)}; found {value}")
    return value
