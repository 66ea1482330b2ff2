"""The words of a machine description, taken clause by clause, with their places for errors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError

_TOKEN = re.compile(r"[0-9][0-9-]*(?:,[0-9][0-9-]*)*(?=[\s,;/+#]|\Z)|[/+]|[^\s,;/+#]+")
"""A comma without a space behind it stays inside a list of numbers; elsewhere it ends a clause."""

_SIZE = re.compile(r"([0-9]{1,12})(Ki|Mi|Gi|Ti)\Z|(0)\Z")
_KB_BY_UNIT = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20, "Ti": 1 << 30}


@dataclass(frozen=True, slots=True)
class Token:
    """A word and where it stands (both from 1)."""

    text: str
    line: int
    column: int

    @property
    def word(self) -> str:
        """The word without what means nothing: case, a colon, a plural s."""
        text = self.text.lower().rstrip(":")
        is_plural = len(text) > 3 and text.endswith("s") and not text.endswith("ss")
        return text[:-1] if is_plural else text


class Clause:
    """The words of one clause, taken one by one."""

    def __init__(self, tokens: list[Token], source: str) -> None:
        self.tokens = tokens
        self.source = source
        self.position = 0

    def peek(self) -> str:
        """The next word, empty at the end."""
        return self.tokens[self.position].word if self.position < len(self.tokens) else ""

    @property
    def text(self) -> str:
        """The next word as it is written, empty at the end."""
        return self.tokens[self.position].text.rstrip(":") if self.position < len(self.tokens) else ""

    def take(self, *words: str) -> str:
        """Take the next word if it is one of these; empty otherwise."""
        word = self.peek()
        if word and word in words:
            self.position += 1
            return word
        return ""

    def expect(self, *words: str, what: str = "") -> str:
        """Take the next word, which must be one of these; `what` says so shorter."""
        return self.take(*words) or self.fail(what or " or ".join(words))

    def number(self, least: int = 0, what: str = "a number") -> int:
        """Take a number."""
        text = self.text
        if not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) < least:
            self.fail(what if least == 0 else f"{what} from {least}")
        self.position += 1
        return int(text)

    def ids(self, what: str) -> int:
        """Take a list such as `0-3,8`; returns a mask."""
        text = self.text
        try:
            mask = bits.parse_list(text)
        except ValueError:
            mask = 0
        if not mask:
            self.fail(what)
        self.position += 1
        return mask

    def literal(self, pattern: re.Pattern[str], what: str) -> str:
        """Take a word as it is written, if it has this form."""
        text = self.text
        if not pattern.match(text):
            self.fail(what)
        self.position += 1
        return text

    def size_kb(self) -> int:
        """Take a size such as `64Gi`."""
        match = _SIZE.match(self.text)
        if match is None:
            self.fail("a size such as 64Gi or 0")
        self.position += 1
        return 0 if match[3] else int(match[1]) * _KB_BY_UNIT[match[2]]

    def sees_number(self) -> bool:
        """Whether the next word starts with a digit."""
        return self.peek()[:1].isdigit()

    def end(self) -> None:
        """Nothing may follow but `each`."""
        self.take("each")
        if self.peek():
            self.fail("the end of the clause (a comma and a space, or a new line)")

    @property
    def where(self) -> str:
        """FILE:LINE:COLUMN of the next word."""
        token = self.tokens[min(self.position, len(self.tokens) - 1)]
        return f"{self.source}:{token.line}:{token.column}"

    def fail(self, expected: str) -> NoReturn:
        """Refuse the next word.

        Raises:
            ConfigError: always.
        """
        at_end = self.position >= len(self.tokens)
        token = self.tokens[-1] if at_end else self.tokens[self.position]
        column = token.column + (len(token.text) if at_end else 0)
        found = "the end of the clause" if at_end else f"'{token.text}'"
        raise ConfigError(f"{self.source}:{token.line}:{column}", f"expected {expected}, found {found}")


def read_clauses(text: str, source: str) -> Iterator[Clause]:
    """The clauses of a text; a line that ends in `/` or `+` goes on in the next."""
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0]
        behind = 0
        for match in _TOKEN.finditer(code):
            if tokens and set(code[behind : match.start()]) & {",", ";"}:
                yield Clause(tokens, source)
                tokens = []
            tokens.append(Token(match[0], number, match.start() + 1))
            behind = match.end()
        goes_on = tokens and tokens[-1].text in {"/", "+"} and not code[behind:].strip()
        if tokens and not goes_on:
            yield Clause(tokens, source)
            tokens = []
    if tokens:
        yield Clause(tokens, source)
