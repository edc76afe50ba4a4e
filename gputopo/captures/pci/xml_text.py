"""XML of NCCL and hwloc, read with defusedxml: entity bombs and external entities are refused."""

import re
from typing import TYPE_CHECKING

from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_NAME = re.compile(r"<([A-Za-z_][\w.-]{0,60})")
# What may stand before the first element, and how it ends.
_BEFORE = (("<?", "?>"), ("<!--", "-->"), ("<!", ">"))
_MASK = re.compile(r"(?:(?:0x)?[0-9a-f]{0,16})(?:,(?:0x)?[0-9a-f]{0,16})*", re.IGNORECASE)
_MAX_CPUS = 8192  # Linux: CONFIG_NR_CPUS_RANGE_END


def opening(text: str) -> str | None:
    """Return the name of the first element, or None where the text does not begin as XML does."""
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


def cpus_of_mask(text: str) -> frozenset[int] | None:
    """Return the CPUs of a mask, or None where the text is none.

    NCCL and the kernel write `00000000,00ffffff`, hwloc `0x00000303,,0x0000ffff`.
    Words of 32 bits, the highest first, parted by commas; an empty word is 0. hwloc's `0xf...f` (all CPUs
    without end) is None: it names none.
    """
    if not text or _MASK.fullmatch(text) is None:
        return None
    words = [word.lower().removeprefix("0x") for word in text.split(",")]
    if len(words) * 32 > _MAX_CPUS or any(len(word) > 8 for word in words[1:]) or not any(words):
        return None
    mask = 0
    for word in words:
        mask = mask << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
