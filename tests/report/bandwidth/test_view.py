"""Every format shows any bandwidth, whatever is missing or odd in it."""

import random
import re
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import bandwidth_document, document_markdown, document_text
from gputopo.values.bandwidth import (
    Bandwidth,
    CollectiveRate,
    Conditions,
    CopyLatency,
    CopyRate,
    Expectation,
    Failure,
    NotMeasured,
    Sample,
    Samples,
    TransferRate,
)
from gputopo.values.ends import End
from gputopo.values.finding import Finding
from gputopo.values.machine import LineCounts, Machine
from gputopo.values.subject import Subject
from tests import there
from tests.invented_bandwidths import bandwidth_of, machine_with, pair
from tests.invented_machines import invented_machine
from tests.report.shown import assert_tables_are_even

Told = TypeVar("Told", bound=msgspec.Struct)
_PLACES = ("host", "node:0", "node:1", "gpu:0", "gpu:1", "gpu:2", "gpu:11", "gpu:0,1", "\x1b[31m")
PLACES = tuple(map(End, _PLACES))


def reported(seed: int) -> tuple[Machine, Bandwidth]:
    """Return the machine of a number, and a bandwidth whose places are sometimes such that there are."""
    dice = random.Random(seed)
    machines = (invented_machine(dice.randrange(2**32)) for _ in range(20))
    machine = there(next((one for one in machines if one.bandwidth is not None), None))
    replace = msgspec.structs.replace

    def placed(one: Told) -> Told:
        return replace(one, source=dice.choice(PLACES), destination=dice.choice(PLACES))

    bandwidth = there(machine.bandwidth)
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
    assert text.strip()


