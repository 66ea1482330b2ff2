"""Which small changes are made to a piece of code: every one is a span of its text and what stands there instead.

Left alone: docstrings, annotations, decorators, `__slots__`, assert (it tells the type checker a fact), `strict=` of
zip (it asserts one), the order of what min, max, add and mul are applied to, the inside of f-strings (Python before
3.12 does not say where it is) and names bound once (without them nothing runs).
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
ARITHMETIC = {
    "+": "-",
    "-": "+",
    "*": "//",
    "/": "*",
    "//": "*",
    "%": "*",
    "**": "*",
    "&": "|",
    "|": "&",
    "^": "|",
    "<<": ">>",
    ">>": "<<",
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
ANY_ORDER = ("min", "max", "add", "mul")
OPERATOR = re.compile(r"not\s+in|is\s+not|and|or|in|is|\*\*|//|<<|>>|[<>=!]=|[-+*/%&|^<>]")
PLAIN = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters `start` to `end` of a text become `text`."""

    start: int
    end: int
    text: str


Edits: TypeAlias = Iterator[Edit]


class Source:
    """A text with its syntax tree, and where the nodes of the tree lie in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._encoded = [line.encode() for line in text.splitlines()]

    def _offset(self, line: int, column: int) -> int:
        return self._lines[line - 1] + len(self._encoded[line - 1][:column].decode())

    def start(self, node: ast.AST) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        return self.text[self.start(node) : self.end(node)]

    def closed(self, node: ast.AST) -> str:
        """The text of an expression, in parentheses where it would fall apart without."""
        return self.of(node) if isinstance(node, PLAIN) else f"({self.of(node)})"

    def instead(self, node: ast.AST, text: str) -> Edit:
        return Edit(self.start(node), self.end(node), text)

    def operator(self, left: ast.AST, right: ast.AST) -> tuple[int, str]:
        """Place and text of the operator between two operands."""
        start = self.end(left)
        found = OPERATOR.search(self.text, start, self.start(right))
        assert found is not None
        return found.start(), found.group()

    def line_of(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


def edits_of(node: ast.AST, source: Source, bound: Counter[str]) -> Edits:
    """All changes made at this node itself, not at those inside it.

    Args:
        node: where.
        source: the text it is in.
        bound: how often each name is bound in the function around.
    """
    change = CHANGES.get(type(node))
    if change is not None:
        yield from change(node, source)
    if isinstance(node, ast.Assign | ast.AnnAssign) and _can_do_without(node, bound):
        yield source.instead(node, "pass")


def _can_do_without(node: ast.Assign | ast.AnnAssign, bound: Counter[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if node.value else []
    names = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    stored = [name.id for name in names if isinstance(name.ctx, ast.Store)]
    return all(bound[name] > 1 for name in stored) and bool(targets)


def _compare(node: ast.Compare, source: Source) -> Edits:
    operands = [node.left, *node.comparators]
    for operation, (left, right) in zip(node.ops, pairwise(operands), strict=True):
        place, text = source.operator(left, right)
        for other in COMPARISONS[type(operation)]:
            yield Edit(place, place + len(text), other)


def _boolean(node: ast.BoolOp, source: Source) -> Edits:
    word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in pairwise(node.values):
        place, text = source.operator(left, right)
        yield Edit(place, place + len(text), other)
    for left_out in node.values:
        kept = [value for value in node.values if value is not left_out]
        yield source.instead(node, _joined(kept, word, source))


def _joined(values: list[ast.expr], word: str, source: Source) -> str:
    if len(values) == 1:
        return source.closed(values[0])
    return "(" + f" {word} ".join(source.closed(value) for value in values) + ")"


def _arithmetic(node: ast.BinOp, source: Source) -> Edits:
    place, text = source.operator(node.left, node.right)
    if text in ARITHMETIC:
        yield Edit(place, place + len(text), ARITHMETIC[text])


def _in_place(node: ast.AugAssign, source: Source) -> Edits:
    place, text = source.operator(node.target, node.value)
    yield Edit(place, place + len(text), ARITHMETIC[text])
    yield Edit(place, place + len(text) + 1, "=")
    yield source.instead(node, "pass")


def _unary(node: ast.UnaryOp, source: Source) -> Edits:
    yield source.instead(node, source.closed(node.operand))


def _constant(node: ast.Constant, source: Source) -> Edits:
    value = node.value
    if isinstance(value, bool):
        yield source.instead(node, str(not value))
    elif isinstance(value, int):
        yield source.instead(node, str(value + 1))
        yield source.instead(node, str(value - 1) if value else "(-1)")
    elif isinstance(value, str):
        yield from _text(node, source)


def _text(node: ast.Constant | ast.JoinedStr, source: Source) -> Edits:
    yield Edit(source.start(node), source.start(node), '"XX" ')


def _condition(node: ast.If | ast.While | ast.IfExp, source: Source) -> Edits:
    test = node.test
    told_elsewhere = isinstance(test, ast.Compare) and len(test.ops) == 1
    if not told_elsewhere and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
        yield source.instead(test, f"not {source.closed(test)}")


def _comprehension(node: ast.comprehension, source: Source) -> Edits:
    for test in node.ifs:
        yield source.instead(test, "True")


def _return(node: ast.Return, source: Source) -> Edits:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield source.instead(node.value, "None")
    yield source.instead(node, "pass")


def _left_out(node: ast.stmt, source: Source) -> Edits:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield source.instead(node, "pass")


def _break(node: ast.Break, source: Source) -> Edits:
    yield source.instead(node, "continue")
    yield source.instead(node, "pass")


def _continue(node: ast.Continue, source: Source) -> Edits:
    yield source.instead(node, "break")
    yield source.instead(node, "pass")


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _have_an_order(node: ast.Call, left: ast.expr) -> bool:
    """Whether it matters which argument comes first, `left` or the next."""
    by = node.func
    if _called(node) == "map" and left is not node.args[0]:
        by = node.args[0]
    return not isinstance(by, ast.Name) or by.id not in ANY_ORDER


def _is_assertion(node: ast.Call, keyword: ast.keyword) -> bool:
    return _called(node) == "zip" and keyword.arg == "strict"


def _call(node: ast.Call, source: Source) -> Edits:
    if _called(node) in FUNCTIONS:
        yield source.instead(node.func, FUNCTIONS[_called(node)])
    for left, right in pairwise(node.args):
        if (
            _have_an_order(node, left)
            and not isinstance(left, ast.Starred)
            and not isinstance(right, ast.Starred)
        ):
            between = source.text[source.end(left) : source.start(right)]
            if "(" not in between and ")" not in between and source.of(left) != source.of(right):
                yield Edit(
                    source.start(left), source.end(right), source.of(right) + between + source.of(left)
                )
    for keyword in node.keywords:
        if keyword.arg is not None and not _is_assertion(node, keyword):
            yield _without_keyword(keyword, source)


def _without_keyword(keyword: ast.keyword, source: Source) -> Edit:
    end = source.end(keyword)
    comma = re.compile(r"\s*\)*\s*,\s*").match(source.text, end)
    if comma and ")" not in comma.group():
        return Edit(source.start(keyword), comma.end(), "")
    before = re.compile(r",\s*\Z").search(source.text[: source.start(keyword)])
    return Edit(before.start() if before else source.start(keyword), end, "")


def _slice(node: ast.Slice, source: Source) -> Edits:
    for bound in (node.lower, node.upper):
        if bound is not None:
            yield source.instead(bound, "")


CHANGES: dict[type[ast.AST], Callable[..., Edits]] = {
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.BinOp: _arithmetic,
    ast.AugAssign: _in_place,
    ast.UnaryOp: _unary,
    ast.Constant: _constant,
    ast.JoinedStr: _text,
    ast.If: _condition,
    ast.While: _condition,
    ast.IfExp: _condition,
    ast.comprehension: _comprehension,
    ast.Return: _return,
    ast.Expr: _left_out,
    ast.Raise: _left_out,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Call: _call,
    ast.Slice: _slice,
}
