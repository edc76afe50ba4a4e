"""Which GPUs a job takes and where its variables live: a pure function of the machine and the request.

All sets of GPUs are compared, by topology: the set with the closest farthest pair wins, then the next
farthest decides (`gputopo.planner.subsets`, `gputopo.topology.hops.nearness`). Where the bandwidth of all
pairs to choose from was measured, classes of measured speed come before those of topology
(`gputopo.planner.measured_order`). Of equally good sets the one with the
fewest GPUs in use or in error wins, then the lowest indices. The variables are placed by
`gputopo.planner.placement_rule`. Nothing is predicted here: speeds are None.
"""

from collections.abc import Collection, Sequence
from math import comb

import msgspec

from gputopo.copies.pair_speeds import pair_speeds, unmeasured
from gputopo.planner.measured_order import MeasuredOrder, not_used, when_measured
from gputopo.planner.placement_rule import place_variables
from gputopo.planner.reasons import (
    Links,
    distance_reasons,
    doubt_reasons,
    farthest_words,
    model_reasons,
    named_reason,
    pairs_of,
    pix_met,
    pix_unmet,
    pix_unmet_by_named,
    reduction_reasons,
    search_reason,
    trouble_reasons,
)
from gputopo.planner.request import Request, check, gpus_in_words, ps_gpu, troubles, usable
from gputopo.planner.subsets import FoundSet, TooManySetsError, closest_sets
from gputopo.topology.doubts import believed_links
from gputopo.topology.hops import is_within, islands, nearness
from gputopo.values import all_reduce
from gputopo.values.errors import NoPlanError
from gputopo.values.machine import Hop, Machine
from gputopo.values.plan import Candidate, Plan, Refusal

__all__ = ["Request", "plan", "plan_environment"]


def plan(machine: Machine, request: Request, *, keep: int = 10) -> Plan:
    """Choose GPUs and a place for the variables; `keep` bounds the candidates that are listed.

    The same machine and request give the same plan. With `ps` gpu:N the set contains GPU N. Raises
    UsageError for options that contradict one another or the machine, NoPlanError where too few GPUs can be
    used; both name what would do.
    """
    check(request, machine)
    choice = _Choice(machine, request, max(keep, 1))
    candidates = tuple(choice.candidate(found, rank) for rank, found in enumerate(choice.found))
    return Plan(
        choice=candidates[0],
        candidates=candidates,
        refused=(*choice.left_out, *choice.unmet),
        environment=plan_environment(machine, candidates[0].gpus),
        model=request.model,
        source=machine.source,
    )


def plan_environment(machine: Machine, gpus: Sequence[int]) -> dict[str, str]:
    """Return the variables with which a program sees these GPUs alone, in this order.

    They must be set before TensorFlow loads. By UUID where it is known for all of them, because CUDA orders
    GPUs by speed by default and leaves out those that do not answer; else by index, which
    `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes the same as nvidia-smi's. See "CUDA Environment Variables" in
    NVIDIA's CUDA programming guide. Raises NoPlanError where a GPU of this machine does not answer, so that
    CUDA's indices are others, and a UUID is unknown.
    """
    uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
    named = [uuid for gpu in gpus if (uuid := uuids.get(gpu))]
    lost = [gpu.index for gpu in machine.gpus if gpu.lost]
    if machine.source == "live" and lost and len(named) != len(gpus):
        raise NoPlanError(
            f"no answer from {gpus_in_words(lost)}: CUDA renumbers the others, and a UUID is unknown",
            "see nvidia-smi -L, and set CUDA_VISIBLE_DEVICES to the UUIDs of the GPUs to use",
        )
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(named if len(named) == len(gpus) else map(str, gpus)),
    }


