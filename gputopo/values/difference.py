"""What differs between two readings of a machine, or between two bandwidth sessions."""

from typing import Any

import msgspec

from gputopo.values.facts import GROUPS, FactPath
from gputopo.values.fields import field_at, path_in_words
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Host, Link, Nic, PciNode

# Fields that identify the position in the list, or that other facts or sentences report already.
NOT_COMPARED: dict[type[msgspec.Struct], frozenset[str]] = {
    Gpu: frozenset({"index", "uuid", "lost"}),
    Link: frozenset({"a", "b", "p2p_reason"}),
    Nic: frozenset({"index", "hops"}),
    Host: frozenset({"name", "fingerprint"}),
    PciNode: frozenset({"address", "kind"}),
}


class Change(msgspec.Struct, frozen=True, kw_only=True, rename={"is_": "is"}):
    """One changed fact. `fact`: its path in the new machine; `was`, `is`: None if it is not there."""

    fact: str
    was: Any
    is_: Any
    says: str

    @property
    def gpu(self) -> int | None:
        """Index of the GPU whose fact changed; None for other devices, and if a GPU came, went or moved."""
        at = FactPath.parse(self.fact)
        of_gpu = at.group == "gpus" and at.fact != "" and at.fact not in NOT_COMPARED[Gpu]
        return at.indices[0] if of_gpu and at.indices else None

    @property
    def words(self) -> str:
        """The change in words, without the device: `power limit 250 W -> 300 W`."""
        at = FactPath.parse(self.fact)
        kind = GROUPS[at.group]
        field, name = field_at(kind, at.fact), path_in_words(kind, at.fact)
        if field.counter:
            return f"{name} {self.was} -> {self.is_} (+{self.is_ - self.was})"
        return f"{name} {field.value_in_words(self.was)} -> {field.value_in_words(self.is_)}"


class FindingChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Findings only in the new reading (`came`), only in the old one (`went`), and in both (`stayed`).

    A finding about several GPUs came if it is new for any of them, or is worse than before.
    """

    came: tuple[Finding, ...] = ()
    went: tuple[Finding, ...] = ()
    stayed: tuple[Finding, ...] = ()


class Difference(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.diff/1"):
    """All changes. `compared`: number of facts in both readings; `one_sided`: number of facts in only one."""

    old_source: str
    new_source: str
    changes: tuple[Change, ...] = ()
    compared: int = 0
    one_sided: int = 0
    findings: FindingChanges = FindingChanges()


class Changed(msgspec.Struct, frozen=True, kw_only=True, rename={"is_": "is"}):
    """One changed measurement. Rates in GB/s; a latency has `microseconds` instead."""

    what: str
    was: float
    is_: float
    percent: float  # of the old value, negative for less
    noise_percent: float  # a change up to this is noise
    better: bool
    microseconds: bool = False
    conditions: tuple[str, ...] = ()  # differences of the GPUs' conditions in the two timed windows, in words


class BandwidthDifference(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth_diff/1"
):
    """All changes between two sessions.

    `appeared` and `gone`: measurements in only one session, in words. `failing` and `working`: copies that
    fail only now, or failed only before. `machine`: other changes, None if one of the machines is not known.
    `missing_gpus` (old indices) and `new_gpus` (new indices): GPUs that only one session could measure. Their
    `not_compared` measurements are in none of the lists.
    """

    changes: tuple[Changed, ...] = ()
    compared: int = 0  # number of measurements in both sessions
    appeared: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    working: tuple[str, ...] = ()
    machine: Difference | None = None
    missing_gpus: tuple[int, ...] = ()
    new_gpus: tuple[int, ...] = ()
    not_compared: int = 0
