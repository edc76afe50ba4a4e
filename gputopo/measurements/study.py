"""The whole of a study (`gputopo.study/1`): measurements, figures, observations. What every renderer gets."""

from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from gputopo.measurements.doubts import doubts
from gputopo.measurements.figures import Figures, figures_of
from gputopo.measurements.observations import OBSERVATIONS, Observation, of_ratios, of_scaling
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import Measurement

# Observations of one id that are shown; the last one states how many more there are.
MAX_OF_A_KIND = 12


class UnreadFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was given and has no measurement. `why`: the reason in a line."""

    source: str
    why: str


class Study(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.study/1"):
    """A report as a value. `sources`: publications that are shown or compared with, by name."""

    title: str
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
    unread: Iterable[UnreadFile] = (),
    sources: Mapping[str, str] = {},
) -> Study:
    """Return the study of measurements; arguments as those of `figures.figures_of`."""
    figures = figures_of(measurements, machines=machines, earlier=earlier, references=references)
    return Study(
        title=title,
        figures=figures,
        observations=observations_of(figures),
        unread=tuple(unread),
        sources=dict(sources),
    )


def observations_of(figures: Figures) -> tuple[Observation, ...]:
    """Return all observations, in the order of their declaration."""
    by_id: dict[str, list[Observation]] = {id: [] for id in OBSERVATIONS}
    for one in chain(of_scaling(figures), of_ratios(figures), doubts(figures)):
        by_id[one.id].append(one)
    found = []
    for some in by_id.values():
        more = len(some) - MAX_OF_A_KIND
        if more > 0:
            last = some[MAX_OF_A_KIND - 1]
            some[MAX_OF_A_KIND - 1 :] = [
                msgspec.structs.replace(last, says=f"{last.says} And {more} more of this kind.")
            ]
        found += some
    return tuple(found)
