"""The text of the CUDA samples' `bandwidthTest` (quick, range, shmoo, csv) and of the blog's `bandwidthtest`.

A text may have the outputs of several runs; a repeated direction and size starts another run. A run prints
its device's number among the visible devices, so each run with CUDA_VISIBLE_DEVICES=3 prints "Device 0"; the
command line above it then gives the GPU. Its local copy counts every byte twice, as gputopo does. For several
devices it prints only the sum over them, which is not a speed: NotMeasured. A run with its first line is
complete if it has its last line, `Result = ...`; a partial run is complete if each heading has its numbers.
"""

import re
from collections.abc import Sequence
from pathlib import PurePath

from msgspec.structs import replace

from gputopo.captures import matching
from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.texts import Program, ProgramRead, Results, positive, understood_of
from gputopo.captures.matching import SINGLE_DEVICE
from gputopo.values.bandwidth import Bandwidth, CopyRate, CopyRateKind
from gputopo.values.ends import HOST, End
from gputopo.values.machine import Gpu, Machine

SOURCE = SINGLE_DEVICE

_IN_NAME = re.compile(
    r"(?:gpu|device|dev|cuda|bandwidth_?test)[ _.-]?(\d{1,3})(?!\d)", re.IGNORECASE | re.ASCII
)


def renumbered(sources: Sequence[str], machines: Sequence[Machine]) -> list[Machine]:
    """Number the single devices of captures that are read together, by the numbers in their file names.

    If a file name has no GPU number, all are GPU 0. A single file keeps GPU 0, unless another capture is from
    a machine with several GPUs: then the number in the file name is used.
    """
    single = [
        at
        for at, machine in enumerate(machines)
        if machine.source == SOURCE and [gpu.index for gpu in machine.gpus] == [0]
    ]
    larger = any(len(machine.gpus) > 1 for machine in machines)
    in_names = [_IN_NAME.findall(PurePath(sources[at]).name) for at in single]
    numbers = [int(digits[-1]) for digits in in_names if digits]
    given = list(machines)
    if len(numbers) < len(single) or not (len({*numbers}) > 1 or (single and larger)):
        return given
    for at, index in zip(single, numbers, strict=True):
        bandwidth = machines[at].bandwidth or Bandwidth(source=SOURCE)
        note = f"{SOURCE} calls its only device 0; read as GPU {index} because of the number in the file name"
        given[at] = replace(
            machines[at],
            gpus=(replace(machines[at].gpus[0], index=index),),
            bandwidth=replace(
                matching.renumbered_bandwidth(bandwidth, {0: index}), notes=(*bandwidth.notes, note)
            ),
        )
    return given


