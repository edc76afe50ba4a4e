"""A reader of Prometheus' text exposition format 0.0.4, written from its specification and nothing of ours.

prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import re
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HEAD = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.*)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float

    @property
    def identity(self) -> tuple[str, frozenset[tuple[str, str]]]:
        return self.name, frozenset(self.labels.items())


class Family(NamedTuple):
    kind: str
    help: str
    samples: list[Sample]


def read(text: str) -> dict[str, Family]:
    """Return the metrics by name. Raises AssertionError where the text is not of the format."""
    assert text == "" or text.endswith("\n")
    families: dict[str, Family] = {}
    helps: dict[str, str] = {}
    current = ""
    for row in text.split("\n")[:-1]:
        head = _HEAD.fullmatch(row)
        if head is not None and head[1] == "HELP":
            assert head[2] not in helps, f"two HELP lines: {row}"
            helps[head[2]] = head[3]
        elif head is not None:
            assert head[2] not in families, f"two TYPE lines: {row}"
            assert head[3] in ("counter", "gauge", "histogram", "summary", "untyped"), row
            current = head[2]
            families[current] = Family(head[3], helps[current], [])
        else:
            sample = _sample(row)
            assert sample.name == current, f"{row} does not stand under its own TYPE line"
            families[current].samples.append(sample)
    assert all(family.samples for family in families.values())
    return families


def _sample(row: str) -> Sample:
    found = _SAMPLE.fullmatch(row)
    assert found is not None, row
    labels: dict[str, str] = {}
    rest = found[2] or ""
    while rest:
        label = _LABEL.match(rest)
        assert label is not None, row
        assert label[1] not in labels, row
        labels[label[1]] = re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], label[2])
        rest = rest[label.end() :]
    return Sample(found[1], labels, float(found[3]))
