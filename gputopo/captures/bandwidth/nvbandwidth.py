"""The text of `nvbandwidth` 0.2 to 0.10, whole or any part of it, and its JSON (`-j`, since 0.5).

`nvbandwidth_tests` knows the tests. In text a test's name is taken from its `Running` line or, where that
was cut off, from the `SUM` line below the matrix. Of a bidirectional test between GPUs the JSON holds three
matrices in one, each direction and their total, one below the other. Host names are dropped.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gputopo.captures.bandwidth import nvbandwidth_tests as tests
from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.nvbandwidth_tests import NvbandwidthMatrix, NvbandwidthReport, Part
from gputopo.captures.bandwidth.texts import Program, ProgramRead, devices, row, understood_of
from gputopo.captures.ledger import Format
from gputopo.captures.matching import ListedGpu
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

_HINT = "run `nvbandwidth -j` again and copy all that it prints"
_START = re.compile(r'\{\s*"nvbandwidth"\s*:')
SOURCE = tests.SOURCE
_JSON_DEVICE = re.compile(
    r"(?:(\d{1,4}): )?(.{1,120}?)(?: \(([0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\))?(?:: \(.*\))?",
    re.ASCII,
)
_JSON_VERSION = re.compile(r"v?(\d{1,3}(?:\.\d{1,3}){0,2})")
_JSON_PARTS: tuple[Part, ...] = ("1", "2", "total")
_MIB = 2**20


def recognise_json(text: str) -> bool:
    """Return whether a JSON object of nvbandwidth begins in the text."""
    return _START.search(text) is not None


def parse_json(text: str, *, origin: str) -> Machine:
    """Read every JSON object of nvbandwidth in the text. Raises InputError where one is cut off or odd."""
    documents = runs.documents(text, _START, origin=origin, hint=_HINT)
    machines = [_machine(one["nvbandwidth"], origin=origin) for one in documents]
    return runs.of_documents(machines, SOURCE, origin=origin, hint=_HINT)


def _machine(document: Any, *, origin: str) -> Machine:
    """Make the machine of one object. Raises InputError where it is no output of nvbandwidth."""
    if not isinstance(document, dict) or not isinstance(
        document.get("testcases", document.get("error")), list | str
    ):
        raise InputError(f"{origin} is JSON of nvbandwidth without its testcases", _HINT)
    report = _head(document)
    cases = document.get("testcases")
    unread: list[str] = []
    for case in cases if isinstance(cases, list) else []:
        if isinstance(case, dict) and isinstance(case.get("name"), str):
            unread += _add(report, case)
        else:
            unread.append(f"testcases: {json.dumps(case)[:100]}")
    if error := _text(document.get("error")):
        tests.fail(report, _unfinished(cases), error)
        report.complete = not tests.ends_the_run(error)
    made = tests.machine(report)
    lines = tuple(Unread(source=SOURCE, line=0, text=text[:200]) for text in unread)
    return msgspec.structs.replace(made, unread=lines)


def _head(document: dict[str, Any]) -> NvbandwidthReport:
    version = _JSON_VERSION.fullmatch(_text(document.get("version")))
    report = NvbandwidthReport(
        driver=_text(document.get("Driver Version"))[:40] or None,
        cuda=tests.cuda_version(
            _text(document.get("CUDA Driver Version")) or _text(document.get("CUDA Runtime Version"))
        ),
        version=version[1] if version else None,
    )
    size = document.get("bufferSize")
    if isinstance(size, int) and 0 < size < 2**24:
        report.bytes = size * _MIB
    devices = document.get("GPU Device list", document.get("GPU Device info"))
    for place, device in enumerate(devices if isinstance(devices, list) else []):
        if match := _JSON_DEVICE.fullmatch(_text(device)):
            address = f"{match[3]}.0" if match[3] else None
            report.devices.setdefault(int(match[1] or place), ListedGpu(match[2].strip(), address))
    return report


def _add(report: NvbandwidthReport, case: dict[str, Any]) -> list[str]:
    """Add one testcase; return what of it is no reading."""
    test, status = case["name"], _text(case.get("status"))
    if status == "Waived":
        tests.waive(report, test, _text(case.get("error")))
        return []
    if status not in ("Passed", "") or case.get("error"):
        tests.fail(report, test, _text(case.get("error")) or f"status {status}")
        return []
    matrix = case.get("bandwidth_matrix")
    if not isinstance(matrix, list) or not matrix or not all(isinstance(row, list) and row for row in matrix):
        return [f"{test}: no matrix"]
    width = len(matrix[0])
    if any(len(row) != width for row in matrix):
        return [f"{test}: rows of different length"]
    words = [[cell if isinstance(cell, str) else json.dumps(cell) for cell in row] for row in matrix]
    strange: list[str] = []
    for part, rows in _parts(test, words, width):
        found = tests.add(report, NvbandwidthMatrix(test, tuple(range(width)), dict(enumerate(rows)), part))
        strange += [f"{test}: {word}" for _, word in found]
    return strange


def _parts(test: str, rows: list[list[str]], width: int) -> list[tuple[Part | None, list[list[str]]]]:
    """Take the three matrices of a bidirectional test apart."""
    both = test.startswith("device_to_device_bidirectional")
    if both and len(rows) == 3 * width:
        return [(part, rows[i * width : (i + 1) * width]) for i, part in enumerate(_JSON_PARTS)]
    return [(None, rows)]


def _unfinished(cases: Any) -> str | None:
    """Return the test that was running when the error came: the last one, if it has no result."""
    last = cases[-1] if isinstance(cases, list) and cases else None
    if not isinstance(last, dict) or "bandwidth_matrix" in last:
        return None
    return _text(last.get("name")) or None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""


FORMAT = Format("`nvbandwidth -j` JSON", "measured copies and latencies", recognise_json, parse_json)


_VERSION = re.compile(r"nvbandwidth Version: v?(\d{1,3}(?:\.\d{1,3}){0,2})")
_CUDA = re.compile(r"^CUDA (Runtime|Driver) Version(?: \(API\))?: (\d[\d.]{1,6}(?: \(\d{4,6}\))?)$", re.ASCII)
_DRIVER = re.compile(r"^Driver Version: (\d{1,4}(?:\.\d{1,4}){0,3})$", re.ASCII)
_DEVICE = re.compile(
    r"^Device (\d{1,4}): (.{1,120}?)(?: \(([0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\))?(?:: \(.*\))?$",
    re.ASCII,
)
_PROCESS = re.compile(
    r"^Process +\d{1,5} \((.{1,255})\): device \d{1,4}: ", re.ASCII
)  # of the multinode build
_HOST_NAME = re.compile(r"^[A-Za-z0-9][\w.-]{0,254}$")
_RUNNING = re.compile(r"^Running ([a-z][a-z0-9_]{2,80})\.$")
_WAIVED = re.compile(r"^(?:Waiving|Waived)\b:?\s*(?:([a-z][a-z0-9]*(?:_[a-z0-9]+)+)\b)?(.*)$")
_WHAT = re.compile(
    r"^(?:memcpy|memory latency|multicast|Device to Device Latency|Bisect)\b.{0,100}?(?:\((?:GB/s|ns)\)|BW)$",
    re.IGNORECASE,
)
_SUM = re.compile(
    r"^(?:SUM|MIN|MAX|AVG|COEFFICIENT_OF_VARIATION|&&&& PERF) "
    r"([a-z][a-z0-9_]{2,80}) \S+(?: [+-](?:GB/s|ns))?$"
)
_ERROR = re.compile(
    r"^(?:ERROR|Error)\b:?.*$|^\[?(?:CUDA_ERROR_|cudaError)\w+\]?.*$"
    r"|^Invalid value when checking the pattern.*$|^NVML_ERROR.*$|^ASSERT in expression.*$"
)
_PROSE = re.compile(
    r"^(?:Built from Git version: .*|NOTE: .*|Additional system-specific tuning.*|Performance can vary.*"
    r"|\[?\.\.\.\]?|Current offset ?:.*|Sample \d+: .*|MPI version: .*)$"
)
_END = re.compile(r"^NOTE: The reported results may not reflect ")  # printed last, since 0.6
_PARTS = ((r"_(?:read|write)1", "1"), (r"_(?:read|write)2", "2"), ("_total", "total"))
_SAID_PARTS: dict[str, Part] = {"1": "1", "2": "2", "total": "total"}
_SAID_PART = re.compile(r"\b(?:Read|Write)?(1|2|total)\b", re.IGNORECASE)
_MARKS = re.compile(
    r"nvbandwidth Version:|^[^\w\n]{0,20}(?:Running|Waiving) \w+_(?:ce|sm|copy)\."
    r"|^[^\w\n]{0,20}SUM \w+_(?:ce|sm|copy|total|[a-z]+[12]) "
    r"|^[^\w\n]{0,20}(?:memcpy|memory latency) .{0,20}(?:GPU|CPU)\((?:row|column)\)",
    re.MULTILINE,
)
_OTHERS = re.compile(r"\[CUDA Bandwidth Test\]|^Running on\.\.\.|P2P \(Peer-to-Peer\)")


@dataclass(slots=True)
class _Table:
    """A matrix as it is being read, with the lines of its rows."""

    test: str | None
    said: str
    line: int
    columns: tuple[int, ...] = ()
    rows: dict[int, list[str]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)


def recognise(text: str) -> bool:
    """Return whether the text has a line that only this program prints."""
    return _MARKS.search(text) is not None


def read(text: str, *, origin: str) -> ProgramRead:
    """Read the tests of a text, with the numbers of the lines that were understood."""
    return runs.read(text, _scan, SOURCE, origin=origin)


def _scan(text: str, above: "_Reader | None") -> "_Reader":
    """Return the content of one run; `above`: the one above it, whose GPUs it has where it lists none."""
    reader = _Reader()
    reader.understood = understood_of(text, reader.add)
    if above is not None and not reader.report.devices:
        head, own = above.report, reader.report
        own.devices, own.version = head.devices, own.version or head.version
        own.driver, own.cuda = own.driver or head.driver, own.cuda or head.cuda
    return reader


class _Reader:
    """One text, line by line."""

    def __init__(self) -> None:
        self.report = NvbandwidthReport()
        self.understood: frozenset[int] = frozenset()
        self.begun = 0  # the line that names the test
        self.below_versions = False  # between these and the devices
        self.tables: list[_Table] = []
        self.table: _Table | None = None
        self.test: str | None = None
        self.others = False  # within the output of another program that lists devices

    def add(self, number: int, line: str) -> bool:
        """Take one line; False where it is not understood."""
        if _OTHERS.search(line):
            self.others, self.table = True, None
            return False
        if running := _RUNNING.match(line):
            self.test, self.table, self.others, self.begun = running[1], None, False, number
            self.report.complete = False  # until something comes of it
        elif _WHAT.match(line):
            if self.table is not None and not self.table.rows:
                self.tables.remove(self.table)
            self.table = _Table(self.test, line, self.begun or number)
            self.begun = 0
            self.tables.append(self.table)
            self.report.complete = False  # until its last row
        elif total := _SUM.match(line):
            self._name(total[1])
        elif waived := _WAIVED.match(line):
            tests.waive(self.report, waived[1] or self._without_table(), waived[2])
            self.report.complete = True
        elif _ERROR.match(line):
            tests.fail(self.report, self.test, line)
            self.report.complete = not tests.ends_the_run(line)
        elif _END.match(line):
            self.report.complete = True
        else:
            return self._head(line) or self._row(number, line) or _PROSE.match(line) is not None
        return True

    def measured(self) -> list[runs.Mark]:
        """Return the tables that have a row."""
        return [(table.line, (table.test, table.said)) for table in self.tables if table.rows]

    def read(self, *, origin: str) -> ProgramRead:
        """Return the machine, with the lines that were understood."""
        del origin  # nothing in such a text is refused: a line that cannot be is not understood
        not_readings = self._finish()
        return ProgramRead(tests.machine(self.report), self.understood - not_readings)

    def _finish(self) -> set[int]:
        """Turn the tables into samples; return the lines with a cell that is no reading."""
        strange: set[int] = set()
        for table in self.tables:
            if not table.rows:
                continue
            if table.test is None:
                strange |= set(table.lines.values())
                continue
            test, part = _split(table.test)
            said = _SAID_PART.search(table.said.replace("Read", "Read ").replace("Write", "Write "))
            part = part or (_SAID_PARTS[said[1].lower()] if said and "_bidirectional" in test else None)
            found = tests.add(self.report, NvbandwidthMatrix(test, table.columns, table.rows, part))
            strange |= {table.lines[row] for row, _ in found}
        return strange

    def _name(self, name: str) -> None:
        """Take the name that stands below a matrix."""
        if self.table is not None and (self.table.test is None or _split(name)[0] == self.table.test):
            self.table.test = name

    def _without_table(self) -> str | None:
        """Return the test that was begun, where nothing of it has come yet."""
        begun, self.test = self.test, None
        return begun if self.table is None else None

    def _head(self, line: str) -> bool:
        """Take a line of the head: versions and devices."""
        if version := _VERSION.search(line):
            self.report.version, self.others = version[1], False
            self.test = self.table = None
        elif cuda := _CUDA.match(line):  # the driver's comes second and counts
            self.report.cuda = tests.cuda_version(cuda[2]) or self.report.cuda
        elif driver := _DRIVER.match(line):
            self.report.driver, self.below_versions = driver[1], True
        elif (device := _DEVICE.match(line)) and not self.others and self.test is None:
            address = f"{device[3]}.0" if device[3] else None
            self.below_versions = False
            self.report.devices.setdefault(int(device[1]), ListedGpu(device[2].strip(), address))
        else:
            return self._is_host_name(line)
        return True

    def _is_host_name(self, line: str) -> bool:
        """Return whether this line has the host's name: above the devices, or of an MPI process.

        Such lines are dropped, since they identify a person's machine.
        """
        if process := _PROCESS.match(line):
            self.report.hosts.add(process[1])
            return True
        return self.below_versions and self.test is None and _HOST_NAME.match(line) is not None

    def _row(self, number: int, line: str) -> bool:
        """Take the line of device numbers, or a row."""
        table = self.table
        if table is None:
            return False
        if not table.columns:
            columns = devices(line.split())
            table.columns = columns or ()
            return columns is not None
        cells = row(line)
        if cells is None or cells[0] in table.rows or len(cells[1]) != len(table.columns):
            return False
        table.rows[cells[0]], table.lines[cells[0]] = cells[1], number
        several = "GPU(row)" in table.said and not tests.is_of_one_with_all(table.test or "")
        self.report.complete = len(table.rows) == (len(table.columns) if several else 1)
        return True


def _split(name: str) -> tuple[str, Part | None]:
    """Take the part of a bidirectional test (`_read1`, `_total`) off a name."""
    for ending, part in _PARTS:
        if re.search(f"{ending}$", name):
            return re.sub(f"{ending}$", "", name), _SAID_PARTS[part]
    return name, None


PROGRAM = Program(recognise, read)
