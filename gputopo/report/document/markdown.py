"""A document as GitHub Markdown."""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from urllib.parse import quote

from gputopo.report.document import (
    FILE_WIDTH,
    Block,
    Bullets,
    Document,
    Drawing,
    Items,
    Picture,
    Rows,
    Section,
    Styled,
    Table,
)
from gputopo.report.layout import Line, plain, printable, text_of

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")
_MENTION = re.compile(r"@(?=\w)")


def markdown_files(document: Document, name: str) -> dict[str, str]:
    """Return the texts of the files of a document by their paths. Pictures and pages have their own files.

    `name`: the file name of the document, `report.md`, which comes last. The pictures are in the folder
    `report-pictures` next to it, the pages in `report-models`.
    """
    stem = PurePath(name).stem
    pictures = f"{stem}-pictures"
    files = {f"{pictures}/{picture.name}.svg": picture.svg for picture in document.pictures}
    links = []
    for section in document.sections:
        if section.page:
            path = f"{stem}-models/{section.page}.md"
            head = f"# {escaped(section.title)}\n\n{_link(document.title, f'../{name}')}\n\n"
            files[path] = head + _body(section, None)
            links.append(f"- {_link(section.title, path)}\n")
    first = document._replace(sections=tuple(section for section in document.sections if not section.page))
    pages = f"\n## Pages\n\n{''.join(links)}" if links else ""
    return {**files, name: _markdown(first, pictures) + pages}


def document_markdown(document: Document) -> str:
    """Return the document as one Markdown text, in which pictures are words.

    Without a title it can be pasted into a bug report.
    """
    return _markdown(document, None)


def _markdown(document: Document, folder: str | None) -> str:
    """Return the document as Markdown. `folder`: holds the files of its pictures; None: only their words."""
    parts, level = [], "###"
    if document.title:
        heads = [f"**{escaped(document.headline)}**"] if document.headline else []
        heads = [f"# {escaped(document.title)}", *heads, escaped(document.summary)]
        parts, level = ["\n\n".join(heads) + "\n"], "##"
    for section in document.sections:
        title = f"{level} {escaped(section.title)}\n\n" if section.title else ""
        parts.append(title + _body(section, folder))
    return "\n".join(parts)


def _body(section: Section, folder: str | None) -> str:
    return "\n".join(_block(block, folder) for block in section.blocks)


def _link(words: str, path: str) -> str:
    """Return a link to a file next to the document, whatever characters its path has."""
    return f"[{escaped(words)}]({quote(path)})"


def escaped(text: str) -> str:
    """Return text from outside on one line, with its markup escaped; `@name` notifies nobody."""
    return _MENTION.sub("&#64;", _MARKUP.sub(r"\\\1", plain(" ".join(text.splitlines()))))


def _block(block: Block, folder: str | None) -> str:
    match block:
        case str():
            return f"{escaped(block)}\n"
        case Styled(text):
            return "".join(f"{escaped(line)}\n" for line in text.split("\n"))
        case Rows(rows):
            filled: list[tuple[str, str]] = []  # with the label in rows that continue the row before
            for label, words in rows:
                filled.append((label or (filled[-1][0] if filled else ""), words))
            return _table(("", ""), filled)
        case Bullets(items):
            return "".join(f"- {escaped(item)}\n" for item in items)
        case Items(items, nothing, note):
            text = "".join(_finding(*item) for item in items) or f"{nothing}\n"
            return f"{text}\n{escaped(note)}\n" if note else text
        case Drawing(lines):
            return _code(lines(FILE_WIDTH))
        case Picture():
            if folder is None:
                return f"{escaped(block.title)}: {escaped(block.alt)}\n"
            return f"!{_link(f'{block.title}. {block.alt}', f'{folder}/{block.name}.svg')}\n"
        case Table():
            sides = ["---:" if column.side == "right" else "---" for column in block.columns]
            notes = "".join(f"- {escaped(note)}\n" for note in block.notes)
            return _table(block.heads, block.rows, sides) + (f"\n{notes}" if notes else "")


def _finding(severity: str, id: str, of: str, says: Sequence[str], remedy: str | None) -> str:
    text = f"- **{severity}** `{id}`{f' ({escaped(of)})' if of else ''}\n"
    text += "".join(f"  - {escaped(sentence)}\n" for sentence in says)
    return text + (f"  - To do: {escaped(remedy)}\n" if remedy else "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], sides: Sequence[str] = ()) -> str:
    lines = [[escaped(head) for head in heads], list(sides) or ["---"] * len(heads)]
    lines += [[escaped(cell).strip() for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _code(lines: Iterable[Line]) -> str:
    text = text_of(printable(lines))
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}{fence}\n"
