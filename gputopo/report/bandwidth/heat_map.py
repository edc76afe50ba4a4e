"""The heat map of a machine's links: each pair by its faster path, shaded by its share of the fastest."""

from collections.abc import Collection, Mapping, Sequence

from gputopo.copies.numbers import by_copy_engine, pair_of
from gputopo.copies.pair_speeds import CLEARLY_SLOWER, pair_speeds, single_paths
from gputopo.report.bandwidth.numbers import Numbers, number
from gputopo.report.bandwidth.part import part
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, QUIET, Column
from gputopo.values.bandwidth import Kind

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
