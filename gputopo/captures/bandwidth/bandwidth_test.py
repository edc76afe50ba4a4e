"""The text of the CUDA samples' `bandwidthTest` (quick, range, shmoo, csv) and of the blog's `bandwidthtest`.

One text may hold the outputs of several runs; a repeated direction and size begins another. A run prints the
number of its device among those that it sees, so each run of CUDA_VISIBLE_DEVICES=3 prints "Device 0"; the
GPU comes from the command line above it, or by `numbers_of_runs`, and `notes` state what was assumed.
Its local copy counts every byte twice, as ours does. Of several devices it prints only the sum over them,
which is no speed: NotMeasured. A run whose first line is there is whole with its last, `Result = ...`; a part
of one that was pasted is whole where each heading has its numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import msgspec

from gputopo.captures import matching
from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.texts import Program, ProgramRead, positive, understood_of
from gputopo.captures.matching import SINGLE_DEVICE
from gputopo.values.bandwidth import Bandwidth, Kind, NotMeasured, Sample
from gputopo.values.machine import Gpu, Machine

SOURCE = SINGLE_DEVICE

_IN_NAME = re.compile(
    r"(?:gpu|device|dev|cuda|bandwidth_?test)[ _.-]?(\d{1,3})(?!\d)", re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True, slots=True)
class SingleRun:
    """One run. `visible`: the GPU by CUDA_VISIBLE_DEVICES; `label`: a number near it; `printed`: its own."""

    visible: int | None
    label: int | None
    printed: int
    name: str | None


def numbers_of_runs(runs: Sequence[SingleRun]) -> tuple[list[int], list[str]]:
    """Return each run's GPU, and what was assumed.

    In this order: CUDA_VISIBLE_DEVICES; their own numbers, where one is above 0; the numbers beside
    them, where each has one; their order, where they are of GPUs of different names; else GPU 0 for all.
    """
    own = [run.printed if run.visible is None else run.visible for run in runs]
    if len(runs) < 2 or any(own) or all(run.visible is not None for run in runs):
        said = "CUDA_VISIBLE_DEVICES names the GPU of each run" if any(run.visible for run in runs) else None
        return own, [said] if said else []
    labels = [run.label for run in runs if run.label is not None]
    if len(labels) == len(runs) and len(set(labels)) > 1:
        return labels, [
            f"{SOURCE} calls its only device 0; the GPUs are numbered as the lines above the runs"
        ]
    if len({run.name for run in runs} - {None}) < 2:
        return own, []
    return list(range(len(runs))), [
        f"{SOURCE} calls its only device 0 in each of {len(runs)} runs; the GPUs' names differ, so they are "
        f"taken as GPUs 0 to {len(runs) - 1} in their order"
    ]


def renumbered(sources: Sequence[str], machines: Sequence[Machine]) -> list[Machine]:
    """Number the single devices of captures that are read together, by the numbers in their files' names.

    Without a number of a GPU in each name all are of GPU 0. One file alone keeps its GPU 0; beside captures
    of a machine with several GPUs the number in its name counts.
    """
    single = [at for at, machine in enumerate(machines) if _is_single(machine)]
    larger = any(len(machine.gpus) > 1 for machine in machines)
    found = [_IN_NAME.findall(PurePath(sources[at]).name) for at in single]
    numbers = [int(one[-1]) for one in found if one]
    given = list(machines)
    if len(numbers) == len(single) and (len(set(numbers)) > 1 or (single and larger)):
        for at, index in zip(single, numbers, strict=True):
            given[at] = _as(machines[at], index)
    return given


def _is_single(machine: Machine) -> bool:
    return machine.source == SOURCE and [gpu.index for gpu in machine.gpus] == [0]


def _as(machine: Machine, index: int) -> Machine:
    bandwidth = matching.renumbered_bandwidth(machine.bandwidth or Bandwidth(source=SOURCE), {0: index})
    note = f"{SOURCE} calls its only device 0; it is taken as GPU {index} by the number in its file's name"
    return msgspec.structs.replace(
        machine,
        gpus=(msgspec.structs.replace(machine.gpus[0], index=index),),
        bandwidth=msgspec.structs.replace(bandwidth, notes=(*bandwidth.notes, note)),
    )


_OLD_UNIT = (
    "bandwidthTest's MB/s are read as 10^6 bytes; its older versions divide by 2^20, then the "
    "links are 4.9 % faster than the numbers here"
)
_KINDS: dict[str, Kind] = {
    "Host to Device": "h2d",
    "Device to Host": "d2h",
    "Device to Device": "d2d_local",
    "H2D": "h2d",
    "D2H": "d2h",
    "D2D": "d2d_local",
}
_START = re.compile(r"CUDA Bandwidth Test\] - Starting")
_DEVICE = re.compile(r"Device (\d{1,4}): (\S.{0,119})$", re.ASCII)
_BLOG_DEVICE = re.compile(r"Device: ([^,]{1,120})$")
_WAY = "(Host to Device|Device to Host|Device to Device)"
_DIRECTION = re.compile(rf"^{_WAY} Bandwidth(?:, (\d{{1,4}}) Device\(s\))?\W*$", re.ASCII)
_MEMORY = re.compile(r"^(PINNED|PAGEABLE)(?: Write-Combined)? Memory Transfers$")
_HEADER = re.compile(r"Transfer Size \(Bytes\)\s+Bandwidth\((MB|GB)/s\)$")
_ROW = re.compile(r"^(\d{1,15})\s+(\S+)$", re.ASCII)
_CSV = re.compile(
    r"^bandwidthTest-(H2D|D2H|D2D)(-Pinned|-Paged)?(?:-WriteCombined)?, Bandwidth = (\S+) (MB|GB)/s, "
    r"Time = \S+ s, Size = (\d{1,15}) bytes, NumDevsUsed = (\d{1,4})$",
    re.ASCII,
)
_BLOG_SIZE = re.compile(r"^Transfer size \(MB\): (\d{1,6})$", re.ASCII)
_BLOG_MEMORY = re.compile(r"^(Pageable|Pinned) transfers$")
_BLOG_ROW = re.compile(rf"^{_WAY} bandwidth \(GB/s\): (\S+)$")
_VISIBLE = re.compile(r"CUDA_VISIBLE_DEVICES=\"?(\d{1,4})\"?(?![\d,])", re.ASCII)
_NUMBERED = re.compile(  # gpu01 and gpu1.rack.net are hosts
    r"(?:gpu|device|bandwidth_?test)[ _-]?(0|[1-9]\d{0,2})(?!\d|\.[a-z][\w-]*\.)", re.IGNORECASE | re.ASCII
)
_PROSE = re.compile(
    r"^(?:Running on\.\.\.|(?:Quick|Range|Shmoo) Mode|\.+"
    r"|!+Cumulative Bandwidth to be computed from all the devices !+"
    r"|NOTE: The CUDA Samples are not meant.*|Write-Combined Memory Writes are Enabled)$"
)
_FAILED = re.compile(
    r"^(?:Result = FAIL|CUDA error at .*|!+(?:Error|No devices found).*"
    r"|.*cudaGetDevice(?:Count|Properties) returned.*)$"
)
_RESULT = re.compile(r"^Result = (?:PASS|FAIL)$")  # printed last, unless CUDA's error ended the program
_IN_WORDS = re.compile(r"^-> \w.{0,120}$")  # below "... returned 3": what 3 means
_MARKS = re.compile(
    r"\[CUDA Bandwidth Test\]|^[^\w\n]{0,20}bandwidthTest-[HD]2[HD]\b"
    rf"|^[^\w\n]{{0,20}}{_WAY} (?:Bandwidth, \d+ Device|bandwidth \(GB/s\):)"
    r"|^[^\w\n]{0,20}(?:PINNED|PAGEABLE) Memory Transfers",
    re.MULTILINE,
)


@dataclass(slots=True)
class _Run:
    """One output of the program."""

    visible: int | None  # CUDA_VISIBLE_DEVICES of the command line above
    label: int | None  # a number in another line above
    devices: dict[int, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)  # of GPU 0
    lines: list[int] = field(default_factory=list)  # of the samples
    not_measured: list[NotMeasured] = field(default_factory=list)
    kind: Kind | None = None
    device_count: int = 1
    pinned: bool | None = None
    scale: float | None = None  # of the printed numbers to GB/s
    bytes: int | None = None
    started: bool = False  # with the program's first line
    waits: bool = False  # for a number that a heading announced, or for what an error kept from coming
    ended: bool = False  # with the program's last line

    @property
    def whole(self) -> bool:
        """Whether all is there that the run was to print, as far as its own lines show."""
        return self.ended or not (self.started or self.waits)

    @property
    def has_results(self) -> bool:
        """Whether the run has got as far as a result."""
        return bool(self.samples or self.not_measured) or self.kind is not None


def recognise(text: str) -> bool:
    """Return whether the text has a line that only these programs print."""
    return _MARKS.search(text) is not None


def read(text: str, *, origin: str) -> ProgramRead:
    """Read the runs of a text, with the numbers of the lines that were understood."""
    del origin  # nothing in such a text is refused: a line that cannot be is not understood
    reader = _Reader()
    understood = understood_of(text, reader.add)
    complete = all(run.whole for run in reader.runs)
    found = [run for run in reader.runs if run.has_results]
    machine, headings = _machine(text, found, reader.notes, complete)
    return ProgramRead(machine, understood | headings)


class _Reader:
    """The runs of a text, line by line."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.notes: list[str] = []
        self.line = 0
        self.visible: int | None = None
        self.exported = False  # else it holds for one run
        self.label: int | None = None

    def add(self, number: int, line: str) -> bool:
        """Take one line; False where it is not understood."""
        self.line = number
        if _START.search(line):
            self._begin()
            self.runs[-1].started = True
        elif visible := _VISIBLE.search(line):
            self.visible, self.exported = int(visible[1]), "export" in line
        elif device := _DEVICE.match(line) or _BLOG_DEVICE.match(line):
            if not self.runs or self.runs[-1].has_results or device.re is _BLOG_DEVICE:
                self._begin()
            index, name = device.groups() if device.re is _DEVICE else ("0", device[1])
            self.runs[-1].devices[int(index)] = name.strip()
        elif _FAILED.match(line):
            run = self._run()
            run.not_measured.append(NotMeasured(what=self._what(), reason=f"{SOURCE} reported: {line[:160]}"))
            run.waits, run.ended = True, _RESULT.match(line) is not None
        elif _RESULT.match(line):
            if self.runs:  # else it is of another sample
                self.runs[-1].ended = True
        elif _IN_WORDS.match(line) and self.runs and self.runs[-1].not_measured:
            last = self.runs[-1].not_measured.pop()
            self.runs[-1].not_measured.append(NotMeasured(what=last.what, reason=f"{last.reason} {line}"))
        elif self._set(line) or self._number(line):
            return True
        elif _PROSE.match(line) is None:
            if label := _NUMBERED.search(line):  # such as the name of the file that was pasted
                self.label = int(label[1])
            return False
        return True

    def _begin(self) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and not last.has_results and not last.devices:
            return
        self.runs.append(_Run(self.visible, self.label))
        self.label, self.visible = None, self.visible if self.exported else None

    def _run(self) -> _Run:
        if not self.runs:
            self._begin()
        return self.runs[-1]

    def _what(self) -> str:
        return f"{SOURCE}: {self._run().kind or 'the whole run'}"

    def _set(self, line: str) -> bool:
        """Read a line that states what the numbers below it are."""
        if direction := _DIRECTION.match(line):
            run = self._run()
            run.kind, run.device_count = _KINDS[direction[1]], int(direction[2] or 1)
            run.scale = run.pinned = None
            run.waits = True
        elif memory := _MEMORY.match(line) or _BLOG_MEMORY.match(line):
            self._run().pinned = memory[1].upper() == "PINNED"
        elif header := _HEADER.search(line):
            self._run().scale = self._scale(header[1])
        elif size := _BLOG_SIZE.match(line):
            run = self._run()
            run.bytes, run.waits = int(size[1]) * 2**20, True
        else:
            return False
        return True

    def _scale(self, unit: str) -> float:
        if unit == "GB":
            return 1.0
        self.notes.append(_OLD_UNIT)
        return 1e-3

    def _number(self, line: str) -> bool:
        """Take a line with a result; False where it is none, or its number cannot be."""
        run = self._run() if self.runs else None
        if csv := _CSV.match(line):
            way, memory, number, unit, size, count = csv.groups()
            pinned = None if memory is None else memory == "-Pinned"
            return self._take(_KINDS[way], pinned, int(size), number, self._scale(unit), int(count))
        if (blog := _BLOG_ROW.match(line)) and run is not None:
            last = run.pinned is True and _KINDS[blog[1]] == "d2h"  # of the four numbers of that program
            return self._take(_KINDS[blog[1]], run.pinned, run.bytes, blog[2], 1.0, 1, last=last)
        if (row := _ROW.match(line)) and run is not None and run.kind is not None and run.scale is not None:
            return self._take(run.kind, run.pinned, int(row[1]), row[2], run.scale, run.device_count)
        return False

    def _take(
        self,
        kind: Kind,
        pinned: bool | None,
        size: int | None,
        number: str,
        scale: float,
        count: int,
        *,
        last: bool = True,
    ) -> bool:
        """Take a result; `last` of what was announced. False where it cannot be."""
        value = positive(number, 1e5 / scale)
        if value is None or size == 0 or count < 1:
            return False
        value = float(f"{value * scale:.12g}")  # 763.5 MB/s are 0.7635 GB/s, and no 0.7635000000000001
        run = self._run()
        run.waits = not last
        if count > 1:
            what = f"{SOURCE}: {kind} of {size} bytes for each of {count} devices"
            reason = f"it prints only the sum over its devices, one after another: {value:g} GB/s"
            run.not_measured.append(NotMeasured(what=what, reason=reason))
            return True
        zero = matching.gpu_place(0)
        source, destination = {"h2d": ("host", zero), "d2h": (zero, "host")}.get(kind, (zero, zero))
        sample = Sample(
            kind=kind,
            source=source,
            destination=destination,
            bytes=size,
            pinned=None if kind == "d2d_local" else pinned,
            method="driver",
            median_gb_per_s=value,
        )
        if any(_what(sample) == _what(earlier) for earlier in run.samples):
            run = self._another()
        run.samples.append(sample)
        run.lines.append(self.line)
        return True

    def _another(self) -> _Run:
        """Begin a run whose first line is not there, below the same headings."""
        last = self.runs[-1]
        self._begin()
        run = self.runs[-1]
        run.kind, run.pinned, run.scale, run.bytes = last.kind, last.pinned, last.scale, last.bytes
        run.waits = last.waits
        last.waits, last.ended = False, True
        if run.visible is None and run.label is None:
            run.visible, run.label = last.visible, last.label
        run.devices = dict(last.devices)
        return run


