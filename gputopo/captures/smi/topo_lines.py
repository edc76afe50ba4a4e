"""The lines of a pasted `nvidia-smi topo -m`: wrapping undone, headers and rows found.

Rows are found by their labels, so prefixes, indentation, prompts and remarks around them do not matter.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Column = Literal["cpu", "numa", "gpu_numa"]
Head = tuple[tuple[str, ...], tuple[Column, ...]]

GPU = re.compile(r"GPU(\d{1,4})", re.ASCII)
CELL = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|INTERNAL|PSB", re.ASCII)

# Text copied from a terminal may have wrapped lines joined by a run of spaces as wide as the rest of the
# screen.
_WRAP = re.compile(r"(?<=\S)( {24,})(?=\S)")
_NARROWEST_TERMINAL = 60
_MAX_SEAMS = 6
_LONGEST_NAME = 64  # Linux: IB_DEVICE_NAME_MAX
_LABEL_WITHIN = 12  # words before a row's label: a log's date, level and rank

_WORD = re.compile(r"\S+")
_NIC = re.compile(r"[A-Za-z][A-Za-z0-9.-]*(?:[0-9]|_)[\w.-]*", re.ASCII)
# If header words were joined, each of these starts a new word.
_FUSED = re.compile(
    r"(?<=\d)(?=(?:GPU|NIC)\d|mlx\d+_|GPU\s*NUMA|CPU\s*A|NUMA\s*A)|(?<=GPU\d)(?=[a-z])|(?<=GPU\d\d)(?=[a-z])",
    re.ASCII,
)
_AFFINITY_WORD = re.compile(r"(?:CPU|NUMA|GPU|ID|Affinity|CPUAffinity|NUMAAffinity)+")
_FRAGMENT = re.compile(r"X|[A-Z]{1,8}\d{0,3}|[\d,-]+|N/A?|/?A", re.ASCII)
# The cells of `topo -p2p`, a table that looks the same.
PEER_STATUS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})


@dataclass(slots=True)
class Line:
    """A line before it was wrapped. `seams[i]` is the text between segments i and i + 1."""

    number: int
    segments: list[str]
    seams: list[str]
    more: list[int] = field(default_factory=list)  # the numbers of the lines that continue it

    @property
    def text(self) -> str:
        """The line with spaces at its seams."""
        return self._joined(self.seams)

    def variants(self) -> Iterator[str]:
        """Return every possible whole line: a seam is a space or is within a word."""
        if len(self.seams) > _MAX_SEAMS:
            yield self.text
            return
        for glue in itertools.product(*((seam, "") for seam in self.seams)):
            yield self._joined(glue)

    def _joined(self, glue: Sequence[str]) -> str:
        return "".join(a + b for a, b in zip(self.segments, (*glue, ""), strict=True))


def header_words(text: str) -> Head | None:
    """Return the devices and the affinity columns of a header line, or None if the line is not a header."""
    start = re.search(r"(?<![A-Za-z0-9_])GPU\d", text, re.ASCII)
    if start is None:
        return None
    words = _FUSED.sub(" ", text[start.start() :]).split()
    count = next(
        (i for i, word in enumerate(words) if word[:3] in ("CPU", "NUM", "Aff") or word == "GPU"), len(words)
    )
    devices = tuple(words[:count])
    if not devices or not GPU.fullmatch(devices[0]):
        return None
    if not all(GPU.fullmatch(d) or (_is_nic(d) and not CELL.fullmatch(d)) for d in devices):
        return None
    titles = "".join(words[count:])
    columns: list[Column] = ["cpu"] if titles.startswith("CPU") else []
    if "NUMA" in titles.replace("GPUNUMA", ""):
        columns.append("numa")
    if "GPUNUMA" in titles:
        columns.append("gpu_numa")
    return devices, tuple(columns)


def cells_below(lines: Sequence[str]) -> Literal["hops", "statuses"] | None:
    """Return the kind of cells in the first row below a header (the first line), or None without either."""
    head = header_words(lines[0].replace("|", "\t")) if "GPU" in lines[0] else None
    if head is None:
        return None
    for line in lines[1:]:
        words = words_of(line.replace("|", "\t"))
        start = row_start(words, head[0])
        if start is not None:
            statuses = any(word[0] in PEER_STATUS for word in words[start + 1 : start + 1 + len(head[0])])
            return "statuses" if statuses else "hops"
    return None


def read_lines(text: str) -> list[Line]:
    """Return the lines with wrapping undone: text that a terminal put on the next line becomes a segment."""
    lines: list[Line] = []
    previous = ""
    for number, raw in enumerate(text.replace("|", "\t").split("\n"), 1):
        wrapped = (
            bool(lines)
            and len(lines[-1].seams) < _MAX_SEAMS
            and len(previous.expandtabs()) >= _NARROWEST_TERMINAL
        )
        if wrapped and _continues(raw, lines[-1]):
            lines[-1].segments.append(raw.rstrip())
            lines[-1].seams.append(" ")
            lines[-1].more.append(number)
        else:
            parts = _WRAP.split(raw.rstrip())
            lines.append(Line(number, parts[::2], parts[1::2]))
        previous = raw
    return lines


def _continues(raw: str, line: Line) -> bool:
    """Return whether a line continues the header or row before it, which a narrow terminal cut."""
    words = raw.split()
    if not words or starts_row(raw, None):
        return False
    if starts_row(line.text, None):
        return all(_FRAGMENT.fullmatch(word) for word in words)
    previous = best_header(line)
    ahead, more = header_words(previous), header_words(raw)
    if ahead and more:
        return not ahead[1] and not set(ahead[0]) & set(more[0])
    joined = (header_words(previous.rstrip() + glue + raw.lstrip()) for glue in ("", " "))
    return any(whole and whole != ahead for whole in joined)


def starts_row(text: str, head: Head | None) -> bool:
    """Return whether a line is a device's row, under this header or without a header."""
    return row_start(words_of(text), head[0] if head else ()) is not None


