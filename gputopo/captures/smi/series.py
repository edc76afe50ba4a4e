"""The rows of a log (`nvidia-smi --query-gpu=... -l 1`): which rows form a sample, and which must be stored.

For each GPU a row is stored if its combination of words (P-state, throttle reasons, link) and load is new, or
if it has the minimum or maximum of a number in that combination. A rule that would find something in any
sample finds it in these. Rules that need all samples (shares of time, changes, means) use a History.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Protocol

from gputopo.captures.smi import values
from gputopo.captures.smi.names import Named
from gputopo.reference import CLOCK_EVENT_BITS
from gputopo.values.fields import field_at
from gputopo.values.history import BUSY_PERCENT, GpuHistory, History
from gputopo.values.machine import Gpu
from gputopo.values.run.events import SAMPLED_FACTS, GpuSample
from gputopo.values.samples import seconds

Cells = Sequence[str]


class LogRow(Protocol):
    """A row of the log."""

    @property
    def cells(self) -> Cells:
        """The texts between commas."""


Rows = Sequence[tuple[int, LogRow]]  # the rows of one sample, each with its GPU's index

MAX_AT_ONCE = 16  # GPUs of a machine, if the rows do not identify them
# Time between samples. Not measured; chosen because the rows of one sample are written faster.
_MIN_INTERVAL_S = 0.05
_MANY = 0.95  # quantile of times between rows that is a pause between samples, with up to 16 rows a sample
_MAX_COMBINATIONS = 256  # for each GPU
_NUMBERS = ("W", "MHz", "C", "%", "MiB", "count")
_LOAD = "utilization_percent.gpu"
_REASON = "throttle.reasons."
_LOST = "GPU is lost"
# The facts that a History counts.
_COUNTED = ("graphics_mhz", "throttle_mask", "gpu_utilization_percent", "pcie_gen", "pcie_width")
_CORE_CLOCK = "clocks_mhz.sm.now"


class Clock(dict[str, float | None]):
    """Converts timestamps to seconds since the epoch; each minute is parsed once."""

    def __missing__(self, minute: str) -> float | None:
        self[minute] = start = seconds(values.parse_time(f"{minute}:00"))
        return start

    def read(self, time: str) -> float | None:
        """Return the seconds of a timestamp such as `2026/11/23 10:00:00.123`, or None for any other text."""
        minute, second = self[time[:16]], time[17:]
        if minute is None or not second.replace(".", "", 1).isdecimal():
            return None
        return minute + float(second)


def groups(times: Sequence[float | None], heads: Sequence[int]) -> list[range]:
    """Return the rows of each sample of a log without GPU names; a row's position is its GPU.

    Samples are divided by repeated column names (`heads`: rows above each), else by time. Without times, up
    to 16 rows are one sample; more rows are samples of one GPU. Samples with an unusual number of rows are
    skipped, because positions in them have no meaning.
    """
    count = len(times)
    known = [time for time in times if time is not None]
    if heads:
        samples = [range(*ends) for ends in pairwise([*sorted({0, *heads}), count])]
    elif len(known) == count > 1:
        samples = list(_between_pauses(known))
    elif count <= MAX_AT_ONCE:
        return [range(count)]
    else:
        return [range(row, row + 1) for row in range(count)]
    usual = Counter(map(len, samples)).most_common(1)[0][0]
    return [rows for rows in samples if len(rows) == usual]


def _between_pauses(times: Sequence[float]) -> Iterator[range]:
    waits = [later - earlier for earlier, later in pairwise(times)]
    pause = max(sorted(waits)[int(_MANY * (len(waits) - 1))] / 2, _MIN_INTERVAL_S)
    start = 0
    for row, wait in enumerate(waits, 1):
        if wait > pause or wait < 0:
            yield range(start, row)
            start = row
    yield range(start, len(times))


class LogSeries:
    """The columns of a log by their use."""

    def __init__(self, columns: Sequence[Named | None]) -> None:
        self.columns = columns
        facts = [None if named is None else named.fact for named in columns]
        self.place = {fact: at for at, fact in reversed([*enumerate(facts)]) if fact is not None}
        passing = [at for at, named in enumerate(columns) if named is not None and not is_fixed(named)]
        numeric = {at for at, named in enumerate(columns) if named is not None and named.kind in _NUMBERS}
        read = [_Cache(named) for named in columns]
        self.load = self.place.get(_LOAD)
        self.loads = None if self.load is None else read[self.load]
        self.numbers = [(read[at], at) for at in passing if at in numeric]
        self.words = [at for at in passing if at not in numeric]
        self.words_of: Callable[[Cells], object] = itemgetter(*self.words) if self.words else lambda _: ()
        place_of = {name: self.place.get(SAMPLED_FACTS[name].path) for name in _COUNTED}
        place_of["graphics_mhz"] = self.place.get(_CORE_CLOCK, place_of["graphics_mhz"])
        self.readers = [(name, read[at], at) for name, at in place_of.items() if at is not None]
        self.reasons = [
            (CLOCK_EVENT_BITS[fact.removeprefix(_REASON)], read[at], at)
            for fact, at in self.place.items()
            if fact.startswith(_REASON) and fact.removeprefix(_REASON) in CLOCK_EVENT_BITS
        ]

    def stored(self, samples: Sequence[Rows]) -> list[int]:
        """Return the places of the samples to store, in order. The last sample is always stored."""
        seen: dict[int, _Extremes] = {}
        for place, rows in enumerate(samples):
            for gpu, row in rows:
                if gpu not in seen:
                    seen[gpu] = _Extremes(self)
                seen[gpu].add(place, row.cells)
        return sorted({len(samples) - 1}.union(*(extremes.places() for extremes in seen.values())))

    def histories(self, samples: Sequence[Rows], times: Sequence[float | None]) -> tuple[GpuHistory, ...]:
        """Return the history that watching the machine would have counted."""
        history = History()
        for rows, time in zip(samples, times, strict=True):
            passed = history.passed_s(time or 0.0)
            for gpu, row in rows:
                cells = row.cells
                facts = {name: read[cells[at]] for name, read, at in self.readers}
                if self.reasons and facts.get("throttle_mask") is None:
                    facts["throttle_mask"] = sum(bit for bit, read, at in self.reasons if read[cells[at]])
                silent = _LOST in cells or f"[{_LOST}]" in cells
                history.gpu(gpu).add(GpuSample(gpu=gpu, **facts), passed, silent=silent)
        return tuple(history.gpus[gpu] for gpu in sorted(history.gpus))


class _Cache(dict[str, Any]):
    """Parsed values of a column, by text."""

    def __init__(self, named: Named | None) -> None:
        super().__init__()
        self.kind = "words" if named is None else named.kind

    def __missing__(self, text: str) -> Any:
        if self.kind not in _NUMBERS:
            self[text] = values.parse(self.kind, text).value
            return self[text]
        try:  # the number at the start of a cell, such as `98 %`
            number = float(text.partition(" ")[0])
            self[text] = number if number >= 0 or self.kind == "C" else None
        except ValueError:  # such as `[N/A]`
            self[text] = None
        return self[text]


class _Extremes:
    """The samples with a new combination of one GPU, or with the extremes of its numbers in a combination."""

    def __init__(self, series: LogSeries) -> None:
        self.series = series
        self.firsts: dict[tuple[object, ...], list[list[Any]]] = {}
        self.at: set[int] = set()
        self.known: set[tuple[int, str]] = set()  # column and word

    def add(self, place: int, cells: Cells) -> None:
        """Add a GPU's row in the sample at `place`."""
        series = self.series
        numbers = [read[cells[at]] for read, at in series.numbers]
        load = None if series.load is None or series.loads is None else series.loads[cells[series.load]]
        bucket = None if load is None else 0 if load == 0 else 1 if load < BUSY_PERCENT else 2
        unknown = tuple(number is None for number in numbers) if None in numbers else ()
        key = (bucket, unknown, series.words_of(cells))
        extremes = self.firsts.get(key)
        if extremes is None:
            new = [word for at in series.words if (word := (at, cells[at])) not in self.known]
            if new or len(self.firsts) < _MAX_COMBINATIONS:
                self.at.add(place)
                self.known.update(new)
            if len(self.firsts) < _MAX_COMBINATIONS:
                self.firsts[key] = [[number, place, number, place] for number in numbers]
            return
        for number, extreme in zip(numbers, extremes, strict=True):
            if number is not None:
                if number < extreme[0]:
                    extreme[0], extreme[1] = number, place
                elif number > extreme[2]:
                    extreme[2], extreme[3] = number, place

    def places(self) -> set[int]:
        """Return the places of all samples to store."""
        ends = (extreme for extremes in self.firsts.values() for extreme in extremes)
        return self.at.union(*({extreme[1], extreme[3]} for extreme in ends))


def is_fixed(named: Named) -> bool:
    """Return whether the hardware determines the fact of a column."""
    return field_at(Gpu, named.fact).stability == "fixed"
