"""Pairs of GPUs: the range of each kind of copy, and as matrices (row: source, column: destination)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.copies.jobs import BISECTION, MATCHING, RING
from gputopo.copies.numbers import by_copy_engine, pair_of
from gputopo.copies.pair_speeds import CLEARLY_SLOWER, pair_speeds, single_paths
from gputopo.report.bandwidth.numbers import (
    ENGINE,
    INVALID_MARK,
    KERNELS,
    Numbers,
    cell,
    number,
    part,
    value_of,
)
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, QUIET, Column
from gputopo.values.bandwidth import Failure, Kind, Method, Path, Sample, gpu_of

# Shares of the fastest link of the map from which on a shade is used, and what a terminal paints it with.
# Ours: a link of the next lower generation or width has half.
SHADES = (
    (0.75, "█", "green"),
    (0.45, "▓", ""),
    (0.2, "▒", "yellow"),
    (0.0, "░", "red"),
)
STAGED_MARK = "s"
_HOST = "host"

LinkEnds = tuple[int | str, int | str]  # source, destination


def heat_part(numbers: Numbers) -> Section | None:
    """Return the map, a matrix like the others; None where fewer than two links have a number.

    Where no pair was measured in one direction alone, it is of the sums of both directions.
    """
    speeds, both = link_speeds(numbers)
    if len(speeds) < 2:
        return None
    fastest = max(speed for speed, _ in speeds.values())
    ends = ends_of(numbers, speeds)
    columns = tuple(_column(to, ends, speeds, fastest) for to in ends)
    shares = ", ".join(f"{shade} from {share:.0%}" for share, shade, _ in SHADES[:-1])
    notes = [f"Shade: share of the fastest link here; {shares}, {SHADES[-1][1]} below."]
    if any(staged for _, staged in speeds.values()):
        notes.append(
            f"{STAGED_MARK}: through the host, over {CLEARLY_SLOWER - 1:.0%} faster there than directly, or "
            "no direct copy was measured."
        )
    if _are_by_kernels(numbers):
        notes.append("Between GPUs copied by kernels: the copy engine was not measured.")
    return part(
        f"Heat map, GB/s ({'both directions at once, their sum' if both else 'row to column'})",
        head=Column("", tuple(map(end_name, ends))),
        groups=(columns,),
        notes=tuple(notes),
    )


def link_speeds(numbers: Numbers) -> tuple[dict[LinkEnds, tuple[float, bool]], bool]:
    """Return GB/s by (source, destination) and whether it goes through the host; whether they are sums."""
    speeds = _speeds(numbers)
    if not any(_HOST not in pair for pair in speeds) and (sums := _sums(numbers)):
        return sums, True
    return speeds, False


def ends_of(numbers: Numbers, speeds: Collection[LinkEnds]) -> list[int | str]:
    """Return the rows and columns of the map: the GPUs, and the host where a copy was to or from it."""
    return [*numbers.gpus, *([_HOST] if any(_HOST in pair for pair in speeds) else [])]


def end_name(end: int | str) -> str:
    """Return the name of a row or column: GPU3, host."""
    return f"GPU{end}" if isinstance(end, int) else end


def _are_by_kernels(numbers: Numbers) -> bool:
    samples = [
        one
        for one in numbers.bandwidth.samples
        if pair_of(one) is not None and one.group is None and one.median_gb_per_s and one.invalid is None
    ]
    return bool(samples) and not any(map(by_copy_engine, samples))


def _sums(numbers: Numbers) -> dict[LinkEnds, tuple[float, bool]]:
    """Return the sum of both directions at once of each pair, and whether it goes through the host."""
    found: dict[LinkEnds, tuple[float, bool]] = {}
    for (a, b), speed in pair_speeds(numbers.bandwidth).items():
        if speed.both is not None:
            found[a, b] = found[b, a] = (speed.both, speed.path == "staged")
    return found


def _speeds(numbers: Numbers) -> dict[LinkEnds, tuple[float, bool]]:
    """Return GB/s by (source, destination), and whether it goes through the host."""
    found: dict[LinkEnds, tuple[float, bool]] = {}
    speeds = {(a, b, path): speed for a, b, path, speed in single_paths(numbers.bandwidth.samples)}
    for a, b, _ in speeds:
        direct, staged = speeds.get((a, b, "direct")), speeds.get((a, b, "staged"))
        if staged is not None and (direct is None or staged > direct * CLEARLY_SLOWER):
            found[a, b] = (staged, True)
        elif direct is not None:  # within noise of one another the direct path is shown
            found[a, b] = (direct, False)
    kinds: tuple[Kind, ...] = ("h2d", "d2h")
    for gpu in numbers.gpus:
        for kind in kinds:
            sample = numbers.with_host(kind, gpu)
            if sample is not None and sample.median_gb_per_s and sample.invalid is None:
                found[(_HOST, gpu) if kind == "h2d" else (gpu, _HOST)] = (sample.median_gb_per_s, False)
    return found


def _column(
    to: int | str, ends: Sequence[int | str], speeds: Mapping[LinkEnds, tuple[float, bool]], fastest: float
) -> Column:
    cells, styles = [], []
    for source in ends:
        speed, staged = speeds.get((source, to), (None, False))
        if speed is None:
            cells.append("" if source == to else NOT_ASKED)
            styles.append(QUIET)
            continue
        shares = ((shade, style) for share, shade, style in SHADES if speed / fastest >= share)
        shade, style = next(shares, SHADES[-1][1:])
        cells.append(f"{shade * 2}{number(speed):>5}{STAGED_MARK if staged else ' '}")
        styles.append(style)
    return Column(end_name(to), tuple(cells), styles=tuple(styles))


ALL_GPUS = "gpus"  # the place of all the others together (gputopo.values.bandwidth)

_Pair = tuple[int, int]
_Found = tuple[Sample | None, Failure | None]


class _PairCopy(NamedTuple):
    """A kind of copy between two GPUs: its name in the list, the title of its matrix, its samples."""

    name: str
    title: str
    kind: Kind
    path: Path | None = None
    methods: tuple[Method | None, ...] = ENGINE
    expected: str | None = None  # the title of the matrix of what is expected, None for copies without

    def of(self, numbers: Numbers, a: int, b: int) -> _Found:
        """Return what was measured from GPU `a` to GPU `b`, and what failed."""
        return (
            numbers.between(self.kind, a, b, path=self.path, methods=self.methods),
            numbers.failure(self.kind, a, b, path=self.path, methods=self.methods),
        )


_READ: tuple[Method, ...] = ("kernel_read",)
_WRITE: tuple[Method, ...] = ("kernel_write",)
# Each method measures another latency: of a load over the link, of an engine's copy, of a tool's small copy.
_LATENCIES: tuple[tuple[str, str, tuple[Method | None, ...]], ...] = (
    ("pointer chase", "Latency (pointer chase)", KERNELS),
    ("engine latency", "Engine latency (16-byte copies)", ("copy_engine",)),
    ("latency", "Latency (small copies)", ("driver", None)),
)
_PATHS: tuple[tuple[Path, str, str], ...] = (("direct", "direct", "direct"), ("staged", "host", "staged"))
_DIRECT, _STAGED = "Direct copies", "Staged through the host"
_ROW = "(row to column)"
_COPIES = (
    _PairCopy("direct", f"{_DIRECT}, GB/s {_ROW}", "p2p_direct", expected=f"{_DIRECT}: expected, GB/s"),
    _PairCopy(
        "through the host", f"{_STAGED}, GB/s {_ROW}", "p2p_staged", expected=f"{_STAGED}: expected, GB/s"
    ),
    _PairCopy(
        "a kernel reads",
        "Direct, read by a kernel on the column's GPU, GB/s",
        "p2p_direct",
        methods=_READ,
    ),
    _PairCopy(
        "a kernel writes",
        "Direct, written by a kernel on the row's GPU, GB/s",
        "p2p_direct",
        methods=_WRITE,
    ),
    _PairCopy("bidirectional, direct", "Bidirectional, direct, GB/s (sum)", "bidirectional", "direct"),
    _PairCopy(
        "bidirectional, kernels",
        "Bidirectional, direct, by kernels, GB/s (sum)",
        "bidirectional",
        "direct",
        methods=KERNELS,
    ),
    _PairCopy("bidirectional, host", "Bidirectional, staged, GB/s (sum)", "bidirectional", "staged"),
    *(
        _PairCopy(f"{name} us, {where}", f"{title}, {way}, us {_ROW}", "latency", path, methods)
        for path, where, way in _PATHS
        for name, title, methods in _LATENCIES
    ),
)


def pair_parts(numbers: Numbers, *, matrices: bool) -> list[Section]:
    """Return a matrix for each kind of copy that was measured or tried, or one table of their ranges.

    The heat map shows the better path of each pair, so the matrices are made only where they are asked for.
    """
    if not matrices:
        ranges = _ranges(numbers)
        return [] if ranges is None else [ranges]
    parts: list[Section | None] = []
    for copy in _COPIES:
        found = _found(numbers, copy)
        shown = {pair: cell(*one) for pair, one in found.items() if _is_known(one)}
        parts.append(_matrix(numbers.gpus, copy.title, shown))
        if copy.expected is not None:
            limits = {pair: number(_expected_of(one)) for pair, one in found.items() if _expected_of(one)}
            parts.append(_matrix(numbers.gpus, copy.expected, limits))
    return [part for part in parts if part is not None]


def _matrix(gpus: Sequence[int], title: str, cells: dict[_Pair, str]) -> Section | None:
    """Return the matrix of these ordered pairs, None if there are none."""
    if not cells:
        return None
    columns = tuple(
        Column(f"GPU{b}", tuple("" if a == b else cells.get((a, b), NOT_ASKED) for a in gpus), side="right")
        for b in gpus
    )
    return part(title, head=Column("", tuple(f"GPU{gpu}" for gpu in gpus)), groups=(columns,))


class _Set(NamedTuple):
    """Copies between GPUs that ran at once: which, by what, their sum and that of the same copies alone."""

    what: str
    method: str
    gb_per_s: float
    alone_gb_per_s: float | None
    gpu: int | None = None


def concurrent_part(numbers: Numbers) -> Section | None:
    """Return a row for each kind of copies between GPUs at once: one to all, all to one, all pairs."""
    sets: dict[tuple[str, str], list[_Set]] = {}
    for one in _sets(numbers):
        sets.setdefault((one.what, one.method), []).append(one)
    if not sets:
        return None
    rows = []
    for found in sets.values():
        worst = min(found, key=lambda one: one.gb_per_s)
        sums = [one.gb_per_s for one in found]
        alone = [one.alone_gb_per_s for one in found if one.alone_gb_per_s is not None]
        rows.append(
            (
                number(worst.gb_per_s),
                NOT_ASKED if worst.gpu is None or len(found) < 2 else f"GPU {worst.gpu}",
                number(median(sums)),
                number(max(sums)),
                number(median(alone)) if alone else NOT_ASKED,
                str(len(found)),
            )
        )
    heads = ("slowest", "(GPU)", "median", "fastest", "sum of\neach alone", "measured")
    columns = (
        Column(head, cells, side="right")
        for head, cells in zip(heads, zip(*rows, strict=True), strict=True)
        if any(one != NOT_ASKED for one in cells)
    )
    return part(
        "Between GPUs at once, GB/s (sum of all copies)",
        head=Column("", tuple(f"{what}{f', {method}' if method else ''}" for what, method in sets)),
        groups=(tuple(columns),),
    )


def _sets(numbers: Numbers) -> Iterator[_Set]:
    """Yield the groups of copies between GPUs, a tool's single number for one GPU and all others included."""
    groups: dict[str, list[Sample]] = {}
    for one in numbers.bandwidth.samples:
        if one.kind in _BETWEEN and one.group is not None and one.median_gb_per_s and one.invalid is None:
            groups.setdefault(one.group, []).append(one)
    for members in groups.values():
        sources, destinations = {one.source for one in members}, {one.destination for one in members}
        ends = sources | destinations
        if len(ends) <= 2 and ALL_GPUS not in ends:
            continue  # one pair, its other direction beside it
        only = sources if len(sources) == 1 and ALL_GPUS not in sources else destinations
        gpu = gpu_of(next(iter(only))) if len(only) == 1 else None
        what = "all pairs"
        if gpu is not None:
            what = "one to all" if only is sources else "all to one"
        elif (name := (members[0].group or "").split(" ")[0]) in _SETS:
            what = _SETS[name]
        elif len(members) < len(numbers.gpus):
            what = f"{len(members)} copies"
        method = _METHODS.get(members[0].method, "")
        alone = [numbers.alone(one) for one in members]
        yield _Set(
            f"{what}, through the host" if members[0].kind == "p2p_staged" else what,
            method,
            sum(one.median_gb_per_s or 0.0 for one in members),
            None if None in alone else sum(one or 0.0 for one in alone),
            gpu,
        )


