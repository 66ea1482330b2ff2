"""`nri-pin migrate` with a step that fails after it was done, or after which the process is killed.

injected_migration.py fail|kill STEP migrate DIRECTION ...
"""

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import Any

from nri_plugin.__main__ import main
from nri_plugin.cli.migrate import migrate

_HOW, _STEP, *_WORDS = sys.argv[1:]
_steps_of = migrate.steps_of


def _struck(step: Any) -> None:
    step.apply()
    if _HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(f"injected after {_STEP}")


def _spoilt(*about: Any) -> tuple[Any, ...]:
    return tuple(
        replace(step, apply=partial(_struck, step)) if step.name == _STEP else step
        for step in _steps_of(*about)
    )


if __name__ == "__main__":
    migrate.steps_of = _spoilt
    raise SystemExit(main(_WORDS))
