"""The whole of a study (`gputopo.study/1`): measurements, figures, observations. What every renderer gets."""

from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from gputopo.measurements.doubts import doubts
from gputopo.measurements.figures import SMALLEST_EFFECT, Figures, figures_of
from gputopo.measurements.headline import headline
from gputopo.measurements.observations import (
    OBSERVATIONS,
    Observation,
    of_ratios,
    of_scaling,
    without_spoilt,
)
from gputopo.measurements.words import varying
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import Measurement


class UnreadFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was given and has no measurement. `why`: the reason in a line."""

    source: str
    why: str


class Study(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.study/1"):
    """A report as a value. `sources`: publications that are shown or compared with, by name."""

    title: str
    headline: str = ""  # what follows from all of it, in a few sentences
    figures: Figures
    observations: tuple[Observation, ...]
    unread: tuple[UnreadFile, ...] = ()
    sources: dict[str, str] = {}

    @property
    def has_regression(self) -> bool:
        """Whether a cell is slower than an earlier run of this machine under the same conditions."""
        return any(row.is_regression for row in self.figures.against)

    @property
    def has_failed(self) -> bool:
        """Whether a run has no figure."""
        return any(cell.failed for cell in self.figures.cells)


def study_of(
    measurements: Iterable[Measurement],
    *,
    title: str,
    machines: Mapping[str, Machine] = {},
    earlier: Iterable[Measurement] = (),
    references: Iterable[Measurement] = (),
    smallest_effect: float = SMALLEST_EFFECT,
    unread: Iterable[UnreadFile] = (),
    sources: Mapping[str, str] = {},
) -> Study:
    """Return the study of measurements; arguments as those of `figures.figures_of`."""
    figures = figures_of(
        measurements,
        machines=machines,
        earlier=earlier,
        references=references,
        smallest_effect=smallest_effect,
    )
    observations = observations_of(figures)
    return Study(
        title=title,
        headline=headline(figures, observations),
        figures=figures,
        observations=observations,
        unread=tuple(unread),
        sources=dict(sources),
    )


def observations_of(figures: Figures) -> tuple[Observation, ...]:
    """Return all observations, by their ids in the order of the declaration, then by weight."""
    names = varying(figures.cells)
    clean = without_spoilt(figures)
    order = list(OBSERVATIONS)
    found = chain(of_scaling(clean, names), of_ratios(clean, names), doubts(figures, names))
    return tuple(sorted(found, key=lambda one: (order.index(one.id), -one.weight)))
