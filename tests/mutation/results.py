"""What is known of mutants from earlier runs, as long as it still holds."""

import ast
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from tests.mutation.judging import Outcome
from tests.mutation.mutants import Mutant

CACHE = Path(".cache/mutants.jsonl")


class Results:
    """Outcomes by mutant, kept in a file that is added to.

    A killed mutant stays killed until its file, the test which noticed it or what stands between the tests of that
    test's file changes; a survivor is tried again when any test changes. A change elsewhere in the package is not looked at: ask for a fresh run.

    Args:
        tests: the files in which a change may kill a survivor.
        fresh: forget everything.
        keep: believe in survivors although a test has changed since; more tests only kill more.
    """

    def __init__(self, tests: Iterable[str], *, fresh: bool = False, keep: bool = False) -> None:
        self._keep = keep
        self._all_tests = _digest(*(Path(name).read_bytes() for name in sorted(tests)))
        self._texts: dict[str, dict[str, str]] = {}
        self._known: dict[str, tuple[Outcome, str]] = {}
        if not fresh and CACHE.exists():
            for line in CACHE.read_text("utf-8").splitlines():
                key, how, by, tests_digest = json.loads(line)
                self._known[key] = Outcome(how, by), tests_digest

    def of(self, mutant: Mutant) -> Outcome | None:
        """The outcome that still holds; None when the mutant must be tried."""
        outcome, tests_digest = self._known.get(_key(mutant), (None, ""))
        if outcome and self._keep and not outcome.killed:
            return outcome
        return outcome if outcome and tests_digest == self._tests_digest(outcome) else None

    def note(self, mutant: Mutant, outcome: Outcome) -> None:
        """Keep an outcome."""
        tests_digest = self._tests_digest(outcome)
        self._known[_key(mutant)] = outcome, tests_digest
        CACHE.parent.mkdir(exist_ok=True)
        with CACHE.open("a", encoding="utf-8") as file:
            file.write(json.dumps([_key(mutant), outcome.how, outcome.by, tests_digest]) + "\n")

    def _tests_digest(self, outcome: Outcome) -> str:
        name, _, test = outcome.by.removeprefix("loading ").partition("::")
        if not outcome.killed or not Path(name).is_file():
            return self._all_tests
        return _digest(self._between(name), self._tests(name).get(test.split("[", 1)[0], "").encode())

    def _tests(self, name: str) -> dict[str, str]:
        """The text of each test of a file, the decorators included; what stands between them under no name."""
        if name not in self._texts:
            text = Path(name).read_text("utf-8")
            lines = text.splitlines()
            tests: dict[str, str] = {}
            for node in reversed(ast.parse(text).body):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    first = min([node.lineno, *(of.lineno for of in node.decorator_list)]) - 1
                    tests[node.name] = "\n".join(lines[first : node.end_lineno])
                    del lines[first : node.end_lineno]
            self._texts[name] = tests | {"": "\n".join(line for line in lines if line.strip())}
        return self._texts[name]

    def _between(self, name: str) -> bytes:
        return self._tests(name)[""].encode()


def _key(mutant: Mutant) -> str:
    edit = mutant.edit
    return _digest(mutant.source.encode(), f"{mutant.path} {edit.start} {edit.end} {edit.text}".encode())


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()