_OLD_UNIT = (
    "bandwidthTest's MB/s are read as 10^6 bytes; older versions divide by 2^20; the links are then 4.9% "
    "faster than these numbers"
)
_KINDS: dict[str, CopyRateKind] = {
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
_PROSE = re.compile(
    r"^(?:Running on\.\.\.|(?:Quick|Range|Shmoo) Mode|\.+"
    r"|!+Cumulative Bandwidth to be computed from all the devices !+"
    r"|NOTE: The CUDA Samples are not meant.*|Write-Combined Memory Writes are Enabled)$"
)
_FAILED = re.compile(
    r"^(?:Result = FAIL|CUDA error at .*|!+(?:Error|No devices found).*"
    r"|.*cudaGetDevice(?:Count|Properties) returned.*)$"
)
_RESULT = re.compile(r"^Result = (?:PASS|FAIL)$")  # last line, unless CUDA's error ended the program
_IN_WORDS = re.compile(r"^-> \w.{0,120}$")  # below "... returned 3": the meaning of 3
_MARKS = re.compile(
    r"\[CUDA Bandwidth Test\]|^[^\w\n]{0,20}bandwidthTest-[HD]2[HD]\b"
    rf"|^[^\w\n]{{0,20}}{_WAY} (?:Bandwidth, \d+ Device|bandwidth \(GB/s\):)"
    r"|^[^\w\n]{0,20}(?:PINNED|PAGEABLE) Memory Transfers",
    re.MULTILINE,
)


def detect(text: str) -> bool:
    """Return whether the text has a line that only these programs print."""
    return _MARKS.search(text) is not None


def read(text: str, *, origin: str) -> ProgramRead:
    """Read the runs of a text, with the numbers of the lines that were understood."""
    del origin  # nothing is refused: an impossible line is not understood
    reader = _Reader()
    understood = understood_of(text, reader.add)
    reader.complete &= reader.is_whole
    bandwidth = runs.with_runs(reader.bandwidth(), text, reader.lines)
    gpus = tuple(Gpu(index=index, name=name) for index, name in sorted(reader.gpus.items()))
    return ProgramRead(Machine(source=SOURCE, gpus=gpus, bandwidth=bandwidth), understood)


class _Reader(Results):
    """The runs of a text, read line by line; `index`: the GPU of the run."""

    def __init__(self) -> None:
        self.gpus: dict[int, str | None] = {}  # names by index
        super().__init__(SOURCE)
        self.lines: list[int] = []  # of the samples
        self.visible: int | None = None  # CUDA_VISIBLE_DEVICES
        self.exported = False  # if False, it is for one run only
        self._begin()

    def _begin(self, *, started: bool = False) -> None:
        """Start a run; `started`: with the program's first line."""
        self.index: int | None = None
        self.devices: dict[int, str] = {}
        self.kind: CopyRateKind | None = None
        self.device_count = 1
        self.pinned: bool | None = None
        self.scale: float | None = None  # factor from printed numbers to GB/s
        self.bytes: int | None = None
        self.started = started
        self.waits = False  # a heading announced a number that is not yet read, or an error prevented it
        self.ended = False  # the program's last line was read
        self.has_failed = False

    @property
    def is_whole(self) -> bool:
        """Whether the run's output is complete."""
        return self.ended or not (self.started or self.waits)

    def add(self, number: int, line: str) -> bool:
        """Read one line. Returns False if it is not understood."""
        if _START.search(line):
            self._next()
            self.started = True
        elif visible := _VISIBLE.search(line):
            self._next()
            self.visible, self.exported = int(visible[1]), "export" in line
        elif (device := _DEVICE.match(line)) or (device := _BLOG_DEVICE.match(line)):
            self._device(*(device.groups() if device.re is _DEVICE else ("0", device[1])))
        elif _FAILED.match(line):
            what = f"{SOURCE}: {self.kind or 'the whole run'}"
            self.skip(what, f"{SOURCE} reported: {line[:160]}")
            self.waits, self.ended, self.has_failed = True, _RESULT.match(line) is not None, True
        elif _RESULT.match(line):
            self.ended = True
        elif _IN_WORDS.match(line) and self.has_failed:
            last = self.skipped.pop()
            self.skip(last.what, f"{last.reason} {line}")
        else:
            return self._set(line) or self._number(number, line) or _PROSE.match(line) is not None
        return True

    def _next(self) -> None:
        """Continue with the next run, if anything in this one was read."""
        if self.devices or self.kind is not None or self.has_failed:
            self.complete &= self.is_whole
            if not self.exported:
                self.visible = None
        if not self.started or self.devices or self.kind is not None or self.has_failed:
            self._begin()

    def _device(self, index: str, name: str) -> None:
        """Read a line with a GPU. A run on several devices lists all of them before its first number."""
        if self.kind is not None or self.has_failed or (self.devices and int(index) in self.devices):
            self._next()
        self.devices[int(index)] = name.strip()
        if len(self.devices) == 1:
            self.index = int(index)
            if self.visible is not None and self.index == 0:
                self.index = self.visible
                self.notes["CUDA_VISIBLE_DEVICES names the GPU of each run"] = None
        self.gpus[self.index if len(self.devices) == 1 and self.index is not None else int(index)] = (
            name.strip()
        )

    def _set(self, line: str) -> bool:
        """Read a line that says what the numbers below it are."""
        if direction := _DIRECTION.match(line):
            self.kind, self.device_count = _KINDS[direction[1]], int(direction[2] or 1)
            self.scale = self.pinned = None
            self.waits = True
        elif memory := _MEMORY.match(line) or _BLOG_MEMORY.match(line):
            self.pinned = memory[1].upper() == "PINNED"
        elif header := _HEADER.search(line):
            self.scale = self._scale(header[1])
        elif size := _BLOG_SIZE.match(line):
            self.bytes, self.waits = int(size[1]) * 2**20, True
        else:
            return False
        return True

    def _scale(self, unit: str) -> float:
        if unit == "GB":
            return 1.0
        self.notes[_OLD_UNIT] = None
        return 1e-3

    def _number(self, line_number: int, line: str) -> bool:
        """Read a line with a result. Returns False if it is not a result, or if its number is impossible."""
        last = True  # last of the announced numbers
        if csv := _CSV.match(line):
            way, memory, number, unit, size, count = csv.groups()
            self.kind, self.device_count = _KINDS[way], int(count)
            self.pinned = None if memory is None else memory == "-Pinned"
            bytes_copied, scale = int(size), self._scale(unit)
        elif blog := _BLOG_ROW.match(line):
            self.kind, number, scale = _KINDS[blog[1]], blog[2], 1.0
            last = self.pinned is True and self.kind == "d2h"  # the last of that program's four numbers
            bytes_copied = self.bytes or 0
        elif (row := _ROW.match(line)) and self.kind is not None and self.scale is not None:
            bytes_copied, number, scale = int(row[1]), row[2], self.scale
        else:
            return False
        value = positive(number, 1e5 / scale)
        if value is None or bytes_copied == 0 or self.device_count < 1:
            return False
        value = float(f"{value * scale:.12g}")  # 763.5 MB/s are 0.7635 GB/s, not 0.7635000000000001
        self.waits = not last
        if self.device_count > 1:
            self.skip(
                f"{SOURCE}: {self.kind} of {bytes_copied} bytes for each of {self.device_count} devices",
                f"it prints only the sum over its devices, one after another: {value:g} GB/s",
            )
            return True
        index = (self.visible or 0) if self.index is None else self.index
        self.gpus.setdefault(index, None)
        here = End.of_gpus(index)
        source, destination = {"h2d": (HOST, here), "d2h": (here, HOST)}.get(self.kind, (here, here))
        self.lines.append(line_number)
        self.samples.append(
            CopyRate(
                kind=self.kind,
                source=source,
                destination=destination,
                bytes=bytes_copied,
                pinned=None if self.kind == "d2d_local" else self.pinned,
                method="driver",
                median_gb_per_s=value,
            )
        )
        return True


PROGRAM = Program(detect, read)
