"""SIGHUP: the configuration is read again and taken over as a whole, or not at all."""

import logging
from collections.abc import Callable

from nri_plugin.app.config import Config, NothingConfiguredError
from nri_plugin.app.floor_lifting import lift_floor
from nri_plugin.app.logs import say, say_trace
from nri_plugin.app.observing import ObservingHandler
from nri_plugin.app.runtime_link import RuntimeLink
from nri_plugin.app.startup import (
    build_node,
    open_cgroups,
    warn_of_surprises,
    warn_of_unsatisfied,
    with_others_partitions,
)
from nri_plugin.errors import NriPinError


class Reload:
    """SIGHUP: a new configuration as a whole, or the old one and a line that says why."""

    def __init__(self, read: Callable[[], Config], link: RuntimeLink, log: logging.Logger) -> None:
        self._read = read
        self._link = link
        self._log = log

    def __call__(self) -> None:
        """Read and take over; applies to containers created from now on."""
        handler = self._link.handler
        if handler is None:
            return
        try:
            config = self._read()
            cgroups = open_cgroups(config.cgroup_root, self._log)
            node = with_others_partitions(build_node(config, cgroups), cgroups, handler.state)
        except NothingConfiguredError as error:
            say(
                self._log,
                logging.ERROR,
                "there is no configuration to read again, the former one stays in force",
                file=error.where,
            )
            return
        except NriPinError as error:
            say(
                self._log,
                logging.ERROR,
                "configuration not reloaded, the former one stays in force",
                err=error,
            )
            return
        except Exception:  # noqa: BLE001 - a bad reload must not end what serves the node
            say_trace(self._log, "internal error, configuration not reloaded, the former one stays in force")
            return
        handler.change_node(node, handler.new_effects(cgroups))
        is_observing = isinstance(handler, ObservingHandler)
        if not is_observing:
            lift_floor(cgroups, node, handler.state, self._log)
        handler.checkpoint.serves = config.serves_unsaved
        self._log.setLevel(config.log_level.upper())
        say(
            self._log,
            logging.INFO,
            "configuration reloaded",
            cpu_policy=node.options.cpu_manager_policy,
            topology_policy=node.options.topology_manager_policy,
            memory_policy=node.options.memory_manager_policy,
            reserved=node.reserved,
            note="paths, plugin name, log format, observe and historyBytes change with the next start",
        )
        if config.observe != is_observing:
            say(self._log, logging.WARNING, "observe changes with the next start", observing=is_observing)
        warn_of_surprises(node, self._log)
        warn_of_unsatisfied(node, handler.state, self._log)