class _Choice:
    """One search: the GPUs to choose from, the sets that were found, and the preference that could not be "
    "met."""

    def __init__(self, machine: Machine, request: Request, keep: int) -> None:
        self.machine, self.request = machine, request
        self.links: Links = believed_links(machine)
        self.pool, self.left_out = usable(machine, request)
        self.speeds = pair_speeds(machine.bandwidth)
        self.measured = self._measured(self.pool)
        self.required = ps_gpu(request)
        self.exact = request.gpus is not None and request.num_gpus is None
        self.islands = self._pix_islands()
        self.size = self._size()
        self.all_reduce = _reduction(request, self.size)
        self.troubles = troubles(machine)
        self.avoided: tuple[int, ...] = ()
        self.found = (FoundSet(self.pool, 1, 1),) if self.exact else self._find(keep)
        best = self.found[0].gpus
        self.unmet: tuple[Refusal, ...] = ()
        if request.prefer_pix and not self.in_one_island(best):
            largest = self._largest_island()
            why = pix_unmet_by_named() if self.exact else pix_unmet(largest, len(best), self.required)
            self.unmet = (Refusal(reason=why),)

    def in_one_island(self, gpus: Sequence[int]) -> bool:
        """Whether every pair is PIX or nearer."""
        return all(is_within(self.links.get(pair), Hop.PIX) for pair in pairs_of(gpus))

    def candidate(self, found: FoundSet, rank: int) -> Candidate:
        """Return a found set as a candidate; the first one with all its reasons, the others in short."""
        placement = place_variables(
            found.gpus,
            one_island=self.in_one_island(found.gpus),
            ps=self.request.ps,
            variable_update=_variable_update(self.request),
            speeds=self.speeds,
            all_reduce=self.all_reduce,
        )
        reasons = self._reasons(found) if rank == 0 else self._short_reasons(found)
        return Candidate(
            gpus=found.gpus,
            variable_update=placement.variable_update,
            ps_device=placement.ps_device,
            all_reduce=placement.all_reduce,
            reasons=(
                *reasons,
                *(placement.reasons if rank == 0 else placement.reasons[:1]),
                *(reduction_reasons(self.machine, found.gpus, placement.all_reduce) if rank == 0 else ()),
            ),
        )

    def _pix_islands(self) -> list[tuple[int, ...]]:
        """Return the usable part of each PIX island, with the GPU that must be in the set if there is one."""
        pool = set(self.pool)
        parts = (tuple(gpu for gpu in island if gpu in pool) for island in islands(self.machine, Hop.PIX))
        return [part for part in parts if part and (self.required is None or self.required in part)]

    def _largest_island(self) -> tuple[int, ...]:
        return max(self.islands, key=len, default=())

    def _size(self) -> int:
        asked, there = self.request.num_gpus, len(self.pool)
        if there == 0 or (asked is not None and asked > there):
            raise _too_few(self.machine, self.request, there, self.left_out)
        if asked is not None:
            return asked
        largest = len(self._largest_island())
        if self.request.prefer_pix and self.request.gpus is None and largest > 1:
            return largest
        return there

    def _find(self, keep: int) -> tuple[FoundSet, ...]:
        """Return the closest sets, of equal ones first those with the fewest troubled GPUs."""
        found = self._search(self.pool, keep, deprioritized=self.troubles)
        self.avoided = self._avoided_for(found[0].gpus)
        return found

    def _avoided_for(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Return the troubled GPUs without which the lowest indices are those that were chosen."""
        avoided: set[int] = set()
        while self.troubles.keys() & set(self.pool) - set(chosen) - avoided:
            lowest = self._search(self.pool, 1, deprioritized=avoided)[0].gpus
            more = self.troubles.keys() & set(lowest) - set(chosen)
            if not more:
                break
            avoided |= more
        return tuple(sorted(avoided))

    def _search(
        self, pool: Sequence[int], keep: int, deprioritized: Collection[int] = ()
    ) -> tuple[FoundSet, ...]:
        try:
            return closest_sets(
                pool,
                lambda a, b: self._key((min(a, b), max(a, b))),
                self.size,
                keep=keep,
                required=self.required,
                deprioritized=deprioritized,
            )
        except TooManySetsError:
            raise NoPlanError(
                f"{len(pool)} GPUs give too many sets of {self.size} to compare them all",
                "narrow the choice with --gpus or --exclude",
            ) from None

    def _measured(self, pool: Sequence[int]) -> MeasuredOrder | None:
        """Return the order by measured speed, None unless every pair to choose from was measured."""
        if len(pool) < 2 or unmeasured(self.speeds, pool):
            return None
        return MeasuredOrder.of(self.speeds, self.links, pix_first=self.request.prefer_pix)

    def _key(self, pair: tuple[int, int]) -> tuple[int, ...]:
        return nearness(self.links.get(pair)) if self.measured is None else self.measured.key(pair)

    def _reasons(self, found: FoundSet) -> list[str]:
        if self.exact:
            everyone, _ = usable(self.machine, msgspec.structs.replace(self.request, gpus=None))
            reasons = self._distance_reasons(found.gpus, everyone)
            reasons.append(self._named_reason(self._closer_than(found.gpus, everyone)))
        else:
            reasons = self._distance_reasons(found.gpus, self.pool)
            free = 0 if self.required is None else 1
            looked_at = comb(len(self.pool) - free, self.size - free)
            reasons.append(
                search_reason(
                    looked_at,
                    found.equal,
                    self.size,
                    measured=self.measured is not None,
                    avoided=self.avoided,
                    troubled=bool(self.troubles.keys() & set(found.gpus)),
                )
            )
            if self.required is not None:
                reasons.append(f"every set contains GPU {self.required}, which holds the variables")
        if self.request.prefer_pix:
            reasons += [refusal.reason for refusal in self.unmet] or [self._pix_reason(found.gpus)]
        reasons += trouble_reasons(self.troubles, found.gpus, self.avoided)
        return [*reasons, *model_reasons(self.machine, found.gpus), *(out.reason for out in self.left_out)]

    def _distance_reasons(self, gpus: Sequence[int], others: Sequence[int]) -> list[str]:
        if len(gpus) == 1:
            return []  # nothing is between a GPU and itself
        if self.measured is None:
            said = [*distance_reasons(self.links, gpus, others), *doubt_reasons(self.machine, self.pool)]
            if self.machine.bandwidth is not None and len(self.pool) > 1:
                said.append(not_used(self.machine.bandwidth, unmeasured(self.speeds, self.pool)))
            return said
        said = self.measured.reasons(gpus, self.pool)
        if self.machine.bandwidth is not None:
            said.append(when_measured(self.machine.bandwidth))
        return said

    def _named_reason(self, closest: Sequence[int] | None) -> str:
        if self.measured is None or closest is None:
            return named_reason(self.links, closest)
        return (
            f"the GPUs were named by --gpus; {gpus_in_words(closest)} would be faster "
            f"({self.measured.slowest_words(closest)})"
        )

    def _closer_than(self, named: Sequence[int], everyone: Sequence[int]) -> tuple[int, ...] | None:
        """Return the closest set of that size on the whole machine, None if the named one is as close."""
        if self.measured is not None and unmeasured(self.speeds, everyone):
            return None
        try:
            closest = self._search(everyone, 1, deprioritized=self.troubles)[0].gpus
        except NoPlanError:
            return None
        return closest if self._distances(closest) < self._distances(named) else None

    def _distances(self, gpus: Sequence[int]) -> list[tuple[int, ...]]:
        return sorted(map(self._key, pairs_of(gpus)), reverse=True)

    def _pix_reason(self, gpus: Sequence[int]) -> str:
        return pix_met(self.links, next(island for island in self.islands if set(gpus) <= set(island)), gpus)

    def _short_reasons(self, found: FoundSet) -> list[str]:
        if self.measured is not None:
            short = self.measured.slowest_words(found.gpus)
        else:
            short = farthest_words(self.links, found.gpus)
        if found.alike == 1:
            return [short]
        return [f"{short}; represents {found.alike} equivalent sets"]


def _reduction(request: Request, size: int) -> str | None:
    """Return the requested reduction as it is written. Raises UsageError if GPUs cannot use it."""
    if request.all_reduce is None:
        return None
    return all_reduce.require(request.all_reduce, "gpu", size).written


def _variable_update(request: Request) -> str:
    """Return the variable update: a requested reduction implies replicated."""
    asked = request.variable_update
    return "replicated" if request.all_reduce is not None and asked == "auto" else asked


def _too_few(machine: Machine, request: Request, there: int, left_out: Sequence[Refusal]) -> NoPlanError:
    asked = request.num_gpus
    named = [index for refusal in left_out for index in refusal.gpus or ()]
    if there == 0:
        count = len(machine.gpus)
        none = "the only GPU cannot be used" if count == 1 else f"none of the {count} GPUs can be used"
        fewer = "exclude fewer GPUs, or " if request.exclude else ""
        return NoPlanError(f"{none}; {left_out[0].reason}", f"{fewer}see gputopo inspect")
    if request.gpus is not None:
        what = f"requested {asked} GPUs, and {there} of those in --gpus can be used"
    elif named:
        what = (
            f"requested {asked} GPUs, and {there} of the {len(machine.gpus)} can be used "
            f"({gpus_in_words(named)} left out)"
        )
    else:
        # what the bus shows beside them has no number
        others = "".join(f"; {refusal.reason}" for refusal in left_out)
        what = f"requested {asked} GPUs, and this machine has {there}{others}"
    return NoPlanError(what, f"request at most {there}: --num-gpus {there}")
