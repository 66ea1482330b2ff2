"""HTML that cannot be broken out of: whatever is not `Markup` is text, and is escaped.

Only `element` and `joined` make `Markup`. Names of elements and attributes are ours; every value may be anybody's.
"""

import json
import re
from collections.abc import Iterable

Value = str | int | float | bool | None

VOID = frozenset({"meta", "input", "wbr"})
"""HTML elements without an end tag. Shapes of SVG are none of them."""
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, halves of surrogate pairs, and marks that turn the reading direction of what follows."""
_REPLACEMENT = "\ufffd"
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


NOTHING = Markup()


def showable(text: object) -> str:
    """Text with a replacement character for each one that cannot be shown, or that would turn what follows."""
    return _UNSHOWABLE.sub(_REPLACEMENT, str(text))


def escape(text: object) -> Markup:
    """Text as HTML shows it; what cannot be shown is a replacement character."""
    if isinstance(text, Markup):
        return text
    return Markup(showable(text).translate(_ENTITIES))


def joined(parts: Iterable[object], separator: str = "") -> Markup:
    """Several pieces in a row; those that are no markup are escaped."""
    return Markup(separator.join(map(escape, parts)))


def element(tag: str, *children: object, **attributes: Value) -> Markup:
    """One element.

    Args:
        tag: its name.
        children: what it holds; text is escaped.
        attributes: by name, `class_` for `class` and `data_key` for `data-key`. True is an attribute without a
            value; False, None and an empty class leave it out.
    """
    words = [tag, *(_attribute(name, value) for name, value in attributes.items() if _is_said(name, value))]
    opening = "<" + " ".join(words) + ">"
    return Markup(opening if tag in VOID else opening + joined(children) + f"</{tag}>")


def raw_element(tag: str, content: str, **attributes: Value) -> Markup:
    """A `script` or `style` whose content is our own file, or JSON made by `script_json`."""
    if f"</{tag}" in content.lower() or "<!--" in content:
        raise ValueError(f"the content of <{tag}> would end it early")
    return Markup(element(tag, Markup(content), **attributes))


def script_json(value: object) -> str:
    """JSON that may stand in a script element: nothing in it is read as markup."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _is_said(name: str, value: Value) -> bool:
    return value is not None and value is not False and not (name == "class_" and value == "")


def _attribute(name: str, value: Value) -> str:
    name = name.rstrip("_").replace("_", "-")
    return name if value is True else f'{name}="{escape(value)}"'
