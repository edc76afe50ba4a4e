"""The models of a study as a table: input, memory, arithmetic, each with its unit."""

from collections.abc import Iterable

from gputopo.report.document import Block, Table
from gputopo.report.layout import Side
from gputopo.workload.workloads import Workload, names, require

_NOTE = (
    "Memory is in MiB of float32: that of the parameters, and of the outputs that one example leaves for the "
    "backward pass. GMAC: thousand million multiply-accumulates of one forward pass of one example (a "
    "multiply-accumulate is two floating-point operations). More: gputopo explain MODEL."
)


def model_table(models: Iterable[str]) -> list[Block]:
    """Return the table of those models that gputopo knows; nothing if there is none."""
    known = set(names())
    rows = tuple(_row(require(name)) for name in models if name in known)
    heads = ("model", "input", "parameters", "parameter MiB", "feature MiB", "GMAC")
    sides: tuple[Side, ...] = ("left", "left", "right", "right", "right", "right")
    return [Table(heads, rows, sides, (_NOTE,))] if rows else []


def _row(one: Workload) -> tuple[str, ...]:
    height, width, _ = one.input_shape
    return (
        one.name,
        f"{height} x {width}",
        f"{one.parameters:,}",
        f"{one.parameter_bytes / 2**20:.1f}",
        f"{one.feature_bytes / 2**20:.1f}",
        f"{one.multiply_accumulates / 1e9:.2f}",
    )
