"""The lines of `nvidia-smi dmon`, with any columns (`-s pucvmet`) and times (`-o DT`): text in, Machine out.

    # gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
    # Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
        0     25     35      -      0      0      0      0      0      0    405    210

Each line is a row of what `nvidia-smi --query-gpu=... -l` prints, and is read as that: a series of samples.
"""

import re
from collections.abc import Sequence

import msgspec

from gputopo.captures.ledger import Format, read_lines
from gputopo.captures.smi import csv_table
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

SOURCE = "nvidia-smi dmon"

_HINT = "copy the output of `nvidia-smi dmon` again, with the line that names its columns"
_HEAD = re.compile(r"#\s*(?:(?:Date[\s,]+)?Time[\s,]+)?gpu[\s,]+[a-z]")
_UNITS = re.compile(r"#\s*(?:(?:YYYYMMDD[\s,]+)?HH:MM:SS[\s,]+)?Idx\b.*", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,3})?")
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
}


def recognise(text: str) -> bool:
    """Return whether a line names such columns. (Those of `pmon` are of processes.)"""
    return "#" in text and any(_columns(line) for line in text.splitlines())


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line names such columns."""
    return bool(_columns(lines[0]))


def _columns(line: str) -> list[str]:
    """Return the names of the columns; none where the line does not name them."""
    if "gpu" not in line or _HEAD.match(line.strip()) is None:
        return []
    names = line.strip().lstrip("#").replace(",", " ").split()
    return [] if "pid" in names or names.count("gpu") != 1 else names


def parse(text: str, *, origin: str) -> Machine:
    """Read the samples. Raises InputError if there is none."""
    columns: list[str] = []
    tables: dict[tuple[str, ...], list[str]] = {}

    def take(number: int, line: str) -> bool:
        if named := _columns(line):
            columns[:] = named
        elif row := _row(columns, line):
            tables.setdefault(tuple(row), []).append(", ".join(row.values()))
        else:
            return _UNITS.fullmatch(line) is not None
        return True

    lines = read_lines(text, take)
    if not tables:
        raise InputError(f"{origin}: no line of a GPU in this output of `nvidia-smi dmon`", _HINT)
    csv = "".join("\n".join([", ".join(head), *rows]) + "\n" for head, rows in tables.items())
    machine = csv_table.parse(csv, origin=origin)
    return msgspec.structs.replace(
        machine,
        source=SOURCE,
        samples=tuple(msgspec.structs.replace(one, source=SOURCE) for one in machine.samples),
        missing={fact: why.replace(csv_table.SOURCE, SOURCE) for fact, why in machine.missing.items()},
        unread=lines.unread(SOURCE),
    )


def _row(columns: Sequence[str], line: str) -> dict[str, str]:
    """Return the cells of a GPU's line by the columns of a query; none where it is no such line."""
    cells = line.replace(",", " ").split()
    if not columns or len(cells) != len(columns):
        return {}
    by_name = dict(zip(columns, cells, strict=True))
    date, time = by_name.pop("Date", None), by_name.pop("Time", None)
    if not all(cell == "-" or _NUMBER.fullmatch(cell) for cell in by_name.values()):
        return {}
    row = {
        _COLUMNS[name]: "[N/A]" if cell == "-" else cell for name, cell in by_name.items() if name in _COLUMNS
    }
    if date and time and (day := _DATE.fullmatch(date)):
        row["timestamp"] = f"{day[1]}/{day[2]}/{day[3]} {time}.000"
    return row if row["index"].isdigit() else {}


FORMAT = Format(
    "`nvidia-smi dmon` text",
    "load, clocks, power, temperature, ECC errors: a series of samples",
    recognise,
    parse,
    begins=begins,
)
