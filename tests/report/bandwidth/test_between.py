"""The parts about the network: by host and pair, or single transfers of another program."""

import re
from random import Random

from msgspec.structs import replace

from gputopo.report import bandwidth_document
from gputopo.report.document import Section
from gputopo.values.bandwidth import Bandwidth, CollectiveRate, CopyRate, Sample, Samples, TransferRate
from gputopo.values.ends import HOSTS, End
from gputopo.values.machine import Machine
from tests import there
from tests.findings.measured.networks import machine, rates
from tests.report.shown import section_text, sections_of, table_of


def parts(samples: tuple[Sample, ...], source: str = "live") -> list[Section]:
    document = bandwidth_document(
        Machine(source="test"), Bandwidth(source=source, samples=Samples(samples)), ()
    )
    return [*sections_of(document, "Between hosts"), *sections_of(document, "From host")]


def samples(hosts: int) -> tuple[Sample, ...]:
    return tuple(there(machine(dict.fromkeys(rates(Random(1), hosts), 2.0)).bandwidth).samples)


def table(part: Section) -> dict[str, list[str]]:
    return {host: cells for host, *cells in table_of(part).rows}


def test_each_host_has_its_medians_in_natural_order_and_each_pair_its_rate() -> None:
    by_host, matrix = parts(samples(11))
    assert list(table(by_host)) == [f"n{number}" for number in range(11)]
    assert table(by_host)["n10"] == ["2.00", "2.00", "2.00"]
    assert table(matrix)["n1"][:3] == ["2.00", "-", "2.00"]


def test_slow_networks_have_three_digits() -> None:
    one = TransferRate(
        kind="network", source=End("host:a"), destination=End("host:b"), median_gb_per_s=0.01234
    )
    assert table(parts((one,))[1])["a"] == ["-", "0.0123"]


def test_of_many_hosts_there_is_no_matrix() -> None:
    assert len(parts(samples(33))) == 1


def test_what_measured_the_rates_is_named_in_each_table() -> None:
    rate = TransferRate(
        kind="network",
        source=End("host:a"),
        destination=End("host:b"),
        median_gb_per_s=1.0,
        tool="ib_write_bw",
    )
    by_host, matrix = parts((rate,))
    assert by_host.title == "Between hosts, by ib_write_bw"
    assert matrix.title == "From host (row) to host (column), GB/s, by ib_write_bw"


def test_a_tool_that_measures_both_directions_at_once_is_shown_as_that() -> None:
    by_host, matrix = parts(tuple(replace(one, with_reverse=True) for one in samples(2)))
    assert by_host.title == "Between hosts while both send"
    assert matrix.title == "From host (row) to host (column) while both send, GB/s"
    assert table(matrix)["n1"] == ["2.00", "-"]


def test_transfers_of_other_programs_are_listed_one_by_one_and_the_largest_first() -> None:
    one = TransferRate(
        kind="network_bidirectional",
        source=End("host:client"),
        destination=End("host:server"),
        bytes=2,
        median_gb_per_s=1.0,
        tool="ib_write_bw",
        transport="RDMA write",
        streams=2,
    )
    (part,) = parts((one, replace(one, bytes=65536, median_gb_per_s=20.0)), "perftest")
    found = table_of(part)
    assert found.head.cells == ("client <-> server (ib_write_bw, RDMA write)",) * 2
    assert [column.cells for columns in found.groups for column in columns] == [
        ("64.0 KiB", "2 bytes"),
        ("2", "2"),
        ("20.0", "1.00"),
    ]
    assert "sum of both directions" in found.notes[0]


def test_nothing_is_shown_where_no_network_was_measured() -> None:
    assert parts((CopyRate(kind="h2d", source=End("host"), destination=End("gpu:0")),)) == []


MIB = 2**20


def timed(
    mib: int, bus: float, *, in_place: bool = False, place: str = "gpu:0,1,2,3", ranks: int = 4
) -> Sample:
    end = End(place)
    return CollectiveRate(
        kind="allreduce",
        source=end,
        destination=end,
        bytes=mib * MIB,
        median_us=mib * 10.0,
        median_gb_per_s=bus / 1.5,
        bus_gb_per_s=bus,
        algorithm="nccl-tests",
        ranks=ranks,
        hosts=1,
        in_place=in_place,
        data_type="float",
        reduction="sum",
    )


def shown(*samples: Sample) -> str:
    bandwidth = Bandwidth(source="test", samples=Samples(samples))
    document = bandwidth_document(Machine(source="test"), bandwidth, (), whole=True)
    return section_text(document, "Collective") + section_text(document, "all-reduce", 100)


def test_only_the_largest_sizes_of_a_sweep_are_shown() -> None:
    text = shown(
        *(timed(2**power, power + 1.0, in_place=half) for power in range(16) for half in (False, True))
    )
    assert re.search(r"all-reduce +GPU 0-3 +32\.0 GiB +10\.7 +16\.0", text)
    assert "4 smaller sizes" in text
    assert re.search(r"16\.0 MiB +160 +5\.00 +5\.00", text)


def test_our_reductions_stand_beside_it() -> None:
    place = End("gpu:0,1,2,3")
    own = CollectiveRate(kind="allreduce", source=place, destination=place, bytes=100 * MIB, algorithm="ring",
                 model="alexnet", median_us=9.0, median_gb_per_s=30.0, bus_gb_per_s=45.0)  # fmt: skip
    text = shown(timed(64, 80.0), timed(128, 90.0), timed(1024, 100.0), own)
    assert re.search(r"all-reduce +GPU 0-3 +ring", text)
    assert shown(own) == ""


def test_several_hosts_are_named() -> None:
    sample = CollectiveRate(
        kind="allgather",
        source=HOSTS,
        destination=HOSTS,
        bytes=MIB,
        median_us=9.0,
        ranks=16,
        bus_gb_per_s=45.0,
        algorithm="nccl-tests",
        hosts=2,
        in_place=False,
    )
    assert re.search(r"all-gather +16 GPUs on 2 hosts", shown(sample))


def test_ranks_that_share_a_gpu_are_named() -> None:
    assert re.search(r"all-reduce +2 ranks on GPU 0 ", shown(timed(64, 80.0, place="gpu:0", ranks=2)))
