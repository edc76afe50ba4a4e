"""A reference page for a terminal: Markdown laid out for its width. Nothing is cut; code is not folded."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from gputopo.report.document import Bullets, block_lines
from gputopo.report.layout import GAP, HEADING, QUIET, Column, Line, aligned, line, paragraph, width_of

_FENCE = "```"
_INLINE = re.compile(r"\[(?P<words>[^\]]*)\]\([^)]*\)|`(?P<code>[^`]*)`|\*\*(?P<bold>[^*]*)\*\*")
_CELLS = re.compile(r"(?<!\\)\|")
_LONG_WORD, _NARROWEST = 24, 8
_ITEM = re.compile(r"(?:- |[0-9]+\. )")


def reference_lines(markdown: str, width: int, left_out: Sequence[str] = ()) -> list[Line]:
    """Return Markdown in lines of at most `width` columns; only code keeps its own.

    `left_out`: heads of columns that a table does without where it is too wide, the first one first.
    """
    lines: list[Line] = []
    for block in _blocks(markdown):
        lines += [line()] if lines else []
        if block[0].startswith(_FENCE):
            lines += [line(text) for text in block[1:]]
        elif block[0].startswith("#"):
            lines += paragraph(_plain(block[0].lstrip("# ")), width, HEADING)
        elif block[0].startswith("|"):
            lines += _table(block, width, left_out)
        elif block[0].startswith("- "):
            items = tuple(_plain(text.removeprefix("- ")) for text in _items(block))
            lines += block_lines(Bullets(items), width)
        else:
            lines += [one for text in _items(block) for one in paragraph(_plain(text), width)]
    return lines


def _blocks(markdown: str) -> Iterator[list[str]]:
    """Yield the lines of each heading, paragraph, list, table and piece of code; of that with its fence."""
    for number, part in enumerate(re.split(r"^```.*\n", markdown, flags=re.MULTILINE)):
        if number % 2:
            yield [_FENCE, *part.splitlines()]
            continue
        apart = re.sub(r"^(#+ .*)\n", r"\1\n\n", part, flags=re.MULTILINE)
        for text in re.split(r"\n{2,}", apart.strip("\n")):
            for _, same in groupby(text.splitlines(), lambda one: one.startswith("|")):
                yield list(same)


def _items(block: Sequence[str]) -> Iterator[str]:
    """Yield the items of a list, or the paragraph, each as one line."""
    item: list[str] = []
    for text in block:
        if item and _ITEM.match(text):
            yield " ".join(item)
            item = []
        item.append(text.strip())
    yield " ".join(item)


def _plain(text: str) -> str:
    """Return text without the marks of links, code and emphasis."""
    return _INLINE.sub(lambda found: next(one for one in found.groups() if one is not None), text)


def _table(block: Sequence[str], width: int, left_out: Sequence[str]) -> list[Line]:
    rows = [[_cell(_plain(cell.strip())) for cell in _CELLS.split(row)[1:-1]] for row in block]
    heads, _, *cells = rows
    columns = [Column(head, tuple(own)) for head, *own in zip(heads, *cells, strict=True)]
    gone = []
    for head in left_out:
        if sum(map(_longest_word, columns)) + GAP * (len(columns) - 1) > width:
            columns = [column for column in columns if column.head != head]
            gone.append(head)
    first, *others = _folded(columns, width)
    note = paragraph(f"Not shown for lack of width: {', '.join(gone)}.", width, QUIET) if gone else []
    return [*aligned(first, others), *note]


def _cell(text: str) -> str:
    """Return the text of a cell; a long list of values, `a|b|c`, may fold between them."""
    return text.replace("\\|", " | " if len(text) > _LONG_WORD else "|")


def _folded(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns so narrow that they fit: the widest first, and words stay whole if they can."""
    shown, words = list(columns), list(map(_longest_word, columns))
    while width_of(shown) - GAP > width:
        able = [place for place, column in enumerate(shown) if column.width > _NARROWEST]
        if not able:
            break
        able = [place for place in able if shown[place].width > words[place]] or able
        widest = max(able, key=lambda place: shown[place].width)
        shown[widest] = msgspec.structs.replace(shown[widest], max_width=shown[widest].width - 1)
    heads = ("\n".join(textwrap.wrap(column.head, column.width)) for column in shown)
    return [msgspec.structs.replace(one, head=head) for one, head in zip(shown, heads, strict=True)]


def _longest_word(column: Column) -> int:
    return max((len(word) for text in (column.head, *column.cells) for word in text.split()), default=0)
