"""Findings about a machine, as every report shows them."""

from typing import Any, Literal

import msgspec

from gputopo.values.machine import Machine
from gputopo.values.subject import Subject

Severity = Literal["info", "warning", "error"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding about a machine."""

    id: str
    severity: Severity
    subject: Subject  # in JSON `gpu:3`, `gpus:0-3,6`, `link:0-1`, `nic:0`, `driver` or `machine`
    says: str  # the message
    evidence: dict[str, Any] = {}  # the values that the finding is based on
    remedy: str | None = None  # what to do about it

    @property
    def rank(self) -> int:
        """The severity as a number; worse is higher."""
        return SEVERITIES.index(self.severity)


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.inspect/1"):
    """A machine and its findings: the document that `gputopo inspect --json` prints."""

    machine: Machine
    findings: tuple[Finding, ...] = ()


class HostFinding(Finding, frozen=True, kw_only=True):
    """A finding about one or several hosts; its `subject` is on these hosts."""

    hosts: tuple[str, ...]


class FleetKind(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that were compared with one another, and the number of facts of each."""

    name: str
    hosts: tuple[str, ...]
    compared: int


class Fleet(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.fleet/1"):
    """Several hosts compared."""

    kinds: tuple[FleetKind, ...] = ()
    unread: tuple[str, ...] = ()
    outliers: tuple[str, ...] = ()  # hosts that differ from the majority of a kind with at least three hosts
    findings: tuple[HostFinding, ...] = ()  # differences, and the findings of single hosts
    shared: tuple[HostFinding, ...] = ()  # findings of most hosts of a kind, and load
    exit_codes: dict[str, int] = {}  # of `gputopo inspect` on each host with the same --fail-on; 3: not read
