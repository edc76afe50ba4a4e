"""A document as one HTML file that needs nothing else: no network, no script; light, dark, and on paper."""

from gputopo.report.document import Bars, Bullets, Document, Picture, Table, bar_lines, page_section
from gputopo.report.layout import plain, text_of

_BARS_WIDTH = 100  # characters of a block of bars


def page(document: Document) -> str:
    """Return the HTML. Every string of the document is escaped; pictures stand in it as SVG."""
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
    environment.filters["bar_text"] = lambda bars: escape(text_of(bar_lines(bars, _BARS_WIDTH)))
    environment.tests |= {
        "paragraph": lambda block: isinstance(block, str),
        "bullets": lambda block: isinstance(block, Bullets),
        "picture": lambda block: isinstance(block, Picture),
        "bars": lambda block: isinstance(block, Bars),
        "table": lambda block: isinstance(block, Table),
    }
    sections = (*document.sections, *map(page_section, document.pages))
    return environment.get_template("page.html.j2").render(document=document, sections=sections)


def _plain(value: object) -> object:
    """Return a text of the document without control characters; pictures and blocks of bars have lines."""
    return plain(value) if type(value) is str else value
