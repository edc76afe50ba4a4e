"""A picture as SVG: its colours follow the page's light or dark scheme, its text stays text.

Colours are CSS variables with a fallback, so that one file works inside a page and by itself.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Literal

from gputopo.report.document import Picture

# The CSS variables of a page, each with its (light) value for a picture outside a page.
_COLOURS: Mapping[str, str] = {
    "ink": "#1b1f24", "paper": "#ffffff", "faint": "#6a737d", "line": "#c4ccd4", "box": "#eef2f6",
    "good": "#1a7f37", "warn": "#9a6700", "bad": "#cf222e",
    "s1": "#0969da", "s2": "#bc4c00", "s3": "#1a7f37", "s4": "#8250df",
    "s5": "#bf3989", "s6": "#7d4e00", "s7": "#116b78", "s8": "#57606a",
}  # fmt: skip
INK, PAPER, FAINT, LINE, BOX, GOOD, WARN, BAD, *SERIES = (f"var(--{a}, {b})" for a, b in _COLOURS.items())
# Lengths of dash and gap, so that lines can be told apart without their colours.
DASHES: Sequence[str | None] = (None, "6 3", "7 2 2 2", "2 3")

_PX_PER_INCH, _PX_PER_PT = 96, 96 / 72
LETTER = 0.064  # average inches per letter of 8 points: a little more than half of its height
_MAX_LETTERS = 96  # of one text: about 6 inches at 8 points
# Characters that are invalid in XML, or that control a terminal or the text direction.
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)

Place = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


class Canvas:
    """An area to draw on. Places are in inches from the top left; line widths and letters in points."""

    def __init__(self, width: float, height: float) -> None:
        """`width`, `height`: in inches of 96 pixels."""
        self.width, self.height = width, height
        self._parts: list[str] = []

    def line(self, places: Iterable[Place], look: tuple[str, str | None], wide: float = 1.0) -> None:
        """Draw a line of a colour and dash through some places."""
        points = " ".join(f"{_px(x)},{_px(y)}" for x, y in places)
        self._add("polyline", points=points, fill="none", stroke=look[0], stroke_width=_points(wide),
                  stroke_dasharray=look[1])  # fmt: skip

    def box(
        self,
        corner: Place,
        wide: float,
        high: float,
        fill: str,
        *,
        edge: str | None = None,
        edge_wide: float = 1.0,
    ) -> None:
        """Draw a rectangle. `corner`: its top left."""
        self._add("rect", x=_px(corner[0]), y=_px(corner[1]), width=_px(wide), height=_px(high), fill=fill,
                  stroke=edge, stroke_width=edge and _points(edge_wide))  # fmt: skip

    def arc(self, left: float, right: float, top: float, depth: float, colour: str, wide: float) -> None:
        """Draw the lower half of an ellipse."""
        radii = f"{_px((right - left) / 2)} {_px(depth)}"
        path = f"M{_px(left)} {_px(top)} A{radii} 0 0 0 {_px(right)} {_px(top)}"
        self._add("path", d=path, fill="none", stroke=colour, stroke_width=_points(wide))

    def dot(self, place: Place, colour: str) -> None:
        """Draw a point."""
        self._add("circle", cx=_px(place[0]), cy=_px(place[1]), r=3, fill=colour)

    def text(
        self,
        place: Place,
        words: str,
        size: float = 8.0,
        colour: str = INK,
        *,
        anchor: Anchor = "start",
        bold: bool = False,
        turned: float = 0.0,
    ) -> None:
        """Write text. `place`: its start, middle or end, at half height; `turned`: degrees, clockwise."""
        x, y = (_px(inches) for inches in place)
        self._add("text", escape(short(words)), x=x, y=y, dy=".35em", font_size=_points(size), fill=colour,
                  text_anchor=None if anchor == "start" else anchor, font_weight="bold" if bold else None,
                  transform=f"rotate({turned:g} {x} {y})" if turned else None)  # fmt: skip

    def picture(self, name: str, title: str, alt: str) -> Picture:
        """Return what was drawn."""
        title, alt = (_CONTROL.sub("?", words) for words in (title, alt))
        width, height = _px(self.width), _px(self.height)
        head = _attributes(
            xmlns="http://www.w3.org/2000/svg",
            role="img",
            aria_label=f"{title}. {alt}",
            font_family="system-ui, sans-serif",
            stroke_linejoin="round",
            width=width,
            height=height,
            viewBox=f"0 0 {width} {height}",
        )
        body = "\n".join(self._parts)
        return Picture(name, title, alt, f"<svg{head}><title>{escape(title)}</title>\n{body}\n</svg>\n")

    def _add(self, tag: str, body: str = "", **attributes: object) -> None:
        self._parts.append(f"<{tag}{_attributes(**attributes)}>{body}</{tag}>")


def short(text: str, most: int = _MAX_LETTERS) -> str:
    """Return a text cut to a length: a name from outside may be of any length and leave no room."""
    text = _CONTROL.sub("?", " ".join(text.split()))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def number(value: float) -> str:
    """Return a number with three digits, thousands apart: 2,104; 30.5; 0.82."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _px(inches: float) -> str:
    return f"{round(_PX_PER_INCH * inches, 1):g}"


def _points(points: float) -> str:
    return f"{round(_PX_PER_PT * points, 1):g}"


def _attributes(**attributes: object) -> str:
    known = ((name, value) for name, value in attributes.items() if value is not None)
    return "".join(f' {name.replace("_", "-")}="{escape(str(value))}"' for name, value in known)
