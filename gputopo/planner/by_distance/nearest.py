"""The order of sets of GPUs where nothing is predicted: by distance, or by measured bandwidth. Pure.

The set with the closest farthest pair wins, then the next farthest decides (`subsets`,
`gputopo.topology.hops.nearness`). Where the bandwidth of all pairs to choose from was measured, classes of
measured speed come before those of topology (`measured_order`). The variables are placed by `placement_rule`.
"""

from collections.abc import Collection, Sequence

import msgspec

from gputopo.copies.pair_speeds import unmeasured
from gputopo.planner.by_distance.placement_rule import place_variables
from gputopo.planner.by_distance.subsets import FoundSet, TooManySetsError, closest_sets
from gputopo.planner.reasons import (
    farthest_class,
    farthest_words,
    named_reason,
    pairs_of,
    reduction_reasons,
    search_reason,
)
from gputopo.planner.request import gpus_in_words, troubles, usable
from gputopo.planner.selection import LISTED, Selection
from gputopo.values.errors import NoPlanError
from gputopo.values.run.plan import Candidate


class Nearest(Selection):
    """The sets whose GPUs are closest to one another."""

    def search(
        self, pool: Sequence[int], keep: int, deprioritized: Collection[int] = ()
    ) -> tuple[FoundSet, ...]:
        """Return the `keep` closest sets. Raises NoPlanError where there are too many to compare."""
        try:
            return closest_sets(
                pool,
                self.key,
                self.size,
                keep=keep,
                required=self.required,
                deprioritized=deprioritized,
                aside=self.cards.key,
            )
        except TooManySetsError:
            raise NoPlanError(
                f"{len(pool)} GPUs give too many sets of {self.size} to compare them all",
                "narrow the choice with --gpus or --exclude",
            ) from None

    def candidates(self, keep: int | None) -> tuple[Candidate, ...]:
        """Return each set with its variables placed by the rule."""
        if self.exact:
            found: tuple[FoundSet, ...] = (FoundSet(self.pool, 1, 1),)
        else:
            found = self.search(
                self.pool, LISTED if keep is None else max(keep, 1), deprioritized=self.troubles
            )
        return tuple(self._candidate(one, rank) for rank, one in enumerate(found))

    def difference(self, chosen: Sequence[int], best: Sequence[int]) -> str:
        """Return how far apart the chosen GPUs are, where that is farther than the closest ones."""
        if self._distances(chosen) == self._distances(best):
            return ""
        if self.measured is not None:
            now, then = self.measured.slowest(chosen), self.measured.slowest(best)
        else:
            now, then = farthest_class(self.links, chosen), farthest_class(self.links, best)
        return f"{now} instead of {then}" if now != then else "with more pairs farther apart"

    def _candidate(self, found: FoundSet, rank: int) -> Candidate:
        """Return a found set as a candidate; the first one with all its reasons, the others in short."""
        placement = place_variables(
            found.gpus,
            one_island=self.in_one_island(found.gpus),
            ps=self.request.ps,
            variable_update=self.variable_update,
            speeds=self.pair_speeds,
            all_reduce=self.all_reduce,
        )
        reasons = self._reasons(found) if rank == 0 else self._short_reasons(found)
        return Candidate(
            gpus=found.gpus,
            variable_update=placement.variable_update,
            ps_device=placement.ps_device,
            all_reduce=placement.all_reduce,
            alike=found.alike,
            reasons=(
                *reasons,
                *(placement.reasons if rank == 0 else placement.reasons[:1]),
                *(reduction_reasons(self.machine, found.gpus, placement.all_reduce) if rank == 0 else ()),
            ),
        )

    def _reasons(self, found: FoundSet) -> list[str]:
        if self.exact:
            everyone, _ = usable(
                self.machine, msgspec.structs.replace(self.request, gpus=None), self.unavailable
            )
            reasons = self.distance_reasons(found.gpus, everyone)
            reasons.append(self._named_reason(self._closer_than(found.gpus, everyone)))
        else:
            reasons = [*self.distance_reasons(found.gpus, self.pool), self._search_reason(found)]
        return [*reasons, *self.reasons_of_request(found.gpus)]

    def _search_reason(self, found: FoundSet) -> str:
        if self.measured is None:
            by, good = "topology, farthest pair first", "close"
        else:
            by, good = "measured bandwidth, slowest pair first", "good"
        return search_reason(
            self.sets,
            found.equal,
            self.size,
            by=by,
            good=good,
            chosen="the lowest indices were chosen",
            troubled=bool(self.troubles),
            by_card=self.cards.decide(self.pool),
        )

    def _named_reason(self, closest: Sequence[int] | None) -> str:
        if self.measured is None or closest is None:
            return named_reason(self.links, closest)
        return (
            f"the GPUs were named by --gpus; {gpus_in_words(closest)} would be faster "
            f"({self.measured.slowest_words(closest)})"
        )

    def _closer_than(self, named: Sequence[int], everyone: Sequence[int]) -> tuple[int, ...] | None:
        """Return the closest set of that size on the whole machine, None if the named one is as close."""
        if self.measured is not None and unmeasured(self.pair_speeds, everyone):
            return None
        try:
            closest = self.search(everyone, 1, deprioritized=troubles(self.machine))[0].gpus
        except NoPlanError:
            return None
        return closest if self._distances(closest) < self._distances(named) else None

    def _distances(self, gpus: Sequence[int]) -> list[tuple[int, ...]]:
        return sorted((self.key(*pair) for pair in pairs_of(gpus)), reverse=True)

    def _short_reasons(self, found: FoundSet) -> list[str]:
        if self.measured is not None:
            short = self.measured.slowest_words(found.gpus)
        else:
            short = farthest_words(self.links, found.gpus)
        if troubled := sorted(self.troubles.keys() & set(found.gpus)):
            short += f"; {gpus_in_words(troubled)} in use or in error"
        if found.alike == 1:
            return [short]
        return [f"{short}; represents {found.alike} equivalent sets"]
