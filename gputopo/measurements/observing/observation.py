"""Observations: sentences with the numbers behind them, under ids that keep their meaning."""

from typing import Any

import msgspec


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the figures show beyond their noise. `evidence`: the numbers; `cells`: their numbers."""

    id: str
    says: str
    evidence: dict[str, Any] = {}
    cells: tuple[int, ...] = ()


# Every id with its meaning, in the order in which observations are shown.
OBSERVATIONS: dict[str, str] = {
    "document.error": "A published document contradicts its own figures",
    "scaling.verdict": "How well more GPUs pay, over all jobs",
    "scaling.stops": "More GPUs than a certain number do not pay",
    "scaling.superlinear": "More than 100 % efficiency beyond the noise, and its likely cause",
    "batch.throughput": "What a larger batch does to images/sec",
    "batch.scaling": "What a larger batch does to speedup",
    "input.bottleneck": "Real data is slower than synthetic data: the input limits",
    "input.enough": "Real data is as fast as synthetic data",
    "work.more_is_faster": "A run with more work was faster: a figure is wrong, or conditions differ",
    "mode.best": "The fastest place for the variables, by number of GPUs",
    "gpu.ratio": "How much faster one GPU model is than another",
    "model.ratio": "How much faster one model trains than another",
    "layout.ratio": "What the layout NCHW gains over NHWC",
    "precision.ratio": "What half precision gains over fp32",
    "xla.ratio": "What XLA gains",
    "program.ratio": "How fast one program is beside another",
    "pairs.path": "Whether the path between two GPUs matters, by mode",
    "clocks.unexplained": "A GPU is slower than its clock explains",
    "cpu.matters": "The CPU decides the speed of some models and not of others",
    "prediction.outside": "Measured outside of the predicted range",
    "conditions.other": "A run was under other conditions than its neighbours",
    "figure.suspect": "A figure that its source or a later measurement contradicts",
    "repeats.contradict": "Repeats under the same conditions disagree",
    "repeats.duplicate": "The same file was given more than once and counts once",
    "cells.failed": "Runs without a figure, with their reasons",
    "cells.not_run": "Cells of a sweep that were refused, left out, or are still to run, with their reasons",
    "compare.refused": "Runs that must not be compared, and why",
    "earlier.regression": "Slower than an earlier run of this machine",
    "earlier.changed": "Other than an earlier run of this machine, and what else changed",
    "published.slower": "Slower than the published figure of this GPU model",
}