_BETWEEN: tuple[Kind, ...] = ("p2p_direct", "p2p_staged")
_SETS = {
    RING: "each to the next (ring)",
    BISECTION: "one half with the other",
    MATCHING: "each with one other",
}
_METHODS: dict[Method | None, str] = {"kernel_read": "kernels read", "kernel_write": "kernels write"}


def _ranges(numbers: Numbers) -> Section | None:
    """Return a row for each kind of copy: slowest pair, median, fastest, and how many pairs were measured."""
    found = [(copy, _found(numbers, copy)) for copy in _COPIES]
    rows = [(copy, pairs) for copy, pairs in found if any(map(_is_known, pairs.values()))]
    if not rows:
        return None
    names, cells = [copy.name for copy, _ in rows], [_range(copy, pairs) for copy, pairs in rows]
    heads = ("slowest", "(pair)", "median", "fastest", "expected", "pairs", "failed")
    shown = [
        Column(head, column, side="right")
        for head, column in zip(heads, zip(*cells, strict=True), strict=True)
        if any(one != NOT_ASKED for one in column)
    ]
    if all(_is_whole(pairs) for _, pairs in rows):
        shown = [column for column in shown if column.head != "pairs"]
    return part(
        "Between GPUs, GB/s (bidirectional: the sum of both)",
        head=Column("", tuple(names)),
        groups=(tuple(shown),),
        notes=("--matrices shows each pair of each kind of copy; --json has every number.",),
    )