def words_of(text: str) -> list[re.Match[str]]:
    """Return the words of a line with their positions."""
    return list(_WORD.finditer(text))


def label_of(word: str) -> str:
    """Return a label without the marks that quoting, lists and prose add to it."""
    return word.strip("#>/*-+:;,.`'\"$!()[]")


def row_start(words: list[re.Match[str]], columns: tuple[str, ...]) -> int | None:
    """Return the position of the label, a device's name that is followed mostly by cells."""
    for position, word in enumerate(words[: min(_LABEL_WITHIN, len(words) - 1)]):
        label = label_of(word[0])
        if not (GPU.fullmatch(label) or _is_nic(label)) or CELL.fullmatch(label):
            continue
        after = [w[0] for w in words[position + 1 :]]
        cells = after[: len(columns)] if columns else list(itertools.takewhile(may_be_cell, after))
        known = sum(1 for cell in cells if CELL.fullmatch(cell) or cell in PEER_STATUS)
        if known and 2 * known >= len(cells):
            return position
    return None


def may_be_cell(word: str) -> bool:
    """Return whether a word is a cell, known or not, and not an affinity."""
    return word != "N/A" and not word.lstrip("-,")[:1].isdigit()


def _is_nic(word: str) -> bool:
    return len(word) <= _LONGEST_NAME and _NIC.fullmatch(word) is not None


def best_header(line: Line) -> str:
    """Choose how a wrapped header's parts join: the way that leaves the fewest words that are not titles."""

    def strange(text: str) -> int:
        words = _FUSED.sub(" ", text).split()
        return sum(1 for w in words if not (GPU.fullmatch(w) or _is_nic(w) or _AFFINITY_WORD.fullmatch(w)))

    return min(line.variants(), key=strange)
