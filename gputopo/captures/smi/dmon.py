"""The lines of `nvidia-smi dmon`, with any columns (`-s pucvmet`) and times (`-o DT`): text in, Machine out.

    # gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
    # Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
        0     25     35      -      0      0      0      0      0      0    405    210

Each line is read like a row of `nvidia-smi --query-gpu=... -l`: a series of samples.
If the power limit (`pviol`, %) or temperature (`tviol`, 0 or 1) lowered a GPU's clocks for part of the time
(NVML's performance policies), the sample has that reason.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from gputopo.captures.ledger import Format, read_lines
from gputopo.captures.smi import csv_table
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

SOURCE = "nvidia-smi dmon"

_HINT = "copy the output of `nvidia-smi dmon` again, with the line that names its columns"
_HEAD = re.compile(r"#\s*(?:(?:Date[\s,]+)?Time[\s,]+)?gpu[\s,]+(?!pid\b)[a-z]")  # pmon: `gpu  pid`
_UNITS = re.compile(r"#\s*(?:(?:YYYYMMDD[\s,]+)?HH:MM:SS[\s,]+)?Idx\b.*", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)")
_CELL = re.compile(r"-|\d{1,12}(?:\.\d{1,3})?")
_COLUMNS = {
    "gpu": "index",
    "pwr": "power.draw",
    "temp": "temperature.gpu",  # drivers up to 384
    "gtemp": "temperature.gpu",
    "mtemp": "temperature.memory",
    "sm": "utilization.gpu",
    "mem": "utilization.memory",
    "mclk": "clocks.mem",
    "pclk": "clocks.sm",
    "fb": "memory.used",
    "sbecc": "ecc.errors.corrected.aggregate.total",
    "dbecc": "ecc.errors.uncorrected.aggregate.total",
    "pviol": "clocks_event_reasons.sw_power_cap",
    "tviol": "clocks_event_reasons.sw_thermal_slowdown",
}


def detect(text: str) -> bool:
    """Return whether a line has such column names. (The columns of `pmon` are about processes.)"""
    return "#" in text and any(_HEAD.match(line.strip()) for line in text.splitlines())


def is_whole(text: str) -> bool:
    """Return whether a text is only such an output: a line of column names, and lines of numbers."""
    starts = (line.lstrip()[:1] for line in text.splitlines())
    return begins([text.partition("\n")[0]]) and all(start in "#0123456789" for start in starts)


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line has such column names."""
    return _HEAD.match(lines[0].strip()) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the samples. Raises InputError for an output without samples."""
    tables: dict[str, list[str]] = {}  # rows of CSV, by the line of their column names
    columns: list[str] = []

    def take(number: int, line: str) -> bool:
        words = line.lstrip("# ").replace(",", " ").split()
        if _HEAD.match(line):
            columns[:] = words
            return True
        if len(words) != len(columns) or not all(map(_CELL.fullmatch, words[columns.index("gpu") :])):
            return _UNITS.fullmatch(line) is not None
        cells = dict(zip(columns, words, strict=True))
        row = {column: _written(cells[name], column) for name, column in _COLUMNS.items() if name in cells}
        if "Date" in cells:
            day = _DATE.fullmatch(cells["Date"])
            row["timestamp"] = f"{day[1]}/{day[2]}/{day[3]} {cells['Time']}.000" if day else "[N/A]"
        tables.setdefault(", ".join(row), []).append(", ".join(row.values()))
        return True

    lines = read_lines(text, take)
    if not tables:
        raise InputError(f"{origin}: no line of a GPU in this output of `nvidia-smi dmon`", _HINT)
    csv = "".join("\n".join([head, *rows]) + "\n" for head, rows in tables.items())
    machine = csv_table.parse(csv, origin=origin)
    return replace(
        machine,
        source=SOURCE,
        samples=tuple(replace(sample, source=SOURCE) for sample in machine.samples),
        missing={fact: why.replace(csv_table.SOURCE, SOURCE) for fact, why in machine.missing.items()},
        unread=lines.unread(SOURCE),
    )


def _written(cell: str, column: str) -> str:
    """Return a cell as `--query-gpu` writes it."""
    if cell == "-":
        return "[N/A]"
    if column.startswith("clocks_event_reasons."):
        return "Active" if float(cell) > 0 else "Not Active"
    return cell


FORMAT = Format(
    "`nvidia-smi dmon` text",
    "load, clocks, power, temperature, ECC errors, power and thermal violations: a series of samples",
    detect,
    parse,
    begins=begins,
)
