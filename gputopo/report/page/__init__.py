"""A document as one HTML file that loads nothing; light, dark and printable. A script sorts and filters."""

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from gputopo.report import document as values
from gputopo.report.layout import plain, printable, text_of

if TYPE_CHECKING:
    import jinja2

_DRAWING_WIDTH = 100  # characters


def document_html(document: values.Document, foot: str = "") -> str:
    """Return the HTML. Every string of the document is escaped; pictures are inline SVG.

    `foot`: the last line: when, by what and from what the page was made.
    """
    script = resources.files(__name__).joinpath("tables.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().render(document=document, foot=foot, script=script, digest=digest)


@cache
def _template() -> "jinja2.Template":
    import jinja2
    from markupsafe import escape

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gputopo.report.page", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_plain,
    )
    environment.filters["drawn"] = lambda drawing: escape(text_of(printable(drawing.lines(_DRAWING_WIDTH))))
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["figure"] = lambda cell: escape(_figure(cell))  # Markup: `_plain` leaves it unchanged
    return environment.get_template("page.html.j2")


def _plain(value: object) -> object:
    """Return a text without control characters; pictures and drawings keep their line breaks."""
    return plain(value) if type(value) is str else value


def _figure(cell: str) -> str:
    """Return a cell with spaces after the number that are as wide as its missing point and decimals."""
    text = plain(cell).rstrip(" ")
    missing = len(cell) - len(text)
    point = "" if "." in text or not missing else "\N{PUNCTUATION SPACE}"
    return text + point + "\N{FIGURE SPACE}" * (missing - len(point))
