"""The text of `nvidia-smi -q`, whole or with `-d`, of any driver and system: text in, Machine out.

Indentation makes the tree. Where a paste has lost it, headings that table knows do. Several outputs in
one file (`-d CLOCK` after `-d POWER`, a loop with `-l`) are one machine: of each fact the first value stands.
A line of a GPU that is not understood is Unread; lines around the outputs are passed over.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gputopo.captures.smi import unanswered, values
from gputopo.captures.smi.gpu import Entry, ReportedGpu
from gputopo.captures.smi.machine import machine, unread
from gputopo.captures.smi.names import Named, names
from gputopo.captures.smi.unanswered import Unanswered
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

SOURCE = "nvidia-smi -q"
READS = "`nvidia-smi -q` text"

_HINT = "copy the whole output of `nvidia-smi -q` again, with its lines that begin with GPU"
_LOG = re.compile(r"={4,} ?NVSMI LOG ?={4,}")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", re.ASCII)
_GPU_LINE = re.compile(rf"^[ \t#>|%/]*{_GPU.pattern}[ \t]*\r?$", re.MULTILINE | re.ASCII)
_LONGEST = 2000  # the longest line of any driver, a command line, is far shorter
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_QUOTED = re.compile(r"^(?:[#>|%]+|//+) ?")  # a comment, a quotation in a mail, a table
_PAIR = re.compile(r"(?P<name>\S.*?)\s*:(?:\s+(?P<value>.*\S))?\s*")
_NAME = re.compile(r"[A-Za-z][\w .()/-]*", re.ASCII)  # no prompt
_PADDED = re.compile(r"\S\s+: \S")  # `name   : value`, as no prompt or log line is written


def recognise(text: str) -> bool:
    """Return whether the text holds an output of `nvidia-smi -q`, or a part with headings and facts of it."""
    if _LOG.search(text) is not None:
        return True
    headed = _GPU_LINE.search(text) is not None
    if not headed and _headings().search(text) is None:
        return False
    lines = list(_lines(text))
    facts = any(line.pair is not None and line.heading in _ends() for line in lines)
    return facts and (headed or _sections(lines) >= 2)


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the one above each output."""
    return _LOG.search(lines[0]) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the outputs in a text. Raises InputError if there is no GPU."""
    lines = list(_lines(text))
    reading = _Reading(flat=_is_flat(lines))
    headed = any(_GPU.fullmatch(line.text) for line in lines)
    if not headed and _sections(lines):
        reading.begin(None)
    for line in lines:
        reading.take(line)
    gpus = reading.numbered(headed)
    if not gpus and reading.attached != "0":
        raise InputError(f"{origin}: no GPU in this `nvidia-smi -q` text", _HINT)
    return machine(
        SOURCE,
        gpus,
        driver_values=reading.driver,
        not_understood=reading.not_understood,
        attached=reading.attached,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str
    may_be_cut: bool

    @property
    def pair(self) -> tuple[str, str] | None:
        """The name and the value of `name : value`."""
        match = _PAIR.fullmatch(self.text)
        return None if match is None or not match["value"] else (match["name"], match["value"])

    @property
    def heading(self) -> str:
        """The name alone, in lower case."""
        match = _PAIR.fullmatch(self.text)
        return " ".join((match["name"] if match else self.text).lower().split())


def _lines(text: str) -> Iterator[_Line]:
    lines = text.splitlines()
    whole = text.endswith(("\n", "\r"))
    for number, raw in enumerate(lines, start=1):
        shown = _QUOTED.sub("", _TERMINAL.sub("", raw[:_LONGEST])).expandtabs(8)
        if shown.strip():
            last = number == len(lines) and not whole
            yield _Line(number, len(shown) - len(shown.lstrip()), shown.strip(), last)


@functools.cache
def _ends() -> frozenset[str]:
    known = names("text")
    return frozenset(path.rpartition("/")[2] for path in (*known.facts, *known.processes))


@functools.cache
def _headings() -> re.Pattern[str]:
    known = "|".join(re.escape(path) for path in names("text").sections if "/" not in path)
    return re.compile(rf"^[ \t#>|%/]{{0,40}}(?:{known})[ \t]{{0,40}}\r?$", re.MULTILINE | re.IGNORECASE)


def _sections(lines: Sequence[_Line]) -> int:
    """Count the lines that are a heading of `nvidia-smi -q`."""
    return sum(1 for line in lines if line.pair is None and _headings().fullmatch(line.text))


def _is_flat(lines: Sequence[_Line]) -> bool:
    """Return whether a paste has lost all indentation: no line of a fact is further right than another."""
    return len({line.indent for line in lines if line.pair is not None}) <= 1


@dataclass
class _Reading:
    """Goes through the lines; `gpu` is the GPU whose lines these are."""

    flat: bool
    gpus: dict[str, ReportedGpu] = field(default_factory=dict)
    gpu: ReportedGpu | None = None
    attached: str | None = None
    driver: list[tuple[Named, str]] = field(default_factory=list)
    not_understood: list[Unread] = field(default_factory=list)
    base: int = -1  # the indentation of the line that names the GPU
    foreign: bool = False  # a line of something else came since
    stack: list[tuple[int, str]] = field(default_factory=list)  # indentation and name of the headings above
    unanswered: list[Unanswered] = field(default_factory=list)  # lines of GPUs that did not answer

    def begin(self, address: str | None) -> None:
        """A GPU begins, or comes again."""
        key = address or ""
        known = self.gpus.get(key)
        if known is None:
            self.gpus[key] = ReportedGpu(names("text"))
        else:
            known.visit += 1
        self.gpu = self.gpus[key]
        self.foreign = False
        self.stack = []

    def take(self, line: _Line) -> None:
        """Take in a line, whatever it is."""
        if match := _GPU.fullmatch(line.text):
            address = values.address(match[1]) or match[1]
            self.begin(address)
            self.base = line.indent
            self._add(line, "pci/bus id", match[1])
        elif silent := unanswered.read(line.text):
            unanswered.lose(dict(enumerate(self.gpus.values())), silent, own=False)
            self.unanswered.append(silent)
        elif self._of_log(line):
            pass
        elif self.gpu is not None and (line.indent > self.base or self.flat):
            self._of_gpu(line)
        else:
            self.foreign = True
            if self.gpu is not None and _PADDED.search(line.text) and not _LOG.search(line.text):
                self._note(line)

    def numbered(self, headed: bool) -> dict[int, ReportedGpu]:
        """Return the GPUs as they stand, by index; those that did not answer in their places.

        Without a line that names a GPU (`headed`) a GPU without values is none.
        """
        rows = [gpu for gpu in self.gpus.values() if headed or gpu.reported]
        return unanswered.numbered(dict(enumerate(rows)), self.unanswered, names("text"), own=False)

    def _of_log(self, line: _Line) -> bool:
        """Take in a line above the GPUs: the versions, and how many there are."""
        if line.pair is None:
            return False
        known = names("text").driver.get(line.heading)
        if known is not None and not (line.may_be_cut and not values.is_whole(line.text)):
            self.driver.append((known, line.pair[1]))
        elif line.heading == "attached gpus":
            if self.attached is None or not self.attached.isdigit():
                self.attached = line.pair[1]
        elif line.heading != "timestamp" and known is None:
            return False
        return True

    def _of_gpu(self, line: _Line) -> None:
        path = self._flat_path(line) if self.flat else self._indented_path(line)
        pair = line.pair
        if pair is None:
            assert self.gpu is not None
            understood = self.gpu.add(Entry(path, None, line.number, line.text))
            if not understood and not self.foreign and _NAME.fullmatch(line.text):
                self._note(line)
        elif line.may_be_cut and not values.is_whole(line.text):
            self._note(line)
        else:
            self._add(line, path, pair[1])

    def _add(self, line: _Line, path: str, value: str) -> None:
        assert self.gpu is not None
        understood = self.gpu.add(Entry(path, value, line.number, line.text))
        if not understood and not (self.foreign and path not in self.gpu.names.facts):
            self._note(line)

    def _indented_path(self, line: _Line) -> str:
        while self.stack and self.stack[-1][0] >= line.indent:
            self.stack.pop()
        self.stack.append((line.indent, line.heading))
        return "/".join(name for _, name in self.stack)

    def _flat_path(self, line: _Line) -> str:
        """Find the nearest heading above under which the name is known; a strange heading ends them all.

        Below a heading of which nothing has a place any name is that heading's, unless it is known elsewhere.
        """
        known = names("text")
        above = [name for _, name in self.stack]
        inside = "/".join([*above, line.heading])
        instance = (
            above[:1] == ["mig device"] and line.heading == "ecc errors"
        )  # the instance's, not the GPU's
        path = None if instance else known.nearest(above, line.heading)
        if path is None and known.is_unplaced(inside):
            return inside
        if path is None:
            self.stack = [] if line.pair else [(0, line.heading)]
            return inside
        if line.pair is None or path in known.sections:
            self.stack = [(0, name) for name in path.split("/")]
        return path

    def _note(self, line: _Line) -> None:
        self.not_understood.append(unread(SOURCE, line.number, line.text))
