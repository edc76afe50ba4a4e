"""The models of a study: a table of their sizes."""

from collections.abc import Iterable

from gputopo.report.document import Block
from gputopo.report.study_tables import ROWS, table
from gputopo.workload import require_workload, workload_names

_NOTE = (
    "MiB: 2^20 bytes of float32; feature: outputs that one example keeps for the backward pass; GMAC: "
    "thousand million multiply-accumulates of its forward pass (gputopo explain MODEL)"
)


def model_table(models: Iterable[str]) -> list[Block]:
    """Return the table of the models that gputopo knows; empty if it knows none of them."""
    known = set(workload_names())
    rows = []
    for model in map(require_workload, (name for name in models if name in known)):
        height, width, _ = model.input_shape
        sizes = (
            _short(model.parameters / 1e6, 2),
            _short(model.parameter_bytes / 2**20, 1),
            _short(model.feature_bytes / 2**20, 1),
            _short(model.multiply_accumulates / 1e9, 2),
        )
        rows.append((model.name, f"{height} x {width}", *sizes))
    heads = ("model", "input", "parameters, millions", "parameter MiB", "feature MiB", "GMAC")
    return [table(heads, rows, words=heads[:2], notes=(_NOTE,), shown=2 * ROWS)] if rows else []


def _short(value: float, digits: int) -> str:
    """Return a number with this many decimals, or with two figures if it is below 1."""
    return f"{value:.{digits}f}" if value >= 1 or value == 0 else f"{value:.2g}"
