"""The sample for a cell of a report: found by kind, place, and whether it ran alone."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from gputopo.copies.numbers import is_large
from gputopo.report.layout import FAILED, NOT_ASKED
from gputopo.values.bandwidth import Bandwidth, Failure, Kind, Method, Path, Sample, gpu_of
from gputopo.values.machine import Machine

# Copies whose method a driver or tool chose stand in the matrix of the copy engine.
ENGINE: tuple[Method | None, ...] = ("copy_engine", "driver", None)


class Numbers:
    """The samples of a machine's bandwidth, looked up by what they measured."""

    def __init__(self, machine: Machine, bandwidth: Bandwidth) -> None:
        self.bandwidth = bandwidth
        self._node = {gpu.index: gpu.numa_node for gpu in machine.gpus}

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that were measured, or tried."""
        of_samples = (place for one in self.bandwidth.samples for place in (one.source, one.destination))
        of_failures = (place for one in self.bandwidth.failures for place in (one.source, one.destination))
        found = {gpu_of(place) for place in (*of_samples, *of_failures)}
        return tuple(sorted(index for index in found if index is not None))

    def with_host(
        self, kind: Kind, gpu: int, *, pinned: bool | None = True, together: bool = False
    ) -> Sample | None:
        """Return the sample between a GPU and host memory: alone, or `together` in the largest group.

        `pinned` None: either; where a tool does not report it, memory counts as pinned. Of several that
        with the NUMA node of the GPU, then the fastest large copy.
        """
        found = [
            one
            for one in self._of(kind, together=together)
            if {gpu_of(one.source), gpu_of(one.destination)} == {gpu, None}
            and (pinned is None or (one.pinned is not False) == pinned)
        ]
        return max(found, key=lambda one: self._rank(one, gpu), default=None)

    def between(
        self,
        kind: Kind,
        source: int,
        destination: int,
        *,
        path: Path | None = None,
        methods: Sequence[Method | None] = ENGINE,
    ) -> Sample | None:
        """Return the sample of a pair of GPUs that ran alone; a bidirectional one counts in either order."""
        ends = (f"gpu:{source}", f"gpu:{destination}")
        wanted = {ends, ends[::-1]} if kind == "bidirectional" else {ends}
        found = [
            one
            for one in self.bandwidth.samples
            if one.kind == kind
            and (one.group is None or kind == "d2d_local")  # a tool's matrix; inside a GPU nothing is shared
            and (one.source, one.destination) in wanted
            and (path is None or one.path == path)
            and (one.method in methods or one.path == "staged")
        ]
        return max(found, key=_worth, default=None)

    def failure(
        self,
        kind: Kind,
        source: int | None,
        destination: int | None,
        *,
        path: Path | None = None,
        methods: Sequence[Method | None] = ENGINE,
        pinned: bool | None = None,
    ) -> Failure | None:
        """Return the failure of a copy; None as an end is the host."""
        return next(
            (
                one
                for one in self.bandwidth.failures
                if one.kind == kind
                and (gpu_of(one.source), gpu_of(one.destination)) == (source, destination)
                and (path is None or one.path in (path, None))
                and (one.method in methods or one.method is None or kind == "p2p_staged")
                and (pinned is None or one.pinned in (pinned, None))
            ),
            None,
        )

    def sizes(self, sample: Sample) -> tuple[Sample, ...]:
        """Return the samples that are the same but for their size, smallest first."""
        key = _identity(sample)
        found = [one for one in self.bandwidth.samples if _identity(one) == key and one.bytes is not None]
        return tuple(sorted(found, key=lambda one: one.bytes or 0))

    def _of(self, kind: Kind, *, together: bool) -> Iterator[Sample]:
        groups = self._largest_groups if together else ()
        for one in self.bandwidth.samples:
            if one.kind == kind and (one.group in groups if together else one.group is None):
                yield one

    @cached_property
    def _largest_groups(self) -> frozenset[str]:
        """The groups of each kind with the largest number of GPUs."""
        members: dict[tuple[Kind, str], set[int | None]] = {}
        for one in self.bandwidth.samples:
            if one.group is not None:
                gpus = members.setdefault((one.kind, one.group), set())
                gpus |= {gpu_of(one.source), gpu_of(one.destination)} - {None}
        largest: dict[Kind, int] = {}
        for (kind, _), gpus in members.items():
            largest[kind] = max(largest.get(kind, 0), len(gpus))
        return frozenset(group for (kind, group), gpus in members.items() if len(gpus) == largest[kind])

    def _rank(self, sample: Sample, gpu: int) -> tuple[int, bool, float]:
        node = self._node.get(gpu)
        near = 2 if sample.numa_node is not None and sample.numa_node == node else sample.numa_node is None
        return int(near), *_worth(sample)


def number(value: float | None) -> str:
    """Write GB/s or microseconds with three figures; nothing where there is none."""
    if value is None:
        return NOT_ASKED
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"


def value_of(sample: Sample | None) -> float | None:
    """Return a sample's number: GB/s, or microseconds of a latency."""
    if sample is None:
        return None
    return sample.median_us if sample.median_gb_per_s is None else sample.median_gb_per_s


def cell(sample: Sample | None, failure: Failure | None = None) -> str:
    """Write a sample's number, or that it failed, or that it was not measured."""
    value = value_of(sample)
    return FAILED if value is None and failure is not None else number(value)


def share(sample: Sample | None) -> str:
    """Write the expected GB/s and the measured share of it: `12.6 (96%)`."""
    if sample is None or not sample.expected_gb_per_s:
        return NOT_ASKED
    expected = number(sample.expected_gb_per_s)
    if sample.median_gb_per_s is None:
        return expected
    return f"{expected} ({sample.median_gb_per_s / sample.expected_gb_per_s:.0%})"


def has_any(cells: Iterable[str]) -> bool:
    """Return whether a column has anything to show."""
    return any(one != NOT_ASKED for one in cells)


def _worth(sample: Sample) -> tuple[bool, float]:
    """Rank samples of one copy as the findings do: the fastest of the large ones represents all."""
    return is_large(sample), sample.median_gb_per_s or 0.0


def _identity(sample: Sample) -> tuple[object, ...]:
    return (
        sample.kind,
        sample.source,
        sample.destination,
        sample.pinned,
        sample.method,
        sample.path,
        sample.group,
        sample.numa_node,
    )
