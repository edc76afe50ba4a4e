"""Finds the sample for a cell of a report, by kind, ends, and whether the copy ran by itself."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

from gputopo.report.document import Section, Table
from gputopo.report.layout import FAILED, NOT_ASKED, Column
from gputopo.report.units import size
from gputopo.values.bandwidth import Bandwidth, Failure, GpuEnds, Kind, Method, Path, Sample, identity
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine

# Copies whose method was chosen by a driver or tool are shown in the matrix of the copy engine.
WRITTEN: tuple[Method | None, ...] = ("copy_engine", "driver", None)
READ: tuple[Method | None, ...] = ("copy_engine_read",)
ENGINE = (*WRITTEN, *READ)
# Follows a number that is shown but not used (`Sample.invalid`).
INVALID_MARK = "?"
_but_size = identity("bytes")

# What else was copied between GPUs and host at the same time: nothing; the other direction of this GPU; this
# direction of all other GPUs; both directions of all other GPUs.
Beside = Literal["nothing", "reverse", "all", "all both"]


class Numbers:
    """The samples of a machine's bandwidth, looked up by what they measured."""

    def __init__(self, machine: Machine, bandwidth: Bandwidth) -> None:
        self.bandwidth = bandwidth
        self._node = {gpu.index: gpu.numa_node for gpu in machine.gpus}

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that were measured, or that could not be measured."""
        tried = (*self.bandwidth.samples, *self.bandwidth.failures)
        return tuple(sorted({gpu for one in tried for gpu in one.gpu_ends if gpu is not None}))

    def with_host(
        self,
        kind: Kind,
        gpu: int,
        *,
        pinned: bool | None = True,
        beside: Beside = "nothing",
        methods: Sequence[Method | None] = ENGINE,
    ) -> Sample | None:
        """Return the sample of a copy between a GPU and host memory. `beside`: what else ran.

        `pinned`: None for either kind of memory; if a tool does not report it, the memory counts as pinned. A
        valid sample is preferred, then one with the GPU's NUMA node, then the fastest large copy.
        """
        found = [
            one
            for one in self._of(kind, (None, gpu), (gpu, None))
            if one.method in methods
            and (pinned is None or (one.pinned is not False) == pinned)
            and self._beside(one) == beside
        ]
        return max(found, key=lambda one: self._rank(one, gpu), default=None)

    def latency(self, gpu: int, methods: Sequence[Method | None], *, to_gpu: bool) -> Sample | None:
        """Return the lowest latency between the host and a GPU by one of the methods."""
        found = [
            one
            for one in self._of("latency", (None, gpu) if to_gpu else (gpu, None))
            if one.group is None and one.method in methods and one.median_us is not None
        ]
        return min(found, key=lambda one: (one.invalid is not None, one.median_us), default=None)

    def between(
        self,
        kind: Kind,
        source: int,
        destination: int,
        *,
        path: Path | None = None,
        methods: Sequence[Method | None] = ENGINE,
        beside: bool = False,
    ) -> Sample | None:
        """Return the sample of a pair of GPUs. `beside`: measured while the other direction was in use.

        The order of the GPUs does not matter for a bidirectional sample.
        """
        ends = (source, destination)
        found = [
            one
            for one in self._of(kind, *((ends, ends[::-1]) if kind == "bidirectional" else (ends,)))
            # A sample in a group ran with others, except inside a GPU, where nothing is shared. One pair with
            # its other direction is also a group.
            if (one.group is None or kind == "d2d_local" or (beside and one.with_reverse))
            and (one.with_reverse or not beside)
            and (path is None or one.path == path)
            and (one.method in methods or (one.path == "staged" and kind != "latency"))
        ]
        return max(found, key=_worth, default=None)

    def alone(self, sample: Sample) -> float | None:
        """Return the rate of the same copy between two GPUs by itself, or None if it was not measured."""
        source, destination = sample.gpu_ends
        if source is None or destination is None:
            return None
        methods = ENGINE if sample.method in ENGINE else (sample.method,)
        found = self.between(sample.kind, source, destination, methods=methods)
        return None if found is None or found.invalid else found.median_gb_per_s

    def inside(self, gpu: int) -> Sample | None:
        """Return the copy within a GPU's memory."""
        return self.between("d2d_local", gpu, gpu)

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
        """Return the failure of a copy. An end that is None is the host."""
        return next(
            (
                one
                for one in self.bandwidth.failures
                if one.kind == kind
                and one.gpu_ends == (source, destination)
                and (path is None or one.path in (path, None))
                and (one.method in methods or one.method is None or kind == "p2p_staged")
                and (pinned is None or one.pinned in (pinned, None))
            ),
            None,
        )

    def sizes(self, sample: Sample) -> tuple[Sample, ...]:
        """Return the samples that differ from this one only in size, smallest first."""
        return tuple(sorted(self._sizes.get(_but_size(sample), ()), key=lambda one: one.bytes or 0))

    @cached_property
    def _sizes(self) -> dict[object, list[Sample]]:
        samples = self.bandwidth.samples
        return grouped((_but_size(one), one) for one in samples if one.bytes is not None)

    def _of(self, kind: Kind, *ends: GpuEnds) -> list[Sample]:
        return [one for pair in ends for one in self._by_ends.get((kind, pair), ())]

    @cached_property
    def _by_ends(self) -> dict[tuple[Kind, GpuEnds], list[Sample]]:
        return grouped(((one.kind, one.gpu_ends), one) for one in self.bandwidth.samples)

    def _beside(self, sample: Sample) -> Beside | None:
        """Return what else was copied with the host at the time; None for only some of the other GPUs."""
        if sample.group is None:
            return "reverse" if sample.with_reverse else "nothing"
        members = self._members.get(sample.group, frozenset())
        if len(members) == 1:
            return "reverse" if sample.with_reverse else None
        if not self._with_host[sample.kind] <= members:
            return None
        return "all both" if sample.with_reverse else "all"

    @cached_property
    def _members(self) -> dict[str | None, frozenset[int]]:
        """The GPUs of each group whose copies with the host were measured or tried."""
        copied = [(one.group, one.gpus) for one in self.bandwidth.samples if one.host_gpu is not None]
        failed = [(one.group, one.gpus) for one in self.bandwidth.failures]
        tried = grouped([*copied, *failed])
        return {group: frozenset[int]().union(*gpus) for group, gpus in tried.items()}

    @cached_property
    def _with_host(self) -> dict[Kind, frozenset[int]]:
        """The GPUs whose copies with the host were measured, by kind; preferably copies by themselves."""
        measured = grouped(
            ((one.kind, one.group is None), gpu)
            for one in self.bandwidth.samples
            if (gpu := one.host_gpu) is not None
        )
        return {kind: frozenset(measured.get((kind, True)) or measured[kind, False]) for kind, _ in measured}

    def _rank(self, sample: Sample, gpu: int) -> tuple[bool, int, bool, float]:
        node = self._node.get(gpu)
        near = 2 if sample.numa_node is not None and sample.numa_node == node else sample.numa_node is None
        return sample.invalid is None, int(near), *_worth(sample)[1:]


