"""Finds the sample for a cell of a report, by kind, ends, and whether the copy ran by itself."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

from gputopo.report.document import Section, Table
from gputopo.report.layout import FAILED, NOT_ASKED, Column
from gputopo.report.units import size
from gputopo.values.bandwidth import (
    Bandwidth,
    CopyLatency,
    CopyRate,
    Failure,
    GpuEnds,
    Kind,
    Method,
    Path,
    Rate,
    Sample,
    identity,
)
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
        self.copies = bandwidth.copies
        latencies = bandwidth.samples.of(CopyLatency)
        self._latencies = grouped((each.gpu_ends, each) for each in latencies if each.group is None)
        self._node = {gpu.index: gpu.numa_node for gpu in machine.gpus}

    @property
    def names(self) -> list[str]:
        """The names of the GPUs in tables: GPU3."""
        return [f"GPU{gpu}" for gpu in self.gpus]

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that were measured, or that could not be measured."""
        tried = (*self.bandwidth.samples, *self.bandwidth.failures)
        return tuple(sorted({gpu for copy in tried for gpu in copy.gpu_ends if gpu is not None}))

    def with_host(
        self,
        kind: Kind,
        gpu: int,
        *,
        pinned: bool | None = True,
        beside: Beside = "nothing",
        methods: Sequence[Method | None] = ENGINE,
    ) -> CopyRate | None:
        """Return the sample of a copy between a GPU and host memory. `beside`: what else ran.

        `pinned`: None for either kind of memory; if a tool does not report it, the memory counts as pinned. A
        valid sample is preferred, then one with the GPU's NUMA node, then the fastest large copy.
        """
        node = self._node.get(gpu)

        def rank(sample: CopyRate) -> tuple[bool, int, bool, float]:
            near = 2 if node is not None and sample.numa_node == node else int(sample.numa_node is None)
            return sample.invalid is None, near, sample.is_large, sample.rate

        copies = (
            sample
            for sample in self._of(kind, (None, gpu), (gpu, None))
            if sample.method in methods
            and (pinned is None or (sample.pinned is not False) == pinned)
            and self._beside(sample) == beside
        )
        return max(copies, key=rank, default=None)

    def latencies(
        self, ends: GpuEnds, methods: Sequence[Method | None], *, path: Path | None = None
    ) -> list[CopyLatency]:
        """Return the latencies between two ends by one of the methods. An end that is None is the host."""
        return [
            latency
            for latency in self._latencies.get(ends, ())
            if latency.method in methods and path in (None, latency.path)
        ]

    def lowest_latency(self, ends: GpuEnds, methods: Sequence[Method | None]) -> CopyLatency | None:
        """Return the lowest latency between two ends by one of the methods."""
        return min(self.latencies(ends, methods), key=lambda latency: latency.median_us, default=None)

    def between(
        self,
        kind: Kind,
        source: int,
        destination: int,
        *,
        path: Path | None = None,
        methods: Sequence[Method | None] = ENGINE,
        beside: bool = False,
    ) -> CopyRate | None:
        """Return the sample of a pair of GPUs. `beside`: measured while the other direction was in use.

        The order of the GPUs does not matter for a bidirectional sample.
        """
        ends = (source, destination)
        copies = (
            sample
            for sample in self._of(kind, *((ends, ends[::-1]) if kind == "bidirectional" else (ends,)))
            # A sample in a group ran with others, except inside a GPU, where nothing is shared. One pair with
            # its other direction is also a group.
            if (sample.with_reverse if beside else sample.group is None or kind == "d2d_local")
            and path in (None, sample.path)
            and (sample.method in methods or sample.path == "staged")
        )
        # As in the findings: valid first, then large, then the fastest.
        return max(
            copies, key=lambda sample: (sample.invalid is None, sample.is_large, sample.rate), default=None
        )

    def alone(self, sample: CopyRate) -> float | None:
        """Return the rate of the same copy between two GPUs by itself, or None if it was not measured."""
        source, destination = sample.gpu_ends
        if source is None or destination is None:
            return None
        methods = ENGINE if sample.method in ENGINE else (sample.method,)
        alone = self.between(sample.kind, source, destination, methods=methods)
        return None if alone is None or alone.invalid else alone.median_gb_per_s

    def inside(self, gpu: int) -> CopyRate | None:
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
        for failure in self.bandwidth.failures:
            if (
                failure.kind == kind
                and failure.gpu_ends == (source, destination)
                and (path is None or failure.path in (path, None))
                and (failure.method in (*methods, None) or kind == "p2p_staged")
                and (pinned is None or failure.pinned in (pinned, None))
            ):
                return failure
        return None

    def sweeps(self) -> list[list[CopyRate]]:
        """Return the copies that differ only in size, together, smallest first."""
        copies = (copy for copy in self.copies if copy.bytes is not None)
        sweeps = grouped((_but_size(copy), copy) for copy in copies).values()
        return [sorted(sweep, key=lambda sample: sample.bytes or 0) for sweep in sweeps]

    def _of(self, kind: Kind, *ends: GpuEnds) -> list[CopyRate]:
        return [sample for pair in ends for sample in self._by_ends.get((kind, pair), ())]

    @cached_property
    def _by_ends(self) -> dict[tuple[Kind, GpuEnds], list[CopyRate]]:
        return grouped(((copy.kind, copy.gpu_ends), copy) for copy in self.copies)

    def _beside(self, sample: CopyRate) -> Beside | None:
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
        copied = [copy for copy in self.copies if copy.host_gpu is not None]
        tried: list[CopyRate | Failure] = [*copied, *self.bandwidth.failures]
        gpus = grouped((copy.group, gpu) for copy in tried for gpu in copy.gpus)
        return {group: frozenset(members) for group, members in gpus.items()}

    @cached_property
    def _with_host(self) -> dict[Kind, frozenset[int]]:
        """The GPUs whose copies with the host were measured, by kind; preferably copies by themselves."""
        measured = grouped(
            ((copy.kind, copy.group is None), gpu)
            for copy in self.copies
            if (gpu := copy.host_gpu) is not None
        )
        return {kind: frozenset(measured.get((kind, True)) or measured[kind, False]) for kind, _ in measured}


