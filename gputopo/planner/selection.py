"""The GPUs that a job may use, their number, and reasons against some of them."""

from collections.abc import Mapping, Sequence
from math import comb

from gputopo.planner.measured_order import MeasuredOrder, not_used, pair_classes, unmeasured
from gputopo.planner.reasons import (
    Links,
    distance_reason,
    doubt_reasons,
    pairs_of,
    pix_unmet,
)
from gputopo.planner.request import Request, gpus_in_words, ps_gpu, troubles, usable
from gputopo.prediction import paths_of
from gputopo.topology import believed_links, is_within, islands, nearness
from gputopo.values.errors import NoPlanError, UsageError
from gputopo.values.machine import Hop, Machine
from gputopo.values.rates import pair_speeds
from gputopo.values.run.all_reduce import parse
from gputopo.values.run.plan import Refusal

LISTED = 10  # candidates, unless another number is requested


class MachineFacts:
    """What a plan needs to know of a machine, whatever the request: computed once for all choosers."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.links: Links = believed_links(machine)
        self.pair_speeds = pair_speeds(machine.bandwidth)
        self.troubles = troubles(machine)
        self.paths = paths_of(machine)


class Selection:
    """The GPUs to choose from. Raises NoPlanError if there are too few."""

    def __init__(self, facts: MachineFacts, request: Request, unavailable: Mapping[int, str]) -> None:
        """`unavailable`: GPUs that this process may not use, with reasons. The request is checked."""
        self.facts, self.request, self.unavailable = facts, request, unavailable
        self.machine, self.links, self.paths = facts.machine, facts.links, facts.paths
        self.pool, self.left_out = usable(facts.machine, request, unavailable)
        self.measured = self._measured(self.pool)
        self.required = ps_gpu(request)
        self.exact = request.gpus is not None and request.num_gpus is None
        self.troubles = {index: trouble for index, trouble in facts.troubles.items() if index in self.pool}
        self.islands = self._pix_islands()
        self.size = self._size()
        self.all_reduce = _reduction(request, self.size)

    @property
    def variable_update(self) -> str:
        """The variable update: a requested reduction implies replicated."""
        asked = self.request.variable_update
        return "replicated" if self.request.all_reduce is not None and asked == "auto" else asked

    @property
    def sets_count(self) -> int:
        """The number of sets to choose from."""
        free = 0 if self.required is None else 1
        return comb(len(self.pool) - free, self.size - free)

    @property
    def unavailable_reasons(self) -> tuple[str, ...]:
        """The reasons of the GPUs that this process may not use."""
        return tuple(out.reason for out in self.left_out if set(out.gpus or ()) & self.unavailable.keys())

    def in_one_island(self, gpus: Sequence[int]) -> bool:
        """Return whether every pair is PIX or nearer."""
        return all(is_within(self.links.get(pair), Hop.PIX) for pair in pairs_of(gpus))

    def unmet(self, chosen: Sequence[int]) -> tuple[Refusal, ...]:
        """Return a refusal if --prefer-pix is not met, else nothing."""
        if not self.request.prefer_pix or self.in_one_island(chosen):
            return ()
        if self.exact:
            why = "--prefer-pix has no effect: the GPUs in --gpus are not in one PIX island"
            return (Refusal(reason=why),)
        largest = self._largest_island()
        troubled = any(index in self.troubles for index in largest)
        return (Refusal(reason=pix_unmet(largest, len(chosen), self.required, troubled=troubled)),)

    def distance_reasons(self, gpus: Sequence[int]) -> list[str]:
        """Return how far apart the chosen GPUs are, or how fast their slowest pair was measured."""
        if len(gpus) == 1:
            return []  # a single GPU has no distances
        bandwidth = self.machine.bandwidth
        if self.measured is not None and bandwidth is not None:
            return [self.measured.reason(gpus, bandwidth)]
        said = [distance_reason(self.links, gpus), *doubt_reasons(self.machine)]
        return (
            said
            if bandwidth is None
            else [*said, not_used(bandwidth, unmeasured(self.facts.pair_speeds, self.pool))]
        )

    def key(self, a: int, b: int) -> tuple[int, ...]:
        """Return the sort key of a pair, the nearest first."""
        pair = (min(a, b), max(a, b))
        return nearness(self.links.get(pair)) if self.measured is None else self.measured.key(pair)

    def _pix_islands(self) -> list[tuple[int, ...]]:
        """Return the usable GPUs of each PIX island; only islands with the required GPU if there is one."""
        pool = set(self.pool)
        parts = (tuple(gpu for gpu in island if gpu in pool) for island in islands(self.machine, Hop.PIX))
        return [part for part in parts if part and (self.required is None or self.required in part)]

    def _largest_island(self) -> tuple[int, ...]:
        """Return the island with the most idle GPUs, of equal ones the largest."""
        return max(self.islands, key=lambda island: (len(self._unused(island)), len(island)), default=())

    def _unused(self, gpus: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            gpu
            for gpu in gpus
            if gpu == self.required or gpu not in self.troubles or self.troubles[gpu].use is None
        )

    def _size(self) -> int:
        asked = None if self.request.num_gpus == "auto" else self.request.num_gpus
        count = len(self.pool)
        if count == 0 or (asked is not None and asked > count):
            raise _too_few(self.machine, self.request, count, self.left_out)
        if asked is not None:
            return asked
        if self.exact:
            return count
        largest = self._largest_island()
        if self.request.prefer_pix and len(largest) > 1:
            return len(self._unused(largest)) or len(largest)
        return len(self._unused(self.pool)) or count

    def idle_words(self) -> str:
        """Return how many of the GPUs to choose from are idle and without errors."""
        idle, count = len(self.pool) - len(self.troubles), len(self.pool)
        if not idle:
            return "all GPUs to choose from are in use or in error"
        verb = "is" if idle == 1 else "are"
        return f"{idle} of the {count} GPUs to choose from {verb} idle and without errors"

    def _measured(self, pool: Sequence[int]) -> MeasuredOrder | None:
        """Return the order by measured speed; None unless every pair to choose from was measured."""
        speeds = self.facts.pair_speeds
        if len(pool) < 2 or unmeasured(speeds, pool):
            return None
        return MeasuredOrder(speeds, pair_classes(speeds), self.links, self.request.prefer_pix)


def _reduction(request: Request, size: int) -> str | None:
    """Return the requested reduction as it is written. Raises UsageError if these GPUs cannot use it."""
    if request.all_reduce is None:
        return None
    reduction = parse(request.all_reduce)
    if (why_not := reduction.why_not("gpu", size)) is not None:
        reason, other = why_not
        raise UsageError(f"--all-reduce {reduction.written} cannot be used: {reason}", f"use {other}")
    return reduction.written


def _too_few(
    machine: Machine, request: Request, usable_count: int, left_out: Sequence[Refusal]
) -> NoPlanError:
    asked = request.num_gpus
    named = [index for refusal in left_out for index in refusal.gpus or ()]
    if usable_count == 0:
        count = len(machine.gpus)
        none = "the only GPU cannot be used" if count == 1 else f"none of the {count} GPUs can be used"
        fewer = "exclude fewer GPUs, or " if request.exclude else ""
        return NoPlanError(f"{none}; {left_out[0].reason}", f"{fewer}see gputopo inspect")
    if request.gpus is not None:
        what = f"requested {asked} GPUs, and {usable_count} of those in --gpus can be used"
    elif named:
        what = (
            f"requested {asked} GPUs, and {usable_count} of the {len(machine.gpus)} can be used "
            f"({gpus_in_words(named)} excluded)"
        )
    else:
        # other GPUs on the bus have no index
        others = "".join(f"; {refusal.reason}" for refusal in left_out)
        what = f"requested {asked} GPUs, but this machine has {usable_count}{others}"
    return NoPlanError(what, f"request at most {usable_count}: --num-gpus {usable_count}")
