"""A report as a value: sections of paragraphs, rows, tables, lists, findings, drawings and pictures; as text.

`gputopo.report.document.markdown` and `gputopo.report.page` write it to files. Strings are unescaped,
whatever a log contained: each output format escapes them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import msgspec

from gputopo.report.layout import (
    GAP,
    HEADING,
    INDENT,
    QUIET,
    SEVERITY_STYLES,
    Column,
    Line,
    aligned,
    blocks,
    fitting,
    indented,
    labelled,
    line,
    paragraph,
    plain,
    printable,
    text_of,
)

__all__ = [
    "FILE_WIDTH",
    "Block",
    "Bullets",
    "Document",
    "Drawing",
    "Item",
    "Items",
    "Picture",
    "Rows",
    "Section",
    "Styled",
    "Table",
    "block_lines",
    "document_lines",
    "document_text",
    "of_sections",
]

MAX_CELL = 40  # columns of a cell on a terminal; longer ones fold
_NARROW_HEAD = 24  # columns: row names fold down to this width if that keeps a table whole
FILE_WIDTH = 120  # columns of a table or drawing in a file


class Styled(NamedTuple):
    """A paragraph in a style of `gputopo.report.layout`."""

    text: str
    style: str


class Rows(NamedTuple):
    """Rows of a label and words.

    A row with an empty label continues the row before. `styles`: for each row.
    """

    rows: tuple[tuple[str, str], ...]
    styles: tuple[str, ...] = ()


class Table(NamedTuple):
    """A column with the names of the rows, and the columns next to it.

    `groups` stay together on a narrow screen. `optional`: heads of columns that are dropped on a narrow
    screen, the first one first, so that the others stay side by side.
    """

    head: Column
    groups: tuple[tuple[Column, ...], ...]
    notes: tuple[str, ...] = ()  # below the table
    gap: int = GAP  # spaces between columns
    optional: tuple[str, ...] = ()
    shown: int | None = None  # number of rows in the short form; None: all

    @classmethod
    def of(
        cls,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        words: Collection[str],
        notes: Sequence[str] = (),
        shown: int | None = None,
    ) -> "Table":
        """Return the table with these rows. `words`: heads of the columns that are not numbers."""
        cells = zip(*rows, strict=True) if rows else [()] * len(heads)
        first, *rest = (
            Column(head, tuple(column), "left" if head in words else "right", MAX_CELL)
            for head, column in zip(heads, cells, strict=True)
        )
        return cls(first, tuple((column,) for column in rest), tuple(notes), shown=shown)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, starting with the names of the rows."""
        return (self.head, *chain.from_iterable(self.groups))

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of all columns, each on one line."""
        return tuple(column.head.replace("\n", " ") for column in self.columns)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The cells by row."""
        return tuple(zip(*(column.cells for column in self.columns), strict=True))

    def mapped(self, change: Callable[[Column], Column | None]) -> "Table":
        """Return the table with each column changed. Columns for which `change` returns None are dropped."""
        groups = (tuple(filter(None, map(change, group))) for group in self.groups)
        return self._replace(head=change(self.head) or self.head, groups=tuple(filter(None, groups)))


class Bullets(NamedTuple):
    """A list."""

    items: tuple[str, ...]
    shown: int | None = None  # number of items in the short form; None: all


class Item(NamedTuple):
    """A finding, or several with the same id, severity and remedy. `says`: one sentence each.

    `of`: their subjects, shown on a separate line with the id. Empty: the sentences have the subjects.
    """

    severity: str
    id: str
    of: str
    says: tuple[str, ...]
    remedy: str | None


class Items(NamedTuple):
    """Findings. `nothing`: shown if there are none; `note`: a line below.

    `on_screen`: returns the findings for a terminal of this many columns, if they differ there.
    """

    items: tuple[Item, ...]
    nothing: str
    note: str = ""
    on_screen: "Callable[[int], Items] | None" = None


class Drawing(NamedTuple):
    """Lines that depend on the width, such as a tree or bars."""

    lines: Callable[[int], Sequence[Line]]


class Picture(NamedTuple):
    """A picture. `name`: its file name without suffix (letters, digits, hyphens); `alt`: its text
    description.
    """

    name: str
    title: str
    alt: str
    svg: str


Block = str | Styled | Rows | Table | Bullets | Items | Drawing | Picture


class Section(NamedTuple):
    """A title and its content; a string is a paragraph. Without a title, the content is not indented."""

    title: str
    blocks: tuple[Block, ...]
    is_folded: bool = False  # on a page that can unfold it
    page: str = ""  # in files only: the name, without suffix, of its own file among several Markdown files


