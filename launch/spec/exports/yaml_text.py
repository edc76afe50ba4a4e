"""YAML of plain values: maps, lists, texts, whole numbers, yes and no. Pure.

Texts are in double quotes but where every reader takes them for texts without.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gputopo.values.errors import UsageError

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*([./][A-Za-z0-9_-]+)*")
_OTHER_KINDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
# Not among YAML's printable characters (1.2.2, c-printable), or a line break to some readers.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class Noted(NamedTuple):
    """A value with a comment on its line; of a map or a list on its first line."""

    value: Any
    comment: str


def yaml_text(value: dict[str, Any]) -> str:
    """Return a map as a document. Raises UsageError for a text that is not UTF-8."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    """Yield the lines of a map or a list, which are not empty."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _entry(f"{_text(key)}:", one, "  ", inline=False)
    else:
        for one in value:
            yield from _entry("-", one, "  ", inline=True)


def _entry(head: str, value: Any, indent: str, *, inline: bool) -> Iterator[str]:
    """Yield an entry; of a list the value begins on the line of the dash."""
    comment = ""
    if isinstance(value, Noted):
        value, comment = value.value, f"  # {value.comment}"
    if not isinstance(value, dict | list):
        yield f"{head} {_scalar(value)}{comment}"
        return
    lines = _lines(value)
    yield f"{head} {next(lines)}{comment}" if inline else f"{head}{comment}"
    yield from (f"{indent}{line}" for line in lines)


def _scalar(value: str | bool | int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _text(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_KINDS:
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the command is not UTF-8, as YAML must be", "write it into a script") from error
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
