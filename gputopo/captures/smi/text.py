"""The text of `nvidia-smi -q`, whole or with `-d`, of any driver and system: text in, Machine out.

Indentation makes the tree. If a paste has lost its indentation, known headings make the tree. Several outputs
in one file (`-d CLOCK` after `-d POWER`, a loop with `-l`) are captures of one machine, and are merged. A
line about a GPU that is not understood is Unread; lines around the outputs are skipped.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gputopo.captures import merging
from gputopo.captures.ledger import Claims, Format, is_noise, unread
from gputopo.captures.smi import values
from gputopo.captures.smi.gpu import Entry, ReportedGpu
from gputopo.captures.smi.machine import (
    Identity,
    Unanswered,
    machine,
    parse_unanswered,
    read_unanswered,
    refuse_others,
    with_unanswered,
)
from gputopo.captures.smi.names import Named, names
from gputopo.values.errors import InputError
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Machine, Unread

SOURCE = "nvidia-smi -q"

_HINT = "copy the whole output of `nvidia-smi -q` again, with its lines that begin with GPU"
_LOG = re.compile(r"={4,} ?NVSMI LOG ?={4,}")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", re.ASCII)
_GPU_LINE = re.compile(rf"^[ \t#>|%/]*{_GPU.pattern}[ \t]*$", re.MULTILINE | re.ASCII)
_ABOVE = ("timestamp", "attached gpus")
_NARROWEST = 60  # width of a terminal
_FRAGMENT = re.compile(r"[^\s:=-][^\s:=]{0,60}")  # the rest of a line that a terminal wrapped
_LONGEST = 2000  # the longest line of any driver, a command line, is far shorter
_QUOTED = re.compile(r"^(?:[#>|%]+|//+) ?")  # a comment, a quotation in an email, a table
_PAIR = re.compile(r"(?P<name>\S.*?)\s*:(?:\s+(?P<value>.*\S))?\s*")


def detect(text: str) -> bool:
    """Return whether the text has an output of `nvidia-smi -q`, or a part of one with headings and facts."""
    if _LOG.search(text) is not None:
        return True
    headed = _GPU_LINE.search(text) is not None
    if not headed and _headings().search(text) is None:
        return False
    lines = list(_lines(text))
    facts = sum(1 for line in lines if line.pair is not None and line.heading in _ends())
    most = 2 * facts > sum(not is_noise(line.text) for line in lines)
    return facts > 0 and (headed or _sections(lines) + most >= 2)


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the title above each output."""
    return _LOG.search(lines[0]) is not None


def claims(text: str) -> Claims:
    """Return the lines with a fact as read; all other lines that `parse` does not list are known."""
    driver = names("text").driver
    lines = [(line.number, line.heading) for line in _lines(text)]
    facts = frozenset(
        number
        for number, name in lines
        if name in _ends() or name in driver or name in _ABOVE or name.startswith("gpu 0000")
    )
    return Claims(facts, frozenset(number for number, _ in lines) - facts)