def number(value: float | None) -> str:
    """Write GB/s or microseconds with three figures; empty for None."""
    if value is None:
        return NOT_ASKED
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"


def value_of(sample: Sample | None) -> float | None:
    """Return a sample's number: GB/s, or microseconds for a latency."""
    if sample is None:
        return None
    return sample.median_us if sample.median_gb_per_s is None else sample.median_gb_per_s


def cell(sample: Sample | None, failure: Failure | None = None, *, limit: bool = False) -> str:
    """Write a sample's number, or that it failed, or that it was not measured.

    If several runs disagree, their range is written. A number that is not used has a mark. `limit`: with the
    expected number, `11.9 of 12.3`.
    """
    value = value_of(sample)
    if sample is None or value is None:
        return NOT_ASKED if failure is None else FAILED
    runs = sample.run_values
    text = number(value) if sample.runs_agree else f"{number(min(runs))}-{number(max(runs))}"
    if sample.invalid:
        return f"{text}{INVALID_MARK}"
    return f"{text} of {number(sample.expected_gb_per_s)}" if limit and sample.expected_gb_per_s else text


def _worth(sample: Sample) -> tuple[bool, bool, float]:
    """Rank the samples of one copy as the findings do: valid first, then large, then the fastest."""
    return sample.invalid is None, sample.is_large, sample.rate


Cells = tuple[str, Sequence[str]] | Column  # a column of numbers: its head, and a cell for each row


def grid(
    title: str,
    head: str,
    names: Sequence[str],
    groups: Iterable[Iterable[Cells]],
    notes: Sequence[str] = (),
) -> Section | None:
    """Return a table of numbers without empty columns, or None if no column is left.

    In a matrix, a column with the name of a row stays even if it is empty.
    """
    found = [
        [one if isinstance(one, Column) else Column(one[0], tuple(one[1]), "right") for one in group]
        for group in groups
    ]
    if not any(_has_any(one) for group in found for one in group):
        return None
    shown = (tuple(one for one in group if one.head in names or _has_any(one)) for group in found)
    return Section(title, (Table(Column(head, tuple(names)), tuple(filter(None, shown)), tuple(notes)),))


def _has_any(column: Column) -> bool:
    return any(cell not in ("", NOT_ASKED) for cell in column.cells)


def how(samples: Iterable[Sample | None]) -> str:
    """Write the size of copies and the number of repeats, as far as known: `; 64.0 MiB, 5 times`."""
    known = [one for one in samples if one is not None]
    sizes = sorted({one.bytes for one in known if one.bytes})
    counts = sorted({len(one.repeats_gb_per_s) for one in known if one.repeats_gb_per_s})
    words = [size(sizes[0]) if len(sizes) == 1 else f"{size(sizes[0])} to {size(sizes[-1])}"] if sizes else []
    if counts and counts[-1] > 1:
        words.append(f"{'-'.join(dict.fromkeys(map(str, (counts[0], counts[-1]))))} times")
    return f"; {', '.join(words)}" if words else ""
