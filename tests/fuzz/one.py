"""Feeds one target for ever, or as long as libFuzzer is told: `python -m tests.fuzz.one TARGET [libFuzzer's words]`."""

import sys

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

    atheris.Setup([*sys.argv, f"-max_len={target.longest}"], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
