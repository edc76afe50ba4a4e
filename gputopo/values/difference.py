"""What differs between two readings of a machine, or two sessions of measuring it."""

from typing import Any

import msgspec

from gputopo.values.facts import GROUPS, FactPath
from gputopo.values.fields import field_at, path_in_words
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Host, Link, Nic, PciNode

# What stands for the place in the list, and what other facts or sentences report already.
NOT_COMPARED: dict[type[msgspec.Struct], frozenset[str]] = {
    Gpu: frozenset({"index", "uuid", "lost"}),
    Link: frozenset({"a", "b", "p2p_reason"}),
    Nic: frozenset({"index", "hops"}),
    Host: frozenset({"name", "fingerprint"}),
    PciNode: frozenset({"address", "kind"}),
}


class Change(msgspec.Struct, frozen=True, kw_only=True, rename={"is_": "is"}):
    """One fact that is not what it was. `fact` is its path in the new machine; None: it was not there."""

    fact: str
    was: Any
    is_: Any
    says: str

    @property
    def gpu(self) -> int | None:
        """Index of the GPU whose fact changed; None of other devices, and where a GPU came, went or moved."""
        at = FactPath.parse(self.fact)
        of_gpu = at.group == "gpus" and at.fact != "" and at.fact not in NOT_COMPARED[Gpu]
        return at.indices[0] if of_gpu and at.indices else None

    @property
    def words(self) -> str:
        """The change of a fact without its device: `power limit 250 W -> 300 W`."""
        at = FactPath.parse(self.fact)
        kind = GROUPS[at.group]
        field, name = field_at(kind, at.fact), path_in_words(kind, at.fact)
        if field.counter:
            return f"{name} {self.was} -> {self.is_} (+{self.is_ - self.was})"
        return f"{name} {field.value_in_words(self.was)} -> {field.value_in_words(self.is_)}"


class FindingChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The findings that only the new reading has, those that only the old one has, and those of both.

    A finding about several GPUs came if it did so for any of them, or is worse than it was.
    """

    came: tuple[Finding, ...] = ()
    went: tuple[Finding, ...] = ()
    stayed: tuple[Finding, ...] = ()


class Difference(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.diff/1"):
    """All that changed. `compared`: facts that both have; `one_sided`: facts that only one of them has."""

    old_source: str
    new_source: str
    changes: tuple[Change, ...] = ()
    compared: int = 0
    one_sided: int = 0
    findings: FindingChanges = FindingChanges()


class Changed(msgspec.Struct, frozen=True, kw_only=True, rename={"is_": "is"}):
    """One number that is not what it was. Rates in GB/s; `microseconds` instead for a latency."""

    what: str
    was: float
    is_: float
    percent: float  # of what it was, negative for less
    noise_percent: float  # what would still have been noise
    better: bool
    microseconds: bool = False
    conditions: tuple[str, ...] = ()  # what differed of the cards in the two timed windows, in words


class BandwidthDifference(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth_diff/1"
):
    """All that changed between two sessions.

    `appeared` and `gone`: numbers that only one has, in words. `failing` and `working`: copies that fail only
    now, or only did before. `machine`: what else changed, None where a machine is not known. `missing_gpus`,
    by their indices then, and `new_gpus`, by those now: what only one of the two could measure. What was
    measured with them, `not_compared` numbers, is in none of the lists.
    """

    changes: tuple[Changed, ...] = ()
    compared: int = 0  # numbers that both have
    appeared: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    working: tuple[str, ...] = ()
    machine: Difference | None = None
    missing_gpus: tuple[int, ...] = ()
    new_gpus: tuple[int, ...] = ()
    not_compared: int = 0
