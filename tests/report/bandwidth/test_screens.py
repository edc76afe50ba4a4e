"""Bandwidths as they are shown: every kind of copy has a place of its own, and nothing stands for another."""

from itertools import permutations
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.report import Document, bandwidth_document, document_lines, document_markdown, document_text
from gputopo.values.bandwidth import (
    Bandwidth,
    CollectiveRate,
    Conditions,
    CopyLatency,
    CopyRate,
    CopyRateKind,
    Expectation,
    Failure,
    Method,
    NotMeasured,
    Run,
    Sample,
    Samples,
    TransferRate,
)
from gputopo.values.ends import End
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from gputopo.values.subject import Subject
from tests import there
from tests.findings.measured.networks import machine as network
from tests.findings.measured.networks import rates
from tests.invented_bandwidths import bandwidth_of, machine_with, pair
from tests.report.shown import assert_golden, assert_tables_are_even, sections_of

MIB = 2**20
FOUND = (
    Finding(
        id="a.b", severity="warning", subject=Subject.parse("gpu:1"), says="odd | words", remedy="do *this*"
    ),
)


def only(*samples: Sample, **more: Any) -> Bandwidth:
    return Bandwidth(source="test", samples=Samples(samples), **more)


def rate(kind: CopyRateKind, source: str, destination: str, gb_per_s: float, **more: Any) -> CopyRate:
    return CopyRate(
        kind=kind, source=End(source), destination=End(destination), median_gb_per_s=gb_per_s, **more
    )


def to_gpu(gpu: int, gb_per_s: float, **more: Any) -> Sample:
    return rate("h2d", "host", f"gpu:{gpu}", gb_per_s, pinned=True, **more)


def from_gpu(gpu: int, gb_per_s: float, **more: Any) -> Sample:
    return rate("d2h", f"gpu:{gpu}", "host", gb_per_s, pinned=True, **more)


def latency(source: str, destination: str, us: float, method: Method | None, **more: Any) -> Sample:
    return CopyLatency(source=End(source), destination=End(destination), method=method, median_us=us, **more)


def both(a: int, b: int, gb_per_s: float, **more: Any) -> Sample:
    return rate("bidirectional", f"gpu:{a}", f"gpu:{b}", gb_per_s, **({"path": "direct"} | more))


def reduced(method: str, us: float, **more: Any) -> Sample:
    fields: dict[str, Any] = {"algorithm": method, "model": "alexnet", "bytes": 250_000_000, **more}
    place, speed = End("gpu:0,1"), 250_000 / us
    return CollectiveRate(
        kind="allreduce",
        source=place,
        destination=place,
        median_gb_per_s=speed,
        bus_gb_per_s=speed,
        median_us=us,
        **fields,
    )


def nccl_tests(mib: int, bus: float, place: str = "gpu:0,1,2,3", ranks: int = 4, **more: Any) -> Sample:
    fields: dict[str, Any] = {"data_type": "float", "reduction": "sum", "hosts": 1, "in_place": False, **more}
    return CollectiveRate(
        kind="allgather" if place == "hosts" else "allreduce",
        source=End(place),
        destination=End(place),
        median_gb_per_s=bus / 1.5,
        bytes=mib * MIB,
        median_us=mib * 10.0,
        bus_gb_per_s=bus,
        algorithm="nccl-tests",
        ranks=ranks,
        **fields,
    )


def of_hosts(hosts: int, **more: Any) -> tuple[Sample, ...]:
    """All pairs of hosts, at 2 GB/s."""
    samples = there(network(dict.fromkeys(rates(Random(1), hosts), 2.0)).bandwidth).samples
    return tuple(replace(one, **more) for one in samples)


def transfer(size: int, gb_per_s: float) -> Sample:
    return TransferRate(
        kind="network_bidirectional",
        source=End("host:client"),
        destination=End("host:server"),
        median_gb_per_s=gb_per_s,
        bytes=size,
        tool="ib_write_bw",
        transport="RDMA write",
        streams=2,
    )


UNUSED = rate("d2d_local", "gpu:0", "gpu:0", 4374.0, expectation=Expectation(gb_per_s=768.0), invalid="cache")
THROTTLED = Conditions(gpu=1, readings=1, throttle_reasons=("gpu_idle", "sw_power_cap"))
WRONG = Failure(
    kind="p2p_direct",
    source=End("gpu:1"),
    destination=End("gpu:0"),
    method="kernel_read",
    reason="WRONG_DATA",
    says="1 word differs",
)


