"""The parts about the network: by host and pair, or single transfers of another program."""

from random import Random

from msgspec.structs import replace

from gputopo.report.bandwidth.network import network_parts
from gputopo.report.document import Section
from gputopo.values.bandwidth import Bandwidth, Sample
from tests.findings.measured.networks import machine, rates
from tests.report.shown import table_of


def parts(samples: tuple[Sample, ...], source: str = "live") -> list[Section]:
    return [*network_parts(Bandwidth(source=source, samples=samples))]


def samples(hosts: int) -> tuple[Sample, ...]:
    found = rates(Random(1), hosts)
    bandwidth = machine(dict.fromkeys(found, 2.0), again=dict.fromkeys(found, 1.5)).bandwidth
    assert bandwidth is not None
    return bandwidth.samples


def table(part: Section) -> dict[str, list[str]]:
    return {host: cells for host, *cells in table_of(part).rows}


def test_each_host_has_its_medians_in_natural_order_and_each_pair_its_rate() -> None:
    by_host, matrix = parts(samples(11))
    assert list(table(by_host)) == [f"n{number}" for number in range(11)]
    assert table(by_host)["n10"] == ["2.00", "2.00", "1.50", "1.50", "2.00"]
    assert table(matrix)["n1"][:3] == ["2.00", "-", "2.00"]


def test_slow_networks_have_three_digits() -> None:
    one = Sample(kind="network", source="host:a", destination="host:b", median_gb_per_s=0.01234)
    assert table(parts((one,))[1])["a"] == ["-", "0.0123"]


def test_of_many_hosts_there_is_no_matrix() -> None:
    assert len(parts(samples(33))) == 1


def test_latencies_count_for_both_ends() -> None:
    one = Sample(kind="network_latency", source="host:a", destination="host:b", median_us=12.0)
    by_host, _ = parts((one,))
    assert table(by_host) == {"a": ["12.0"], "b": ["12.0"]}


def test_what_measured_rates_and_latencies_is_named_in_each_table() -> None:
    rate = Sample(
        kind="network", source="host:a", destination="host:b", median_gb_per_s=1.0, tool="ib_write_bw"
    )
    time = replace(rate, kind="network_latency", median_gb_per_s=None, median_us=2.0, tool="ib_write_lat")
    by_host, matrix = parts((rate, time))
    assert by_host.title == "Between hosts, by ib_write_bw"
    assert table_of(by_host).notes[0].endswith("of 8 bytes, by ib_write_lat.")
    assert matrix.title == "From host (row) to host (column), GB/s, by ib_write_bw"


def test_a_tool_that_only_measures_both_directions_at_once_has_its_matrix_of_that() -> None:
    both = tuple(one for one in samples(3) if one.with_reverse)
    by_host, matrix = parts(both)
    assert table(by_host)["n1"] == ["1.50", "1.50"]
    assert matrix.title == "From host (row) to host (column) while both send, GB/s"
    assert table(matrix)["n1"] == ["1.50", "-", "1.50"]
    assert "latency" not in table_of(by_host).notes[0]


def test_transfers_of_other_programs_are_listed_one_by_one_and_the_largest_first() -> None:
    one = Sample(
        kind="network_bidirectional",
        source="host:client",
        destination="host:server",
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
    assert parts((Sample(kind="h2d", source="host", destination="gpu:0"),)) == []
