"""A picture as SVG: its colours follow the page's light or dark scheme, its text stays text.

matplotlib draws in placeholder colours, which are replaced by CSS variables with a fallback, so that one file
is right in a page and alone. Ids get the picture's name, so that several pictures stand in one page.
"""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

from gputopo.report.document import Picture

# Placeholder: the CSS variable, and its value where a picture stands alone (light).
COLOURS: Mapping[str, tuple[str, str]] = {
    "#010101": ("--ink", "#1b1f24"),
    "#020202": ("--paper", "#ffffff"),
    "#030303": ("--faint", "#6a737d"),
    "#040404": ("--line", "#c4ccd4"),
    "#050505": ("--box", "#eef2f6"),
    "#060606": ("--good", "#1a7f37"),
    "#070707": ("--warn", "#9a6700"),
    "#080808": ("--bad", "#cf222e"),
    "#110101": ("--s1", "#0969da"),
    "#110202": ("--s2", "#bc4c00"),
    "#110303": ("--s3", "#1a7f37"),
    "#110404": ("--s4", "#8250df"),
    "#110505": ("--s5", "#bf3989"),
    "#110606": ("--s6", "#7d4e00"),
    "#110707": ("--s7", "#116b78"),
    "#110808": ("--s8", "#57606a"),
}
INK, PAPER, FAINT, LINE, BOX, GOOD, WARN, BAD = list(COLOURS)[:8]
SERIES: Sequence[str] = list(COLOURS)[8:]
# Beside the colour, so that lines differ without it.
DASHES: Sequence[str] = ("-", "--", "-.", ":")

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may have a dollar
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "hatch.color": PAPER,
    "hatch.linewidth": 1.0,
}
_PX_PER_PT = 96 / 72
_MAX_LETTERS = 96  # of one text: at 8 points some 6 inches
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_PATH = re.compile(r'\bd="[^"]*"')
# Characters that XML cannot have, or that act on a terminal or the direction of text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_DIGITS = re.compile(r"(\.\d)\d+")  # a tenth of a point is enough
_FONT = re.compile(r"font: ([\d.]+)px [^;\"]*|font-family: [^;\"]*;?")


class Canvas:
    """A figure of `width` x `height` inches to draw into, within `with`; `picture` returns it as SVG."""

    def __init__(self, width: float, height: float) -> None:
        """Inches at 96 pixels."""
        self._size = (width, height)

    def __enter__(self) -> "Canvas":
        """Use the style of these pictures until the end of the block."""
        self._style = mpl.rc_context(_STYLE)
        self._style.__enter__()
        self.figure = Figure(figsize=self._size)
        self._canvas = FigureCanvasSVG(self.figure)
        return self

    def __exit__(self, *raised: object) -> None:
        """Use matplotlib's style again."""
        self._style.__exit__(None, None, None)

    def axes(self, rows: int = 1) -> list[Axes]:
        """Return axes one under the other, which share the x axis."""
        self.figure.set_layout_engine("constrained")
        grid = self.figure.subplots(rows, 1, sharex=True, squeeze=False)
        return [row[0] for row in grid]

    def sheet(self) -> Axes:
        """Return one plain area in inches, the origin at the top left."""
        axes = self.figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, self._size[0]), ylim=(self._size[1], 0))
        axes.set_axis_off()
        return axes

    def picture(self, name: str, title: str, alt: str) -> Picture:
        """Return what was drawn."""
        for text in self.figure.findobj(Text):
            assert isinstance(text, Text)
            text.set_text(short(text.get_text()))
        title, alt = (_CONTROL.sub("?", words) for words in (title, alt))
        buffer = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # text stays text: the browser has it
            # Not savefig, which draws a figure with a layout twice.
            self._canvas.print_svg(buffer, metadata=metadata)  # type: ignore[no-untyped-call]
        return Picture(name, title, alt, _own(buffer.getvalue(), name, title, alt, self._size))


def short(text: str) -> str:
    """Return a text for a picture: a name from outside may be of any length, and would leave no room."""
    text = _CONTROL.sub("?", text)
    return text if len(text) <= _MAX_LETTERS else f"{text[: _MAX_LETTERS - 1]}…"


def number(value: float) -> str:
    """Return a number with three digits, thousands apart: 2,104; 30.5; 0.82."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _own(svg: str, name: str, title: str, alt: str, size: tuple[float, float]) -> str:
    """Return matplotlib's SVG without its header, with names, and colours that follow the page."""
    body = svg[svg.index("<svg") :]
    body = body[body.index(">") + 1 :]
    body = _LEFT_OUT.sub("", body)
    body = _ID.sub(rf"\g<1>{name}-", body)
    body = _FONT.sub(lambda found: f"font-size: {found[1]}px" if found[1] else "", body)
    body = _PATH.sub(lambda found: _DIGITS.sub(r"\g<1>", found[0]), body)
    for placeholder, (variable, alone) in COLOURS.items():
        body = body.replace(placeholder, f"var({variable}, {alone})")
    body = _CONTROL.sub("?", body)
    width, height = (72 * inches for inches in size)
    names = {
        "xmlns": "http://www.w3.org/2000/svg",
        "xmlns:xlink": "http://www.w3.org/1999/xlink",
        "role": "img",
        "aria-label": f"{title}. {alt}",
        "font-family": "system-ui, sans-serif",
        "stroke-linejoin": "round",
        "width": f"{width * _PX_PER_PT:.0f}",
        "height": f"{height * _PX_PER_PT:.0f}",
        "viewBox": f"0 0 {width:g} {height:g}",
    }
    head = " ".join(f"{name}={quoteattr(value)}" for name, value in names.items())
    return f"<svg {head}><title>{escape(title)}</title>{body.strip()}\n"