def runs(*values: float) -> Sample:
    """A copy to GPU 0 that was measured several times."""
    several = tuple(Run(name=f"run {place}", value=value) for place, value in enumerate(values))
    return to_gpu(0, min(values), runs=several)


SCREENS: dict[str, tuple[int, Bandwidth]] = {
    "of a whole session": (4, bandwidth_of(4)),
    "of every kind of copy": (
        2,
        only(
            replace(pair(0, 1, 11.3), bytes=1 << 26, repeats_gb_per_s=(11.3,) * 5),
            pair(1, 0, 6.25),
            replace(pair(1, 0, 9.5), group="both", with_reverse=True),
            pair(0, 1, 0.7712, staged=True),
            replace(pair(0, 1, 9.0), method="kernel_read"),
            replace(pair(0, 1, 8.0), method="kernel_write"),
            replace(pair(0, 1, 11.0), method="copy_engine_read"),
            both(0, 1, 20.0),
            both(0, 1, 300.0, method="kernel_write"),
            both(0, 1, 7.0, path="staged"),
            latency("gpu:0", "gpu:1", 1.2, "kernel_read", path="direct"),
            latency("gpu:0", "gpu:1", 8.5, "copy_engine", path="direct"),
            latency("gpu:0", "gpu:1", 7.5, "driver", path="direct"),
            latency("gpu:1", "gpu:0", 9.0, "driver", path="direct"),
            latency("gpu:0", "gpu:1", 15.0, "copy_engine", path="staged"),
            failures=(WRONG,),
        ),
    ),
    # The faster path stands; through the host it is marked, unless the difference is noise.
    "by two paths": (
        4,
        only(
            *(pair(0, 1, 5.0), pair(0, 1, 6.0, staged=True), pair(1, 0, 6.0), pair(1, 0, 5.0, staged=True)),
            *(pair(0, 2, 12.2), pair(0, 2, 12.5, staged=True)),
            *(pair(2, 0, 12.2), pair(2, 0, 12.6, staged=True)),
            *(pair(0, 3, 5.0, staged=True), pair(3, 0, 5.0)),
        ),
    ),
    "of kernels only": (2, only(*(replace(pair(a, 1 - a, 150.0), method="kernel_read") for a in (0, 1)))),
    "of both directions only": (
        4, only(both(0, 1, 48.5), both(0, 3, 96.9), both(1, 0, 48.0), both(3, 0, 96.8)),
    ),
    # One to all, all to one, and all pairs, beside the sum of each alone.
    "between GPUs at once": (
        4,
        only(
            *(rate("p2p_direct", "gpus", f"gpu:{gpu}", 400.0 + gpu, group=f"to {gpu}") for gpu in range(4)),
            rate("p2p_direct", "gpus", "gpu:1", 350.0, group="kernels to 1", method="kernel_write"),
            *(
                rate("p2p_direct", f"gpu:{a}", f"gpu:{b}", 5.0, group="all pairs")
                for a, b in permutations(range(4), 2)
            ),
            *(pair(a, b, 20.0) for a, b in permutations(range(4), 2)),
            # One pair in both directions is no set of copies.
            *(
                rate("p2p_direct", f"gpu:{a}", f"gpu:{1 - a}", 5.0, group="both", with_reverse=True)
                for a in (0, 1)
            ),
        ),
    ),
    # All at once is of all GPUs and nothing less; one that failed one way does not hide the others.
    "of GPUs at once": (
        3,
        only(
            *(to_gpu(gpu, 55.0) for gpu in (0, 1)),
            *(from_gpu(gpu, 55.0) for gpu in range(3)),
            *(from_gpu(gpu, 30.0, group="pair") for gpu in (0, 1)),
            *(to_gpu(gpu, 20.0 + gpu, group="h2d all that answer") for gpu in (0, 1)),
            *(from_gpu(gpu, 40.0 + gpu, group="all") for gpu in range(3)),
            *(from_gpu(gpu, 9.0, group="all both", with_reverse=True) for gpu in range(3)),
            *(to_gpu(gpu, 45.0 + gpu, group=f"h2d both gpu:{gpu}", with_reverse=True) for gpu in (0, 1)),
        ),
    ),
    "of GPUs by kernels": (
        2,
        only(
            from_gpu(0, 295.15, method="copy_engine"),
            from_gpu(0, 352.0, method="kernel_write"),
            latency("host", "gpu:0", 0.57, "kernel_read"),
            latency("host", "gpu:0", 8.5, "copy_engine"),
        ),
    ),
    "with links that were seen": (
        3,
        only(
            to_gpu(
                0, 12.0, expectation=Expectation("", 12.5), conditions=(Conditions(gpu=0, pcie_gen=3),)
            ),
            to_gpu(1, 12.0, conditions=(Conditions(gpu=1, pcie_width=8),)),
            to_gpu(2, 12.0, conditions=(Conditions(gpu=2),)),
        ),
    ),
    "of numbers that are used in part": (
        1, only(UNUSED, replace(UNUSED, invalid=None, median_gb_per_s=700.0)),
    ),
    "of runs that differ": (1, only(runs(24.6, 72.7))),
    "of reductions": (2, only(reduced("copy", 50_000), reduced("nccl", 25_000))),
    # The largest sizes of a sweep, and our own reductions beside it.
    "of collectives": (
        4,
        only(
            *(
                nccl_tests(2**power, power + 1.0, in_place=half)
                for power in range(16)
                for half in (False, True)
            ),
            reduced("ring", 9.0, bytes=100 * MIB),
            nccl_tests(1, 45.0, "hosts", ranks=16, hosts=2),
            nccl_tests(64, 80.0, "gpu:0", ranks=2),
        ),
    ),
    "of many hosts": (0, only(*of_hosts(33))),
    "of hosts while both send": (0, only(*of_hosts(2, with_reverse=True))),
    "of transfers": (0, replace(only(transfer(2, 1.0), transfer(65536, 20.0)), source="perftest")),
    "by size": (
        2,
        only(*(to_gpu(gpu, (4096 << n) / 2**25 + gpu, bytes=4096 << n) for n in range(18) for gpu in (0, 1))),
    ),
    "of near and far memory": (1, only(to_gpu(0, 12.0, numa_node=0), to_gpu(0, 9.0, numa_node=1))),
    "with notes": (
        2,
        only(
            to_gpu(0, 1.0, conditions=(replace(THROTTLED, gpu=0), THROTTLED)),
            notes=(*(f"it is taken as GPU {gpu} by its file" for gpu in (0, 1, 2, 6)), "GPU 1 and GPU 2"),
            not_measured=tuple(NotMeasured(what=f"copy {n}", reason="time") for n in range(20)),
        ),
    ),
}  # fmt: skip


