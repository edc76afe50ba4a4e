"""A document as one HTML file that needs nothing else: no network, no script; light, dark, and on paper."""

from gputopo.report import document as values
from gputopo.report.layout import plain, printable, text_of
from gputopo.report.markdown import page_section

_DRAWING_WIDTH = 100  # characters


def page(document: values.Document) -> str:
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
    environment.filters["drawn"] = lambda drawing: escape(text_of(printable(drawing.lines(_DRAWING_WIDTH))))
    environment.filters["kind"] = lambda block: type(block).__name__
    sections = (*document.sections, *map(page_section, document.pages))
    return environment.get_template("page.html.j2").render(document=document, sections=sections)


def _plain(value: object) -> object:
    """Return a text of the document without control characters; pictures and drawings have lines."""
    return plain(value) if type(value) is str else value
