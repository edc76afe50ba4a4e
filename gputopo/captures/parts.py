"""The captures in one text, such as a bug report: each with its own lines, the others blanked.

So line numbers stay those of the text. Talk between two captures stands with the one above it.
"""

import re
from collections.abc import Sequence
from typing import Protocol

# A whole document of a tool that writes XML, with what may stand before its first element.
_DOCUMENT = re.compile(
    r"^[ \t]*(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*"
    r"<(nvidia_smi_log|topology|system)\b.*?</\1>[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_AHEAD = 3  # lines that follow one that may begin a capture


class Starting(Protocol):
    """What a format offers that can stand below another one in one text."""

    def begins(self, lines: Sequence[str]) -> bool:
        """Tell whether the first of these lines, none of them blank, surely begins an output."""


def of(text: str, formats: Sequence[Starting]) -> list[str]:
    """Give a text for each document and each format that it holds; the text itself where that is one."""
    documents: list[str] = []
    rest = text
    for found in _DOCUMENT.finditer(text):
        documents.append("\n" * text.count("\n", 0, found.start()) + found[0])
        rest = rest[: found.start()] + _blank(found[0]) + rest[found.end() :]
    texts = [*documents, *_by_format(rest, formats)]
    if len(documents) == 1 and not _has_capture(rest, formats):
        return documents
    return texts if len(texts) > 1 else [text]


def _blank(text: str) -> str:
    """Give a text of the same length and lines with nothing in it."""
    return re.sub(r"[^\n]", " ", text)


def _has_capture(text: str, formats: Sequence[Starting]) -> bool:
    return any(one is not None for one in _owners(text.splitlines(), formats))


def _by_format(text: str, formats: Sequence[Starting]) -> list[str]:
    """Give the lines of each format, the format that was asked first first; what none begins is left out."""
    lines = text.splitlines()
    owners = _owners(lines, formats)
    return [
        "\n".join(line if owner is one else "" for line, owner in zip(lines, owners, strict=True))
        + ("\n" if text.endswith(("\n", "\r")) else "")
        for one in formats
        if one in owners
    ]


def _owners(lines: Sequence[str], formats: Sequence[Starting]) -> list[Starting | None]:
    """Tell for each line the format whose output it stands in, or below."""
    told = [number for number, line in enumerate(lines) if line.strip()]
    owners: list[Starting | None] = [None] * len(lines)
    owner: Starting | None = None
    for place, number in enumerate(told):
        ahead = [lines[one] for one in told[place : place + 1 + _AHEAD]]
        owner = next((one for one in formats if one.begins(ahead)), owner)
        owners[number] = owner
    return owners
