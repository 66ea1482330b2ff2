"""Feeds one target for ever, or as long as libFuzzer is told: `python -m tests.fuzz.one TARGET [libFuzzer's words]`."""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["nri_plugin"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name = sys.argv.pop(1)
    target = TARGETS[name]

    def feed(data: bytes) -> None:
        try:
            target.run(data)
        except target.allowed:
            return

    atheris.Setup([again(name), *sys.argv[1:], f"-max_len={target.longest}"], feed)
    atheris.Fuzz()


def again(name: str) -> str:
    """A program that feeds the target: what libFuzzer starts when it wants itself in a process of its own."""
    with tempfile.NamedTemporaryFile("w", prefix="fuzz-one-", suffix=".sh", delete=False) as script:
        script.write(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.one {name} "$@"\n')
    Path(script.name).chmod(0o755)
    return script.name


if __name__ == "__main__":
    main()