def parse(text: str, *, origin: str) -> Machine:
    """Read the outputs in a text. Raises InputError if there is no GPU."""
    lines = list(_lines(text))
    headed = any(_GPU.fullmatch(line.text) for line in lines)
    # The paste lost all indentation if all lines with a fact start in the same column.
    flat = len({line.indent for line in lines if line.pair is not None}) <= 1
    reading = _Reading(flat=flat, headed=headed or not _sections(lines))
    for line in lines:
        reading.take(line)
    refuse_others([output.identity for output in reading.outputs if output.rows()], origin)
    unanswered = read_unanswered(line.text for line in lines)
    outputs = [output for output in reading.outputs if output.rows() or output.attached == "0"]
    outputs = outputs or reading.outputs[: len(unanswered)]
    if not outputs:
        raise InputError(f"{origin}: no GPU in this `nvidia-smi -q` text", _HINT)
    keys = list(dict.fromkeys(key for output in outputs for key in output.rows()))
    if len(outputs) > 1:  # each may list some GPUs only: NVML's order is by address
        keys.sort()
    listed = {key: output.time for output in outputs for key in output.rows()}
    merged = merging.merge([output.machine(keys, listed, unanswered) for output in outputs])
    return replace(
        merged,
        source=SOURCE if len(merged.samples) < 2 else merged.source,
        unread=tuple(sorted(merged.unread, key=lambda line: line.line)),
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
        return _split(self.text)[0]

    @property
    def heading(self) -> str:
        """The name by itself, in lower case."""
        return _split(self.text)[1]


@functools.lru_cache(maxsize=8192)  # called several times per line, and the outputs of a loop repeat lines
def _split(text: str) -> tuple[tuple[str, str] | None, str]:
    """Return name and value of a line, or None if it is only a name; and the name in lower case."""
    match = _PAIR.fullmatch(text)
    pair = None if match is None or not match["value"] else (match["name"], match["value"])
    return pair, " ".join((match["name"] if match else text).lower().split())


def _lines(text: str) -> Iterator[_Line]:
    lines = text.splitlines()
    whole = text.endswith("\n")
    for number, raw in enumerate(lines, start=1):
        shown = _QUOTED.sub("", raw[:_LONGEST]).expandtabs(8)
        if shown.strip():
            last = number == len(lines) and not whole
            wrapped = number < len(lines) and len(raw) >= _NARROWEST and _FRAGMENT.fullmatch(lines[number])
            yield _Line(number, len(shown) - len(shown.lstrip()), shown.strip(), last or bool(wrapped))


@functools.cache
def _ends() -> frozenset[str]:
    known = names("text")
    return frozenset(path.rpartition("/")[2] for path in (*known.facts, *known.processes))


@functools.cache
def _headings() -> re.Pattern[str]:
    known = "|".join({re.escape(path.rpartition("/")[2]) for path in names("text").sections})
    return re.compile(rf"^[ \t#>|%/]{{0,40}}(?:{known})[ \t]{{0,40}}$", re.MULTILINE | re.IGNORECASE)


def _sections(lines: Sequence[_Line]) -> int:
    """Count the lines that are headings of `nvidia-smi -q`."""
    return sum(1 for line in lines if line.pair is None and _headings().fullmatch(line.text))


@dataclass
class _Output:
    """The content of one output: its GPUs by address ("" without addresses), and the lines above them."""

    headed: bool  # a line with the address is above each GPU
    line: int
    gpus: dict[str, ReportedGpu] = field(default_factory=dict)
    attached: str | None = None
    time: str | None = None
    driver: list[tuple[Named, str]] = field(default_factory=list)
    not_understood: list[Unread] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether only lines were read that may be above an output."""
        return not ((self.gpus if self.headed else self.rows()) or self.attached or self.time or self.driver)

    def rows(self) -> dict[str, ReportedGpu]:
        """Return the GPUs. If no line has an address, a GPU without values is not one."""
        return {key: gpu for key, gpu in self.gpus.items() if self.headed or gpu.reported}

    @property
    def identity(self) -> Identity:
        """What identifies the machine."""
        uuids = (value.value for gpu in self.gpus.values() for value in gpu.reported.get("uuid", {}).values())
        return Identity(
            where=f"the output from line {self.line} on",
            driver=next((text for named, text in self.driver if named.fact == "version"), None),
            attached=values.gpu_count(self.attached),
            addresses=frozenset(key for key in self.rows() if key),
            uuids=frozenset(filter(None, uuids)),
        )

    def note(self, line: _Line) -> None:
        """List a line as not understood."""
        self.not_understood.append(unread(SOURCE, line.number, line.text))

    def machine(
        self, keys: Sequence[str], listed: Mapping[str, str | None], unanswered: Iterable[Unanswered]
    ) -> Machine:
        """Return the machine of this output.

        `keys`: the GPUs of all outputs, in order; `listed`: the time of the last output that lists each GPU.
        """
        rows = self.rows()
        gone = values.gpu_count(self.attached) == len(rows) < len(keys)  # counted at another time
        gpus: dict[int, ReportedGpu] = {}
        for index, key in enumerate(keys):
            notes = {"": f"listed at {listed[key]}, not listed at {self.time}"} if gone else {}
            gpus[index] = rows.get(key) or ReportedGpu(
                names("text"),
                reported={"pci_address": {0: values.ReportedValue(key)}},
                lost=gone,
                notes=notes,
            )
        return machine(
            SOURCE,
            with_unanswered(gpus, unanswered, names("text"), numbered=False),
            driver_values=self.driver,
            not_understood=self.not_understood,
            attached=None if gone else self.attached,
            time=self.time,
        )


@dataclass
class _Reading:
    """Reads the lines one after the other; `gpu` is the GPU that the present lines are about."""

    flat: bool
    headed: bool
    outputs: list[_Output] = field(default_factory=list)
    gpu: ReportedGpu | None = None
    aside: int | None = None  # indentation of a section above the GPUs without a place in a Machine
    base: int = -1  # indentation of the line with the GPU's address
    stack: list[tuple[int, str]] = field(default_factory=list)  # indentation and name of the headings above

    @property
    def output(self) -> _Output:
        """The output that the present lines belong to."""
        return self.outputs[-1]

    def take(self, line: _Line) -> None:
        """Read a line of any kind."""
        if not self.outputs or _LOG.search(line.text):
            self._begin_output(line)
        if _LOG.search(line.text) or (not self.headed and is_noise(line.text)):
            return
        if match := _GPU.fullmatch(line.text):
            self._begin_gpu(kernel_address(match[1]) or match[1], line).add(
                Entry("pci/bus id", match[1], line.number, line.text)
            )
            self.base = line.indent
        elif parse_unanswered(line.text) or self._take_above_gpus(line):
            pass
        elif self.gpu is not None and (line.indent > self.base or self.flat):
            self._take_of_gpu(line)
        else:
            if line.pair is None:
                self.aside = line.indent if names("text").is_unplaced(line.heading) else None
            is_aside = self.gpu is None and self.aside is not None and line.indent >= self.aside
            if not (is_aside or is_noise(line.text)):
                self.output.note(line)

    def _begin_output(self, line: _Line) -> None:
        if not self.outputs or not self.output.is_empty:
            self.outputs.append(_Output(self.headed, line.number))
        self.gpu = None
        if not self.headed:
            self._begin_gpu("", line)

    def _begin_gpu(self, address: str, line: _Line) -> ReportedGpu:
        known = self.output.gpus.get(address)
        if known is not None and self.headed and known.reported.keys() > {"pci_address"}:
            self._begin_output(line)
        self.gpu = self.output.gpus.setdefault(address, ReportedGpu(names("text")))
        self.stack = []
        return self.gpu

    def _take_above_gpus(self, line: _Line) -> bool:
        """Read a line above the GPUs: the time, the versions, the number of GPUs."""
        if line.pair is None:
            return False
        output = self.output
        known = names("text").driver.get(line.heading)
        if known is not None and not (line.may_be_cut and not values.is_whole(line.text)):
            output.driver.append((known, line.pair[1]))
        elif line.heading == "attached gpus":
            if values.gpu_count(output.attached) is None:
                output.attached = line.pair[1]
        elif line.heading == "timestamp":
            output.time = output.time or line.pair[1]
        elif known is None:
            return False
        return True

    def _take_of_gpu(self, line: _Line) -> None:
        path = self._flat_path(line) if self.flat else self._indented_path(line)
        if line.pair is not None and line.may_be_cut and not values.is_whole(line.text):
            self.output.note(line)
            return
        text = None if line.pair is None else line.pair[1]
        assert self.gpu is not None
        if not self.gpu.add(Entry(path, text, line.number, line.text)) and not is_noise(line.text):
            self.output.note(line)

    def _indented_path(self, line: _Line) -> str:
        while self.stack and self.stack[-1][0] >= line.indent:
            self.stack.pop()
        self.stack.append((line.indent, line.heading))
        path = "/".join(name for _, name in self.stack)
        return path if self.headed else names("text").completed(path)

    def _flat_path(self, line: _Line) -> str:
        """Find the nearest heading above that has the name; an unknown heading ends all headings above.

        Below a heading without any place in a Machine, a name belongs to that heading unless it is known
        elsewhere.
        """
        known = names("text")
        above = [name for _, name in self.stack]
        inside = "/".join([*above, line.heading])
        instance = (
            above[:1] == ["mig device"] and line.heading == "ecc errors"
        )  # the MIG instance's, not the GPU's
        path = None if instance else known.nearest(above, line.heading)
        if path is None and known.is_unplaced(inside):
            return inside
        if path is None:
            self.stack = [] if line.pair else [(0, line.heading)]
            return inside
        if line.pair is None or path in known.sections:
            self.stack = [(0, name) for name in path.split("/")]
        return path


FORMAT = Format(
    "`nvidia-smi -q` text",
    "GPUs with clocks, power, temperature, throttle reasons, ECC, processes",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
