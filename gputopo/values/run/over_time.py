"""A run over time: curves, and what happened."""

from typing import NamedTuple

import msgspec

from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from gputopo.values.run.result import Result


class Curve(NamedTuple):
    """Values over time: `label` of the device, seconds since the start of the run, the values."""

    label: str
    seconds: tuple[float, ...]
    values: tuple[float, ...]


class Happening(NamedTuple):
    """An event at a time, in a few words. `is_fault`: an anomaly, a failure, a loss that is NaN."""

    seconds: float
    says: str
    is_fault: bool


class OverTime(NamedTuple):
    """A run over time. `paces`: images/sec of each device; `facts`: curves by fact ("core clock, MHz")."""

    paces: tuple[Curve, ...]
    facts: dict[str, tuple[Curve, ...]]
    happenings: tuple[Happening, ...]
    duration_s: float


class OneRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Fields that its folder does not have, or that cannot be read, are None."""

    name: str
    result: Result
    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()  # about the machine
    over_time: OverTime | None = None
