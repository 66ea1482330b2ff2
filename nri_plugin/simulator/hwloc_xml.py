"""The XML that lstopo writes, as a small tree, read so that a hostile file costs no more than its size.

The DOCTYPE line that hwloc writes is passed over and never fetched. A document that declares anything of
its own (entities that grow, attributes by default) is refused: hwloc's never does.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

MAX_ELEMENTS = 1_000_000
MAX_DEPTH = 200
"""hwloc nests some 20 deep on the largest machines."""


class NotTopologyError(ValueError):
    """Not what lstopo writes; says why, and where in the file."""


@dataclass(slots=True)
class Element:
    """One element; text is what stands directly in it."""

    tag: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)
    text: str = ""

    def named(self, tag: str) -> Iterator["Element"]:
        """Children of one name, in order."""
        return (child for child in self.children if child.tag == tag)


class _Builder:
    """Takes the parser's events; the document's element is the only child of `top`."""

    def __init__(self) -> None:
        self.top = Element("", {})
        self.open = [self.top]
        self.count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.open) > MAX_DEPTH:
            raise NotTopologyError(
                f"it has more than {MAX_ELEMENTS} elements, or they nest deeper than {MAX_DEPTH}"
            )
        element = Element(tag, attributes)
        self.open[-1].children.append(element)
        self.open.append(element)

    def end(self, _tag: str) -> None:
        self.open.pop()

    def characters(self, text: str) -> None:
        if self.open[-1].tag in {"indexes", "u64values"}:
            self.open[-1].text += text


def _doctype(_name: str, _system: str | None, _public: str | None, has_internal_subset: int) -> None:
    if has_internal_subset:
        raise NotTopologyError("it declares entities or elements of its own, which lstopo's files never do")


def read_topology_element(data: bytes) -> Element:
    """The document's element `topology`.

    Raises:
        NotTopologyError: no XML, XML of something else, or one that declares entities.
    """
    builder = _Builder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = _doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as err:
        raise NotTopologyError(f"line {err.lineno}: {expat.ErrorString(err.code)}") from err
    except NotTopologyError:
        raise
    except (LookupError, ValueError) as err:
        raise NotTopologyError(f"its first line names an encoding that cannot be read: {err}") from err
    root = builder.top.children[0]
    if root.tag != "topology":
        raise NotTopologyError(f"its outermost element is <{root.tag[:40]}>, not <topology>")
    return root
