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
    Page,
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

    `name`: the file name of the document, `report.md`, which comes last. The others are in folders next to
    it.
    """
    stem = PurePath(name).stem
    pictures, pages = f"{stem}-pictures", f"{stem}-models"
    files = {_path(picture, pictures): picture.svg for picture in document.pictures}
    for page in document.pages:
        head = f"# {escaped(page.title)}\n\n{_link(document.title, f'../{name}')}"
        files[f"{pages}/{page.name}.md"] = f"{head}\n\n{_body(page.blocks, None)}"
    return {**files, name: document_markdown(document, pictures, pages=pages)}


def document_markdown(document: Document, folder: str | None = None, *, pages: str | None = None) -> str:
    """Return the document as Markdown; without a title it can be pasted into a bug report.

    `folder`: holds the files of its pictures; None: only their words. `pages`: holds the files of its pages,
    which are linked; None: pages become sections.
    """
    parts, level = [], "###"
    if document.title:
        heads = [f"**{escaped(document.headline)}**"] if document.headline else []
        heads = [f"# {escaped(document.title)}", *heads, escaped(document.summary)]
        parts, level = ["\n\n".join(heads) + "\n"], "##"
    sections = [*document.sections, *(() if pages else map(page_section, document.pages))]
    titles = (f"{level} {escaped(part.title)}\n\n" if part.title else "" for part in sections)
    parts += [head + _body(part.blocks, folder) for head, part in zip(titles, sections, strict=True)]
    if pages and document.pages:
        links = (f"- {_link(page.title, f'{pages}/{page.name}.md')}\n" for page in document.pages)
        parts.append(f"{level} Pages\n\n{''.join(links)}")
    return "\n".join(parts)


def page_section(page: Page) -> Section:
    """Return a page as a section, for a format with only one file."""
    return Section(page.title, page.blocks, is_folded=True)


def _path(picture: Picture, folder: str) -> str:
    return f"{folder}/{picture.name}.svg"


def escaped(text: str) -> str:
    """Return text from outside on one line, with its markup escaped; `@name` notifies nobody."""
    return _MENTION.sub("&#64;", _MARKUP.sub(r"\\\1", plain(" ".join(text.splitlines()))))


def _body(blocks: Iterable[Block], folder: str | None) -> str:
    return "\n".join(_block(block, folder) for block in blocks)


def _link(words: str, path: str) -> str:
    """Return a link to a file next to the document, whatever characters its path has."""
    return f"[{escaped(words)}]({quote(path)})"


def _block(block: Block, folder: str | None) -> str:
    match block:
        case str():
            return f"{escaped(block)}\n"
        case Styled(text):
            return "".join(f"{escaped(line)}\n" for line in text.split("\n"))
        case Rows(rows):
            return _table(("", ""), _filled(rows))
        case Bullets(items):
            return "".join(f"- {escaped(item)}\n" for item in items)
        case Items(items, nothing, note):
            text = "".join(_finding(*item) for item in items) or f"{nothing}\n"
            return f"{text}\n{escaped(note)}\n" if note else text
        case Drawing(lines, title):
            return (f"{escaped(title)}:\n\n" if title else "") + _code(lines(FILE_WIDTH))
        case Picture():
            words = escaped(block.alt)
            if folder is None:
                return f"{escaped(block.title)}: {words}\n"
            return f"!{_link(f'{block.title}. {block.alt}', _path(block, folder))}\n"
        case Table():
            sides = ["---:" if column.side == "right" else "---" for column in block.columns]
            notes = "".join(f"- {escaped(note)}\n" for note in block.notes)
            return _table(block.heads, block.rows, sides) + (f"\n{notes}" if notes else "")


def _finding(severity: str, id: str, of: str, says: Sequence[str], remedy: str | None) -> str:
    text = f"- **{severity}** `{id}`{f' ({escaped(of)})' if of else ''}\n"
    text += "".join(f"  - {escaped(one)}\n" for one in says)
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


def _filled(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return rows with the label repeated in rows that continue the row before."""
    filled: list[tuple[str, str]] = []
    for label, words in rows:
        filled.append((label or (filled[-1][0] if filled else ""), words))
    return filled
