"""Measured rates of all links as a picture: a square for each source and destination, shaded by its rate."""

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from gputopo.copies.pair_speeds import gb
from gputopo.report.bandwidth.heat_map import SHADES, STAGED_MARK, end_name, ends_of, link_speeds
from gputopo.report.bandwidth.numbers import Numbers
from gputopo.report.document import Picture
from gputopo.report.layout import NOT_ASKED
from gputopo.report.pictures.drawing import FAINT, INK, Drawing
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine

_CELL = 0.62  # inches
_SCALE = LinearSegmentedColormap.from_list("rate", ["#f6b8a8", "#f7e0a3", "#bfe3c0"])
_ON_SCALE = "#1b1f24"  # ink on these squares, whatever the page's scheme


def heat_map_picture(machine: Machine, bandwidth: Bandwidth) -> Picture | None:
    """Return the map, rows to columns; None where fewer than two links have a number."""
    numbers = Numbers(machine, bandwidth)
    speeds, sums = link_speeds(numbers)
    if len(speeds) < 2:
        return None
    ends = ends_of(numbers, speeds)
    fastest = max(speed for speed, _ in speeds.values())
    side = len(ends) * _CELL
    with Drawing(side + 1.0, side + 0.8) as drawing:
        sheet = drawing.sheet()
        for place, end in enumerate(ends):
            middle = 0.8 + (place + 0.5) * _CELL
            sheet.text(middle, 0.42, end_name(end), ha="center", fontsize=8.5, color=INK)
            sheet.text(0.72, middle - 0.2, end_name(end), ha="right", va="center", fontsize=8.5, color=INK)
        for row, source in enumerate(ends):
            for column, to in enumerate(ends):
                corner = (0.8 + column * _CELL, 0.6 + row * _CELL)
                speed, staged = speeds.get((source, to), (None, False))
                if speed is None:
                    words = "" if source == to else NOT_ASKED
                    sheet.text(corner[0] + _CELL / 2, corner[1] + _CELL / 2, words, ha="center", va="center",
                               color=FAINT)  # fmt: skip
                    continue
                shade = _SCALE(speed / fastest)
                sheet.add_patch(Rectangle(corner, _CELL * 0.96, _CELL * 0.96, facecolor=shade, linewidth=0))
                words = gb(speed) + (STAGED_MARK if staged else "")
                sheet.text(corner[0] + _CELL / 2, corner[1] + _CELL / 2, words, ha="center", va="center",
                           fontsize=8.5, color=_ON_SCALE)  # fmt: skip
        slow = [f"{end_name(a)} to {end_name(b)} {gb(speed)}" for (a, b), (speed, _) in speeds.items()
                if speed / fastest < SHADES[1][0]]  # fmt: skip
        kind = "sum of both directions at once" if sums else "row to column"
        alt = f"GB/s, {kind}; {len(speeds)} links, the fastest {gb(fastest)}"
        alt += f"; below {SHADES[1][0]:.0%} of it: {', '.join(slow[:8])}" if slow else ""
        return drawing.picture("heat-map", f"Measured rates, GB/s ({kind})", f"{alt}.")
