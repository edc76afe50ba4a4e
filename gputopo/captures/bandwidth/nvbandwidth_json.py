"""The JSON of `nvbandwidth -j` (0.5 and later): text in, Machine out. Host names in it are dropped.

`nvbandwidth_tests` knows the tests. Of a bidirectional test between GPUs the JSON
holds three matrices in one, each direction and their total, one below the other.
"""

import json
import re
from typing import Any

import msgspec

from gputopo.captures.bandwidth import nvbandwidth_tests as tests
from gputopo.captures.bandwidth import runs
from gputopo.captures.bandwidth.nvbandwidth_tests import Matrix, Part, Report
from gputopo.captures.ledger import Format
from gputopo.captures.matching import Device
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

_HINT = "run `nvbandwidth -j` again and copy all that it prints"
_START = re.compile(r'\{\s*"nvbandwidth"\s*:')
SOURCE = tests.SOURCE
_DEVICE = re.compile(
    r"(?:(\d{1,4}): )?(.{1,120}?)(?: \(([0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\))?(?:: \(.*\))?",
    re.ASCII,
)
_VERSION = re.compile(r"v?(\d{1,3}(?:\.\d{1,3}){0,2})")
_PARTS: tuple[Part, ...] = ("1", "2", "total")
_MIB = 2**20


def recognise(text: str) -> bool:
    """Return whether a JSON object of nvbandwidth begins in the text."""
    return _START.search(text) is not None


def parse(text: str, *, origin: str) -> Machine:
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


def _head(document: dict[str, Any]) -> Report:
    version = _VERSION.fullmatch(_text(document.get("version")))
    report = Report(
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
        if match := _DEVICE.fullmatch(_text(device)):
            address = f"{match[3]}.0" if match[3] else None
            report.devices.setdefault(int(match[1] or place), Device(match[2].strip(), address))
    return report


def _add(report: Report, case: dict[str, Any]) -> list[str]:
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
        found = tests.add(report, Matrix(test, tuple(range(width)), dict(enumerate(rows)), part))
        strange += [f"{test}: {word}" for _, word in found]
    return strange


def _parts(test: str, rows: list[list[str]], width: int) -> list[tuple[Part | None, list[list[str]]]]:
    """Take the three matrices of a bidirectional test apart."""
    both = test.startswith("device_to_device_bidirectional")
    if both and len(rows) == 3 * width:
        return [(part, rows[i * width : (i + 1) * width]) for i, part in enumerate(_PARTS)]
    return [(None, rows)]


def _unfinished(cases: Any) -> str | None:
    """Return the test that was running when the error came: the last one, if it has no result."""
    last = cases[-1] if isinstance(cases, list) and cases else None
    if not isinstance(last, dict) or "bandwidth_matrix" in last:
        return None
    return _text(last.get("name")) or None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""


FORMAT = Format(
    "`nvbandwidth -j` JSON",
    "measured copies and latencies",
    recognise,
    parse,
)
