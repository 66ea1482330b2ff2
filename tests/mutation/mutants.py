"""The mutants of a file: where each differs from it, and what it is known by."""

import ast
import difflib
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tests.mutation.edits import Edit, Source, edits_of

LEFT_ALONE = ("annotation", "returns", "decorator_list", "type_params")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """A file with one change.

    Attributes:
        path: the file, from the root of the repository.
        source: its text.
        function: qualified name of the outermost function whose body differs; empty outside of functions.
        function_line: first line of that function, its decorators included.
        lines: a test that runs one of these lines may notice.
        edit: the change.
    """

    path: str
    source: str
    function: str
    function_line: int
    lines: frozenset[int]
    edit: Edit

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")

    @property
    def mutated(self) -> str:
        return self.source[: self.edit.start] + self.edit.text + self.source[self.edit.end :]

    @cached_property
    def known_by(self) -> tuple[str, str, str, str]:
        """File, function, the lines that go and the lines that come, in one line each."""
        old, new = self.source.splitlines(), self.mutated.splitlines()
        first = self.source.count("\n", 0, self.edit.start)
        behind = len(old) - 1 - self.source.count("\n", 0, self.edit.end)
        gone, come = old[first : len(old) - behind], new[first : len(new) - behind]
        return self.path, self.function, _in_one_line(gone), _in_one_line(come)

    @property
    def diff(self) -> str:
        """The change with a line around it."""
        lines = difflib.unified_diff(self.source.splitlines(), self.mutated.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])


def _in_one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def mutants_of(path: str) -> list[Mutant]:
    """The mutants of a file that compile, to other code than the file and each other, in its order."""
    text = Path(path).read_text("utf-8")
    source = Source(text)
    found: dict[object, Mutant | None] = {_compiled(text): None}
    for node, place in _nodes(source.tree, Place()):
        for edit in edits_of(node, source, place.bound):
            lines = place.lines | _lines(node)
            mutant = Mutant(path, text, place.function, place.function_line, lines, edit)
            found.setdefault(_compiled(mutant.mutated), mutant)
    return [mutant for compiled, mutant in found.items() if compiled and mutant]


def _compiled(text: str) -> object:
    """Equal for texts that run alike, whatever their lines; None for one that does not compile."""
    try:
        return _essence(compile(text, "", "exec", dont_inherit=True))
    except SyntaxError:
        return None


def _essence(code: types.CodeType) -> object:
    constants = [_essence(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return code.co_name, code.co_code, code.co_names, code.co_varnames, tuple(constants)


@dataclass(frozen=True)
class Place:
    """What is around a node: classes, the outermost function, what that binds, where the statement begins."""

    classes: str = ""
    function: str = ""
    function_line: int = 0
    bound: Counter[str] = field(default_factory=Counter)
    lines: frozenset[int] = frozenset()


def _nodes(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    """Every node that may be changed; what is inside of a string with places for values is not."""
    if isinstance(node, ast.JoinedStr):
        return
    for name, child in _children(node):
        if name not in LEFT_ALONE and not _is_left_alone(child):
            inner = _place_of(child, name, node, place)
            yield child, inner
            yield from _nodes(child, inner)


def _place_of(child: ast.AST, name: str, node: ast.AST, place: Place) -> Place:
    if isinstance(child, ast.stmt):
        place = replace(place, lines=frozenset([child.lineno]))
    if place.function:
        return place
    if isinstance(node, ast.ClassDef) and name == "body":
        place = replace(
            place, classes=_dotted(place.classes, node.name) if isinstance(child, FUNCTION) else place.classes
        )
    if isinstance(node, FUNCTION) and name == "body":
        return replace(
            place,
            function=_dotted(place.classes, node.name),
            function_line=_first_line(node),
            bound=_bound(node),
        )
    return place


def _dotted(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield name, child


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets
    )


def _bound(function: ast.AST) -> Counter[str]:
    """How often each name is bound in a function, its parameters included."""
    nodes = list(ast.walk(function))
    names = Counter(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    names.update(n.arg for n in nodes if isinstance(n, ast.arg))
    return names


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _lines(node: ast.AST) -> frozenset[int]:
    """The lines of an expression or of a statement without a block."""
    if hasattr(node, "body") and isinstance(node, ast.stmt):
        node = getattr(node, "test", node)
    parts = [part for part in ast.walk(node) if hasattr(part, "lineno")]
    if hasattr(node, "body") and isinstance(node, ast.stmt):
        return frozenset([node.lineno])
    return frozenset(line for part in parts for line in (part.lineno, part.end_lineno))
