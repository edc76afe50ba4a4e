"""A Machine as nccl-tests of 2025 and 2026 prints it, as text.

Columns and formats are from its sources (common.cu, util.cu and each operation's file).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from gputopo.values.bandwidth import Bandwidth, Collective, CollectiveRate, Failure, Samples
from gputopo.values.ends import HOSTS, End
from gputopo.values.machine import Gpu, Machine

SOURCE = "nccl-tests"

PROGRAMS: dict[str, Collective] = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "alltoall",
    "sendrecv": "sendrecv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
}
_REDUCING = ("all_reduce", "reduce_scatter", "sendrecv", "reduce")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_OF_OTHERS = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Written:
    """A run to be printed: the expected result of reading it, and its program."""

    machine: Machine
    program: str
    hosts: int
    ranks: int


def measure(random: Random, program: str, *, hosts: int = 1) -> Written:
    """Return a run of a program with random sizes, times and wrong counts."""
    gpus_each = random.randint(2, 9)
    ranks = hosts * gpus_each
    name = random.choice(("Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"))
    domain = random.choice((0, 0x10))
    gpus = tuple(
        Gpu(
            index=index,
            name=name,
            pci_address=f"{domain:04x}:{3 + 0x17 * index:02x}:00.0",
        )
        for index in range(gpus_each)
    )
    place = HOSTS if hosts > 1 else End.of_gpus(*range(gpus_each))
    reduction = random.choice(("sum", "max", "avg")) if program in _REDUCING else None
    root = random.randrange(ranks) if program in _ROOTED else None
    samples: list[CollectiveRate] = []
    wrong: dict[int, int] = {}
    for power in range(random.randint(10, 14), random.randint(15, 20)):
        for in_place in (False, True):
            us = _printed_us(2**power / random.uniform(0.5, 400) / 1e3 + random.uniform(5, 50))
            algorithm = round(2**power / us / 1e3 * (1 - 1 / ranks if program == "hypercube" else 1), 2)
            samples.append(
                CollectiveRate(
                    kind=PROGRAMS[program],
                    source=place,
                    destination=place,
                    bytes=2**power,
                    median_gb_per_s=algorithm or None,
                    median_us=us,
                    bus_gb_per_s=round(algorithm * _factor(program, ranks), 2),
                    algorithm=SOURCE,
                    ranks=ranks,
                    hosts=hosts,
                    in_place=in_place,
                    data_type="float",
                    reduction=reduction,
                    root=root,
                )
            )
        if random.random() < 0.1:
            wrong[2**power] = random.choice((1, 37, 4096))
    failures = [
        Failure(
            kind=PROGRAMS[program],
            source=place,
            destination=place,
            reason="WRONG_DATA",
            says=f"{count} wrong elements at {size} bytes",
        )
        for size, count in wrong.items()
    ]
    bandwidth = Bandwidth(source=SOURCE, samples=Samples(samples), failures=tuple(failures))
    return Written(
        Machine(source=SOURCE, gpus=gpus if hosts == 1 else (), bandwidth=bandwidth), program, hosts, ranks
    )


def one_size(program: str, gb_per_s: float, size: int, *, hosts: int = 2, gpus: int = 1) -> str:
    """Return what a program prints for one size. `gpus`: on each host."""
    us = _printed_us(size / gb_per_s / 1e3)
    sample = CollectiveRate(
        kind=PROGRAMS[program],
        source=HOSTS,
        destination=HOSTS,
        bytes=size,
        median_gb_per_s=gb_per_s,
        bus_gb_per_s=gb_per_s * _factor(program, hosts * gpus),
        median_us=us,
        reduction="sum",
    )
    bandwidth = Bandwidth(source=SOURCE, samples=Samples((sample, replace(sample, in_place=True))))
    machine = Machine(source=SOURCE, bandwidth=bandwidth)
    return text(Written(machine, program, hosts, hosts * gpus))


def _factor(program: str, ranks: int) -> float:
    """Return the bus bandwidth over the algorithm's."""
    if program == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if program in _OF_OTHERS else 1.0