def _range(copy: _PairCopy, pairs: dict[_Pair, _Found]) -> tuple[str, ...]:
    known = {pair: sample for pair, (sample, _) in pairs.items() if sample and value_of(sample) is not None}
    valid = {pair: sample for pair, sample in known.items() if sample.invalid is None}
    values = {pair: value_of(sample) or 0.0 for pair, sample in (valid or known).items()}
    mark = "" if valid or not known else INVALID_MARK
    failed = sum(failure is not None and pair not in values for pair, (_, failure) in pairs.items())
    low, high = min(values.values(), default=None), max(values.values(), default=None)
    slow, fast = (high, low) if copy.kind == "latency" else (low, high)
    a, b = next((pair for pair, value in values.items() if value == slow), (None, None))
    limits = [_expected_of(pairs[pair]) for pair in values] if copy.kind != "latency" else []
    numbers = [number(one) for one in (slow, median(values.values()) if values else None, fast)]
    slowest, middle, fastest = (f"{one}{mark}" for one in numbers)
    return (
        slowest,
        NOT_ASKED if a is None else f"{a} to {b}",
        middle,
        fastest,
        _span([limit for limit in limits if limit is not None]),
        f"{len(values)} of {len(pairs)}",
        str(failed) if failed else NOT_ASKED,
    )


def _span(values: Sequence[float]) -> str:
    """Return the smallest and the largest number, or the one that both are."""
    if not values:
        return NOT_ASKED
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _found(numbers: Numbers, copy: _PairCopy) -> dict[_Pair, _Found]:
    """Return what was found of each ordered pair."""
    return {(a, b): copy.of(numbers, a, b) for a in numbers.gpus for b in numbers.gpus if a != b}


def _is_known(found: _Found) -> bool:
    """Whether a pair was measured or tried."""
    sample, failure = found
    return value_of(sample) is not None or failure is not None


def _is_whole(pairs: dict[_Pair, _Found]) -> bool:
    """Whether every pair has a number that is used."""
    return all(sample and value_of(sample) is not None and not sample.invalid for sample, _ in pairs.values())


def _expected_of(found: _Found) -> float | None:
    sample, _ = found
    return None if sample is None else sample.expected_gb_per_s
