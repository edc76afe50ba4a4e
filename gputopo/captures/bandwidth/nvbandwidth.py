"""`nvbandwidth` 0.2 to 0.10: its text, whole or any part of it, and its JSON (`-j`, since 0.5).

`nvbandwidth_tests` defines the tests. Host names are dropped.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gputopo.captures.bandwidth import runs, texts
from gputopo.captures.bandwidth.nvbandwidth_tests import SOURCE, NvbandwidthReport, Part, named_test
from gputopo.captures.bandwidth.texts import Program, ProgramRead, devices, row
from gputopo.captures.ledger import Format
from gputopo.captures.matching import ListedGpu
from gputopo.values.ends import ALL_GPUS
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

_VERSION_NUMBER = r"v?(\d{1,3}(?:\.\d{1,3}){0,2})"
_ADDRESS = r"(?: \(([0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\))?(?:: \(.*\))?"


def _cuda_version(number: str) -> str | None:
    """Return CUDA's version in its usual form: 12080, 12.8 (12080) and 12.8 are 12.8."""
    if match := re.match(r"\d{1,2}\.\d{1,2}(?= \(|$)", number, re.ASCII):
        return match[0]
    if not (number.isascii() and number.isdecimal() and 4 <= len(number) <= 6):
        return None
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def _listed(name: str, address: str | None) -> ListedGpu:
    return ListedGpu(name.strip(), f"{address}.0" if address else None)


# The JSON. A bidirectional test between GPUs has three matrices in one, one below the other: each direction,
# and their total.

_HINT = "run `nvbandwidth -j` again and copy all that it prints"
_START = re.compile(r'\{\s*"nvbandwidth"\s*:')
_JSON_DEVICE = re.compile(rf"(?:(\d{{1,4}}): )?(.{{1,120}}?){_ADDRESS}", re.ASCII)
_JSON_PARTS: tuple[Part, ...] = ("1", "2", "total")


def detect_json(text: str) -> bool:
    """Return whether a JSON object of nvbandwidth starts in the text."""
    return _START.search(text) is not None


def parse_json(text: str, *, origin: str) -> Machine:
    """Read every JSON object of nvbandwidth in the text. Raises InputError if one is cut or invalid."""
    documents = runs.documents(text, _START, origin=origin, hint=_HINT)
    machines = [_parse_document(document["nvbandwidth"], origin=origin) for document in documents]
    return runs.of_documents(machines, SOURCE, origin=origin, hint=_HINT)


def _parse_document(document: Any, *, origin: str) -> Machine:
    """Return the machine of one object. Raises InputError if it is not an output of nvbandwidth."""
    cases = document.get("testcases", document.get("error")) if isinstance(document, dict) else None
    if not isinstance(cases, list | str):
        raise InputError(f"{origin} is JSON of nvbandwidth without its testcases", _HINT)
    report = _head(document)
    cases = cases if isinstance(cases, list) else []
    unread: list[str] = []
    for case in cases:
        if isinstance(case, dict) and isinstance(case.get("name"), str):
            unread += _add_case(report, case)
        else:
            unread.append(f"testcases: {json.dumps(case)[:100]}")
    if error := _text(document.get("error")):
        last = cases[-1] if cases and isinstance(cases[-1], dict) else {}
        running = None if "bandwidth_matrix" in last else _text(last.get("name")) or None
        report.fail(running, error)
    lines = tuple(Unread(source=SOURCE, line=0, text=text[:200]) for text in unread)
    return replace(report.machine(), unread=lines)


def _head(document: dict[str, Any]) -> NvbandwidthReport:
    version = re.fullmatch(_VERSION_NUMBER, _text(document.get("version")))
    cuda = _text(document.get("CUDA Driver Version")) or _text(document.get("CUDA Runtime Version"))
    report = NvbandwidthReport(
        driver=_text(document.get("Driver Version"))[:40] or None,
        cuda=_cuda_version(cuda),
        version=version[1] if version else None,
    )
    size = document.get("bufferSize")
    if isinstance(size, int) and 0 < size < 2**24:
        report.bytes = size * 2**20
    listed = document.get("GPU Device list", document.get("GPU Device info"))
    for place, device in enumerate(listed if isinstance(listed, list) else []):
        if match := _JSON_DEVICE.fullmatch(_text(device)):
            report.devices.setdefault(int(match[1] or place), _listed(match[2], match[3]))
    return report


