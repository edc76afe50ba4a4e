"""Blocks of documents as the text that tests read."""

import re
from collections.abc import Iterable
from pathlib import Path

from gputopo.report import Document, Line, document_text, inspection_document
from gputopo.report.document import Block, Rows, Section
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import Machine
from tests.kit import golden

GOLDEN = Path(__file__).with_name("golden")


def assert_golden(name: str, text: str) -> None:
    """Check that a screen is the one in `tests/report/golden`."""
    golden.assert_golden(GOLDEN / f"{name.replace(' ', '-')}.txt", text)


def text_of(lines: Iterable[Line]) -> str:
    """Lines as a pipe gets them."""
    return "".join("".join(text for text, _ in spans).rstrip() + "\n" for spans in lines)


def text_of_blocks(*blocks: Block, width: int = 80) -> str:
    """Blocks one after the other."""
    return document_text(Document("", "", (Section("", blocks),)), width)


def answer_of(machine: Machine, *findings: Finding, checks: int = 0) -> str:
    """The first line of an inspection."""
    return inspection_document(Inspection(machine=machine, findings=findings), checks=checks).answer


def sections_of(document: Document, title: str) -> list[Section]:
    """The sections of a document whose titles begin with these words."""
    return [section for section in document.sections if section.title.startswith(title)]


def section_text(document: Document, title: str, width: int = 78) -> str:
    """The text of the sections whose titles begin with these words, without the titles."""
    sections = (section._replace(title="") for section in sections_of(document, title))
    return document_text(Document("", "", tuple(sections)), width)


def rows_of(document: Document, title: str) -> list[tuple[str, str]]:
    """The rows of labels and words in the section of this title."""
    blocks = (block for section in sections_of(document, title) for block in section.blocks)
    return [row for block in blocks if isinstance(block, Rows) for row in block.rows]


def assert_tables_are_even(markdown: str) -> None:
    """Check that the rows of each table have equally many cells."""
    counts: list[int] = []
    for row in [*markdown.splitlines(), ""]:
        if row.startswith("|"):
            counts.append(len(re.findall(r"(?<!\\)\|", row)))
        else:
            assert len(set(counts)) <= 1
            counts = []
