"""Cells of a sweep as measurements where they have no run: refused, left out, failed before it, to run."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gputopo.measurements.sources.from_ours import data_source
from gputopo.sweeps.matrix import MADE
from gputopo.values.run.measurement import Measurement, Status
from gputopo.values.run.several_runs import CellState, Sweep, SweepCell

# What a cell without a run is; one that is done, or running, has a run.
_STATUS: Mapping[CellState, tuple[Status, str]] = {
    "failed": ("failed", "failed"),
    "refused": ("refused", "refused"),
    "left_out": ("left_out", "left out on this machine"),
    "pending": ("pending", "not run yet: gputopo sweep --resume goes on"),
    "running": ("pending", "was running, or the sweep was killed: gputopo sweep --resume goes on"),
    "done": ("missing", "the folder of its run is not there"),
}


def without_a_run(
    sweep: Sweep, has_run: Callable[[SweepCell], bool], *, source: str, digest: str, machine: str | None
) -> Iterator[Measurement]:
    """Iterate over the cells that no run folder shows. `has_run`: whether that of a cell can be read.

    `source`, `digest`: of the manifest; `machine`: name of that of the other cells.
    """
    for cell in sweep.cells:
        if has_run(cell):
            continue
        status, reason = _STATUS[cell.state]
        yield Measurement(
            source=f"{source}#{cell.number}",
            status=status,
            reason=cell.reason or reason,
            machine=machine,
            digest=f"{digest}#{cell.number}",
            backend=sweep.backend,
            framework="gputopo",
            **_conditions(cell, sweep.defaults),
        )


def _conditions(cell: SweepCell, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that the options of a cell state; what the machine decides is not known."""
    options = {**defaults, **cell.options}
    asked = _whole(options.get("num_gpus"))
    folder, source = _word(options.get("data_dir")), options.get("data_source")
    made = folder.removeprefix("made:") if folder in MADE else None
    return {
        "gpus": cell.gpus,
        "n_gpus": len(cell.gpus) or asked or cell.devices or 1,
        "model": _word(options.get("model")) or "unknown",
        "dataset": _word(options.get("data_name")) or made,
        "data": data_source({"folder": folder, "source": source}) if folder or source else None,
        "distortions": options.get("distortions") is True if folder else None,
        "task": _word(options.get("task")) or "train",
        "batch_per_gpu": _whole(options.get("batch_size")),
        "precision": _word(options.get("precision")),
        "data_format": _word(options.get("data_format")),
        "xla": options.get("xla"),
        "method": _word(options.get("method")) or _word(options.get("strategy")),
        "variable_update": _word(options.get("variable_update")),
        "ps_device": _word(options.get("ps")),
        "all_reduce": _word(options.get("all_reduce")),
    }


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    """Return a whole number above 0: options are stored as typed."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) else None
