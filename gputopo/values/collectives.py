"""Measured collective operations: the samples of each together."""

from collections.abc import Iterable
from dataclasses import dataclass

from gputopo.values.bandwidth import COLLECTIVES, Kind, Sample

NAMES: dict[Kind, str] = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "sendrecv": "send and receive",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
}
# Up to this size a time is that of starting the operation, not of its bytes.
SMALL_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class CollectiveSeries:
    """The samples of one operation of one set of GPUs: one run, type, operator and root."""

    samples: tuple[Sample, ...]

    @property
    def first(self) -> Sample:
        """Any sample: for what all have in common."""
        return self.samples[0]

    @property
    def is_of_nccl_tests(self) -> bool:
        """Whether nccl-tests measured it, and not gputopo bench-reduction."""
        return self.first.in_place is not None  # TensorFlow's reductions do not report it

    @property
    def sizes(self) -> list[int]:
        """All sizes in bytes, each once."""
        return list(dict.fromkeys(one.bytes for one in self.samples if one.bytes is not None))

    @property
    def best(self) -> Sample:
        """The sample that is judged: of the largest size, the faster one of out of place and in place."""
        return max(self.samples, key=lambda one: (one.bytes or 0, one.bus_gb_per_s or 0.0))

    @property
    def smallest(self) -> Sample | None:
        """The sample of the smallest size whose time is a latency, None where there is none."""
        small = [one for one in self.samples if one.bytes is not None and one.bytes <= SMALL_BYTES]
        return min(small, key=lambda one: (one.bytes or 0, bool(one.in_place)), default=None)

    def at(self, size: int, *, in_place: bool) -> Sample | None:
        """Return the sample of one size."""
        return next(
            (one for one in self.samples if one.bytes == size and bool(one.in_place) == in_place), None
        )


def series_of(samples: Iterable[Sample]) -> list[CollectiveSeries]:
    """Return the collective operations among samples, in their order."""
    found: dict[tuple[object, ...], list[Sample]] = {}
    for one in samples:
        if one.kind in COLLECTIVES:
            key = (
                one.kind,
                one.source,
                one.ranks,
                one.run,
                one.algorithm,
                one.model,
                one.data_type,
                one.reduction,
            )
            found.setdefault((*key, one.root, one.group, one.hosts, one.nccl), []).append(one)
    return [CollectiveSeries(tuple(of)) for of in found.values()]
