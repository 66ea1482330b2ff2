"""Run (d) over a reboot: the state directory is on a disk that the next boot of the same machine has again."""

import json
import shutil
from pathlib import Path
from typing import Any

from . import interrupts
from .node import Node
from .pods import guaranteed
from .quiet_facts import SOON_S, nothing_reaches, quiet_cpus, rng_line, timed, wait_until_quiet
from .run_quiet import CONFIG, play_story
from .waiting import wait_for

STATE_DIR, BEFORE = Path("/out/state"), Path("/out/before")
"""The state directory, which outlives a boot, and that of the boot before."""

_QUIET = "quiet.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OWN = "0-1"
"""What somebody gives an interrupt in the second boot. The first one had another value before it was quiet."""


def a_node_goes_down_with_quiet_cpus(node: Node) -> None:
    """The first boot, which ends while a container runs."""
    node.run(guaranteed("db", 2))
    wait_until_quiet(quiet_cpus(node))
    kept = _kept()
    node.expect("originals are stored", bool(kept["kept"]), kept)
    node.equal("with the id of this boot", kept["boot"], _BOOT_ID.read_text().strip())
    number = rng_line().number
    before = next(one["original"] for one in kept["kept"] if one["name"] == f"irq/{number}")
    node.expect("the original is not what the next boot will have", before != _OWN, before)
    node.agent.kill()


def originals_of_the_boot_before_are_not_written(node: Node) -> None:
    """The second boot: its own values stay, and come back."""
    node.agent.stop()
    shutil.rmtree(STATE_DIR)
    shutil.copytree(BEFORE, STATE_DIR)
    kept = _kept()
    node.expect("the originals are of another boot", kept["boot"] != _BOOT_ID.read_text().strip(), kept)
    number = rng_line().number
    interrupts.write(interrupts.IRQS / str(number) / "smp_affinity_list", _OWN)
    before = interrupts.settings()
    node.agent.start()
    wait_for(
        lambda: not (STATE_DIR / _QUIET).exists(),
        SOON_S,
        "the agent removes the originals of the boot before",
    )
    node.equal("it has written none of them", interrupts.settings(), before)
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    timed(node, lambda: not nothing_reaches(cpus), "movable interrupts leave the quiet CPUs")
    node.equal("the originals are those of this boot", _kept()["boot"], _BOOT_ID.read_text().strip())
    node.remove(pod)
    timed(node, lambda: interrupts.settings() == before, "every setting is byte for byte as before the agent")


def _kept() -> dict[str, Any]:
    return dict(json.loads((STATE_DIR / _QUIET).read_text())["body"])


if __name__ == "__main__":
    scenario = (
        originals_of_the_boot_before_are_not_written if BEFORE.exists() else a_node_goes_down_with_quiet_cpus
    )
    play_story((scenario,), {**CONFIG, "stateDir": str(STATE_DIR)})