def _printed_us(us: float) -> float:
    return float(round(us)) if us >= 10_000 else round(us, 1) if us >= 100 else round(us, 2)


def text(written: Written, *, per_iteration: bool = False) -> str:
    """Return the output of the program. `per_iteration`: with four more columns, since 2026."""
    return "\n".join(_lines(written, per_iteration)) + "\n"


def _lines(written: Written, per_iteration: bool) -> Iterator[str]:
    yield "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22807"
    yield f"# Collective test starting: {written.program}_perf"
    sizes = "minBytes 1024 maxBytes 17179869184 step: 2(factor)"
    yield f"# nThread 1 nGpus {written.ranks} {sizes} warmup iters: 5 iters: 20 validation: 1 "
    yield "#"
    yield "# Using devices"
    yield from _ranks(written)
    yield "#"
    yield from _header(per_iteration)
    bandwidth = written.machine.bandwidth or Bandwidth(source=SOURCE)
    samples = bandwidth.samples.of(CollectiveRate)
    wrong = _wrong(written)
    for size in dict.fromkeys(one.bytes for one in samples):
        halves = [one for one in samples if one.bytes == size]
        cells = "".join(_half(one, per_iteration, wrong.get(size or 0, 0)) for one in halves)
        yield f"{size:12d}  {(size or 0) // 4:12d}  {'float':>8}{_middle(written, halves[0])}{cells}"
    yield f"# Out of bounds values : {len(wrong)} {'FAILED' if wrong else 'OK'}"
    yield "# Avg bus bandwidth    : 12.3456 "
    yield "#"
    yield f"# Collective test concluded: {written.program}_perf"


def _wrong(written: Written) -> dict[int, int]:
    failures = written.machine.bandwidth.failures if written.machine.bandwidth else ()
    return {int(one.says.split()[-2]): int(one.says.split()[0]) for one in failures}


def _gpu_of_rank(written: Written, rank: int) -> tuple[int, int]:
    each = written.ranks // written.hosts
    return rank // each, rank % each


def _ranks(written: Written) -> Iterator[str]:
    for rank in range(written.ranks):
        host, device = _gpu_of_rank(written, rank)
        gpu = written.machine.gpus[device] if written.machine.gpus else None
        name = gpu.name if gpu else "NVIDIA H100 80GB HBM3"
        address = (gpu.pci_address if gpu else None) or f"0000:{3 + 0x17 * device:02x}:00.0"
        on = f"on {f'node{host}':>10} device {device:2d}"
        yield f"#  Rank {rank:2d} Group  0 Pid {1000 + rank:6d} {on} [{address[:-2]}] {name}"


def _header(per_iteration: bool) -> Iterator[str]:
    more = "   i_min    i_max    i_p99    i_cv%" if per_iteration else ""
    half = f"   time   algbw   busbw  #wrong{more}"
    yield "#                                 out-of-place                       in-place          "
    yield f"# {'size':>10}  {'count':>12}  {'type':>8}   redop    root{half}{half}"
    units = "(us)  (GB/s)  (GB/s)        "
    yield f"#        (B)    (elements)                               {units}    {units}"


def _middle(written: Written, one: CollectiveRate) -> str:
    operator = "" if written.program == "hypercube" else one.reduction or "none"
    return f"  {operator:>6}  {-1 if one.root is None else one.root:6d}"


def _half(one: CollectiveRate, per_iteration: bool, wrong: int) -> str:
    us = one.median_us or 0.0
    time = f"{us:7.0f}" if us >= 1e4 else f"{us:7.1f}" if us >= 100 else f"{us:7.2f}"
    errors = "  N/A" if one.kind == "alltoall" and one.in_place else f"{wrong:5g}"
    more = "    5.00     9.00     8.90     1.23" if per_iteration else ""
    return f"  {time}  {one.median_gb_per_s or 0:6.2f}  {one.bus_gb_per_s or 0:6.2f}  {errors}{more}"
