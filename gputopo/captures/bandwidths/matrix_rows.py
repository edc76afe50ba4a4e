"""Lines of the matrices that bandwidth tools print: a header of device numbers, then a row a device."""

import itertools
import re

# Far above any link or memory of one GPU (HBM4 boards stay below 25 000 GB/s): a larger number is no reading.
MOST_GB_PER_S = 100_000.0
MOST_US = 10_000_000.0  # ten seconds for one small copy
MOST_DEVICES = 1024

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_EMPTY = frozenset({"-", "--", "\N{EM DASH}", "\N{EN DASH}", "n/a", "na", "x"})
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(line: str) -> str:
    """Give a line without colours and the marks that quoting leaves around it."""
    return _COLOUR.sub("", line).strip().strip("`|>#").strip()


def positive(word: str, most: float = MOST_GB_PER_S) -> float | None:
    """Read a number above zero and at most `most`; None for anything else, so also for nan and inf."""
    if _NUMBER.fullmatch(word) is None:
        return None
    value = float(word)
    return value if 0 < value <= most else None


def is_empty(word: str) -> bool:
    """Tell whether a cell says that there is no number."""
    return word.lower() in _EMPTY


def is_zero(word: str) -> bool:
    """Tell whether a cell is a zero, which some tools print where nothing was measured."""
    return _NUMBER.fullmatch(word) is not None and float(word) == 0


def devices(words: list[str]) -> tuple[int, ...] | None:
    """Read the device numbers of a header, rising; None if the words are anything else."""
    if not words or len(words) > MOST_DEVICES or not all(map(_is_index, words)):
        return None
    numbers = tuple(int(word) for word in words)
    return numbers if all(a < b for a, b in itertools.pairwise(numbers)) else None


def row(line: str) -> tuple[int, list[str]] | None:
    """Read a row: its device and its cells. None if it does not begin with a device's number."""
    words = line.replace("|", " ").split()
    if len(words) < 2 or not _is_index(words[0]):
        return None
    return int(words[0]), words[1:]


def _is_index(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 5
