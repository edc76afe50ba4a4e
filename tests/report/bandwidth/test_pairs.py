"""Copies between GPUs: by method, and several at once in a part of their own."""

from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.report import Document, bandwidth_document, document_lines
from gputopo.report.document import Section
from gputopo.values.bandwidth import Bandwidth, CopyLatency, CopyRate, Method, Path, Sample, Samples
from gputopo.values.ends import End
from tests import there
from tests.invented_bandwidths import machine_with, pair
from tests.report.shown import cells_of, sections_of, table_of


def section_of(title: str, *samples: Sample, gpus: int = 4) -> Section | None:
    """The section of the whole report whose title begins with these words."""
    bandwidth = Bandwidth(source="test", samples=Samples(samples))
    document = bandwidth_document(machine_with(gpus), bandwidth, (), whole=True)
    return next(iter(sections_of(document, title)), None)


def heat(*samples: Sample) -> Section | None:
    return section_of("Links, GB/s", *samples, gpus=3)


def cell(part: Section | None, source: str, destination: str) -> str:
    return cells_of(table_of(part))[source][destination]


@pytest.mark.parametrize(("speed", "shade"), [(15.0, "█"), (9.0, "▓"), (4.0, "▒"), (3.9, "░")])
def test_the_shade_is_the_share_of_the_fastest_link(speed: float, shade: str) -> None:
    part = heat(pair(0, 1, 20.0), pair(1, 0, speed))
    assert cell(part, "GPU0", "GPU1").startswith("█")
    assert cell(part, "GPU1", "GPU0").startswith(shade)


def test_the_faster_path_stands_and_the_path_through_the_host_is_marked() -> None:
    part = heat(pair(0, 1, 5.0), pair(0, 1, 6.0, staged=True), pair(1, 0, 6.0), pair(1, 0, 5.0, staged=True))
    assert cell(part, "GPU0", "GPU1") == "█6.00s"
    assert cell(part, "GPU1", "GPU0").strip() == "█6.00"


def test_paths_that_are_as_fast_but_for_noise_are_not_marked() -> None:
    part = heat(
        pair(0, 1, 12.2), pair(0, 1, 12.5, staged=True), pair(1, 0, 12.2), pair(1, 0, 12.6, staged=True)
    )
    assert cell(part, "GPU0", "GPU1").strip() == "█12.2"
    assert cell(part, "GPU1", "GPU0") == "█12.6s"
    assert "s: through the host, 3% faster (or the only measured path)." in table_of(part).notes[0]


def test_the_only_path_that_was_measured_is_marked_if_it_is_the_host_s() -> None:
    part = heat(pair(0, 1, 5.0, staged=True), pair(1, 0, 5.0))
    assert cell(part, "GPU0", "GPU1").endswith("5.00s")
    assert cell(part, "GPU1", "GPU0").endswith("5.00 ")


def test_the_host_has_a_row_and_a_column_where_copies_with_it_were_measured() -> None:
    up = CopyRate(kind="h2d", source=End("host"), destination=End("gpu:0"), median_gb_per_s=10.0)
    part = heat(pair(0, 1, 20.0), up)
    assert cell(part, "host", "GPU0").strip() == "▓10.0"
    assert cell(part, "GPU0", "host") == "-"
    assert cell(part, "host", "host") == ""


def test_without_two_gpus_there_is_no_map() -> None:
    assert (
        heat(CopyRate(kind="h2d", source=End("host"), destination=End("gpu:0"), median_gb_per_s=10.0)) is None
    )
    assert heat() is None


def test_a_terminal_paints_the_shades() -> None:
    part = there(heat(pair(0, 1, 20.0), pair(1, 0, 10.0), pair(1, 2, 5.0), pair(2, 1, 1.0)))
    spans = [span for line in document_lines(Document("", "", (part,)), 78) for span in line]
    styles = {text[0]: style for text, style in spans if text[:1] in ("█", "▓", "▒", "░")}
    assert len(styles) == len(set(styles.values())) == 4


def rows(part: Section | None) -> dict[str, dict[str, str]]:
    return cells_of(table_of(part))


def ranges(*samples: Sample) -> dict[str, dict[str, str]]:
    return rows(section_of("Between GPUs, GB/s", *samples))


def latency(us: float, method: Method | None, path: Path = "direct") -> CopyLatency:
    return CopyLatency(
        kind="latency", source=End("gpu:0"), destination=End("gpu:1"), path=path, method=method, median_us=us
    )


