"""A reader of the YAML that is written here: maps and lists by indentation, texts plain or as in JSON."""

import json
import re
from typing import Any

_ENTRY = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^":\s]+):(?=\s|$)')


def read_yaml(text: str) -> Any:
    """Return the value of a document. Raises AssertionError for what is not understood."""
    lines = [line for line in map(_without_comment, text.split("\n")) if line.strip()]
    value, rest = _value(lines, 0)
    assert not rest, rest
    return value


def _without_comment(line: str) -> str:
    found = re.match(r'(?:[^"#]|"(?:[^"\\]|\\.)*")*', line)
    assert found is not None
    return found[0].rstrip(" ")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _value(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    if lines[0].lstrip().startswith("- "):
        return _list(lines, indent)
    return _map(lines, indent)


def _list(lines: list[str], indent: int) -> tuple[list[Any], list[str]]:
    found: list[Any] = []
    while lines and _indent(lines[0]) == indent and lines[0].lstrip().startswith("- "):
        first = lines[0].lstrip().removeprefix("- ")
        if _ENTRY.match(first):
            one, lines = _map([" " * (indent + 2) + first, *lines[1:]], indent + 2)
        else:
            one, lines = _scalar(first), lines[1:]
        found.append(one)
    return found, lines


def _map(lines: list[str], indent: int) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    while lines and _indent(lines[0]) == indent and not lines[0].lstrip().startswith("- "):
        entry = _ENTRY.match(lines[0].lstrip())
        assert entry is not None, lines[0]
        key, rest = _scalar(entry[0].removesuffix(":")), lines[0].lstrip()[entry.end() :].strip()
        assert key not in found
        if rest:
            found[key], lines = _scalar(rest), lines[1:]
        else:
            assert _indent(lines[1]) > indent, lines[1]
            found[key], lines = _value(lines[1:], _indent(lines[1]))
    return found, lines


def _scalar(text: str) -> Any:
    if text.startswith('"'):
        return json.loads(text)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text