def _what(sample: Sample) -> tuple[object, ...]:
    return sample.kind, sample.bytes, sample.pinned


def _machine(
    text: str, found: list[_Run], notes: list[str], complete: bool
) -> tuple[Machine, frozenset[int]]:
    """Put the runs together, each on its GPU; return also the lines of the headings that divide them."""
    indices, said = numbers_of_runs(
        [
            SingleRun(
                visible=run.visible if run.visible is not None and set(run.devices) <= {0} else None,
                label=run.label,
                printed=min(run.devices, default=0),
                name=next(iter(run.devices.values()), None),
            )
            for run in found
        ]
    )
    gpus: dict[int, Gpu] = {}
    samples: list[tuple[int, Sample]] = []
    for run, index in zip(found, indices, strict=True):
        named = run.devices if len(run.devices) > 1 else {index: next(iter(run.devices.values()), None)}
        if not (run.devices or run.samples):  # it failed before it saw a GPU
            named = {}
        for number, name in named.items():
            if number not in gpus or gpus[number].name is None:
                gpus[number] = Gpu(index=number, name=name)
        one = matching.renumbered_bandwidth(Bandwidth(source=SOURCE, samples=tuple(run.samples)), {0: index})
        samples += zip(run.lines, one.samples, strict=True)
    bandwidth = Bandwidth(
        source=SOURCE,
        samples=tuple(sample for _, sample in samples),
        not_measured=tuple(one for run in found for one in run.not_measured),
        complete=complete,
        notes=tuple(dict.fromkeys([*notes, *said])),
    )
    bandwidth, headings = runs.with_runs(bandwidth, text, [line for line, _ in samples])
    machine = Machine(source=SOURCE, gpus=tuple(gpus[i] for i in sorted(gpus)), bandwidth=bandwidth)
    return machine, headings


PROGRAM = Program(recognise, read)
