"""XML of other tools, read with defusedxml: entity bombs and external entities are refused."""

import re
from typing import TYPE_CHECKING

from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_NAME = re.compile(r"<([A-Za-z_][\w.-]{0,60})")
# What may stand before the first element, and how it ends.
_BEFORE = (("<?", "?>"), ("<!--", "-->"), ("<!", ">"))


def opening(text: str) -> str | None:
    """Give the name of the first element, or None where the text does not begin as XML does."""
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        end = next((end for start, end in _BEFORE if text.startswith(start, at)), None)
        if end is None:
            match = _NAME.match(text, at)
            return match[1] if match else None
        if end == ">" and "[" in text[at : at + 400].partition(">")[0]:
            end = "]>"  # declarations inside the DOCTYPE: the parser refuses those that are dangerous
        closed = text.find(end, at)
        if closed < 0:
            return None
        at = closed + len(end)


def root_of(text: str, *, origin: str, hint: str) -> "Element":
    """Read a whole XML document. Raises InputError where it is cut, wrong or declares entities."""
    from defusedxml import DefusedXmlException, ElementTree

    try:
        root: Element = ElementTree.fromstring(text.strip())
    except DefusedXmlException as error:
        raise InputError(
            f"{origin} declares XML entities, which no such file needs", "give the file as the tool wrote it"
        ) from error
    except ElementTree.ParseError as error:
        raise InputError(f"{origin} is not complete XML: {error}", hint) from error
    except (ValueError, LookupError) as error:
        raise InputError(f"{origin} is XML that cannot be read: {error}", hint) from error
    return root
