"""A finding as a value, and the document that holds a machine with its findings."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from gputopo.values.machine import Machine

Severity = Literal["info", "warning", "error"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know about a machine.

    `subject`: `gpu:3`, `gpus:0-3,6`, `link:0-1`, `driver` or `machine`. `evidence` holds the values the
    finding rests on; `remedy` is what a person can do about it.
    """

    id: str
    severity: Severity
    subject: str
    says: str
    evidence: dict[str, Any] = {}
    remedy: str | None = None


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.inspect/1"):
    """A machine and what was found on it: the document that `gputopo inspect --json` prints."""

    machine: Machine
    findings: tuple[Finding, ...] = ()


Rule = Callable[[Machine], Iterable[Finding]]


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Give errors first, then warnings; within a severity the order stays."""
    return tuple(sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity)))


def reaches(findings: Iterable[Finding], severity: Severity) -> bool:
    """Tell whether any finding is at or above a severity: what `--fail-on` asks."""
    return any(SEVERITIES.index(found.severity) >= SEVERITIES.index(severity) for found in findings)
