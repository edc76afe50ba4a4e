"""Streams of any length in bounded memory: evenly spread items, blocks of rows, and samples for a file."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from gputopo.values.run.events import Sample

T = TypeVar("T")

GOLDEN = (math.sqrt(5) - 1) / 2


class Thinned(Generic[T]):
    """All items of a stream up to `capacity`, then about a half, a quarter, an eighth; always the first.

    `seen`: the number of items so far. The fractional parts of multiples of the golden ratio select the
    stored ones: these are evenly spread, and items that repeat with any period are stored in proportion.
    """

    def __init__(self, capacity: int) -> None:
        self.seen = 0
        self._stored: list[tuple[float, T]] = []
        self._capacity = capacity
        self._below = 1.0  # bound on the fractional parts

    @property
    def items(self) -> list[T]:
        """The stored items, in order."""
        return [item for _, item in self._stored]

    def add(self, item: T) -> None:
        """Add the next item."""
        fraction = self.seen * GOLDEN % 1.0
        self.seen += 1
        while len(self._stored) >= self._capacity and fraction < self._below:
            self._below /= 2
            self._stored = [stored for stored in self._stored if stored[0] < self._below]
        if fraction < self._below:
            self._stored.append((fraction, item))


# Maximum number of rows. Not measured; chosen because it is enough to judge a run, in well under a second.
CAPACITY = 600
FOLD = 3  # rows that become one: a median of three ignores an outlier
# Maximum number of recent steps. Not measured; chosen because these resolve a difference of 5 % with 5 %
# noise.
RECENT_STEPS = 300

_Row = Sequence[float]


class Blocks:
    """Rows of a table, each over `size` steps. Steps that do not fill a row yet are not read.

    `first_steps`: the number of the first step of each row.
    """

    def __init__(self) -> None:
        self.size = 1
        self._medians: list[_Row] = []
        self._means: list[_Row] = []
        self.first_steps: list[int] = []
        self._of_medians: list[list[float]] = []  # by column; empty: must be computed again
        self._of_means: list[list[float]] = []
        self._open: list[_Row] = []
        self._open_first = 0
        self.recent: deque[tuple[int, _Row]] = deque(maxlen=RECENT_STEPS)  # by step

    def latest(self) -> "Blocks":
        """Return a table of the recent steps, with one row per step."""
        table = Blocks()
        table.first_steps = [step for step, _ in self.recent]
        table._medians = table._means = [row for _, row in self.recent]
        return table

    def medians(self, column: int) -> list[float]:
        """Return the medians of a column, by row; NaN if a row has no value."""
        self._of_medians = self._of_medians or [*map(list, zip(*self._medians, strict=True))]
        return self._of_medians[column] if self._of_medians else []

    def middle(self, column: int) -> float:
        """Return the median of a column over its rows; NaN without any value."""
        return known_middle(self.medians(column), median)

    def means(self, column: int) -> list[float]:
        """Return the means of a column, by row; NaN if a row has no value."""
        self._of_means = self._of_means or [*map(list, zip(*self._means, strict=True))]
        return self._of_means[column] if self._of_means else []

    def add(self, step: int, row: Sequence[float]) -> None:
        """Add the row of a step. NaN: no value."""
        self.recent.append((step, row))
        if not self._open:
            self._open_first = step
        self._open.append(row)
        if len(self._open) < self.size:
            return
        self._of_medians, self._of_means = [], []
        self.first_steps.append(self._open_first)
        self._medians.append(_joined(self._open, median))
        self._means.append(_joined(self._open, fmean))
        self._open = []
        if len(self.first_steps) >= CAPACITY:
            self._fold()

    def _fold(self) -> None:
        starts = range(0, len(self.first_steps), FOLD)
        self.first_steps = [self.first_steps[start] for start in starts]
        self._medians = [_joined(self._medians[s : s + FOLD], median) for s in starts]
        self._means = [_joined(self._means[s : s + FOLD], fmean) for s in starts]
        self.size *= FOLD


def _joined(rows: Sequence[_Row], middle: Callable[[Sequence[float]], float]) -> _Row:
    """Return one row for several, from their known values."""
    if len(rows) == 1:  # up to CAPACITY steps, each row is one step
        return rows[0]
    return [known_middle(column, middle) for column in zip(*rows, strict=True)]


def known_middle(values: Sequence[float], middle: Callable[[Sequence[float]], float]) -> float:
    """Return the mean or median (`middle`) of the values that are not NaN; NaN if there are none."""
    if math.isnan(sum(values)):
        values = [value for value in values if not math.isnan(value)]
    return middle(values) if values else math.nan


# Samples of a run that are all written. Not measured; chosen because it is the first hour at two samples a
# second.
ALL_SAMPLES = 7200
# Samples that are written or skipped together. Not measured; chosen because the slowest reading
# (probes/sampling) is in such a block once.
BLOCK_SAMPLES = 40


class WrittenSamples:
    """Selects the samples of a run that go to its file; each doubling of the run adds the same number.

    After the first `ALL_SAMPLES` it is every second block of samples, then every fourth, and so on. A sample
    with an Xid error or after a gap is always included.
    """

    def __init__(self) -> None:
        self._seen = 0

    def has(self, sample: "Sample") -> bool:
        """Return whether the next sample is written."""
        every = 1 << (self._seen // ALL_SAMPLES).bit_length()
        block, self._seen = self._seen // BLOCK_SAMPLES, self._seen + 1
        return bool(sample.xids) or sample.gap_s is not None or block % every == 0