def number(value: float | None) -> str:
    """Write GB/s or microseconds with three figures; empty for None."""
    if value is None:
        return NOT_ASKED
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"


def cell(sample: Sample | None, failure: Failure | None = None, *, limit: bool = False) -> str:
    """Write a sample's number, or that it failed, or that it was not measured.

    If several runs disagree, their range is written. A number that is not used has a mark. `limit`: with the
    expected number, `11.9 of 12.3`.
    """
    if sample is None or sample.value is None:
        return NOT_ASKED if failure is None else FAILED
    runs = sample.run_values
    text = number(sample.value) if sample.runs_agree else f"{number(min(runs))}-{number(max(runs))}"
    if sample.invalid:
        return f"{text}{INVALID_MARK}"
    expected = sample.expectation.gb_per_s if limit and isinstance(sample, Rate) else None
    return f"{text} of {number(expected)}" if expected else text


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
    shown, has_any = [], False
    for group in groups:
        columns = []
        for cells in group:
            column = cells if isinstance(cells, Column) else Column(cells[0], tuple(cells[1]), "right")
            is_empty = all(cell in ("", NOT_ASKED) for cell in column.cells)
            has_any = has_any or not is_empty
            columns += [] if is_empty and column.head not in names else [column]
        shown += [tuple(columns)] if columns else []
    return (
        Section(title, (Table(Column(head, tuple(names)), tuple(shown), tuple(notes)),)) if has_any else None
    )


def how(samples: Iterable[Sample | None]) -> str:
    """Write the size of copies and the number of repeats, as far as known: `; 64.0 MiB, 5 times`."""
    known = [sample for sample in samples if sample is not None]
    sizes = [sample.bytes for sample in known if sample.bytes]
    repeats = (sample.repeats_gb_per_s for sample in known if isinstance(sample, Rate))
    counts = [len(of_copy) for of_copy in repeats if of_copy]
    words = [" to ".join(dict.fromkeys((size(min(sizes)), size(max(sizes)))))] if sizes else []
    if max(counts, default=1) > 1:
        words.append(f"{'-'.join(dict.fromkeys((str(min(counts)), str(max(counts)))))} times")
    return f"; {', '.join(words)}" if words else ""