class Document(NamedTuple):
    """A title and a paragraph, if any, and sections."""

    title: str
    summary: str
    sections: tuple[Section, ...]
    headline: str = ""  # the answer, before everything else

    @property
    def blocks(self) -> Iterator[Block]:
        """The content of all sections, in order."""
        return chain.from_iterable(section.blocks for section in self.sections)

    @property
    def answer(self) -> str:
        """The first paragraph of a document without a title."""
        return next(block.text if isinstance(block, Styled) else str(block) for block in self.blocks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, in order."""
        return tuple(block for block in self.blocks if isinstance(block, Table))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in order. Their names differ."""
        return tuple(block for block in self.blocks if isinstance(block, Picture))


def of_sections(
    parts: Iterable[tuple[str, Sequence[Block]]], title: str = "", summary: str = "", headline: str = ""
) -> Document:
    """Return a document. Sections without blocks are skipped."""
    sections = tuple(Section(name, tuple(blocks)) for name, blocks in parts if blocks)
    return Document(title, summary, sections, headline)


def document_lines(
    document: Document, width: int, *, whole: bool = True, on_screen: bool = False
) -> list[Line]:
    """Return the document in lines of `width` columns. Pictures are replaced by their title and words.

    Sections with their own page are skipped. `whole`: all rows and items of tables and lists, else the number
    in their short form. `on_screen`: for a terminal, which has few lines; a pipe gets whole sentences.
    """
    lines: list[Line] = []
    if document.title:
        heads = [plain(document.headline), f"{document.title}: {document.summary}"]
        heads = heads if document.headline else [document.title, document.summary]
        lines += [*paragraph(heads[0], width, HEADING), *paragraph(heads[1], width), line()]
    for part in (section for section in document.sections if not section.page):
        by = INDENT if part.title else 0
        body: list[Line] = []
        for before, block in pairwise(("", *part.blocks)):
            # A paragraph belongs to the block that follows it.
            apart = not isinstance(block, Styled) and (
                isinstance(block, str) or not isinstance(before, str | Styled)
            )
            body += [line()] if body and apart else []
            if on_screen and isinstance(block, Items) and block.on_screen is not None:
                block = block.on_screen(width - by)
            body += block_lines(block if whole else _shortened(block, width - by), width - by)
        lines += paragraph(part.title, width, HEADING) if part.title else []
        lines += [*indented(body, by), line()]
    return printable(lines[:-1])


def document_text(document: Document, width: int = FILE_WIDTH, *, whole: bool = True) -> str:
    """Return the document as plain text, by default for a file. `whole`: as for `document_lines`."""
    return text_of(document_lines(document, width, whole=whole))


def _shortened(block: Block, width: int) -> Block:
    """Return the short form of a table or list, with the number of rows or items that it skips."""
    if isinstance(block, Bullets) and block.shown is not None and len(block.items) > block.shown + 1:
        more = len(block.items) - block.shown
        return block._replace(items=(*block.items[: block.shown], f"{more} more (--all)"))
    if not isinstance(block, Table) or block.shown is None:
        return block
    table, notes = block, list(block.notes)
    first, *rest = blocks([*table.groups], width - _head(table, width).width, table.gap)
    if rest:
        notes.insert(0, f"also: {', '.join(column.head for part in rest for column in part)} (--all)")
        table = table._replace(groups=(tuple(first),))
    more, shown = len(table.rows) - block.shown, block.shown
    if more > 1:  # for one row, a note would be just as long
        notes.insert(0, f"{more} more rows (--all)")
        table = table.mapped(lambda column: msgspec.structs.replace(column, cells=column.cells[:shown]))
    return table._replace(notes=tuple(notes))


def block_lines(block: Block, width: int) -> Sequence[Line]:
    """Return a block in lines of at most `width` columns."""
    match block:
        case str():
            return paragraph(plain(block), width)
        case Styled(text, style):
            return [spans for part in text.split("\n") for spans in paragraph(plain(part), width, style)]
        case Rows(rows, styles):
            return labelled(((plain(label), plain(words)) for label, words in rows), width, styles)
        case Bullets(items):
            bullets: list[Line] = []
            for item in items:
                first, *more = paragraph(plain(item), width - 2)
                bullets += [(("- ", QUIET), *first), *((("  ", QUIET), *spans) for spans in more)]
            return bullets
        case Items(items, nothing, note):
            shown = [spans for item in items for spans in _item(item, width)] or paragraph(nothing, width)
            return [*shown, *paragraph(note, width, QUIET)] if note else shown
        case Drawing(lines):
            return lines(width)
        case Picture():
            return paragraph(plain(f"{block.title}: {block.alt}"), width)
        case Table():
            return _table(block, width)


def _table(table: Table, width: int) -> list[Line]:
    lines: list[Line] = []
    head = _head(table, width)
    room = width - head.width - table.gap
    shown_groups = table.groups
    if table.optional:
        columns = list(chain.from_iterable(table.groups))
        shown_groups = (tuple(fitting(columns, room + table.gap, table.optional, table.gap)),)
    groups = [[_narrowed(column, room) for column in group] for group in shown_groups]
    for shown in blocks(groups, room + table.gap, table.gap):
        lines += [line()] if lines else []
        lines += aligned(head, shown, table.gap)
    return [*lines, *(spans for note in table.notes for spans in paragraph(plain(note), width, QUIET))]


def _head(table: Table, width: int) -> Column:
    """Return the names of the rows, folded if that lets the columns stay side by side."""
    others = sum(table.gap + column.width for group in table.groups for column in group)
    return _narrowed(table.head, min(width // 2, max(width - others, _NARROW_HEAD)))


def _narrowed(column: Column, room: int) -> Column:
    """Return a column that may fold with at most this width."""
    if column.max_width is None or column.width <= room:
        return column
    return msgspec.structs.replace(column, max_width=max(room, 8))


def _item(item: Item, width: int) -> list[Line]:
    severity = (item.severity.ljust(9), SEVERITY_STYLES[item.severity])
    space = width - len(severity[0])
    if item.of:
        lines = paragraph(plain(f"{item.of}  {item.id}"), space, QUIET)
        lines += [spans for says in item.says for spans in paragraph(plain(says), space)]
    else:
        lines = [spans for says in item.says for spans in paragraph(plain(f"{item.id}  {says}"), space)]
    lines += paragraph(f"To do: {plain(item.remedy)}", space) if item.remedy else []
    marks = [severity, *[(" " * len(severity[0]), "")] * len(lines)]
    return [(mark, *spans) for mark, spans in zip(marks, lines, strict=False)]
