"""The words for cells, jobs and figures."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gputopo.measurements.cells import CONDITIONS, MODE, Cell, value_words
from gputopo.values.run.measurement import Measurement

# Conditions whose values are not understood without their names.
_NAMED = {"version": "TensorFlow ", "dataset": "data set ", "batch_per_gpu": "batch "}
_NEVER = frozenset({"backend", "dataset", "gpus", "n_gpus"})
_WITH_MACHINE = ("cpu", "gpu", "version", "data_format", "xla")


def varying(cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return the conditions that differ among cells, so that they must be named.

    Of what was not run most conditions are unknown, which makes no difference; what is the same in all cells
    of a machine goes without saying.
    """
    some = [cell.of for cell in cells]
    names = [name for name in CONDITIONS if name not in _NEVER and len(stated(some, name)) > 1]
    if "machine" in names:
        known = {
            name: {(one.machine, value) for one in some if (value := getattr(one, name)) is not None}
            for name in _WITH_MACHINE
        }
        own = {name for name, pairs in known.items() if len(pairs) == len(dict(pairs))}
        names = [name for name in names if name not in own]
    return tuple(name for name in CONDITIONS if name in names or name == "model")


def stated(some: Iterable[Measurement], name: str) -> frozenset[Any]:
    """Return the values of a condition; None is one of a run that does not state it."""
    values = ((getattr(one, name), one.is_run) for one in some)
    return frozenset(value for value, is_run in values if is_run or value not in (None, ()))


def job_words(one: Measurement, names: Sequence[str]) -> str:
    """Return the named conditions of a measurement: `resnet50, batch 64, replicated nccl`."""
    words: list[str] = []
    for name in names:
        value = getattr(one, name)
        if value in (None, False) or (name == "task" and value == "train"):
            continue
        text = value_words(name, value)
        if name in MODE[1:] and words:
            words[-1] += f" {text}" if one.variable_update else ""
        else:
            words.append(_NAMED.get(name, "") + text)
    return ", ".join(words)


def row_words(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    """Return a name for each cell of a table with the devices beside it, no two alike.

    Cells with one name have in addition what they differ in, runs with drills their source.
    """
    alike: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    words = [job_words(cell.of, names) for cell in cells]
    for text, cell in zip(words, cells, strict=True):
        alike[text, cell.of.n_gpus, cell.of.gpus].append(cell)
    found = []
    for text, cell in zip(words, cells, strict=True):
        group = alike[text, cell.of.n_gpus, cell.of.gpus]
        parts = [text] if text else []
        if len(group) > 1:
            apart = [name for name in CONDITIONS if len({getattr(one.of, name) for one in group}) > 1]
            parts += [f"{CONDITIONS[name]} {value_words(name, getattr(cell.of, name))}" for name in apart]
            parts += [cell.of.source] if cell.of.is_drill else []
        found.append(", ".join(parts))
    return found


def shared_words(cells: Sequence[Cell], numbers: Iterable[int], names: Iterable[str]) -> str:
    """Return the conditions, of those named, that some cells share."""
    some = [cells[number].of for number in numbers]
    return job_words(some[0], [name for name in names if len({getattr(one, name) for one in some}) == 1])


def gpus_words(one: Measurement) -> str:
    """Return the number of devices with their kind: `4 GPUs`, `1 CPU device`."""
    return f"{one.n_gpus} {device_word(one)}{'' if one.n_gpus == 1 else 's'}"


def device_word(one: Measurement) -> str:
    """Return what the devices of a measurement are: `GPU` or `CPU device`."""
    return "CPU device" if one.backend == "cpu" else "GPU"


def devices_word(cells: Iterable[Cell]) -> str:
    """Return what the devices of cells are: `GPUs`, `CPU devices`; `devices` where there are both."""
    words = {device_word(cell.of) for cell in cells}
    return f"{words.pop()}s" if len(words) == 1 else "devices"


def speed_unit(cells: Iterable[Cell]) -> str:
    """Return the unit of the speeds of cells: `images/sec`; `per second` if they count different things."""
    units = {cell.of.unit for cell in cells}
    return f"{units.pop()}/sec" if len(units) == 1 else "per second"


def listed(words: Sequence[str], limit: int = 3) -> str:
    """Return the first words of a list and how many more there are."""
    more = len(words) - limit
    return "; ".join([*words[:limit], *([f"and {more} more"] if more > 0 else [])])


def figure(images_per_sec: float | None) -> str:
    """Return images/sec with four figures or more: `38.27`, `4,618`."""
    value = images_per_sec or 0.0
    return f"{value:,.4g}" if value < 9999.5 else f"{value:,.0f}"


def change(percent: float) -> str:
    """Return a change in percent with its sign: `+19%`, `0%`."""
    return f"{percent:+.0f}%" if abs(percent) >= 0.5 else "0%"
