"""Which GPUs a job takes and where its variables live: a pure function of the machine and the request.

All sets of GPUs are compared: the sets with the fewest GPUs in use or in error come first. Of these the set
with the closest farthest pair wins, by topology, then the next farthest decides (`gputopo.planner.subsets`,
`gputopo.topology.hops.nearness`). Where the bandwidth of all pairs to choose from was measured, classes of
measured speed come before those of topology (`gputopo.planner.measured_order`). Of equal sets the one with
the lowest indices wins. The variables are placed by `gputopo.planner.placement_rule`. Nothing is predicted
here: speeds are None.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from math import comb

import msgspec

from gputopo.copies.pair_speeds import pair_speeds, unmeasured
from gputopo.planner.measured_order import MeasuredOrder, not_used, when_measured
from gputopo.planner.placement_rule import place_variables
from gputopo.planner.reasons import (
    Links,
    avoided_reason,
    distance_reasons,
    doubt_reasons,
    farthest_class,
    farthest_words,
    model_reasons,
    named_reason,
    pairs_of,
    pix_met,
    pix_unmet,
    pix_unmet_by_named,
    reduction_reasons,
    search_reason,
    taken_reason,
)
from gputopo.planner.request import Request, check, gpus_in_words, ps_gpu, troubles, usable
from gputopo.planner.subsets import FoundSet, TooManySetsError, closest_sets
from gputopo.topology.doubts import believed_links
from gputopo.topology.hops import is_within, islands, nearness
from gputopo.values.errors import NoPlanError
from gputopo.values.machine import Hop, Machine
from gputopo.values.run import all_reduce
from gputopo.values.run.plan import Candidate, Plan, Refusal

__all__ = ["Request", "plan", "plan_environment"]

# `env $(gputopo plan --format env) PROGRAM` splits at blanks: nothing else from a capture may get in there.
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{1,64}", re.IGNORECASE)


def plan(machine: Machine, request: Request, *, unavailable: Mapping[int, str] = {}, keep: int = 10) -> Plan:
    """Choose GPUs and a place for the variables; `keep` bounds the candidates that are listed.

    `unavailable`: GPUs that this process may not take, with reasons.

    The same machine and request give the same plan. With `ps` gpu:N the set contains GPU N. Raises
    UsageError for options that contradict one another or the machine, NoPlanError where too few GPUs can be
    used; both name what would do.
    """
    check(request, machine)
    choice = _Choice(machine, request, unavailable, max(keep, 1))
    candidates = tuple(choice.candidate(found, rank) for rank, found in enumerate(choice.found))
    return Plan(
        choice=candidates[0],
        candidates=candidates,
        warnings=(*choice.unavailable_reasons, *choice.warnings),
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
    named = [uuid for gpu in gpus if (uuid := uuids.get(gpu)) and _UUID.fullmatch(uuid)]
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

    def __init__(self, machine: Machine, request: Request, unavailable: Mapping[int, str], keep: int) -> None:
        self.machine, self.request, self.unavailable = machine, request, unavailable
        self.links: Links = believed_links(machine)
        self.pool, self.left_out = usable(machine, request, unavailable)
        self.speeds = pair_speeds(machine.bandwidth)
        self.measured = self._measured(self.pool)
        self.required = ps_gpu(request)
        self.exact = request.gpus is not None and request.num_gpus is None
        self.troubles = {index: one for index, one in troubles(machine).items() if index in self.pool}
        self.islands = self._pix_islands()
        self.size = self._size()
        self.all_reduce = _reduction(request, self.size)
        if self.exact:
            self.found: tuple[FoundSet, ...] = (FoundSet(self.pool, 1, 1),)
        else:
            self.found = self._search(self.pool, keep, deprioritized=self.troubles)
        best = self.found[0].gpus
        self.warnings = self._warnings(best)
        self.unmet: tuple[Refusal, ...] = ()
        if request.prefer_pix and not self.in_one_island(best):
            largest = self._largest_island()
            troubled = any(index in self.troubles for index in largest)
            why = (
                pix_unmet_by_named()
                if self.exact
                else pix_unmet(largest, len(best), self.required, troubled=troubled)
            )
            self.unmet = (Refusal(reason=why),)

    @property
    def unavailable_reasons(self) -> tuple[str, ...]:
        """The GPUs that were left out because this process may not take them."""
        return tuple(out.reason for out in self.left_out if set(out.gpus or ()) & self.unavailable.keys())

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
        """Return the island with the most GPUs, of those with the most that are not in use."""
        return max(self.islands, key=lambda island: (len(self._unused(island)), len(island)), default=())

    def _unused(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Return the GPUs that are not in use, or that must be taken."""
        return tuple(
            gpu
            for gpu in gpus
            if gpu == self.required or gpu not in self.troubles or self.troubles[gpu].use is None
        )

    def _size(self) -> int:
        asked, there = self.request.num_gpus, len(self.pool)
        if there == 0 or (asked is not None and asked > there):
            raise _too_few(self.machine, self.request, there, self.left_out)
        if asked is not None:
            return asked
        if self.exact:
            return there
        largest = self._largest_island()
        if self.request.prefer_pix and len(largest) > 1:
            return len(self._unused(largest)) or len(largest)
        return len(self._unused(self.pool)) or there

    def _warnings(self, chosen: Sequence[int]) -> tuple[str, ...]:
        """Return for which GPUs in use or in error others were chosen, and which of them were chosen."""
        said = []
        taken = sorted(self.troubles.keys() & set(chosen))
        if self.exact and taken:
            return (taken_reason(self.troubles, taken, "taken as named by --gpus"),)
        avoided, closest = self._avoided_for(chosen)
        if avoided:
            instead = self._instead(chosen, closest)
            said.append(avoided_reason(self.troubles, avoided, chosen, instead))
        if self.required in self.troubles:
            holds = f"taken, as --ps gpu:{self.required} places the variables there"
            said.append(taken_reason(self.troubles, [self.required], holds))
        others = [index for index in taken if index != self.required]
        if others:
            said.append(taken_reason(self.troubles, others, f"taken, as {self._idle_words()}"))
        return tuple(said)

    def _idle_words(self) -> str:
        idle, there = len(self.pool) - len(self.troubles), len(self.pool)
        if not idle:
            return "all GPUs to choose from are in use or in error"
        verb = "is" if idle == 1 else "are"
        return f"{idle} of the {there} GPUs to choose from {verb} idle and without errors"

    def _avoided_for(self, chosen: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the GPUs in use or in error without which others were not chosen, and the closest set.

        Where GPUs in use are the reason for a smaller set, all of them.
        """
        if self.request.num_gpus is None and not self.request.prefer_pix:
            return tuple(sorted(self.troubles.keys() - set(chosen))), tuple(chosen)
        avoided: set[int] = set()
        closest: tuple[int, ...] | None = None
        while self.troubles.keys() - set(chosen) - avoided:
            best = self._search(self.pool, 1, deprioritized=avoided)[0].gpus
            closest = closest or best
            more = self.troubles.keys() & set(best) - set(chosen) - avoided
            if not more:
                break
            avoided |= more
        return tuple(sorted(avoided)), closest or tuple(chosen)

    def _instead(self, chosen: Sequence[int], closest: Sequence[int]) -> str:
        """Return how far apart the chosen GPUs are, where that is farther than the closest ones."""
        if len(chosen) == 1 or self._distances(chosen) == self._distances(closest):
            return ""
        if self.measured is not None:
            now, then = self.measured.slowest(chosen), self.measured.slowest(closest)
        else:
            now, then = farthest_class(self.links, chosen), farthest_class(self.links, closest)
        return f"{now} instead of {then}" if now != then else "with more pairs farther apart"

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
            everyone, _ = usable(
                self.machine, msgspec.structs.replace(self.request, gpus=None), self.unavailable
            )
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
                    troubled=bool(self.troubles),
                )
            )
            if self.required is not None:
                reasons.append(f"every set contains GPU {self.required}, which holds the variables")
        if self.request.prefer_pix:
            reasons += [refusal.reason for refusal in self.unmet] or [self._pix_reason(found.gpus)]
        return [
            *reasons,
            *self.warnings,
            *model_reasons(self.machine, found.gpus),
            *(out.reason for out in self.left_out),
        ]

    def _distance_reasons(self, gpus: Sequence[int], others: Sequence[int]) -> list[str]:
        if len(gpus) == 1:
            return []  # nothing is between a GPU and itself
        if self.measured is None:
            said = [*distance_reasons(self.links, gpus, others), *doubt_reasons(self.machine)]
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
            closest = self._search(everyone, 1, deprioritized=troubles(self.machine))[0].gpus
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
        if troubled := sorted(self.troubles.keys() & set(found.gpus)):
            short += f"; {gpus_in_words(troubled)} in use or in error"
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
