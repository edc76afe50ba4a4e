"""The numbers and matrices that bandwidth tools print, and peer access between GPUs in NVML's terms."""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gputopo.captures.ledger import read_lines
from gputopo.values.bandwidth import Bandwidth, Failure, NotMeasured, Sample, Samples
from gputopo.values.facts import at_link
from gputopo.values.machine import Contradiction, Link, Machine

# Far above any link or memory of a GPU (HBM4 boards stay below 25 000 GB/s): a larger number is an error.
MAX_GB_PER_S = 100_000.0
MAX_US = 10_000_000.0  # ten seconds for one small copy
MAX_DEVICES = 1024

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_AT_END = re.compile(r"(?<!\S)\d{1,15}(?:\.(\d{0,12}))?\Z", re.ASCII)
_DECIMALS = re.compile(r"(?<!\S)\d{1,15}\.(\d{1,12})(?!\S)", re.ASCII)
_NEAR = 20_000  # characters searched for the previous number: a matrix of the largest server
_EMPTY = frozenset({"-", "--", "\N{EM DASH}", "\N{EN DASH}", "n/a", "na", "x"})


def plain(line: str) -> str:
    """Return a line without the marks of quotations around it."""
    return line.strip(" \t`|>#\u2502\u2503")


def without_cut_number(text: str) -> str:
    """Return a text whose last number is replaced by "?" if it was cut.

    These tools print all numbers with the same number of decimals. A number at the very end with fewer
    decimals than the previous number with decimals was cut. bandwidthTest's first number has one decimal.
    """
    last = _AT_END.search(text)
    if last is None:
        return text
    before = _DECIMALS.findall(text, max(0, last.start() - _NEAR), last.start())
    indent = len(before[-1]) if before else int("Transfer Size (Bytes)" in text)
    if len(last[1] or "") >= indent:
        return text
    return f"{text[: last.start()]}?"


def positive(word: str, limit: float = MAX_GB_PER_S) -> float | None:
    """Return a number above zero and up to `limit`; None for anything else, including nan and inf."""
    if _NUMBER.fullmatch(word) is None:
        return None
    value = float(word)
    return value if 0 < value <= limit else None


def is_empty(word: str) -> bool:
    """Return whether a cell says that there is no number."""
    return word.lower() in _EMPTY


def is_zero(word: str) -> bool:
    """Return whether a cell is zero, which some tools print if nothing was measured."""
    return _NUMBER.fullmatch(word) is not None and float(word) == 0


def devices(words: list[str]) -> tuple[int, ...] | None:
    """Return the device numbers of a header, in rising order; None if the words are anything else."""
    if not words or len(words) > MAX_DEVICES or not all(map(_is_index, words)):
        return None
    numbers = tuple(int(word) for word in words)
    return numbers if all(a < b for a, b in itertools.pairwise(numbers)) else None


def row(line: str) -> tuple[int, list[str]] | None:
    """Return the device and the cells of a row, or None if the line does not start with a device number."""
    words = line.replace("|", " ").split()
    if len(words) < 2 or not _is_index(words[0]):
        return None
    return int(words[0]), words[1:]


def _is_index(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 5


@dataclass(frozen=True, slots=True)
class ProgramRead:
    """One program's part of a text. `understood`: line numbers, from 1."""

    machine: Machine
    understood: frozenset[int]


@dataclass(slots=True)
class Results:
    """The results of a program so far. `skipped`: what it did not measure, with reasons."""

    source: str
    samples: list[Sample] = field(default_factory=list)
    failures: dict[Failure, None] = field(default_factory=dict)
    skipped: list[NotMeasured] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    complete: bool = True

    def skip(self, what: str, reason: str) -> None:
        """Add what was not measured."""
        self.skipped.append(NotMeasured(what=what, reason=reason))

    def bandwidth(self, *, driver: str | None = None, cuda: str | None = None) -> Bandwidth:
        """Return the results; `driver`, `cuda`: the versions that the program printed."""
        return Bandwidth(
            source=self.source,
            samples=Samples(self.samples),
            failures=tuple(self.failures),
            not_measured=tuple(self.skipped),
            complete=self.complete,
            driver_version=driver,
            cuda_version=cuda,
            notes=tuple(self.notes),
        )


def cuda_order_note(source: str, index_of: Mapping[int, int]) -> dict[str, None]:
    """Return a note if GPUs have other indices than CUDA's numbers."""
    note = f"{source} numbers GPUs as CUDA does; here they are in PCI order, as in NVML"
    return {note: None} if any(index != number for number, index in index_of.items()) else {}


class Program(NamedTuple):
    """A bandwidth program: whether a text has one of its lines, and its reader (text, *, origin)."""

    detect: Callable[[str], bool]
    read: Callable[..., ProgramRead]


def understood_of(text: str, take: Callable[[int, str], bool]) -> frozenset[int]:
    """Pass each non-blank line with its number to `take`; return the numbers of the lines that it took."""
    return read_lines(text, take, bare=plain, longest=2000).taken


REFUSED = "NOT_SUPPORTED"  # CUDA reports no reason
_NO_ACCESS = "CUDA: cannot access peer"
_FACTS = ("p2p_read", "p2p_write")

Statuses = Mapping[tuple[str, int, int], set[str]]  # by fact, the GPU that reads or writes, and the other GPU


def access_links(
    access: Mapping[tuple[int, int], set[bool]], source: str
) -> tuple[tuple[Link, ...], dict[str, str], tuple[Contradiction, ...]]:
    """Return the result of `peer_links` for CUDA's answers on whether one GPU can access another."""
    statuses = {
        (fact, *pair): {"OK" if can_access else REFUSED for can_access in can}
        for pair, can in access.items()
        for fact in _FACTS
    }
    return peer_links(statuses, source, _NO_ACCESS)


def peer_links(
    statuses: Statuses, source: str, reason: str | None = None
) -> tuple[tuple[Link, ...], dict[str, str], tuple[Contradiction, ...]]:
    """Return the pairs whose status is known, and what is missing or contradictory about them.

    A pair with contradictory reports has no status. `reason`: the reason for a refused pair.
    """
    links: list[Link] = []
    missing: dict[str, str] = {}
    contradictions: list[Contradiction] = []
    for a, b in sorted({(min(pair), max(pair)) for _, *pair in statuses}):
        known: dict[str, Any] = {}
        for fact in _FACTS:
            said = {
                gpu: statuses[key] for gpu, key in ((a, (fact, a, b)), (b, (fact, b, a))) if key in statuses
            }
            every = set().union(*said.values())
            if len(every) == 1:
                known[fact] = every.pop()
            elif every:
                words = {f"{source}, from GPU {gpu}": " and ".join(sorted(said[gpu])) for gpu in said}
                contradictions.append(Contradiction(fact=at_link(a, b, fact), said=words))
                missing[at_link(a, b, fact)] = "the two directions, or the list and the matrix, differ"
        refused = reason if known.get("p2p_read") == REFUSED else None
        links.append(Link(a=a, b=b, p2p_reason=refused, **known))
    return tuple(links), missing, tuple(contradictions)
