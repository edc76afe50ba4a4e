"""The lines of `nvidia-smi dmon`, with any columns (`-s pucvmet`) and times (`-o DT`): text in, Machine out.

    # gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
    # Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
        0     25     35      -      0      0      0      0      0      0    405    210

Each line is read like a row of `nvidia-smi --query-gpu=... -l`: a series of samples.
If the power limit (`pviol`, %) or temperature (`tviol`, 0 or 1) lowered a GPU's clocks for part of the time
(NVML's performance policies), the sample has that reason.
"""

import functools
import re
from collections.abc import Sequence

from msgspec.structs import replace

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
    "pviol": "clocks_event_reasons.sw_power_cap",
    "tviol": "clocks_event_reasons.sw_thermal_slowdown",
}


def detect(text: str) -> bool:
    """Return whether a line has such column names. (The columns of `pmon` are about processes.)"""
    return "#" in text and any(_columns(line) for line in text.splitlines())


def is_whole(text: str) -> bool:
    """Return whether a text is only such an output: a line of column names, and lines of numbers."""
    starts = (line.lstrip()[:1] for line in text.splitlines())
    return bool(_columns(text.partition("\n")[0])) and all(start in "#0123456789" for start in starts)


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line has such column names."""
    return bool(_columns(lines[0]))


def _columns(line: str) -> list[str]:
    """Return the column names in a line, or an empty list if the line has none."""
    if "gpu" not in line or _HEAD.match(line.strip()) is None:
        return []
    names = line.strip().lstrip("#").replace(",", " ").split()
    return [] if "pid" in names or names.count("gpu") != 1 else names


def parse(text: str, *, origin: str) -> Machine:
    """Read the samples. Raises InputError if there is none."""
    tables: dict[tuple[str, ...], list[str]] = {}
    width, picked, rows, stamp = 0, list[tuple[int, str]](), list[str](), list[int]()

    def take(number: int, line: str) -> bool:
        nonlocal width, picked, rows, stamp
        if named := _columns(line):
            picked = [(at, _COLUMNS[name]) for at, name in enumerate(named) if name in _COLUMNS]
            stamp = [named.index(name) for name in ("Date", "Time") if "Date" in named]
            width = len(named)
            head = tuple(column for _, column in picked) + ("timestamp",) * bool(stamp)
            rows = tables.setdefault(head, [])
            return True
        cells = line.replace(",", " ").split()
        if len(cells) != width or not all(map(_is_cell, cells[2 if stamp else 0 :])):
            return _UNITS.fullmatch(line) is not None
        row = [_written(cells[at], column) for at, column in picked]
        if stamp:
            day = _DATE.fullmatch(cells[stamp[0]])
            row.append(f"{day[1]}/{day[2]}/{day[3]} {cells[stamp[1]]}.000" if day else "[N/A]")
        rows.append(", ".join(row))
        return True

    lines = read_lines(text, take)
    if not any(tables.values()):
        raise InputError(f"{origin}: no line of a GPU in this output of `nvidia-smi dmon`", _HINT)
    csv = "".join("\n".join([", ".join(head), *found]) + "\n" for head, found in tables.items() if found)
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


@functools.lru_cache(maxsize=8192)  # numbers are repeated
def _is_cell(cell: str) -> bool:
    return cell == "-" or _NUMBER.fullmatch(cell) is not None


FORMAT = Format(
    "`nvidia-smi dmon` text",
    "load, clocks, power, temperature, ECC errors, power and thermal violations: a series of samples",
    detect,
    parse,
    begins=begins,
)
