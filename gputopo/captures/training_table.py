"""Measurements as CSV: a header of field names, one row per measurement."""

import csv
import io
import math
from typing import Any

import msgspec

from gputopo.captures.limits import TooMuchError
from gputopo.values.errors import InputError
from gputopo.values.run.measurement import COLUMNS, Measurement

MAX_ROWS = 200_000
MAX_CELL = 4096
# Other column names that are accepted.
_ALSO = {
    "tf_version": "version",
    "gpu_ids": "gpus",
    "batch_size": "batch_per_gpu",
    "num_gpus": "n_gpus",
    "variables": "variable_update",
    "images/sec": "images_per_sec",
    "layout": "data_format",
}
_NUMBERS = {"images_per_sec", "median", "uncertainty", "jitter", "time_s"}
_COUNTS = {"n_gpus", "batch_per_gpu", "steps"}
_SWITCHES = {"xla", "distortions"}
_HINT = (
    f"the header names fields such as model, n_gpus, batch_per_gpu, images_per_sec; all: {', '.join(COLUMNS)}"
)


def detect(text: str) -> bool:
    """Return whether the first line is a header of such a table."""
    first = text.lstrip("\ufeff").split("\n", 1)[0]
    names = [name.strip().strip('"').lower() for name in first[:8192].split(",")]
    return {"images_per_sec", "model"} <= {_ALSO.get(name, name) for name in names}


def parse(text: str, *, origin: str) -> tuple[Measurement, ...]:
    """Return the rows. Raises InputError with row and column for a value that its column cannot have."""
    csv.field_size_limit(MAX_CELL * 16)
    rows = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""))
    try:
        header = [_ALSO.get(name.strip().lower(), name.strip().lower()) for name in next(rows)]
        measurements = []
        for number, row in enumerate(rows, 2):
            if number > MAX_ROWS:
                raise TooMuchError(f"{origin} has more than {MAX_ROWS:,} rows", "split it")
            if any(cell.strip() for cell in row):
                measurements.append(_measurement(dict(zip(header, row, strict=False)), f"{origin}:{number}"))
    except (csv.Error, StopIteration) as error:
        raise InputError(f"{origin} is not a CSV table: {error}", _HINT) from error
    return tuple(measurements)


def _measurement(row: dict[str, str], where: str) -> Measurement:
    fields: dict[str, Any] = {}
    for name, text in row.items():
        if name in COLUMNS and text.strip():
            fields[name] = _value(name, text.strip()[:MAX_CELL], where)
    fields["source"] = fields.get("source") or where
    if fields.get("gpus") and "n_gpus" not in fields:
        fields["n_gpus"] = len(fields["gpus"])
    if not fields.get("images_per_sec"):
        # 0 is not a result: it means that there is none.
        fields["images_per_sec"] = None
        fields["status"] = (
            fields.get("status") if fields.get("status") not in (None, "complete") else "missing"
        )
        fields.setdefault("reason", "the table has no figure")
    try:
        return msgspec.convert(fields, Measurement)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}", _HINT) from error


def _value(name: str, text: str, where: str) -> Any:
    try:
        if name in _NUMBERS:
            value = float(text)
            if not math.isfinite(value) or value < 0:
                raise ValueError
            return value
        if name in _COUNTS:
            count = int(float(text))
            if not 0 < count < 2**31:
                raise ValueError
            return count
        if name == "gpus":
            numbers = text.replace(",", " ").split()
            if not all(0 <= int(number) < 2**31 for number in numbers):
                raise ValueError
            return [int(number) for number in numbers[:4096]]
        if name in _SWITCHES:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
                text.lower()
            ]
    except (ValueError, KeyError, OverflowError):
        raise InputError(f"{where}: {text[:40]!r} cannot be {name}", _HINT) from None
    return text[1:] if text.startswith("'") else text
