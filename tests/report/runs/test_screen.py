"""The report of a screen."""

import msgspec
import pytest

from gputopo.report.document import document_text
from gputopo.report.runs.screen import screen_document
from gputopo.runs.screen import device_rows
from tests.runs.test_screen import NAMES, runs, screen_of

SPEEDS = {0: 1560.0, 1: 1320.6, 2: 1541.7, 3: 1474.8, 4: 1558.0, 5: 1557.0}
CLOCKS = {0: 1885.0, 1: 1790.0, 2: 1873.0, 3: 1790.0, 4: 1885.0, 5: 1880.0}


@pytest.mark.parametrize("width", [60, 80, 160])
def test_every_gpu_has_its_row_and_its_sentence_within_the_width(width: int) -> None:
    found = runs(SPEEDS, CLOCKS)
    screen = msgspec.structs.replace(screen_of(found), devices=device_rows(NAMES, found))
    text = document_text(screen_document(screen), width)
    assert all(len(line) <= width for line in text.splitlines())
    for word in ("! slow 15 %", "! slow 5.2 %", "84.7", "unexplained"):
        assert word in text
    assert " ".join(text.split()).count("is not slower than GPU") == 3


def test_a_failed_run_has_its_reason_and_an_incomplete_screen_is_named() -> None:
    found = runs({0: 100.0, 1: 100.0})
    failed = msgspec.structs.replace(
        found[0], kind="together", images_per_sec=None, noise=None, failure="out of memory"
    )
    screen = screen_of((*found, failed))
    screen = msgspec.structs.replace(
        screen, complete=False, devices=device_rows({0: "A", 1: "A"}, screen.runs)
    )
    text = document_text(screen_document(screen))
    assert "failed: out of memory" in text
    assert "Not complete: runs were left out." in text
