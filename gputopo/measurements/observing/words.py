"""A cell and its differences in words, for observations and tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from gputopo.measurements.cells import Cell
from gputopo.measurements.conditions import CONDITIONS, value_words
from gputopo.values.run.measurement import Measurement

# Conditions whose values are understood without their names.
_PLAIN = frozenset(
    {"model", "machine", "cpu", "gpu", "framework", "method", "data", "precision", "data_format"}
)
_PLAIN_TOO = frozenset({"variable_update", "ps_device", "all_reduce", "distortions", "xla", "task"})
_NEVER = frozenset({"backend", "dataset", "gpus", "n_gpus"})


def varying(cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return the conditions that differ among cells, so that they must be named.

    Of what was not run most conditions are unknown, which makes no difference.
    """
    some = [cell.of for cell in cells]
    return tuple(
        name for name in CONDITIONS if (name not in _NEVER and len(stated(some, name)) > 1) or name == "model"
    )


def stated(some: Iterable[Measurement], name: str) -> frozenset[Any]:
    """Return the values of a condition; None is one of a run that does not state it."""
    values = ((getattr(one, name), one.is_run) for one in some)
    return frozenset(value for value, is_run in values if is_run or value not in (None, ()))


def job_words(one: Measurement, names: Sequence[str]) -> str:
    """Return the named conditions of a measurement: `resnet50, batch 64, replicated nccl`."""
    words = []
    for name in names:
        value = getattr(one, name)
        if value is None or value is False or (name == "task" and value == "train"):
            continue
        text = value_words(name, value)
        if name == "batch_per_gpu":
            words.append(f"batch {text}")
        elif name in ("ps_device", "all_reduce") and words:
            words[-1] += f" {text}" if one.variable_update else ""
        elif name in _PLAIN | _PLAIN_TOO:
            words.append(text)
        else:
            words.append(f"{CONDITIONS[name]} {text}")
    return ", ".join(words)


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


def listed(words: Sequence[str], limit: int = 3) -> str:
    """Return the first words of a list and how many more there are."""
    shown = "; ".join(words[:limit])
    more = len(words) - limit
    return f"{shown}; and {more} more" if more > 0 else shown
