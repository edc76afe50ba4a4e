"""The ledger of lines: each line of an input is read, known to have no facts, or listed as not understood.

A reader either lists the lines that it does not understand, or reports the lines of its format (`claims`);
then all other lines are listed here.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.values.machine import LineCounts, Machine, Unread

_LONGEST = 200
_MAX_LISTED = 1000  # lines per capture; all are counted
_TOOLS = (
    r"nvidia-smi|lspci|lscpu|numactl|dmesg|journalctl|cat|grep|watch|ssh|srun|docker"
    r"|p2pBandwidthLatencyTest|bandwidthTest|nvbandwidth|gputopo"
)
_NOISE = re.compile(
    r"^(?:\W*|\W*(?:text|console|bash|sh(?:ell)?|plaintext|log)\W*"  # rules, code fences
    r"|([-=*#~+])\1+[>\s]*[^\W_][^|]{0,78}?[<\s]*\1{2,}"  # ===== NAME =====
    r"|([-=*~+>])\2+ [A-Za-z][\w.-]{0,60}"  # --- NAME
    r"|[^\s$%#>]{0,80}(?:[$%>]|#{1,6}) .*"  # prompts, Markdown headings
    r"|(?:\(\w+\) )?(?:[^\s@]+@[^\s$#]*|\[[^\s@]+@\S+ [^\]]*\])[$#].*|PS [A-Z]:\\\S*>.*|[A-Z]:\\[^>]{0,80}>.*"
    rf"|(?:\+ )?(?:sudo )?\S*(?:{_TOOLS})(?:\.exe)?(?: +[-/|\w].*)?"
    r"|</?(?:pre|code|details|summary)\b[^>]{0,80}>.*|exit|logout|Every \d+(?:[.,]\d+)?s: .*)$"
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MARKUP = re.compile(r"[<>]|=[\"']")
_COMMENT = re.compile(r"<!--.{0,4000}?-->", re.DOTALL)
_DTD = re.compile(r"<\?xml[^>]{0,200}\?>|<!DOCTYPE[^>\[]{0,400}(?:\[[^\]]*\]\s*)?>")


class Claims(NamedTuple):
    """The numbers of the lines that a format reads, and of known lines that it skips."""

    read: frozenset[int]
    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class Format:
    """One format of text, and its reader."""

    reads: str  # what it reads, in words
    facts: str  # the facts in it, for the page about formats
    detect: Callable[[str], bool]  # a quick test: the text has this format, or looks like it
    parse: Callable[..., Machine]  # (text, *, origin); raises InputError with `origin`
    begins: Callable[[Sequence[str]], bool] | None = None  # the first of these lines starts such an output
    # The lines of this format in a text, if the reader skips unknown lines.
    claims: Callable[[str], Claims] | None = None


def is_noise(line: str) -> bool:
    """Return whether a line is blank, a rule, a fence, a prompt or the command that printed the output."""
    return _NOISE.match(line.strip()[:_LONGEST]) is not None


class Lines(NamedTuple):
    """The numbers of the lines that a reader took, and the other non-blank lines by number."""

    taken: frozenset[int]
    rest: dict[int, str]

    def unread(self, source: str) -> tuple[Unread, ...]:
        """Return the other lines as not understood, except rules, fences, prompts and commands."""
        return tuple(unread(source, number, line) for number, line in self.rest.items() if not is_noise(line))


def read_lines(
    text: str, take: Callable[[int, str], bool], *, bare: Callable[[str], str] = str.strip, longest: int = 400
) -> Lines:
    """Pass each non-blank line, stripped by `bare`, to `take`, which returns whether it understood it."""
    taken: set[int] = set()
    rest: dict[int, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        if not (line := bare(raw[:longest])):
            continue
        if take(number, line):
            taken.add(number)
        else:
            rest[number] = line
    return Lines(frozenset(taken), rest)


def unread(source: str, line: int, text: str) -> Unread:
    """Return a line that was not understood, shortened and without UUIDs."""
    return Unread(source=source, line=line, text=_UUID.sub("...", " ".join(text.split()))[:_LONGEST])


def by_line(text: str, read: Callable[[str], object], known: Callable[[str], object]) -> Claims:
    """Return the claims of a format whose lines can be classified one by one."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    of_format = frozenset(number for number, line in lines if read(line))
    return Claims(of_format, frozenset(n for n, line in lines if n not in of_format and known(line)))


def xml_lines(text: str) -> Claims:
    """Return the claims of an XML format: lines with a tag or an attribute are read, comments are known."""
    claims = by_line(text, _MARKUP.search, lambda line: False)
    without = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    return claims._replace(known=frozenset(filled(text).keys() - filled(without).keys() - claims.read))


def filled(text: str) -> dict[int, str]:
    """Return the non-blank lines by number."""
    return {number: line for number, line in enumerate(text.splitlines(), 1) if line.strip()}


def completed(machine: Machine, text: str, kind: Format) -> Machine:
    """Return the machine of a section with its lines counted, and lines listed that were not understood."""
    lines = filled(text)
    listed = {unread_line.line for unread_line in machine.unread}
    others = lines.keys() - listed
    is_document = kind.claims is None and text.lstrip().startswith("<")
    noise = {number for number in others if not is_document and is_noise(lines[number])}
    claims = kind.claims(text) if kind.claims else Claims(frozenset(others - noise), frozenset())
    strays = sorted(others - claims.read - claims.known - noise)
    read, missed = len(others & claims.read), len(lines) - len(others) + len(strays)
    known = len(lines) - read - missed
    counts = LineCounts(source=machine.source, read=read, known=known, not_understood=missed)
    unread = _sorted([*machine.unread, *_listed(machine.source, lines, strays)])
    return replace(machine, unread=unread, lines=(counts,))


def without(machine: Machine, lines: Collection[int]) -> Machine:
    """Return a machine with these lines counted as read and no longer listed as not understood."""
    kept = tuple(unread_line for unread_line in machine.unread if unread_line.line not in lines)
    if not machine.lines:
        return replace(machine, unread=kept)
    first, fewer = machine.lines[0], len(machine.unread) - len(kept)
    counts = replace(first, read=first.read + fewer, not_understood=first.not_understood - fewer)
    return replace(machine, unread=kept, lines=(counts, *machine.lines[1:]))


def with_strays(machines: Sequence[Machine], text: str, sections: Iterable[str]) -> list[Machine]:
    """Return the machines of a text; the first one also lists the lines that are in no section."""
    sections = list(sections)
    if not machines or any(section.strip() == text.strip() for section in sections):
        return list(machines)
    rest = filled(_DTD.sub(lambda match: "\n" * match[0].count("\n"), text))
    for section in sections:
        for number in filled(section):
            rest.pop(number, None)
    if not rest:
        return list(machines)
    strays = [number for number, line in rest.items() if not is_noise(line)]
    first = machines[0]
    empty = LineCounts(source=first.source, read=0, known=0, not_understood=0)
    counts = next(iter(first.lines), empty)
    noise = len(rest) - len(strays)
    counts = replace(counts, known=counts.known + noise, not_understood=counts.not_understood + len(strays))
    unread = _sorted([*first.unread, *_listed(first.source, rest, strays)])
    return [replace(first, unread=unread, lines=(counts,)), *machines[1:]]


def _listed(source: str, lines: dict[int, str], numbers: Sequence[int]) -> list[Unread]:
    return [unread(source, number, lines[number]) for number in numbers[:_MAX_LISTED]]


def _sorted(unread: Iterable[Unread]) -> tuple[Unread, ...]:
    return tuple(sorted(unread, key=lambda line: line.line))
