"""Runs of nccl-tests as values, and their Machine.

If all ranks are on one host, they are the GPUs of the machine. If they are on several hosts, the numbers have
the place `hosts`, and no GPU is listed. Host names are dropped, because they identify somebody's machine.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from msgspec.structs import replace

from gputopo.captures import matching
from gputopo.captures.bandwidth.texts import Results
from gputopo.captures.matching import ListedGpu
from gputopo.values.bandwidth import SEPARATE_RUNS, Collective, CollectiveRate, Failure
from gputopo.values.ends import ALL_GPUS, HOSTS, End
from gputopo.values.machine import Gpu, Machine

SOURCE = "nccl-tests"

# The programs, without `_perf`, and the kinds of their numbers. Blocks of alltoallv have unequal sizes.
KINDS: dict[str, Collective] = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "alltoall",
    "alltoallv": "alltoall",
    "sendrecv": "sendrecv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
}
# Bus bandwidth as a multiple of algorithm bandwidth (doc/PERFORMANCE.md and *GetBw in its sources): with n
# ranks, 2 (n - 1) / n or (n - 1) / n. In all other programs the two are equal.
_TWICE = ("all_reduce",)
_OF_OTHERS = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter")
_MAX_RANKS = 1 << 16
# Times have at least three digits, rates have two decimals.
_TOLERANCE = 0.02
_ROUNDING = 0.006  # GB/s
# all_gather and reduce_scatter up to 2.11, and hypercube, count only bytes from other ranks: (n - 1) / n.
_LEAST_SHARE = 0.49


@dataclass(frozen=True, slots=True)
class Rank:
    """A GPU in the list. `bus`: its PCI address; only its bus in versions before 2.14."""

    number: int
    host: str
    group: int
    device: int
    bus: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Timed:
    """One half of a row: microseconds, GB/s, and the number of wrong elements; None if unknown."""

    in_place: bool
    us: float
    algorithm_gb_per_s: float
    bus_gb_per_s: float
    wrong: int | None = None
    unchecked: bool = False  # printed as N/A

    def agrees(self, size: int, rounding: float = 0.0) -> bool:
        """Return whether time and rates match the number of bytes. `rounding`: share of the time."""
        whole = size / self.us / 1e3
        slack = max(_TOLERANCE, rounding) * whole + _ROUNDING
        return (
            _LEAST_SHARE * whole - slack <= self.algorithm_gb_per_s <= whole + slack
            and self.bus_gb_per_s <= 2 * self.algorithm_gb_per_s + 2 * slack
        )


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One size with its type, operator and root."""

    bytes: int
    data_type: str
    reduction: str | None
    root: int | None
    timed: tuple[Timed, ...]


