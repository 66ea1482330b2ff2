"""Text as it may reach a terminal: nothing in it moves the cursor, changes colours or titles, or hides other text.

Names come from pods, from files and from other programs. Whatever writes text for people passes it through here last; JSON
needs none of it, because JSON escapes control characters by itself.
"""

import re
from typing import Final

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but tab and end of line: C0, DEL, C1
    "\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff"  # what changes the direction of text, or has no width
    "\u2028\u2029]"  # further ends of lines
)


def visible(text: str) -> str:
    """The text with each control character spelled as an escape sequence; tabs and ends of lines stay."""
    return _HIDDEN.sub(_escape, text)


def visible_line(text: str) -> str:
    """The same of what has to stay one line."""
    return visible(text).replace("\n", "\\n")


def _escape(found: re.Match[str]) -> str:
    """Of those that may stand as they are in JSON, the escape that JSON has for it: its text means the same then."""
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}"
