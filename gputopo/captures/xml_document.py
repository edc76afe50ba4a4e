"""XML that a tool wrote, read with defusedxml: entity bombs and external entities are refused."""

import re
from typing import TYPE_CHECKING, NamedTuple

from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_ELEMENT = re.compile(r"<([A-Za-z_][\w.-]{0,60})")
# What may be before the first element, and how it ends.
_BEFORE = (("<?", "?>"), ("<!--", "-->"), ("<!", ">"))


class XmlDocument(NamedTuple):
    """The root of a document, and the line of each element, from 1."""

    root: "Element"
    lines: dict["Element", int]


def opening(text: str) -> str | None:
    """Return the name of the first element, or None if the text does not start as XML."""
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        end = next((end for start, end in _BEFORE if text.startswith(start, at)), None)
        if end is None:
            match = _ELEMENT.match(text, at)
            return match[1] if match else None
        if end == ">" and "[" in text[at : at + 400].partition(">")[0]:
            end = "]>"  # declarations inside the DOCTYPE: the parser refuses dangerous ones
        closed = text.find(end, at)
        if closed < 0:
            return None
        at = closed + len(end)


def parse_xml(text: str, *, origin: str, hint: str) -> XmlDocument:
    """Parse a whole document. Raises InputError if it is cut, invalid or declares entities."""
    from xml.etree.ElementTree import TreeBuilder

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser, ParseError

    lines: dict[Element, int] = {}

    class Builder(TreeBuilder):
        def start(self, tag: str, attributes: dict[str, str]) -> "Element":
            element = super().start(tag, attributes)
            lines[element] = parser.parser.CurrentLineNumber
            return element

    parser = DefusedXMLParser(target=Builder())
    try:
        parser.feed(text)
        return XmlDocument(parser.close(), lines)
    except DefusedXmlException as error:
        raise InputError(
            f"{origin} declares XML entities, which no such file needs", "give the file as the tool wrote it"
        ) from error
    except ParseError as error:
        raise InputError(f"{origin} is not complete XML: {error}", hint) from error
    except (ValueError, LookupError) as error:
        raise InputError(f"{origin} is XML that cannot be read: {error}", hint) from error