@dataclass(slots=True)
class NcclRun:
    """One run of a program. `program`: such as all_reduce; `facts`: from NCCL's log and the command."""

    program: str | None = None
    ranks: list[Rank] = field(default_factory=list)
    rows: list[NcclRow] = field(default_factory=list)
    keys: set[tuple[object, ...]] = field(default_factory=set)  # keys of the rows
    facts: dict[str, None] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)  # reason and message
    out_of_bounds: int = 0
    nccl_version: str | None = None
    last_error: str | None = None
    is_cut: bool = False  # the list of ranks is cut
    is_assumed: bool = False  # the program is assumed; the text does not have it
    by_cpu_time: bool = False
    complete: bool = True

    def again(self) -> "NcclRun":
        """Return a run of the same program and GPUs without results: a cycle (-N), or another process."""
        return NcclRun(
            self.program, self.ranks, facts=self.facts, nccl_version=self.nccl_version, complete=self.complete
        )

    def add(self, row: NcclRow) -> bool:
        """Add a result. Returns False if there is one with the same size, type, operator and root."""
        key = (row.bytes, row.data_type, row.reduction, row.root)
        if key in self.keys:
            return False
        self.keys.add(key)
        self.rows.append(row)
        return True

    @property
    def is_listed(self) -> bool:
        """Whether every rank up to the last one is listed."""
        return not self.is_cut and len(self.ranks) > max((rank.number for rank in self.ranks), default=-1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of its output was read."""
        return not (self.ranks or self.rows or self.failures)


def machine(runs: Sequence[NcclRun], mentioned: Collection[str] = ()) -> Machine:
    """Return the machine of these runs with their numbers. `mentioned`: programs mentioned in other lines."""
    runs = [run for run in runs if not run.is_empty]
    hosts = {rank.host for run in runs for rank in run.ranks}
    single = len(hosts) <= 1
    listed = [rank for run in runs if single and run.is_listed for rank in run.ranks]
    gpus, index_of = _gpus(listed)
    results = Results(SOURCE, complete=all(run.complete for run in runs))
    if not single and all(len({rank.host for rank in run.ranks}) <= 1 for run in runs):
        note = f"{SOURCE}: the runs are of {len(hosts)} machines; only the runs of one machine are judged"
        results.notes[note] = None
    if (separate := _separate(runs)) is not None:
        results.failures[separate] = None
        results.complete = True
        runs = []
    for number, run in enumerate(runs, 1):
        program = run.program or _guessed(run, mentioned)
        label = str(number) if len(runs) > 1 else None
        ranks, hosts_of_run, place = _place(run, program, index_of, single)
        if program is None:
            if run.rows:
                what = f"{SOURCE}: {len(run.rows)} sizes of an unknown operation"
                results.skip(what, "neither the command nor the name of the program is in the output")
            results.failures |= _failures(run, "allreduce", place)
            continue
        kind = KINDS[program]
        results.failures |= _failures(run, kind, place)
        if run.by_cpu_time:
            results.skip(f"{SOURCE}: {kind}", "it reports CPU time (-C), not the transfer time")
            continue
        results.notes |= dict.fromkeys(_notes(run, kind, ranks, hosts_of_run))
        common = CollectiveRate(
            kind=kind,
            source=place,
            destination=place,
            algorithm=SOURCE if program != "alltoallv" else f"{SOURCE} alltoallv",
            ranks=ranks,
            hosts=hosts_of_run,
            nccl=tuple(run.facts),
            run=label,
        )
        results.samples += _samples(run, common)
    return Machine(source=SOURCE, gpus=gpus, bandwidth=results.bandwidth())


def _separate(runs: Sequence[NcclRun]) -> Failure | None:
    """Return the failure of a program without MPI that mpirun or srun started: each process ran separately.

    Each process has one GPU and transfers nothing; or hosts list the same ranks before there is a result.
    """
    listed = {id(run.ranks): run.ranks for run in runs}  # a cycle has the previous run's ranks
    ranks = [rank for each in listed.values() for rank in each]
    timed = [half for run in runs for row in run.rows for half in row.timed]
    processes = sum(rank.number == rank.group == 0 for rank in ranks)
    if processes < 2 or not timed:
        return None
    alone = not any(half.bus_gb_per_s for half in timed) and processes == len(ranks)
    tables = [id(run.ranks) for run in runs if run.rows]
    mixed = any(
        rank.host != other.host and (rank.number, rank.group) == (other.number, other.group)
        for key, each in listed.items()
        for others in listed.values()
        # If there are fewer tables than lists, a list without a table is from a run that was cut off.
        if others is each or (key not in tables and len(tables) >= processes)
        for rank, other in product(each, others)
    )
    if not alone and not mixed:
        return None
    kind = KINDS[next((run.program for run in runs if run.program), "all_reduce")]
    place = HOSTS if len({rank.host for rank in ranks}) > 1 else ALL_GPUS
    gpus = "one GPU" if len(ranks) == processes else f"{len(ranks) // processes} GPUs"
    says = f"{processes} separate runs of {gpus} each: {SOURCE} was built without MPI=1"
    return Failure(kind=kind, source=place, destination=place, reason=SEPARATE_RUNS, says=says)


def _samples(run: NcclRun, common: CollectiveRate) -> Iterator[CollectiveRate]:
    """Yield a sample for each half of each row. `common`: the facts that all samples of a run share."""
    groups = len({rank.group for rank in run.ranks})
    for row in run.rows:
        for timed in row.timed:
            yield replace(
                common,
                bytes=row.bytes,
                group=f"{groups} groups of GPUs at once" if groups > 1 else None,
                median_gb_per_s=(timed.algorithm_gb_per_s or None) if common.ranks != 1 else None,
                median_us=timed.us,
                bus_gb_per_s=timed.bus_gb_per_s,
                in_place=timed.in_place,
                data_type=row.data_type,
                reduction=row.reduction,
                root=row.root,
            )


def _gpus(ranks: Sequence[Rank]) -> tuple[tuple[Gpu, ...], dict[Rank, int]]:
    """Return the GPUs of one host and the index of each rank.

    CUDA's number is used if it differs for each GPU. Processes in containers may each see one GPU and call it
    0: then the order of PCI buses is used.
    """
    by_bus: dict[tuple[int, str], Rank] = {}
    for rank in ranks:
        by_bus.setdefault((rank.device, rank.bus or ""), rank)
    numbers = {key: key[0] for key in by_bus}
    if len({*numbers.values()}) < len(numbers):
        in_order = sorted(by_bus, key=lambda key: (0 if ":" in key[1] else int(key[1] or "0", 16), key[1]))
        numbers = {key: number for number, key in enumerate(in_order)}
    # If only its bus is known, without the domain, a GPU has no address.
    devices: dict[int, ListedGpu] = {}
    for key, rank in by_bus.items():
        function = "" if "." in key[1] else ".0"
        devices[numbers[key]] = ListedGpu(rank.name, f"{rank.bus}{function}" if ":" in key[1] else None)
    gpus, index_of = matching.gpus_in_pci_order(devices)
    return gpus, {rank: index_of[numbers[rank.device, rank.bus or ""]] for rank in ranks}


def _place(
    run: NcclRun, program: str | None, index_of: dict[Rank, int], single: bool
) -> tuple[int | None, int | None, End]:
    """Return the number of ranks and of hosts in a run, and the place of its numbers."""
    hosts = len({rank.host for rank in run.ranks}) or None
    first = [rank for rank in run.ranks if rank.group == run.ranks[0].group]
    inferred = _ranks_by_ratio(run.rows, program)
    ranks = max(len({rank.number for rank in first}), inferred or 0) or None
    if not first:
        return ranks, None, ALL_GPUS
    if not run.is_listed or (inferred or 0) > len(first):  # part of the list was cut off
        last = max(rank.number for rank in run.ranks) + 1
        return max(last, ranks or 0), None, ALL_GPUS if single else HOSTS
    if not single:
        return ranks, hosts, HOSTS
    return ranks, hosts, End.of_gpus(*sorted({index_of[rank] for rank in first}))


def _ranks_by_ratio(rows: Sequence[NcclRow], program: str | None) -> int | None:
    """Return the number of ranks from the ratio of bus to algorithm bandwidth, or None if it is not clear."""
    best = max(
        (timed for row in rows for timed in row.timed), key=lambda timed: timed.bus_gb_per_s, default=None
    )
    if best is None or not best.algorithm_gb_per_s or program not in (*_TWICE, *_OF_OTHERS):
        return None
    ratio = best.bus_gb_per_s / best.algorithm_gb_per_s / (2 if program in _TWICE else 1)
    if not 0 < ratio < 0.99:
        return 1 if ratio == 0 and best.algorithm_gb_per_s >= 1 else None
    ranks = round(1 / (1 - ratio))
    slack = 2 * 0.005 / best.algorithm_gb_per_s
    fits = [n for n in range(max(ranks - 1, 2), ranks + 2) if abs((n - 1) / n - ratio) <= slack]
    return fits[0] if len(fits) == 1 and ranks <= _MAX_RANKS else None


def _guessed(run: NcclRun, mentioned: Collection[str]) -> str | None:
    """Return the program whose output has these operators, roots, ratios and checks, or None if unclear.

    If several programs fit, the program mentioned in another line or the file name is used.
    """
    best = max(
        ((row, timed) for row in run.rows for timed in row.timed),
        key=lambda placed: placed[1].bus_gb_per_s,
        default=None,
    )
    if best is None or best[1].bus_gb_per_s < 0.1:
        return None
    row, timed = best
    ratio = timed.bus_gb_per_s / timed.algorithm_gb_per_s if timed.algorithm_gb_per_s else 0.0
    slack = 0.01 + 0.01 / max(timed.algorithm_gb_per_s, 0.01)
    fitting = _fitting(run, row, 0 if abs(ratio - 1) <= slack else ratio - 1)
    if len(fitting) == 1:
        return fitting[0]
    named = [program for program in fitting if program in mentioned]
    if len(named) == 1:
        return named[0]
    if fitting == ["all_reduce", "sendrecv"] and len(run.ranks) == 2:
        run.is_assumed = True
        return "all_reduce"
    return None


def _fitting(run: NcclRun, row: NcclRow, above: float) -> list[str]:
    """Return the programs that fit a row with a ratio of bus to algorithm bandwidth of 1 + `above`."""
    if row.root is not None:
        return ["reduce"] if row.reduction else ["gather", "scatter"] if above else ["broadcast"]
    halves = [half for each in run.rows for half in each.timed]
    # Since 2.14, only in-place results of alltoall and sendrecv are not checked.
    is_exchange = {half.in_place for half in halves if half.unchecked} == {True}
    if row.reduction is None:
        if is_exchange:
            return ["alltoall"]
        if not above:
            return ["all_gather", "hypercube"]
        counted = {half.in_place for half in halves if half.wrong is not None}
        return ["all_gather"] if counted == {False, True} else ["all_gather", "alltoall"]
    if above:
        return ["all_reduce"] if above > 0 else ["reduce_scatter"]
    is_sendrecv = is_exchange or len({rank.number for rank in run.ranks}) > 2
    return ["sendrecv"] if is_sendrecv else ["all_reduce", "sendrecv"]


_NAMED = re.compile(
    r"(?<![A-Za-z])(?:(all[-_ ]?reduce)|(all[-_ ]?gather)|(reduce[-_ ]?scatter)"
    r"|(all[-_ ]?to[-_ ]?all|all2all|a2a)|(send[-_ ]?recv)|(broadcast)"
    r"|(hypercube)|(reduce)|(gather)|(scatter))(?![A-Za-z])",
    re.IGNORECASE,
)
_IN_ORDER = (
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast", "hypercube", "reduce",
    "gather", "scatter",
)  # fmt: skip


def programs_in(words: str) -> set[str]:
    """Return the programs whose operations are mentioned, in any spelling."""
    return {_IN_ORDER[match.lastindex - 1] for match in _NAMED.finditer(words) if match.lastindex}


def _failures(run: NcclRun, kind: Collective, place: End) -> dict[Failure, None]:
    """Return the failures, including sizes with wrong results."""
    wrong = {
        row.bytes: max(timed.wrong or 0, *(half.wrong or 0 for half in row.timed))
        for row in run.rows
        for timed in row.timed
        if timed.wrong
    }
    said = [f"{count} wrong elements at {size} bytes" for size, count in wrong.items()]
    if run.out_of_bounds and not wrong:
        said = [f"out of bounds values: {run.out_of_bounds}"]
    return {
        Failure(kind=kind, source=place, destination=place, reason=reason, says=says): None
        for reason, says in (*run.failures, *(("WRONG_DATA", words) for words in said))
    }


def _notes(run: NcclRun, kind: Collective, ranks: int | None, hosts: int | None) -> list[str]:
    notes = []
    if hosts is not None and hosts > 1 and ranks:
        names = ", ".join(dict.fromkeys(rank.name for rank in run.ranks))
        each = f"{hosts} hosts with {ranks // hosts} GPUs each" if ranks % hosts == 0 else f"{hosts} hosts"
        notes.append(
            f"{SOURCE}: {kind} over {each} ({ranks} x {names}): includes the network; not one machine"
        )
    if ranks == 1:
        notes.append(f"{SOURCE}: {kind} ran on one GPU: nothing was transferred between GPUs")
    if run.is_assumed:
        notes.append(
            f"{SOURCE}: the output does not show the operation of a run of two GPUs; all-reduce is assumed"
        )
    if run.last_error:
        notes.append(f"{SOURCE}: the last error of NCCL in {kind}: {run.last_error[:200]}")
    if run.nccl_version:
        notes.append(f"{SOURCE} ran with NCCL {run.nccl_version}")
    return notes
