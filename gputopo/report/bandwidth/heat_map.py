"""The heat map of a machine's links: each pair by its better way, shaded by its share of the fastest."""

from gputopo.copies.pair_speeds import CLEARLY_SLOWER, single_ways
from gputopo.report.bandwidth.numbers import Numbers, number
from gputopo.report.bandwidth.part import Part
from gputopo.report.layout import NOT_ASKED, Column, Line
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


def heat_part(numbers: Numbers) -> Part | None:
    """Give the map, None where less than two links have a number. It is a matrix like the others."""
    speeds = _speeds(numbers)
    if len(speeds) < 2:
        return None
    fastest = max(speed for speed, _ in speeds.values())
    ends: list[int | str] = [*numbers.gpus, *([_HOST] if any(_HOST in pair for pair in speeds) else [])]
    columns = tuple(
        Column(_name(to), tuple(_cell(speeds.get((source, to)), fastest, source == to) for source in ends))
        for to in ends
    )
    shares = ", ".join(f"{shade} from {share:.0%}" for share, shade, _ in SHADES[:-1])
    notes = [f"Shade: share of the fastest link here; {shares}, {SHADES[-1][1]} below."]
    if any(staged for _, staged in speeds.values()):
        notes.append(
            f"{STAGED_MARK}: through the host, over {CLEARLY_SLOWER - 1:.0%} faster there than directly, or "
            "no direct copy was measured."
        )
    return Part(
        "Heat map, GB/s (row to column)",
        head=Column("", tuple(map(_name, ends))),
        groups=(columns,),
        notes=tuple(notes),
    )


def painted(line: Line) -> Line:
    """Give a line of the map with the style of each cell's shade."""
    styles = {shade: style for _, shade, style in SHADES}
    return tuple((text, styles.get(text[:1], style)) for text, style in line)


def _speeds(numbers: Numbers) -> dict[tuple[int | str, int | str], tuple[float, bool]]:
    """Give GB/s by (source, destination), and whether it goes through the host."""
    found: dict[tuple[int | str, int | str], tuple[float, bool]] = {}
    ways = {(a, b, path): speed for a, b, path, speed in single_ways(numbers.bandwidth.samples)}
    for a, b, _ in ways:
        direct, staged = ways.get((a, b, "direct")), ways.get((a, b, "staged"))
        if staged is not None and (direct is None or staged > direct * CLEARLY_SLOWER):
            found[a, b] = (staged, True)
        elif direct is not None:  # within noise of one another the plain way stands
            found[a, b] = (direct, False)
    kinds: tuple[Kind, ...] = ("h2d", "d2h")
    for gpu in numbers.gpus:
        for kind in kinds:
            sample = numbers.with_host(kind, gpu)
            if sample is not None and sample.median_gb_per_s:
                found[(_HOST, gpu) if kind == "h2d" else (gpu, _HOST)] = (sample.median_gb_per_s, False)
    return found


def _cell(speed: tuple[float, bool] | None, fastest: float, same: bool) -> str:
    if same:
        return ""
    if speed is None:
        return NOT_ASKED
    share = speed[0] / fastest
    shade = next((shade for least, shade, _ in SHADES if share >= least), SHADES[-1][1])
    return f"{shade * 2}{number(speed[0]):>5}{STAGED_MARK if speed[1] else ' '}"


def _name(end: int | str) -> str:
    return f"GPU{end}" if isinstance(end, int) else end
