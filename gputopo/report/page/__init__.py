"""A document as one HTML file that needs nothing else: no network, no script; light, dark, and on paper."""

from gputopo.report.document import Bullets, Document, Picture, Table


def page(document: Document) -> str:
    """Return the HTML. Every string of the document is escaped; pictures stand in it as SVG."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gputopo.report.page", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.tests |= {
        "paragraph": lambda block: isinstance(block, str),
        "bullets": lambda block: isinstance(block, Bullets),
        "picture": lambda block: isinstance(block, Picture),
        "table": lambda block: isinstance(block, Table),
    }
    return environment.get_template("page.html.j2").render(document=document)