def test_latencies_of_different_methods_are_different_rows() -> None:
    found = ranges(
        latency(1.2, "kernel_read"),
        latency(8.5, "copy_engine"),
        latency(7.0, "driver"),
        latency(15.0, "copy_engine", "staged"),
    )
    assert {name: row["median"] for name, row in found.items()} == {
        "latency us, direct, load": "1.20",
        "latency us, direct, 16 B copy": "8.50",
        "latency us, direct, small copy": "7.00",
        "latency us, staged, 16 B copy": "15.0",
    }


def test_both_directions_by_kernels_do_not_stand_for_the_copy_engine() -> None:
    both = replace(pair(0, 1, 52.0), kind="bidirectional", path="direct")
    found = ranges(both, replace(both, method="kernel_write", median_gb_per_s=300.0))
    assert found["both, direct"]["fastest"] == "52.0"
    assert found["both, kernels"]["fastest"] == "300"


def test_a_pair_that_is_not_used_does_not_make_the_range() -> None:
    odd = replace(pair(0, 1, 900.0), invalid="above_link")
    assert ranges(odd, pair(0, 2, 40.0))["direct"]["fastest"] == "40.0"
    assert ranges(odd, pair(0, 2, 40.0))["direct"]["pairs"] == "1 of 6"
    assert ranges(odd)["direct"]["fastest"] == "900?"


def fan(source: str, destination: str, speed: float, group: str, **more: Any) -> CopyRate:
    return CopyRate(
        kind="p2p_direct",
        source=End(source),
        destination=End(destination),
        group=group,
        median_gb_per_s=speed,
        **more,
    )


def test_one_to_all_and_all_to_one_have_a_row_for_each_gpu() -> None:
    samples = [fan("gpus", f"gpu:{gpu}", 400.0 + gpu, f"to {gpu}") for gpu in range(4)]
    samples += [fan("gpus", "gpu:1", 350.0, "kernels to 1", method="kernel_write")]
    found = rows(section_of("Between GPUs at once", *samples))
    assert {name: row["sum of all"] for name, row in found.items()} == {
        "to 0": "400", "to 1": "401", "to 2": "402", "to 3": "403", "kernels to 1": "350",
    }  # fmt: skip


def test_all_pairs_at_once_stand_beside_the_sum_of_each_alone() -> None:
    at_once = [fan(f"gpu:{a}", f"gpu:{b}", 5.0, "all pairs") for a, b in permutations(range(4), 2)]
    alone = [pair(a, b, 20.0) for a, b in permutations(range(4), 2)]
    found = rows(section_of("Between GPUs at once", *at_once, *alone))
    assert found["all pairs"]["sum of all"] == "60.0"
    assert found["all pairs"]["sum of each alone"] == "240"


def test_one_pair_in_both_directions_is_no_set_of_copies() -> None:
    both = [fan("gpu:0", "gpu:1", 5.0, "both", with_reverse=True), fan("gpu:1", "gpu:0", 5.0, "both")]
    assert section_of("Between GPUs at once", *both) is None
    assert section_of("Between GPUs at once", pair(0, 1, 5.0)) is None


def test_where_only_both_directions_at_once_were_measured_the_map_is_of_their_sums() -> None:
    both = [
        replace(pair(a, b, speed), kind="bidirectional", path="direct")
        for a, b, speed in ((0, 1, 48.5), (0, 3, 96.9), (1, 0, 48.0), (3, 0, 96.8))
    ]
    part = there(section_of("Links, GB/s", *both))
    assert "both directions at once, their sum" in part.title
    found = rows(part)
    assert "96.8" in found["GPU0"]["GPU3"]
    assert "96.8" in found["GPU3"]["GPU0"]
    one_way = there(section_of("Links, GB/s", *both, pair(0, 1, 20.0), pair(1, 0, 20.0)))
    assert "row to column" in one_way.title


def test_a_map_of_kernel_copies_alone_is_named_so() -> None:
    kernel = [replace(pair(a, b, 150.0), method="kernel_read") for a, b in ((0, 1), (1, 0))]
    part = there(section_of("Links, GB/s", *kernel))
    assert "Between GPUs copied by kernels: the copy engine was not measured." in table_of(part).notes[0]
    part = there(section_of("Links, GB/s", *kernel, pair(0, 1, 140.0), pair(1, 0, 140.0)))
    assert not any("kernels" in note for note in table_of(part).notes)


def test_copies_that_the_destination_reads_have_a_row_of_their_own() -> None:
    read = [replace(pair(a, b, 400.0), method="copy_engine_read") for a, b in ((0, 1), (1, 0))]
    found = ranges(pair(0, 1, 380.0), pair(1, 0, 381.0), *read)
    assert (found["direct"]["fastest"], found["direct, read"]["slowest"]) == ("381", "400")
    assert "direct" not in ranges(*read)
