"""A document of text, tables and pictures as a value, and its forms: text for a terminal, Markdown.

The form for a browser is `gputopo.report.page`. Strings are shown as they are, whatever a log contained: each
form escapes them.
"""

from typing import NamedTuple

from gputopo.report.layout import (
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
from gputopo.report.markdown import escaped, table

_MAX_CELL = 40  # columns of a cell on a terminal; longer ones fold


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


Block = str | Table | Bullets | Picture


class Section(NamedTuple):
    """A title and what is under it; a string is a paragraph."""

    title: str
    blocks: tuple[Block, ...]


class Document(NamedTuple):
    """A title, a paragraph that says what it is, and sections."""

    title: str
    summary: str
    sections: tuple[Section, ...]

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
    columns = [
        Column(head, tuple(plain(row[place]) for row in block.rows), block.side(place), max_width=_MAX_CELL)
        for place, head in enumerate(block.heads)
    ]
    lines: list[Line] = []
    for shown in blocks([[one] for one in columns[1:]], width - columns[0].width):
        lines += [line()] if lines else []
        lines += aligned(columns[0], shown)
    return [*lines, *(spans for note in block.notes for spans in paragraph(plain(note), width))]


def document_markdown(document: Document, folder: str | None = None) -> str:
    """Return the document as GitHub Markdown; its pictures as files of `folder`, None: their words alone."""
    parts = [f"# {escaped(document.title)}\n\n{escaped(document.summary)}\n"]
    for part in document.sections:
        body = "\n".join(_block_markdown(block, folder) for block in part.blocks)
        parts.append(f"## {escaped(part.title)}\n\n{body}")
    return "\n".join(parts)


def _block_markdown(block: Block, folder: str | None) -> str:
    if isinstance(block, str):
        return f"{escaped(block)}\n"
    if isinstance(block, Bullets):
        return "".join(f"- {escaped(item)}\n" for item in block.items)
    if isinstance(block, Picture):
        words = escaped(block.alt)
        if folder is None:
            return f"{escaped(block.title)}: {words}\n"
        return f"![{escaped(f'{block.title}. {block.alt}')}]({folder}/{file_of(block)})\n"
    sides = ["---:" if block.side(place) == "right" else "---" for place in range(len(block.heads))]
    notes = "".join(f"\n{escaped(note)}\n" for note in block.notes)
    return table(block.heads, block.rows, sides) + notes


def file_of(picture: Picture) -> str:
    """Return the file name of a picture."""
    return f"{picture.name}.svg"