def _add_case(report: NvbandwidthReport, case: dict[str, Any]) -> list[str]:
    """Add one test case; return descriptions of its cells that are not measurements."""
    test, status, error = case["name"], _text(case.get("status")), _text(case.get("error"))
    if status == "Waived":
        report.waive(test, error)
        return []
    if status not in ("Passed", "") or case.get("error"):
        complete = report.complete
        report.fail(test, error or f"status {status}")
        report.complete = complete
        return []
    matrix = case.get("bandwidth_matrix")
    if not isinstance(matrix, list) or not matrix or not all(isinstance(row, list) and row for row in matrix):
        return [f"{test}: no matrix"]
    width = len(matrix[0])
    if any(len(row) != width for row in matrix):
        return [f"{test}: rows of different length"]
    words = [[cell if isinstance(cell, str) else json.dumps(cell) for cell in row] for row in matrix]
    three = test.startswith("device_to_device_bidirectional") and len(words) == 3 * width
    parts: Sequence[Part | None] = _JSON_PARTS if three else (None,)
    height = len(words) // len(parts)
    strange = (
        report.add(test, part, range(width), dict(enumerate(words[at * height : (at + 1) * height])))
        for at, part in enumerate(parts)
    )
    return [f"{test}: {word}" for cells in strange for _, word in cells]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""


FORMAT = Format("`nvbandwidth -j` JSON", "measured copies and latencies", detect_json, parse_json)

# The text. A test's name is in its `Running` line or, if that line was cut off, in the `SUM` line below the
# matrix.

_VERSION = re.compile(rf"nvbandwidth Version: {_VERSION_NUMBER}")
_CUDA = re.compile(
    r"^CUDA (?:Runtime|Driver) Version(?: \(API\))?: (\d[\d.]{1,6}(?: \(\d{4,6}\))?)$", re.ASCII
)
_DRIVER = re.compile(r"^Driver Version: (\d{1,4}(?:\.\d{1,4}){0,3})$", re.ASCII)
_DEVICE = re.compile(rf"^Device (\d{{1,4}}): (.{{1,120}}?){_ADDRESS}$", re.ASCII)
_PROCESS = re.compile(
    r"^Process +\d{1,5} \((.{1,255})\): device \d{1,4}: ", re.ASCII
)  # in the multinode build
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
_END = re.compile(r"^NOTE: The reported results may not reflect ")  # last line, since 0.6
_PARTS: dict[str, Part] = {"1": "1", "2": "2", "total": "total"}
_NAMED_PART = re.compile(r"_(?:(?:read|write)(?P<one>[12])|(?P<total>total))$")
_SAID_PART = re.compile(r"(?:\b|(?<=Read)|(?<=Write))(1|2|total)\b", re.IGNORECASE)
_MARKS = re.compile(
    r"nvbandwidth Version:|^[^\w\n]{0,20}(?:Running|Waiving) \w+_(?:ce|sm|copy)\."
    r"|^[^\w\n]{0,20}SUM \w+_(?:ce|sm|copy|total|[a-z]+[12]) "
    r"|^[^\w\n]{0,20}(?:memcpy|memory latency) .{0,20}(?:GPU|CPU)\((?:row|column)\)",
    re.MULTILINE,
)
_OTHERS = re.compile(r"\[CUDA Bandwidth Test\]|^Running on\.\.\.|P2P \(Peer-to-Peer\)")


@dataclass(slots=True)
class _Table:
    """A matrix during reading, with the lines of its rows."""

    test: str | None
    said: str
    line: int
    columns: tuple[int, ...] = ()
    rows: dict[int, list[str]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)


def detect(text: str) -> bool:
    """Return whether the text has a line that only this program prints."""
    return _MARKS.search(text) is not None


def read(text: str, *, origin: str) -> ProgramRead:
    """Read the tests of a text, with the numbers of the lines that were understood."""
    return runs.read(text, _scan, SOURCE, origin=origin)


