"""A document of text, tables and pictures as a value, and its forms: text for a terminal, Markdown.

The form for a browser is `gputopo.report.page`. Strings are shown as they are, whatever a log contained: each
form escapes them.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import quote

from gputopo.report.layout import (
    GAP,
    HEADING,
    Column,
    Line,
    Side,
    aligned,
    blocks,
    line,
    paragraph,
    plain,
    section,
)
from gputopo.report.markdown import code, escaped, table

_MAX_CELL = 40  # columns of a cell on a terminal; longer ones fold
_BAR_COLUMNS = (10, 48)  # of the longest bar, at least and at most
FILE_WIDTH = 120  # columns of a table that is written to a file


class Picture(NamedTuple):
    """A picture. `name`: of its file, letters, digits and hyphens; `alt`: what it shows, in words."""

    name: str
    title: str
    alt: str
    svg: str


class Table(NamedTuple):
    """Rows of cells under heads. `sides`: of each column, left where there are none; `notes`: below it."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sides: tuple[Side, ...] = ()
    notes: tuple[str, ...] = ()

    def side(self, column: int) -> Side:
        """Return where the cells of a column stand."""
        return self.sides[column] if self.sides else "left"


class Bullets(NamedTuple):
    """A list."""

    items: tuple[str, ...]


class Bar(NamedTuple):
    """One value of a series. `at`: what it is of; `full`: the value that would be ideal."""

    series: str
    at: str
    value: float
    full: float


class Bars(NamedTuple):
    """Values drawn with letters, where there are no pictures. `unit`: after each value."""

    title: str
    heads: tuple[str, str]
    rows: tuple[Bar, ...]
    unit: str = ""


Block = str | Table | Bullets | Picture | Bars


class Section(NamedTuple):
    """A title and what is under it; a string is a paragraph."""

    title: str
    blocks: tuple[Block, ...]


class Page(NamedTuple):
    """What has a file of its own where a document has several. `name`: of it, as that of a picture."""

    name: str
    title: str
    blocks: tuple[Block, ...]


class Document(NamedTuple):
    """A title, a paragraph that says what it is, and sections; `pages`: more, which a terminal leaves out."""

    title: str
    summary: str
    sections: tuple[Section, ...]
    pages: tuple[Page, ...] = ()

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in order. Their names differ."""
        return tuple(one for part in self.sections for one in part.blocks if isinstance(one, Picture))


def document_lines(document: Document, width: int) -> list[Line]:
    """Return the document for a terminal of `width` columns; of a picture its title and words."""
    lines = paragraph(plain(document.title), width, HEADING)
    lines += [*paragraph(plain(document.summary), width), line()]
    for part in document.sections:
        body: list[Line] = []
        for block in part.blocks:
            body += [line()] if body else []
            body += _block_lines(block, width - 2)
        lines += section(plain(part.title), body)
    return lines


def _block_lines(block: Block, width: int) -> list[Line]:
    if isinstance(block, str):
        return paragraph(plain(block), width)
    if isinstance(block, Bullets):
        return [
            (("- " if number == 0 else "  ", ""), *spans)
            for item in block.items
            for number, spans in enumerate(paragraph(plain(item), width - 2))
        ]
    if isinstance(block, Picture):
        return paragraph(plain(f"{block.title}: {block.alt}"), width)
    if isinstance(block, Bars):
        return [*paragraph(plain(f"{block.title}:"), width), *bar_lines(block, width)]
    columns = [
        Column(head, tuple(plain(row[place]) for row in block.rows), block.side(place), max_width=_MAX_CELL)
        for place, head in enumerate(block.heads)
    ]
    lines: list[Line] = []
    for shown in blocks([[one] for one in columns[1:]], width - columns[0].width):
        lines += [line()] if lines else []
        lines += aligned(columns[0], shown)
    return [*lines, *(spans for note in block.notes for spans in paragraph(plain(note), width))]


def bar_lines(bars: Bars, width: int) -> list[Line]:
    """Return a row for each value: a bar that is full at the ideal value of the longest row."""
    texts = [f"{row.value:.2f}{bars.unit}" for row in bars.rows]
    longest = max((max(row.full, row.value) for row in bars.rows), default=1.0) or 1.0
    labels = [plain(row.series) for row in bars.rows]
    names = (*labels[:1], *("" if one == last else one for last, one in pairwise(labels)))
    first = Column(bars.heads[0], names, max_width=_MAX_CELL)
    at = Column(bars.heads[1], tuple(plain(row.at) for row in bars.rows), "right")
    values = Column("", tuple(texts), "right")
    room = width - first.width - sum(one.width + GAP for one in (at, values)) - GAP
    room = min(max(room, _BAR_COLUMNS[0]), _BAR_COLUMNS[1])
    drawn = tuple(_bar(row, room / longest) for row in bars.rows)
    return aligned(first, [at, Column("", drawn), values])


def _bar(row: Bar, scale: float) -> str:
    filled, full = round(row.value * scale), round(row.full * scale)
    return "█" * filled + "░" * (full - filled)


def document_markdown(document: Document, folder: str | None = None, *, pages: str | None = None) -> str:
    """Return the document as GitHub Markdown.

    Its pictures are files of `folder`, None: their words alone. Its pages are files of `pages`, to which it
    has links; None: sections.
    """
    parts = [f"# {escaped(document.title)}\n\n{escaped(document.summary)}\n"]
    sections = [*document.sections, *(() if pages else map(page_section, document.pages))]
    parts += [f"## {escaped(part.title)}\n\n{_body(part.blocks, folder)}" for part in sections]
    if pages and document.pages:
        links = (f"- {_link(page.title, f'{pages}/{page.name}.md')}\n" for page in document.pages)
        parts.append(f"## Pages\n\n{''.join(links)}")
    return "\n".join(parts)


def page_markdown(page: Page, document: Document, index: str) -> str:
    """Return a page as a file of its own. `index`: where the document is, seen from it."""
    return f"# {escaped(page.title)}\n\n{_link(document.title, index)}\n\n{_body(page.blocks, None)}"


def page_section(page: Page) -> Section:
    """Return a page as a section, in a form that is one file."""
    return Section(page.title, page.blocks)


def _body(blocks: Iterable[Block], folder: str | None) -> str:
    return "\n".join(_block_markdown(block, folder) for block in blocks)


def _link(words: str, path: str) -> str:
    """Return a link to a file beside the document, whatever letters its path has."""
    return f"[{escaped(words)}]({quote(path)})"


def _block_markdown(block: Block, folder: str | None) -> str:
    if isinstance(block, str):
        return f"{escaped(block)}\n"
    if isinstance(block, Bullets):
        return "".join(f"- {escaped(item)}\n" for item in block.items)
    if isinstance(block, Picture):
        words = escaped(block.alt)
        if folder is None:
            return f"{escaped(block.title)}: {words}\n"
        return f"!{_link(f'{block.title}. {block.alt}', f'{folder}/{file_of(block)}')}\n"
    if isinstance(block, Bars):
        return f"{escaped(block.title)}:\n\n{code(bar_lines(block, FILE_WIDTH))}"
    sides = ["---:" if block.side(place) == "right" else "---" for place in range(len(block.heads))]
    notes = "".join(f"\n{escaped(note)}\n" for note in block.notes)
    return table(block.heads, block.rows, sides) + notes


def file_of(picture: Picture) -> str:
    """Return the file name of a picture."""
    return f"{picture.name}.svg"
