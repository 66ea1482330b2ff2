"""The size of the product: code lines and modules of each room, and the budgets that a change may not exceed.

A code line is a line that is not blank, a comment or part of a docstring. A room that needs more has to give up something
else; the numbers below go down, not up.

    hack/budget          the table; exit code 1 where a room is above its budget
    hack/budget --more   figures about how the code reads, too
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "nri_plugin"

BUDGETS = {
    "model": 1_700,
    "policy": 3_000,
    "core": 3_700,
    "explain": 700,
    "wire": 1_700,
    "config": 1_150,
    "host": 2_900,
    "checkpoint": 1_450,
    "recording": 550,
    "agent": 5_400,
    "kube": 850,
    "exporter": 1_500,
    "extender": 2_000,
    "process": 650,
    "simulator": 4_300,
    "cli": 10_000,
}
"""Code lines at most, by room."""

ALL, SERVING, MODULES = "code lines", "serving lines", "modules"
SUMS = {ALL: 40_000, SERVING: 22_500, MODULES: 215}
"""At most in all; serving code is what the three daemons import."""

ABOVE = {
    "model": 1_720,
    "core": 4_180,
    "explain": 720,
    "host": 3_230,
    "checkpoint": 1_660,
    "recording": 760,
    "agent": 6_800,
    "kube": 990,
    "exporter": 1_760,
    "process": 920,
    "simulator": 4_450,
    "cli": 14_310,
    ALL: 48_900,
    SERVING: 28_400,
    MODULES: 273,
}
"""What is above its budget still and on its way down: it may not exceed this. A row goes when the budget is met."""

DAEMONS = (
    f"{PACKAGE}.agent.agent",
    f"{PACKAGE}.agent.serving.supervisor",
    f"{PACKAGE}.exporter.process",
    f"{PACKAGE}.extender.process",
)

COMMENTED = ("core", "policy", "wire", "agent")
"""Rooms whose share of comments is shown."""

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
STATEMENTS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    path: Path
    name: str
    """Dotted, without a trailing `__init__`."""

    @cached_property
    def source(self) -> str:
        return self.path.read_text("utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def room(self) -> str:
        return (self.name.split(".") + [""])[1]

    @cached_property
    def tokens(self) -> tuple[tokenize.TokenInfo, ...]:
        return tuple(tokenize.generate_tokens(io.StringIO(self.source).readline))

    @cached_property
    def code_lines(self) -> int:
        lines = {
            at for one in self.tokens if one.type not in NO_CODE for at in range(one.start[0], one.end[0] + 1)
        }
        return len(lines - self._text_lines())

    @cached_property
    def comment_lines(self) -> int:
        return sum(one.type == tokenize.COMMENT for one in self.tokens)

    def _text_lines(self) -> set[int]:
        """Lines of strings that are statements: docstrings, and texts below a constant."""
        return {
            at
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            for at in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }

    def imports(self, names: set[str]) -> set[str]:
        """Return the modules of the package that this one loads when it is imported or when its functions run."""
        found = set()
        for node in _loaded(self.tree):
            if isinstance(node, ast.Import):
                found.update(one.name for one in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{one.name}" for one in node.names)
        return (found & names) - {self.name}


def _loaded(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _loaded(node)


def modules(root: Path = ROOT) -> list[Module]:
    found = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found.append(Module(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


def serving(all_modules: Sequence[Module]) -> set[str]:
    """Names of the modules that the daemons load."""
    by_name = {one.name: one for one in all_modules}
    names, waiting = set[str](), list(DAEMONS)
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        waiting.extend(by_name[name].imports(set(by_name)))
    return names


def table(all_modules: Sequence[Module]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether all budgets are kept."""
    served = serving(all_modules)
    kept = True
    lines = [f"{'room':<12} {'code':>7} {'budget':>7} {'modules':>8} {'serving':>8}"]
    for room, budget in BUDGETS.items():
        own = [one for one in all_modules if one.room == room]
        code = sum(one.code_lines for one in own)
        in_daemons = sum(one.code_lines for one in own if one.name in served)
        kept = kept and code <= max(budget, ABOVE.get(room, 0))
        over = f"  {code - budget:,} above" if code > budget else ""
        lines.append(f"{room:<12} {code:>7,} {budget:>7,} {len(own):>8} {in_daemons:>8,}{over}")
    sums = {
        ALL: sum(one.code_lines for one in all_modules),
        SERVING: sum(one.code_lines for one in all_modules if one.name in served),
        MODULES: len(all_modules),
    }
    for words, number in sums.items():
        most = SUMS[words]
        kept = kept and number <= max(most, ABOVE.get(words, 0))
        over = f"  {number - most:,} above" if number > most else ""
        lines.append(f"{words:<15} {number:>7,} of {most:,}{over}")
    return lines, kept


def reading(all_modules: Sequence[Module]) -> list[str]:
    """Return lines about how the code reads."""
    names = {one.name for one in all_modules}
    importers = Counter(name for one in all_modules for name in one.imports(names))
    used = Counter(
        getattr(node, "attr", None) or getattr(node, "id", None)
        for one in all_modules
        for node in ast.walk(one.tree)
        if isinstance(node, ast.Attribute | ast.Name)
    )
    functions = [
        node
        for one in all_modules
        for node in ast.walk(one.tree)
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__")
    ]
    once = [node for node in functions if node.name.startswith("_") and used[node.name] == 1]
    short = [node for node in once if (node.end_lineno or 0) - node.body[0].lineno < 5]
    classes = Counter(
        node.name for one in all_modules for node in ast.walk(one.tree) if isinstance(node, ast.ClassDef)
    )
    with_code = [one for one in all_modules if one.code_lines]
    lines = [
        f"functions {len(functions):,}; private and used once {len(once):,}, of these below six lines {len(short):,}",
        f"modules with one importer {sum(importers[one.name] == 1 for one in with_code)}",
        f"class names used twice {sum(number > 1 for number in classes.values())}",
    ]
    for room in COMMENTED:
        own = [one for one in all_modules if one.room == room]
        comments = sum(one.comment_lines for one in own)
        lines.append(
            f"comments in {room}: {100 * comments / (comments + sum(one.code_lines for one in own)):.1f} %"
        )
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    lines.append(f"lines of tests {sum(text.count(chr(10)) for text in texts):,}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    if set(arguments) - {"--more"}:
        print((__doc__ or "").split("\n\n")[-1].rstrip())  # noqa: T201
        return 2
    all_modules = modules()
    lines, kept = table(all_modules)
    if arguments:
        lines += reading(all_modules)
    print("\n".join(lines))  # noqa: T201
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
