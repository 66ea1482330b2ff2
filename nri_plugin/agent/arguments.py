"""The arguments of `nri-pin run`. They are parsed by hand because an argument library makes every start slower."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nri_plugin.config.keys import FLAGS, OBSERVE, Settings
from nri_plugin.config.loading import DEFAULT_PATH, Config, load
from nri_plugin.model.errors import ConfigError
from nri_plugin.process.logs import FORMATS, LEVELS

DEFAULTS = Settings()

HELP = f"""\
Usage: nri-pin run [OPTIONS]

  Run the agent: connect to the container runtime and place every container it
  creates. One agent serves a runtime: a second one waits, not connected and not
  ready, until the first ends.

Options:
  --config FILE          The configuration file.
                         [default: {DEFAULT_PATH}]

  Each of these wins over the configuration file; paths may be relative:
  --nri-socket PATH      The runtime's NRI socket.
                         [default: {DEFAULTS.nri_socket}]
  --state-dir DIR        Where the checkpoint is kept.  [default: {DEFAULTS.state_dir}]
  --sysfs-root DIR       The folder that holds the machine's sys and proc.
                         [default: /host if it has them, else /]
  --cgroup-root DIR      The mount point of the cgroup tree.
  --plugin-name NAME     The name the runtime logs.
  --plugin-index NN      Two digits; the runtime calls plugins in this order.
                         [default: {DEFAULTS.plugin_index}]
  --log-level LEVEL      {", ".join(LEVELS)}.
  --log-format FORMAT    {" or ".join(FORMATS)}.
  --observe              Decide, log and count, and change nothing.
  --cpu-manager-policy POLICY,
  --cpu-manager-policy-options NAME=VALUE,...
  --topology-manager-policy POLICY,
  --topology-manager-policy-options NAME=VALUE,...
  --topology-manager-scope SCOPE
                         As for the kubelet; options replace those of the file
                         altogether.

  --record FILE          Also append everything that is decided to a file, for
                         nri-pin replay.
  -h, --help             Show this text and leave.

The smallest configuration keeps a core for the system, here CPUs 0 and 32
(lscpu -e tells which CPUs share a core); the kubelet must reserve the same:
  reservedSystemCPUs: "0,32"

Exit code: 0 stopped by a signal, 2 when something has to be configured
differently, 70 when it was stuck for 30 s and ended itself, 1 otherwise.
Signals: SIGHUP reads the configuration again, SIGTERM stops the agent and
changes nothing.

Examples:
  nri-pin run
  nri-pin run --config ./config.yaml --log-level debug
  nri-pin run --state-dir /var/lib/nri-pin --log-format json
  nri-pin run --observe --record ./day.jsonl
"""

CONFIG = "--config"
RECORD = "--record"
SEE = "see nri-pin run --help"
NAMES = (CONFIG, RECORD, *FLAGS, "--help")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parsed command line.

    Attributes:
        config: path of the configuration file.
        flags: values by name; they replace those of the file.
        record: file to record to; empty for none.
        wants_help: print the help and leave.
    """

    config: str = DEFAULT_PATH
    flags: Mapping[str, str] = field(default_factory=dict)
    record: str = ""
    wants_help: bool = False

    def load(self) -> Config:
        """Return the configuration of the file, with the flags of the command line.

        Raises:
            ConfigError: anything in either is wrong.
        """
        return load(self.config, self.flags)


def parse(words: Sequence[str]) -> Arguments:
    """Read `--name value` and `--name=value`.

    Raises:
        ConfigError: an unknown option, a missing or a wrong value; names the option.
    """
    flags: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            return Arguments(wants_help=True)
        if name not in NAMES:
            raise _unknown(name)
        if name == OBSERVE and not equals:
            value = "true"
        elif not equals:
            value = rest.pop(0) if rest else ""
        if not value or (not equals and value.startswith("--")):
            raise ConfigError(name, f"needs a value, found {value or 'nothing'}; {SEE}")
        flags[name] = value
    return Arguments(flags.pop(CONFIG, DEFAULT_PATH), flags, flags.pop(RECORD, ""))


def _unknown(word: str) -> ConfigError:
    """Return the error for a word that is no option: misspelt, without its dashes, or an extra argument."""
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches("--" + word.lstrip("-"), NAMES, n=1, cutoff=0.7)
    what = "no such option of nri-pin run" if word.startswith("-") else "nri-pin run takes only options"
    return ConfigError(word, f"{what}, did you mean {close[0]}; {SEE}" if close else f"{what}; {SEE}")
