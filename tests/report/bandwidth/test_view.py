"""Every format shows any bandwidth, whatever is missing or odd in it."""

import random
import re
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import bandwidth_document, document_markdown, document_text
from gputopo.values.bandwidth import (
    Bandwidth,
    CopyRate,
    Expectation,
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
def test_no_word_from_outside_moves_the_cursor_or_adds_a_cell(seed: int, width: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_text(bandwidth_document(machine, bandwidth, ()), width)
    markdown = document_markdown(bandwidth_document(machine, bandwidth, (), whole=True))
    assert text.strip()
    assert all(character.isprintable() for character in f"{text}{markdown}".replace("\n", ""))
    assert_tables_are_even(markdown)


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


def only(*samples: Sample, **more: Any) -> Bandwidth:
    return Bandwidth(source="test", samples=Samples(samples), **more)


def with_host(gpu: int, gb_per_s: float, **more: Any) -> Sample:
    return CopyRate(
        kind="h2d", source=End("host"), destination=End.of_gpus(gpu), median_gb_per_s=gb_per_s, **more
    )


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


def judged(expected: float | None, *more: Sample, gpus: int = 2) -> Bandwidth:
    alike = (with_host(gpu, 12.0, expectation=Expectation(gb_per_s=expected)) for gpu in (0, gpus - 1))
    return only(*alike, *more)


@pytest.mark.parametrize(
    ("bandwidth", "findings", "verdict"),
    [
        (judged(12.3), (), "All 2 rates as expected."),
        (judged(24.6), (), "0 of 2 rates as expected, 2 lower."),
        (
            judged(12.3, msgspec.structs.replace(pair(0, 1, 9.0), expectation=Expectation())),
            (),
            "1 not judged: no reference data",
        ),
        (judged(None), (), "Not judged: no reference for these rates."),
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
                    [
                        TransferRate(
                            kind="network",
                            source=End("host:a"),
                            destination=End("host:b"),
                            median_gb_per_s=1.0,
                        )
                    ]
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


def test_lines_that_were_not_understood_are_counted() -> None:
    lines = (LineCounts(source="test", read=5, known=1, not_understood=3),)
    machine = msgspec.structs.replace(machine_with(2), lines=lines)
    text = document_text(bandwidth_document(machine, only(), ()), 80)
    assert "3 lines not understood: gputopo" in text


@pytest.mark.parametrize(("gpus", "width"), [(2, 200), (16, 40)])
def test_up_to_sixteen_gpus_fit_the_screen_and_no_pair_is_lost(gpus: int, width: int) -> None:
    text = shown(bandwidth_of(gpus), gpus, width)
    assert max(map(len, text.splitlines())) <= width
    matrix = cells(part(text, "Staged through the host"))
    names = {f"GPU{gpu}" for gpu in range(gpus)}
    assert set(matrix) == {(row, column) for row in names for column in names}
    assert all(word for (row, column), word in matrix.items() if row != column)
