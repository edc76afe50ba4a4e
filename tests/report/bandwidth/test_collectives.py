"""The tables of collective operations: what is judged, by size, and beside our own reductions."""

import re

from gputopo.report.bandwidth.collectives import collective_parts
from gputopo.report.document import Document, document_text
from gputopo.values.bandwidth import HOSTS, Sample

MIB = 2**20


def timed(
    mib: int, bus: float, *, in_place: bool = False, place: str = "gpu:0,1,2,3", ranks: int = 4
) -> Sample:
    return Sample(kind="allreduce", source=place, destination=place, bytes=mib * MIB, median_us=mib * 10.0,
                  median_gb_per_s=bus / 1.5, bus_gb_per_s=bus, algorithm="nccl-tests", ranks=ranks, hosts=1,
                  in_place=in_place, data_type="float", reduction="sum")  # fmt: skip


def shown(*samples: Sample) -> str:
    parts = tuple(part for part in collective_parts(samples) if part is not None)
    return document_text(Document("", "", parts), 100) if parts else ""


def test_only_the_largest_sizes_of_a_sweep_are_shown() -> None:
    text = shown(
        *(timed(2**power, power + 1.0, in_place=half) for power in range(16) for half in (False, True))
    )
    assert re.search(r"all-reduce +GPU 0-3 +32\.0 GiB +10\.7 +16\.0", text)
    assert "4 smaller sizes" in text
    assert re.search(r"16\.0 MiB +160 +5\.00 +5\.00", text)


def test_our_reductions_stand_beside_it_with_their_share() -> None:
    place = "gpu:0,1,2,3"
    own = Sample(kind="allreduce", source=place, destination=place, bytes=100 * MIB, algorithm="ring",
                 model="alexnet", median_us=9.0, median_gb_per_s=30.0, bus_gb_per_s=45.0)  # fmt: skip
    text = shown(timed(64, 80.0), timed(128, 90.0), timed(1024, 100.0), own)
    assert "ring with 100.0 MiB reaches 50% of the bus bandwidth of nccl-tests with 128.0 MiB" in text
    assert re.search(r"all-reduce +GPU 0-3 +ring", text)
    assert shown(own) == ""


def test_several_hosts_are_named() -> None:
    sample = Sample(kind="allgather", source=HOSTS, destination=HOSTS, bytes=MIB, median_us=9.0, ranks=16,
                    bus_gb_per_s=45.0, algorithm="nccl-tests", hosts=2, in_place=False)  # fmt: skip
    assert re.search(r"all-gather +16 GPUs on 2 hosts", shown(sample))
