"""Placements that were measured before a run, and the fastest of them (`gputopo.autotune/1`)."""

from statistics import median
from typing import Literal

import msgspec

from gputopo.values.run.batches import BatchSize
from gputopo.values.run.candidate import Candidate

Settled = Literal["lead", "same", "time", "stopped", "failed"]


class Timed(msgspec.Struct, frozen=True):
    """Speed of one short run, and the standard error of the speeds of its steps as a share of it."""

    images_per_sec: float
    noise: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate with its prediction, and its runs, one for each round; `failure`: why it was given up."""

    candidate: Candidate
    runs: tuple[Timed, ...] = ()
    failure: str | None = None

    @property
    def images_per_sec(self) -> float | None:
        """Median over the rounds; None before the first run."""
        return median(run.images_per_sec for run in self.runs) if self.runs else None


class Autotune(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.autotune/1"):
    """What was measured. `winner`: the place of the fastest in `measured`, None where none was measured.

    `settled`: "lead": its lead exceeds the noise; "same": what another round could gain is below 1 %; "time":
    `budget_s` was used up; "stopped": by a signal; "failed": no other could be run.
    """

    winner: int | None
    settled: Settled
    measured: tuple[Measured, ...]
    seconds: float
    budget_s: float
    model: str
    batch_size: BatchSize