def _scan(text: str, above: "_Reader | None") -> "_Reader":
    """Return the content of one run; `above`: the run above, whose GPUs are used if this one lists none."""
    reader = _Reader()
    reader.understood = texts.understood_of(text, reader.add)
    if above is not None and not reader.report.devices:
        head, own = above.report, reader.report
        own.devices, own.version = head.devices, own.version or head.version
        own.driver, own.cuda = own.driver or head.driver, own.cuda or head.cuda
    return reader


class _Reader:
    """Reads one text line by line."""

    def __init__(self) -> None:
        self.report = NvbandwidthReport()
        self.understood: frozenset[int] = frozenset()
        self.begun = 0  # line with the name of the test
        self.below_versions = False  # between versions and devices
        self.tables: list[_Table] = []
        self.table: _Table | None = None
        self.test: str | None = None
        self.others = False  # in the output of another program that lists devices

    def add(self, number: int, line: str) -> bool:
        """Read one line. Returns False if it is not understood."""
        if _OTHERS.search(line):
            self.others, self.table = True, None
            return False
        if running := _RUNNING.match(line):
            self.test, self.table, self.others, self.begun = running[1], None, False, number
            self.report.complete = False  # until a result follows
        elif _WHAT.match(line):
            if self.table is not None and not self.table.rows:
                self.tables.remove(self.table)
            self.table = _Table(self.test, line, self.begun or number)
            self.begun = 0
            self.tables.append(self.table)
            self.report.complete = False  # until its last row is read
        elif total := _SUM.match(line):
            table = self.table
            if table is not None and (table.test is None or _split(total[1])[0] == table.test):
                table.test = total[1]
        elif waived := _WAIVED.match(line):
            begun, self.test = self.test, None
            self.report.waive(waived[1] or (begun if self.table is None else None), waived[2])
            self.report.complete = True
        elif _ERROR.match(line):
            self.report.fail(self.test, line)
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
        del origin  # nothing is refused: an impossible line is not understood
        strange: set[int] = set()
        for table in self.tables:
            if table.test is None:
                strange |= set(table.lines.values())
            elif table.rows:
                test, part = _split(table.test)
                said = _SAID_PART.search(table.said)
                part = part or (_PARTS[said[1].lower()] if said and "_bidirectional" in test else None)
                cells = self.report.add(test, part, table.columns, table.rows)
                strange |= {table.lines[index] for index, _ in cells}
        return ProgramRead(self.report.machine(), self.understood - strange)

    def _head(self, line: str) -> bool:
        """Read a line of the head: versions and devices, and host names, which are dropped."""
        report = self.report
        if version := _VERSION.search(line):
            report.version, self.others = version[1], False
            self.test = self.table = None
        elif cuda := _CUDA.match(line):  # the driver's version comes second and is used
            report.cuda = _cuda_version(cuda[1]) or report.cuda
        elif driver := _DRIVER.match(line):
            report.driver, self.below_versions = driver[1], True
        elif (device := _DEVICE.match(line)) and not self.others and self.test is None:
            self.below_versions = False
            report.devices.setdefault(int(device[1]), _listed(device[2], device[3]))
        elif not _PROCESS.match(line):
            return self.below_versions and self.test is None and _HOST_NAME.match(line) is not None
        return True

    def _row(self, number: int, line: str) -> bool:
        """Read the line of device numbers, or a row."""
        table = self.table
        if table is None:
            return False
        if not table.columns:
            table.columns = devices(line.split()) or ()
            return bool(table.columns)
        cells = row(line)
        if cells is None or cells[0] in table.rows or len(cells[1]) != len(table.columns):
            return False
        table.rows[cells[0]], table.lines[cells[0]] = cells[1], number
        test = named_test(table.test or "")
        is_single = test is not None and ALL_GPUS in (test.source, test.destination)
        several = "GPU(row)" in table.said and not is_single
        self.report.complete = len(table.rows) == (len(table.columns) if several else 1)
        return True


def _split(name: str) -> tuple[str, Part | None]:
    """Return a name without the part of a bidirectional test (`_read1`, `_total`), and the part."""
    match = _NAMED_PART.search(name)
    return (name, None) if match is None else (name[: match.start()], _PARTS[match["one"] or "total"])


PROGRAM = Program(detect, read)