def machine_of(gpus: int) -> Machine:
    return machine_with(gpus) if gpus else Machine(source="test")


@pytest.mark.parametrize("name", SCREENS)
def test_a_bandwidth_is_shown_as_it_was(name: str) -> None:
    """On the first screen, then whole."""
    gpus, bandwidth = SCREENS[name]
    brief, whole = (
        document_text(bandwidth_document(machine_of(gpus), bandwidth, found, whole=bool(found)), 120)
        for found in ((), FOUND)
    )
    assert_golden(f"bandwidth {name}", f"{brief}\n{whole}")


def test_markdown_is_as_it_was_with_equally_many_cells_in_each_row_of_a_table() -> None:
    text = document_markdown(bandwidth_document(machine_with(4), bandwidth_of(4), FOUND, whole=True))
    assert_tables_are_even(text)
    assert_golden("bandwidth in Markdown", text)


def test_the_shade_is_the_share_of_the_fastest_link_and_a_terminal_paints_it() -> None:
    speeds = {(0, 1): 20.0, (1, 0): 15.0, (1, 2): 9.0, (2, 1): 4.0, (0, 2): 3.9}
    bandwidth = only(*(pair(a, b, speed) for (a, b), speed in speeds.items()))
    (links,) = sections_of(bandwidth_document(machine_with(3), bandwidth, ()), "Links, GB/s")
    spans = [span for line in document_lines(Document("", "", (links,)), 78) for span in line]
    styles = {text.strip(): style for text, style in spans if text[:1] in ("█", "▓", "▒", "░")}
    assert styles.keys() == {"█20.0", "█15.0", "▓9.00", "▒4.00", "░3.90"}
    assert len(set(styles.values())) == 4