@given(st.integers(0, 2**32))
def test_markdown_tables_have_as_many_cells_in_every_row(seed: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_markdown(bandwidth_document(machine, bandwidth, (), whole=True))
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert_tables_are_even(text)


def test_nothing_at_all_is_shown_as_such() -> None:
    text = document_text(bandwidth_document(Machine(source="none"), Bandwidth(source="live"), ()), 80)
    assert text == "Nothing was measured.\n\nSource: live. Details: --all.\n"
    assert "GPU" not in text


FOUND = (
    Finding(
        id="a.b", severity="warning", subject=Subject.parse("gpu:1"), says="odd | words", remedy="do *this*"
    ),
)


def shown(bandwidth: Bandwidth, gpus: int = 4, width: int = 80, findings: tuple[Finding, ...] = ()) -> str:
    return document_text(bandwidth_document(machine_with(gpus), bandwidth, findings, whole=True), width)


def brief(bandwidth: Bandwidth, gpus: int = 4, findings: tuple[Finding, ...] = ()) -> str:
    return document_text(bandwidth_document(machine_with(gpus), bandwidth, findings), 80)


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
    return Bandwidth(source="test", samples=Samples(samples))


def test_every_number_of_a_gpu_stands_in_its_row() -> None:
    table = part(shown(bandwidth_of(4), width=200), "GPUs, GB/s")
    rows = {row.split()[0]: row.split() for row in table.splitlines() if row.startswith("  GPU")}
    # GPU 2: to 12.25 + 0.2 of 12.6 expected, from 13.1 + 0.2, both, all at once, pageable, inside, latency.
    assert rows["GPU2"][1:] == [
        *("12.4", "of", "12.6", "13.3", "21.5", "6.50", "4.75", "601", "8.25", "gen3", "x16", "P0")
    ]
    assert len(rows) == 4


def test_columns_of_what_nobody_measured_are_left_out() -> None:
    table = part(
        shown(only(CopyRate(kind="h2d", source=End("host"), destination=End("gpu:0"), median_gb_per_s=9.0))),
        "GPUs",
    )
    assert "to GPU" in table
    for absent in ("from", "pageable", "at once", " of ", "latency", "P-state"):
        assert absent not in table


def test_each_kind_of_copy_between_gpus_has_a_matrix_with_its_size_and_number() -> None:
    replace = msgspec.structs.replace
    direct = replace(pair(0, 1, 11.3), bytes=1 << 26, repeats_gb_per_s=(11.3,) * 5)
    beside = replace(pair(1, 0, 9.5), group="both", with_reverse=True)
    samples = (
        direct, pair(1, 0, 6.25), beside, pair(0, 1, 0.7712, staged=True),
        replace(pair(0, 1, 9.0), method="kernel_read"),
        replace(pair(0, 1, 8.0), method="kernel_write"),
        replace(pair(0, 1, 20.0), kind="bidirectional", path="direct"),
        replace(pair(0, 1, 7.0), kind="bidirectional", path="staged"),
        CopyLatency(source=End("gpu:0"), destination=End("gpu:1"), path="direct", method="kernel_read",
                    bytes=direct.bytes and 1 << 25, median_us=1.25),
    )  # fmt: skip
    text = shown(only(*samples), gpus=2)
    assert cells(part(text, "Direct, GB/s; 64.0 MiB, 1-5 times")) == {
        ("GPU0", "GPU0"): "", ("GPU0", "GPU1"): "11.3", ("GPU1", "GPU0"): "6.25", ("GPU1", "GPU1"): "",
    }  # fmt: skip
    staged = cells(part(text, "Staged through the host, GB/s"))
    assert (staged["GPU0", "GPU1"], staged["GPU1", "GPU0"]) == ("0.77", "-")
    assert cells(part(text, "Direct, one direction while the other is used"))["GPU1", "GPU0"] == "9.50"
    assert cells(part(text, "Direct, read by a kernel on the column's GPU"))["GPU0", "GPU1"] == "9.00"
    assert cells(part(text, "Direct, written by a kernel on the row's GPU"))["GPU0", "GPU1"] == "8.00"
    both = cells(part(text, "Both directions at once (sum), direct"))
    assert both["GPU0", "GPU1"] == both["GPU1", "GPU0"] == "20.0"
    assert cells(part(text, "Both directions at once (sum), staged"))["GPU1", "GPU0"] == "7.00"
    assert cells(part(text, "Latency us, direct (load)"))["GPU0", "GPU1"] == "1.25"


def test_each_kind_of_copy_between_gpus_has_a_row_of_its_range() -> None:
    samples = (
        pair(0, 1, 11.3),
        pair(1, 0, 6.25),
        pair(0, 2, 9.5),
        pair(0, 1, 0.7712, staged=True),
        CopyLatency(
            kind="latency", source=End("gpu:0"), destination=End("gpu:1"), path="direct", median_us=7.5
        ),
        CopyLatency(
            kind="latency", source=End("gpu:1"), destination=End("gpu:0"), path="direct", median_us=9.0
        ),
    )
    failed = Failure(
        kind="p2p_direct",
        source=End("gpu:2"),
        destination=End("gpu:1"),
        reason="WRONG_DATA",
        says="1 word differs",
    )
    table = part(shown(msgspec.structs.replace(only(*samples), failures=(failed,)), 3, 120), "Between GPUs")
    assert re.search(r" direct +6\.25 +1 to 0 +9\.50 +11\.3 +12\.6 +3 of 6 +1\n", table)
    assert re.search(r" staged +0\.77 +0 to 1 +0\.77 +0\.77 +- +1 of 6 +-\n", table)
    assert re.search(r"latency us, direct, small copy +9\.00 +1 to 0 +8\.25 +7\.50 +- +2 of 6 +-\n", table)


def test_a_copy_that_failed_is_marked_in_its_cell_and_explained() -> None:
    text = shown(bandwidth_of(4))
    read = cells(part(text, "Direct, read by a kernel"))
    assert (read["GPU0", "GPU1"], read["GPU1", "GPU0"]) == ("FAIL", "-")
    assert "WRONG_DATA: 3 words differ" in part(text, "Failed")
    assert "p2p_direct gpu:0 to gpu:1 (kernel_read)" in part(text, "Failed")


def test_host_memory_and_what_was_thrown_away_are_reported() -> None:
    text = shown(bandwidth_of(4), width=120)
    assert re.search(r"node 0 +node 1 +31\.4", part(text, "Host memory"))
    assert "8 repeats on GPU 0-3 discarded: clock ramp-up" in part(text, "Notes")
    assert "far memory node" in part(text, "Not measured")


def test_a_reduction_is_a_table_with_the_fastest_method_first() -> None:
    def reduced(method: str, us: float) -> Sample:
        return CollectiveRate(
            kind="allreduce",
            source=End("gpu:0,1"),
            destination=End("gpu:0,1"),
            algorithm=method,
            model="alexnet",
            bytes=250_000_000,
            median_us=us,
            median_gb_per_s=250_000 / us,
            bus_gb_per_s=250_000 / us,
        )

    body = part(shown(only(reduced("copy", 50_000), reduced("nccl", 25_000))), "Reduction of the gradients")
    nccl, copy = (row.split() for row in body.splitlines() if re.match(r"  (nccl|copy)", row))
    assert nccl[:4] == ["nccl", "25.0", "10.0", "10.0"]
    assert copy[:4] == ["copy", "50.0", "5.00", "5.00"]


def test_a_sweep_is_a_table_by_size() -> None:
    sizes = [4096 << step for step in range(18)]
    samples = [
        CopyRate(kind="h2d", source=End("host"), destination=End(f"gpu:{gpu}"), bytes=size, pinned=True,
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
        CopyRate(
            kind="h2d", source=End("host"), destination=End("gpu:0"), numa_node=node, median_gb_per_s=speed
        )
        for node, speed in ((0, 12.0), (1, 9.0))
    ]
    text = shown(only(*samples), gpus=1)
    assert re.search(r"GPU0 +12\.0 +9\.00", part(text, "GPUs by NUMA node"))
    assert re.search(r"GPU0 +12\.0", part(text, "GPUs, GB/s"))  # the GPU's own node


def test_throttling_is_reported_and_idling_is_not() -> None:
    seen = tuple(
        Conditions(gpu=gpu, readings=1, throttle_reasons=("gpu_idle", "sw_power_cap")) for gpu in (0, 1)
    )
    sample = CopyRate(
        kind="h2d", source=End("host"), destination=End("gpu:0"), median_gb_per_s=1.0, conditions=seen
    )
    notes = part(shown(only(sample)), "Notes")
    assert "GPU 0-1 was throttled while measured: sw_power_cap" in notes
    assert "idle" not in notes


SLOW = Finding(
    id="bandwidth.below_expected",
    severity="warning",
    subject=Subject.parse("gpu:2"),
    says="GPU 2 (H100, 0000:07:00.0): copies to the host reach about 30% of the expected rate",
    evidence={"gb_per_s": 3.1, "expected_gb_per_s": 12.3, "fits": ["Gen3 x4"]},
    remedy="look",
)
NARROW = msgspec.structs.replace(
    SLOW,
    id="pcie.slot_narrow",
    says="GPU 2: copies as fast as a Gen3 x4 link",
    evidence={"fits": ["Gen3 x4"]},
)
PAIR = msgspec.structs.replace(
    SLOW,
    subject=Subject.parse("link:0-1"),
    says="direct copies",
    evidence={"pairs": {"0>1": {"gb_per_s": 6.13, "as_its_equals_gb_per_s": 12.3}}},
)
LOST = msgspec.structs.replace(
    SLOW, id="bandwidth.copy_failed", severity="error", subject=Subject.parse("machine"), evidence={},
    says="out of memory (CUDA_ERROR_OUT_OF_MEMORY): 8 copies failed: host to gpu:0",
)  # fmt: skip


ALL_REDUCE = CollectiveRate(
    kind="allreduce",
    source=End("gpus:0-7"),
    destination=End("gpus:0-7"),
    median_gb_per_s=134.4,
    bus_gb_per_s=235.3,
    expectation=Expectation(gb_per_s=235.0, low_gb_per_s=228.0),
)


def judged(expected: float | None, *more: Sample, gpus: int = 2) -> Bandwidth:
    one = CopyRate(
        kind="h2d",
        source=End("host"),
        destination=End("gpu:0"),
        median_gb_per_s=12.0,
        expectation=Expectation(gb_per_s=expected),
    )
    return only(one, msgspec.structs.replace(one, destination=End.of_gpus(gpus - 1)), *more)


@pytest.mark.parametrize(
    ("bandwidth", "findings", "verdict"),
    [
        (judged(12.3), (), "All 2 rates as expected."),
        (judged(24.6), (), "0 of 2 rates as expected, 2 lower."),
        (only(ALL_REDUCE), (), "As expected."),
        (
            judged(12.3, msgspec.structs.replace(pair(0, 1, 9.0), expectation=Expectation())),
            (),
            "1 not judged: no reference data",
        ),
        (judged(None), (), "Not judged: no reference for these rates."),
        (judged(None, gpus=1), (), "Not judged: no reference for these rates.\n"),
        (judged(12.3), (SLOW,), "1 warning: GPU 2 at 3.10 of 12.3 GB/s: Gen3 x4."),
        (
            judged(12.3),
            (PAIR, NARROW),
            "2 warnings: GPUs 0-1 at 6.13 of 12.3 GB/s; GPU 2 as fast as Gen3 x4.",
        ),
        (judged(12.3), (LOST, SLOW), "1 error, 1 warning: out of memory; GPU 2 at 3.10 of 12.3 GB/s"),
        (msgspec.structs.replace(judged(12.3), complete=False), (), "The capture ends early: All 2 rates"),
        (
            Bandwidth(
                source="live",
                samples=Samples(
                    (
                        TransferRate(
                            kind="network",
                            source=End("host:a"),
                            destination=End("host:b"),
                            median_gb_per_s=1.0,
                        ),
                    )
                ),
            ),
            (),
            "No host or pair is slow: hosts were only compared with each other.",
        ),
        (only(), (), "Nothing was measured."),
    ],
)
def test_the_first_line_is_the_answer(
    bandwidth: Bandwidth, findings: tuple[Finding, ...], verdict: str
) -> None:
    text = " ".join(brief(bandwidth, 2, findings).split())
    assert " ".join(verdict.split()) in text


def test_the_first_screen_has_what_fits_and_the_remedy_of_the_worst() -> None:
    more = tuple(msgspec.structs.replace(SLOW, id=f"a.b{n}", severity="info") for n in range(8))
    text = brief(judged(12.3), 2, (SLOW, *more))
    assert text.count("To do: look") == 1
    assert "3 more" in text
    assert shown(judged(12.3), 2, findings=(SLOW, *more)).count("To do: look") == 9


def test_what_was_not_measured_is_one_line() -> None:
    entries = tuple(NotMeasured(what=f"copy {n}", reason=f"reason {n % 3}") for n in range(9))
    text = brief(msgspec.structs.replace(judged(12.3), not_measured=entries))
    assert "Not measured: 9 copies or tests (reason 0; reason 1 and 1 other reason)." in text
    assert "--all." in text


def test_lines_that_were_not_understood_are_counted() -> None:
    for missed, words in ((0, ""), (3, "3 lines not understood: gputopo inspect --from lists them")):
        lines = (LineCounts(source="test", read=5, known=1, not_understood=missed),)
        machine = msgspec.structs.replace(machine_with(2), lines=lines)
        text = document_text(bandwidth_document(machine, only(), ()), 80)
        assert ("not understood" in text) is bool(words)
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
    text = document_markdown(bandwidth_document(machine_with(4), bandwidth_of(4), FOUND, whole=True))
    assert re.search(r"^\| GPU2 \| 6\.25 \| 6\.25 \|  \| 0\.73 \|$", text, re.MULTILINE)
    assert re.search(r"^\| GPU0 \| 12\.2 of 12\.6 \| 13\.1 \|", text, re.MULTILINE)
    assert "░0.77s" in text
    assert_tables_are_even(text)


def test_markdown_has_the_findings_the_failures_and_what_was_not_measured_as_they_are() -> None:
    text = document_markdown(bandwidth_document(machine_with(4), bandwidth_of(4), FOUND, whole=True))
    assert "- **warning** `a.b` (GPU 1)\n  - odd \\| words\n  - To do: do \\*this\\*" in text
    assert "| p2p\\_direct gpu:0 to gpu:1 (kernel\\_read) | WRONG\\_DATA: 3 words differ |" in text
    assert "### Not measured" in text
