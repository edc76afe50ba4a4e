"""Pairs of GPUs: the range of each kind of copy, and matrices (row: source, column: destination)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from statistics import median
from typing import NamedTuple, get_args

from gputopo.report.bandwidth.numbers import (
    ENGINE,
    INVALID_MARK,
    READ,
    WRITTEN,
    Cells,
    Numbers,
    cell,
    grid,
    how,
    number,
)
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, QUIET, Column, plain
from gputopo.values.bandwidth import KERNELS, Copied, CopyRate, Failure, Kind, Method, Path
from gputopo.values.ends import ALL_GPUS
from gputopo.values.grouping import grouped
from gputopo.values.rates import CLEARLY_SLOWER, pair_speeds, single_paths

# Lower limits of the shades, as shares of the fastest link in the map, with the style on a terminal. Not
# measured; chosen because a link of the next lower generation or width has half of the rate.
SHADES = (
    (0.75, "█", "green"),
    (0.45, "▓", ""),
    (0.2, "▒", "yellow"),
    (0.0, "░", "red"),
)
STAGED_MARK = "s"
_HOST = "host"

LinkEnds = tuple[int | str, int | str]  # source, destination


def map_part(numbers: Numbers, *, inside: bool = False) -> Section | None:
    """Return the map, a matrix like the others, or None if no two GPUs have a number.

    If no pair was measured in only one direction, the map has the sums of both directions. `inside`: with the
    copies inside each GPU on the diagonal.
    """
    speeds, both = _link_speeds(numbers)
    if all(_HOST in pair for pair in speeds):
        return None
    fastest = max(speed for speed, _ in speeds.values())
    ends: list[int | str] = [*numbers.gpus, *([_HOST] if any(_HOST in pair for pair in speeds) else [])]
    shares = ", ".join(f"{shade} from {share:.0%}" for share, shade, _ in SHADES[:-1])
    notes = [f"Shading: share of the fastest link: {shares}, {SHADES[-1][1]} below."]
    if any(staged for _, staged in speeds.values()):
        notes.append(
            f"{STAGED_MARK}: through the host, {CLEARLY_SLOWER - 1:.0%} faster (or the only measured path)."
        )
    methods = {
        sample.method
        for sample in numbers.copies
        if sample.pair is not None
        and sample.group is None
        and sample.median_gb_per_s
        and sample.invalid is None
    }
    if methods and methods <= set(KERNELS):
        notes.append("Between GPUs copied by kernels: the copy engine was not measured.")
    paths: tuple[tuple[Kind, Path | None], ...] = (("p2p_direct", None), ("p2p_staged", None))
    if both:
        paths = (("bidirectional", "direct"), ("bidirectional", "staged"))
    if inside and any(numbers.inside(gpu) for gpu in numbers.gpus):
        notes.append("Diagonal: inside the GPU, read and written.")
    used = [
        numbers.between(kind, a, b, path=path)
        for a in numbers.gpus
        for b in numbers.gpus
        for kind, path in paths
    ]
    which = "both directions at once, their sum" if both else "row to column"
    return grid(
        f"Links, GB/s, {which}{how(used)}",
        "",
        list(map(_end_name, ends)),
        [[_column(to, ends, speeds, fastest, numbers if inside else None) for to in ends]],
        [" ".join(notes)],
    )


def _link_speeds(numbers: Numbers) -> tuple[dict[LinkEnds, tuple[float, bool]], bool]:
    """Return the speeds, and whether they are sums of both directions.

    By (source, destination): GB/s, and whether the copy goes through the host.
    """
    speeds: dict[LinkEnds, tuple[float, bool]] = {}
    rates = {way: sample.rate for way, sample in single_paths(numbers.copies).items()}
    for a, b, _ in rates:
        direct, staged = rates.get((a, b, "direct")), rates.get((a, b, "staged"))
        if staged is not None and (direct is None or staged > direct * CLEARLY_SLOWER):
            speeds[a, b] = (staged, True)
        elif direct is not None:  # if they are equal within noise, the direct path is shown
            speeds[a, b] = (direct, False)
    if not speeds:
        sums: dict[LinkEnds, tuple[float, bool]] = {
            pair: (speed.both, speed.path == "staged")
            for (a, b), speed in pair_speeds(numbers.bandwidth).items()
            if speed.both is not None
            for pair in ((a, b), (b, a))
        }
        if sums:
            return sums, True
    for gpu in numbers.gpus:
        for ends, sample in (
            ((_HOST, gpu), numbers.with_host("h2d", gpu)),
            ((gpu, _HOST), numbers.with_host("d2h", gpu)),
        ):
            if sample is not None and sample.median_gb_per_s and sample.invalid is None:
                speeds[ends] = (sample.median_gb_per_s, False)
    return speeds, False


def _end_name(end: int | str) -> str:
    """Return the name of a row or column: GPU3, host."""
    return f"GPU{end}" if isinstance(end, int) else end


def _column(
    to: int | str,
    ends: Sequence[int | str],
    speeds: Mapping[LinkEnds, tuple[float, bool]],
    fastest: float,
    numbers: Numbers | None,
) -> Column:
    cells, styles = [], []
    for source in ends:
        speed, staged = speeds.get((source, to), (None, False))
        if speed is None:
            inside = numbers.inside(to) if numbers and source == to and isinstance(to, int) else None
            cells.append(f"{cell(inside):>5}" if inside else "" if source == to else NOT_ASKED)
            styles.append(QUIET)
            continue
        shares = ((shade, style) for share, shade, style in SHADES if speed / fastest >= share)
        shade, style = next(shares, SHADES[-1][1:])
        cells.append(f"{shade}{number(speed):>4}{STAGED_MARK if staged else ' '}")
        styles.append(style)
    return Column(_end_name(to), tuple(cells), styles=tuple(styles))


_Pair = tuple[int, int]
_Found = tuple[Copied | None, Failure | None]
_PATHS: tuple[Path, ...] = get_args(Path)


class _PairCopy(NamedTuple):
    """A kind of copy between two GPUs: its name in the list, the title of its matrix, its samples."""

    name: str
    title: str
    kind: Kind
    path: Path | None = None
    methods: tuple[Method | None, ...] = ENGINE
    beside: bool = False  # while the other direction is in use

    def of(self, numbers: Numbers) -> dict[_Pair, _Found]:
        """Return what was measured and what failed, by ordered pair; without pairs never tried."""
        results: dict[_Pair, _Found] = {}
        for a, b in permutations(numbers.gpus, 2):
            sample: Copied | None
            if self.kind == "latency":
                sample = next(iter(numbers.latencies((a, b), self.methods, path=self.path)), None)
            else:
                sample = numbers.between(
                    self.kind, a, b, path=self.path, methods=self.methods, beside=self.beside
                )
            failure = (
                None
                if self.beside
                else numbers.failure(self.kind, a, b, path=self.path, methods=self.methods)
            )
            if sample is not None or failure is not None:
                results[a, b] = sample, failure
        return results


# Each method measures a different latency: a load over the link, a copy by an engine, a tool's small copy.
_LATENCIES: tuple[tuple[str, tuple[Method | None, ...]], ...] = (
    ("load", KERNELS),
    ("16 B copy", ("copy_engine",)),
    ("small copy", ("driver", None)),
)
_DIRECT: tuple[tuple[str, str, tuple[Method | None, ...]], ...] = (
    ("", "", WRITTEN),
    (", read", ", read by the copy engine of the column's GPU", READ),
    (", kernel reads", ", read by a kernel on the column's GPU", KERNELS[:1]),
    (", kernel writes", ", written by a kernel on the row's GPU", KERNELS[1:]),
)
_COPIES = (
    *(
        _PairCopy(f"direct{name}", f"Direct{way}", "p2p_direct", methods=methods)
        for name, way, methods in _DIRECT
    ),
    _PairCopy("staged", "Staged through the host", "p2p_staged"),
    *(
        _PairCopy(
            f"direct with reverse copy{name}",
            f"Direct{way}, one direction while the other is used",
            "p2p_direct",
            methods=methods,
            beside=True,
        )
        for name, way, methods in _DIRECT
    ),
    _PairCopy("both, direct", "Both directions at once (sum), direct", "bidirectional", "direct"),
    _PairCopy(
        "both, kernels",
        "Both directions at once (sum), direct, by kernels",
        "bidirectional",
        "direct",
        KERNELS,
    ),
    _PairCopy("both, staged", "Both directions at once (sum), staged", "bidirectional", "staged"),
    *(
        _PairCopy(f"latency us, {path}, {name}", f"Latency us, {path} ({name})", "latency", path, methods)
        for path in _PATHS
        for name, methods in _LATENCIES
    ),
)


def pair_parts(numbers: Numbers) -> Iterator[Section | None]:
    """Yield a matrix for each kind of copy that was measured or tried; the row is the source GPU."""
    for copy in _COPIES:
        results = copy.of(numbers)
        columns = [
            (f"GPU{b}", ["" if a == b else cell(*results.get((a, b), (None, None))) for a in numbers.gpus])
            for b in numbers.gpus
        ]
        unit = "" if copy.kind == "latency" else ", GB/s"
        title = f"{copy.title}{unit}{how(sample for sample, _ in results.values())}"
        yield grid(title, "", numbers.names, [columns] if results else [])


def concurrent_part(numbers: Numbers) -> Section | None:
    """Return a row for each group of simultaneous copies between GPUs.

    It has their sum, and the sum of the same copies one at a time. A tool's single number for one GPU and all
    others is a group too. One pair with its reverse is not.
    """
    groups = grouped(
        (sample.group, sample)
        for sample in numbers.copies
        if sample.kind in _BETWEEN
        and sample.group is not None
        and sample.median_gb_per_s
        and sample.invalid is None
    )
    rows: dict[str, tuple[str, str]] = {}
    for group, members in groups.items():
        ends = {end for sample in members for end in sample.ends}
        if len(ends) > 2 or ALL_GPUS in ends:
            alone = [rate for sample in members if (rate := numbers.alone(sample)) is not None]
            whole = number(sum(alone)) if len(alone) == len(members) else NOT_ASKED
            rows[plain(group)] = number(sum(sample.rate for sample in members)), whole
    heads = ("sum of all", "sum of each alone")
    return grid("Between GPUs at once, GB/s", "", list(rows), [_by_column(heads, list(rows.values()))])


def _by_column(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Cells]:
    return list(zip(heads, zip(*rows, strict=True), strict=True)) if rows else []


_BETWEEN: tuple[Kind, ...] = ("p2p_direct", "p2p_staged")


def range_part(numbers: Numbers) -> Section | None:
    """Return a row for each kind of copy: slowest pair, median, fastest, and the number of measured pairs."""
    measured = [(copy, pairs) for copy in _COPIES if (pairs := copy.of(numbers))]
    heads = ("slowest", "(pair)", "median", "fastest", "expected", "pairs", "failed")
    count = len(numbers.gpus) * (len(numbers.gpus) - 1)
    rows = [_range(copy, pairs, count) for copy, pairs in measured]
    names = [copy.name for copy, _ in measured]
    return grid("Between GPUs, GB/s", "", names, [_by_column(heads, rows)])


def _range(copy: _PairCopy, pairs: Mapping[_Pair, _Found], count: int) -> tuple[str, ...]:
    known = {pair: sample for pair, (sample, _) in pairs.items() if sample is not None}
    valid = {pair: sample for pair, sample in known.items() if sample.invalid is None}
    values = {pair: sample.value or 0.0 for pair, sample in (valid or known).items()}
    mark = "" if valid or not known else INVALID_MARK
    failed = sum(failure is not None and pair not in values for pair, (_, failure) in pairs.items())
    ordered = sorted(values, key=lambda pair: values[pair], reverse=copy.kind == "latency")
    slow, fast = (values[ordered[0]], values[ordered[-1]]) if ordered else (None, None)
    rates = (rate for pair in values if isinstance(rate := known[pair], CopyRate))
    limits = [limit for rate in rates if (limit := rate.expectation.gb_per_s)]
    span = dict.fromkeys(map(number, (min(limits), max(limits)))) if limits else (NOT_ASKED,)
    return (
        f"{number(slow)}{mark}",
        "{} to {}".format(*ordered[0]) if ordered else NOT_ASKED,
        f"{number(median(values.values()) if values else None)}{mark}",
        f"{number(fast)}{mark}",
        " to ".join(span),
        NOT_ASKED if len(values) == count else f"{len(values)} of {count}",
        str(failed) if failed else NOT_ASKED,
    )
