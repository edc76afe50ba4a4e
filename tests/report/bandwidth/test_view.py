"""Every format shows any bandwidth, whatever is missing or odd in it."""

import random
import re
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.findings import Finding
from gputopo.report.bandwidth.parts import bandwidth_document
from gputopo.report.document import document_text
from gputopo.report.markdown import document_markdown
from gputopo.values.bandwidth import Bandwidth, Conditions, Failure, NotMeasured, Sample
from gputopo.values.machine import LineCounts, Machine
from gputopo.values.subject import Subject
from tests.invented_bandwidths import bandwidth_of, machine_with, pair
from tests.invented_machines import invented_machine

Told = TypeVar("Told", bound=msgspec.Struct)
PLACES = ("host", "node:0", "node:1", "gpu:0", "gpu:1", "gpu:2", "gpu:11", "gpu:0,1", "\x1b[31m")


def reported(seed: int) -> tuple[Machine, Bandwidth]:
    """Return the machine of a number, and a bandwidth whose places are sometimes such that there are."""
    dice = random.Random(seed)
    machines = (invented_machine(dice.randrange(2**32)) for _ in range(20))
    machine = next((one for one in machines if one.bandwidth is not None), None)
    assert machine is not None
    assert machine.bandwidth is not None
    replace = msgspec.structs.replace

    def placed(one: Told) -> Told:
        return replace(one, source=dice.choice(PLACES), destination=dice.choice(PLACES))

    bandwidth = machine.bandwidth
    return machine, replace(
        bandwidth,
        samples=tuple(placed(one) for _ in range(5) for one in bandwidth.samples),
        failures=tuple(map(placed, bandwidth.failures)),
    )


