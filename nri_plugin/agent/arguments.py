"""The arguments of `nri-pin run`. The parser is loaded only where there are any: a start of the container path has none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nri_plugin.config.keys import FLAGS, OBSERVE, Settings
from nri_plugin.config.loading import DEFAULT_PATH, Config, load
from nri_plugin.model.errors import ConfigError
from nri_plugin.process.logs import FORMATS, LEVELS

DEFAULTS = Settings()

CONFIG, RECORD = "--config", "--record"
NAMES = (CONFIG, RECORD, *FLAGS, "--help")

ABOUT = """\
Run the agent: connect to the container runtime and place every container it
creates. One agent serves a runtime: a second one waits, not connected and not
ready, until the first ends. Options win over the configuration file; paths may
be relative."""

HELP_BY_NAME: Mapping[str, str] = {
    CONFIG: f"The file to read. [default: {DEFAULT_PATH}]",
    "--nri-socket": f"The runtime's NRI socket. [default: {DEFAULTS.nri_socket}]",
    "--state-dir": f"Where the checkpoint is kept. [default: {DEFAULTS.state_dir}]",
    "--sysfs-root": "The folder with the machine's sys and proc. [default: /host if it has them, else /]",
    "--cgroup-root": "The mount point of the cgroup tree.",
    "--plugin-name": "The name the runtime logs.",
    "--plugin-index": f"Two digits; the runtime calls plugins in this order. [default: {DEFAULTS.plugin_index}]",
    "--log-level": f"{', '.join(LEVELS)}.",
    "--log-format": f"{' or '.join(FORMATS)}.",
    OBSERVE: "Decide, log and count, and change nothing.",
    RECORD: "A file to which everything that is decided is appended, for nri-pin replay.",
}
OF_KUBELET = "As for the kubelet; options replace those of the file altogether."

MORE = """\
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


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parsed command line.

    Attributes:
        config: path of the configuration file.
        flags: values by name; they replace those of the file.
        record: file to record to; empty for none.
    """

    config: str = DEFAULT_PATH
    flags: Mapping[str, str] = field(default_factory=dict)
    record: str = ""

    def load(self) -> Config:
        """Return the configuration of the file, with the flags of the command line.

        Raises:
            ConfigError: anything in either is wrong.
        """
        return load(self.config, self.flags)


def parse(words: Sequence[str]) -> Arguments:
    """Read the options; prints the help and leaves where it is requested.

    Raises:
        ConfigError: an unknown option, or one without a value.
    """
    if not words:
        return Arguments()
    import argparse

    def value(text: str) -> str:
        if not text:
            raise argparse.ArgumentTypeError("expected one argument, found nothing")
        return text

    parser = argparse.ArgumentParser(
        "nri-pin run",
        usage="nri-pin run [OPTIONS]",
        description=ABOUT,
        epilog=MORE,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 25, 80),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
    )
    for name in (CONFIG, *FLAGS, RECORD):
        option = parser.add_argument(name, dest=name, metavar="VALUE", type=value)
        option.help = HELP_BY_NAME.get(name, OF_KUBELET)
        if name == OBSERVE:
            option.nargs, option.const = "?", "true"
    try:
        found, unknown = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        name = error.argument_name or "nri-pin run"
        raise ConfigError(name, f"{error.message}; see nri-pin run --help") from None
    if unknown:
        raise ConfigError(unknown[0], "no such option of nri-pin run; see nri-pin run --help")
    flags = vars(found)
    return Arguments(flags.pop(CONFIG, DEFAULT_PATH), flags, flags.pop(RECORD, ""))