@given(st.integers(0, 2**32), st.integers(40, 200))
def test_the_table_is_shown_and_no_word_from_outside_moves_the_cursor(seed: int, width: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_text(bandwidth_document(machine, bandwidth, ()), width)
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert re.search(r"^Bandwidth$", text, re.MULTILINE)
    assert re.search(r"^Findings$", text, re.MULTILINE)


@given(st.integers(0, 2**32))
def test_markdown_tables_have_as_many_cells_in_every_row(seed: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_markdown(bandwidth_document(machine, bandwidth, (), matrices=True))
    assert all(character.isprintable() for character in text.replace("\n", ""))
    table: list[int] = []
    for row in [*text.splitlines(), ""]:
        if row.startswith("| "):
            table.append(len(re.findall(r"(?<!\\)\|", row)))
        else:
            assert len(set(table)) <= 1
            table = []


def test_nothing_at_all_is_shown_as_such() -> None:
    text = document_text(bandwidth_document(Machine(source="none"), Bandwidth(source="live"), ()), 80)
    assert "Source  live" in text
    assert "GPU" not in text


FOUR = machine_with(4)
FOUND = (
    Finding(
        id="a.b", severity="warning", subject=Subject.parse("gpu:1"), says="odd | words", remedy="do *this*"
    ),
)


def shown(bandwidth: Bandwidth, gpus: int = 4, width: int = 80, findings: tuple[Finding, ...] = ()) -> str:
    return document_text(bandwidth_document(machine_with(gpus), bandwidth, findings, matrices=True), width)


def brief(*samples: Sample, gpus: int = 4) -> str:
    return document_text(bandwidth_document(machine_with(gpus), only(*samples), ()), 120)


def part(text: str, title: str) -> str:
    """Return the body under a heading, which may be folded."""
    found = re.search(rf"^{re.escape(title)}.*\n(?:\S.*\n)?((?:(?:  .*)?\n)*)", text, re.MULTILINE)
    assert found, f"no part {title!r} in:\n{text}"
    return found[1]


def cells(text: str) -> dict[tuple[str, str], str]:
    """Reads a printed matrix back, all blocks of it: (row, column) to what stands there."""
    found: dict[tuple[str, str], str] = {}
    for block in text.split("\n\n"):
        lines = block.splitlines()
        heads = [(one[0], one.end()) for one in re.finditer(r"GPU\d+|host", lines[0])] if lines else []
        for row in lines[1:]:
            if name := re.match(r"  (GPU\d+|host)\b", row):
                for head, end in heads:
                    word = re.search(r"\S*$", row[:end].ljust(end))
                    found[name[1], head] = word[0] if word else ""
    return found


def only(*samples: Sample) -> Bandwidth:
    return Bandwidth(source="test", samples=samples)


def test_every_number_of_a_gpu_stands_in_its_row() -> None:
    table = part(shown(bandwidth_of(4), width=200), "GPUs and host")
    rows = {row.split()[0]: row.split() for row in table.splitlines() if row.startswith("  GPU")}
    # GPU 2: to 12.25 + 0.2 of 12.6 expected, from 13.1 + 0.2, both, all at once, pageable, inside, latency.
    assert rows["GPU2"][1:] == [
        *("12.4", "12.6", "(99%)", "13.3", "21.5", "6.50", "4.75", "601", "8.25", "gen3", "x16", "P0")
    ]
    assert len(rows) == 4


def test_columns_of_what_nobody_measured_are_left_out() -> None:
    table = part(
        shown(only(Sample(kind="h2d", source="host", destination="gpu:0", median_gb_per_s=9.0))), "GPUs"
    )
    assert "to GPU" in table
    for absent in ("from", "pageable", "at once", "expected", "latency", "P-state"):
        assert absent not in table


def test_direct_staged_and_expected_are_matrices_from_row_to_column() -> None:
    samples = (pair(0, 1, 11.3), pair(1, 0, 6.25), pair(0, 1, 0.7712, staged=True))
    text = shown(only(*samples), gpus=2)
    assert cells(part(text, "Direct copies, GB/s (row to column)")) == {
        ("GPU0", "GPU0"): "", ("GPU0", "GPU1"): "11.3", ("GPU1", "GPU0"): "6.25", ("GPU1", "GPU1"): "",
    }  # fmt: skip
    assert cells(part(text, "Direct copies: expected"))["GPU1", "GPU0"] == "12.6"
    staged = cells(part(text, "Staged through the host, GB/s"))
    assert (staged["GPU0", "GPU1"], staged["GPU1", "GPU0"]) == ("0.77", "-")


def test_without_being_asked_for_the_matrices_are_one_row_for_each_path() -> None:
    samples = (
        pair(0, 1, 11.3), pair(1, 0, 6.25), pair(0, 2, 9.5), pair(0, 1, 0.7712, staged=True),
        Sample(kind="latency", source="gpu:0", destination="gpu:1", path="direct", median_us=7.5),
        Sample(kind="latency", source="gpu:1", destination="gpu:0", path="direct", median_us=9.0),
    )  # fmt: skip
    text = brief(*samples, gpus=3)
    assert "(row to column)\n        GPU0" in text  # the heat map
    assert "Direct copies" not in text
    table = part(text, "Between GPUs")
    assert re.search(r" direct +6\.25 +1 to 0 +9\.50 +11\.3 +12\.6 +3 of 6\n", table)
    assert re.search(r"through the host +0\.77 +0 to 1 +0\.77 +0\.77 +- +1 of 6\n", table)
    assert re.search(r"latency us, direct +9\.00 +1 to 0 +8\.25 +7\.50 +- +2 of 6\n", table)
    assert "--matrices" in table


def test_a_path_that_failed_everywhere_has_its_row() -> None:
    failed = Failure(
        kind="p2p_direct", source="gpu:0", destination="gpu:1", reason="WRONG_DATA", says="1 word differs"
    )
    bandwidth = Bandwidth(source="test", samples=(pair(1, 0, 2.0, staged=True),), failures=(failed,))
    text = document_text(bandwidth_document(machine_with(2), bandwidth, ()), 120)
    assert re.search(r" direct +- +- +- +- +0 of 2 +1\n", part(text, "Between GPUs"))


def test_copies_by_kernels_and_both_directions_at_once_have_matrices_of_their_own() -> None:
    replace = msgspec.structs.replace
    text = shown(
        only(
            pair(0, 1, 11.0),
            replace(pair(0, 1, 9.0), method="kernel_read"),
            replace(pair(0, 1, 8.0), method="kernel_write"),
            replace(pair(0, 1, 20.0), kind="bidirectional", path="direct"),
            replace(pair(0, 1, 7.0), kind="bidirectional", path="staged"),
            replace(pair(0, 1, 1.0), kind="latency", path="direct", median_gb_per_s=None, median_us=1.25,
                    method="kernel_read"),
        ),
        gpus=2,
    )  # fmt: skip
    assert cells(part(text, "Direct copies, GB/s"))["GPU0", "GPU1"] == "11.0"
    assert cells(part(text, "Direct, read by a kernel on the column's GPU"))["GPU0", "GPU1"] == "9.00"
    assert cells(part(text, "Direct, written by a kernel on the row's GPU"))["GPU0", "GPU1"] == "8.00"
    both = cells(part(text, "Bidirectional, direct"))
    assert both["GPU0", "GPU1"] == both["GPU1", "GPU0"] == "20.0"
    assert cells(part(text, "Bidirectional, staged"))["GPU1", "GPU0"] == "7.00"
    assert cells(part(text, "Latency (pointer chase), direct, us"))["GPU0", "GPU1"] == "1.25"


def test_a_copy_that_failed_is_marked_in_its_cell_and_explained() -> None:
    text = shown(bandwidth_of(4))
    read = cells(part(text, "Direct, read by a kernel"))
    assert (read["GPU0", "GPU1"], read["GPU1", "GPU0"]) == ("FAIL", "-")
    assert "WRONG_DATA: 3 words differ" in part(text, "Failed")
    assert "p2p_direct gpu:0 to gpu:1 (kernel_read)" in part(text, "Failed")


def test_the_heat_map_shades_by_the_fastest_and_marks_what_goes_through_the_host() -> None:
    text = part(shown(bandwidth_of(4), width=120), "Heat map")
    assert "██ 11.3" in text
    assert "▓▓ 6.25" in text
    assert "░░ 0.77s" in text
    assert "██ 12.2" in text.splitlines()[5]  # from the host
    assert "s: through the host" in text


def test_uplinks_host_memory_and_what_was_thrown_away_are_reported() -> None:
    text = shown(bandwidth_of(4), width=120)
    uplinks = part(text, "Shared uplinks")
    for words in ("GPUs 0-1", "13.0 GB/s together", "24.6", "0000:00:01.0", "the PCI tree agrees"):
        assert words in uplinks
    assert re.search(r"node 0 +node 1 +31\.4", part(text, "Host memory"))
    assert "8 repeats on GPU 0-3 discarded: clock ramp-up" in part(text, "Notes")
    assert "far memory node" in part(text, "Not measured")


def test_a_reduction_is_a_table_with_the_fastest_method_first() -> None:
    def reduced(method: str, us: float) -> Sample:
        return Sample(kind="allreduce", source="gpu:0,1", destination="gpu:0,1", algorithm=method,
                      model="alexnet", bytes=250_000_000, median_us=us, median_gb_per_s=250_000 / us,
                      bus_gb_per_s=250_000 / us)  # fmt: skip

    body = part(shown(only(reduced("copy", 50_000), reduced("nccl", 25_000))), "Reduction of the gradients")
    nccl, copy = (row.split() for row in body.splitlines() if re.match(r"  (nccl|copy)", row))
    assert nccl[:4] == ["nccl", "25.0", "10.0", "10.0"]
    assert copy[:4] == ["copy", "50.0", "5.00", "5.00"]


def test_a_sweep_is_a_table_by_size() -> None:
    sizes = [4096 << step for step in range(18)]
    samples = [
        Sample(kind="h2d", source="host", destination=f"gpu:{gpu}", bytes=size, pinned=True,
               median_gb_per_s=size / 2**25 + gpu)
        for size in sizes
        for gpu in (0, 1)
    ]  # fmt: skip
    body = part(shown(only(*samples), gpus=2), "By size, GB/s: host to GPU")
    assert re.search(r"4\.0 KiB +0\.00 +1\.00", body)
    assert re.search(r"512\.0 MiB +16\.0 +17\.0", body)
    assert len(body.strip().splitlines()) == 1 + len(sizes)


def test_near_and_far_memory_stand_side_by_side() -> None:
    samples = [
        Sample(kind="h2d", source="host", destination="gpu:0", numa_node=node, median_gb_per_s=speed)
        for node, speed in ((0, 12.0), (1, 9.0))
    ]
    text = shown(only(*samples), gpus=1)
    assert re.search(r"GPU0 +12\.0 +9\.00", part(text, "GPUs by NUMA node"))
    assert re.search(r"GPU0 +12\.0", part(text, "GPUs and host"))  # the GPU's own node


def test_throttling_is_reported_and_idling_is_not() -> None:
    seen = tuple(
        Conditions(gpu=gpu, readings=1, throttle_reasons=("gpu_idle", "sw_power_cap")) for gpu in (0, 1)
    )
    sample = Sample(kind="h2d", source="host", destination="gpu:0", median_gb_per_s=1.0, conditions=seen)
    notes = part(shown(only(sample)), "Notes")
    assert "GPU 0-1 was throttled while measured: sw_power_cap" in notes
    assert "idle" not in notes


def test_an_interrupted_session_reports_it() -> None:
    text = shown(msgspec.structs.replace(bandwidth_of(2), complete=False), gpus=2)
    assert "no: ended early" in part(text, "Bandwidth")


def test_a_capture_that_ends_early_reports_it() -> None:
    text = shown(msgspec.structs.replace(only(), complete=False))
    assert "no: the capture ends early" in part(text, "Bandwidth")


def test_lines_that_were_not_understood_are_counted() -> None:
    for missed, words in ((0, ""), (3, "3 not understood: gputopo inspect --from lists them")):
        lines = (LineCounts(source="test", read=5, known=1, not_understood=missed),)
        machine = msgspec.structs.replace(machine_with(2), lines=lines)
        text = document_text(bandwidth_document(machine, only(), ()), 80)
        assert ("Lines" in text) is bool(words)
        assert words in text


def test_many_numbers_that_were_not_taken_for_one_reason_are_cut_and_counted() -> None:
    reported = tuple(NotMeasured(what=f"copy {number}", reason="time") for number in range(20))
    body = part(shown(msgspec.structs.replace(only(), not_measured=reported)), "Not measured")
    assert "copy 5" in body
    assert "copy 6" not in body
    assert "and 14 more" in body


def test_notes_that_differ_in_a_gpu_only_are_reported_once() -> None:
    notes = tuple(f"it is taken as GPU {gpu} by its file" for gpu in (0, 1, 2, 6))
    body = part(shown(msgspec.structs.replace(only(), notes=(*notes, "GPU 1 and GPU 2"))), "Notes")
    assert body.split("\n")[:2] == ["  - it is taken as GPU 0-2,6 by its file", "  - GPU 1 and GPU 2"]


def test_findings_are_shown_as_inspect_shows_them() -> None:
    found = Finding(
        id="p2p.slow", severity="warning", subject=Subject.parse("link:0-1"), says="slow", remedy="look"
    )
    body = part(shown(bandwidth_of(2), gpus=2, findings=(found,)), "Findings")
    assert re.search(r"warning +link:0-1 +p2p\.slow\n +slow\n +To do: look", body)
    assert "None." in part(shown(bandwidth_of(2), gpus=2), "Findings")


@pytest.mark.parametrize("gpus", [1, 2, 8, 16])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_up_to_sixteen_gpus_fit_the_screen_and_no_pair_is_lost(gpus: int, width: int) -> None:
    text = shown(bandwidth_of(gpus) if gpus > 1 else only(*bandwidth_of(2).samples[:7]), gpus, width)
    assert max(map(len, text.splitlines())) <= width
    if gpus > 1:
        matrix = cells(part(text, "Staged through the host"))
        names = {f"GPU{gpu}" for gpu in range(gpus)}
        assert set(matrix) == {(row, column) for row in names for column in names}
        assert all(word for (row, column), word in matrix.items() if row != column)


def test_markdown_has_the_same_numbers_in_tables_with_equally_many_cells() -> None:
    text = document_markdown(bandwidth_document(machine_with(4), bandwidth_of(4), FOUND, matrices=True))
    assert re.search(r"^\| GPU2 \| 6\.25 \| 6\.25 \|  \| 0\.73 \|$", text, re.MULTILINE)
    assert re.search(r"^\| GPU0 \| 12\.2 \| 12\.6 \(97%\) \| 13\.1 \|", text, re.MULTILINE)
    assert "░░ 0.77s" in text
    table: list[int] = []
    for row in [*text.splitlines(), ""]:
        if row.startswith("|"):
            table.append(len(re.findall(r"(?<!\\)\|", row)))
        else:
            assert len(set(table)) <= 1
            table = []


def test_markdown_has_the_findings_the_failures_and_what_was_not_measured_as_they_are() -> None:
    text = document_markdown(bandwidth_document(machine_with(4), bandwidth_of(4), FOUND, matrices=True))
    assert "- **warning** `a.b` (gpu:1)\n  - odd \\| words\n  - To do: do \\*this\\*" in text
    assert "| p2p\\_direct gpu:0 to gpu:1 (kernel\\_read) | WRONG\\_DATA: 3 words differ |" in text
    assert "### Not measured" in text
