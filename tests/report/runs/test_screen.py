"""The report of a screen."""

import msgspec

from gputopo.report import document_text, screen_document
from gputopo.runs import device_rows
from tests.runs.test_screen import NAMES, runs, screen_of

SPEEDS = {0: 1560.0, 1: 1320.6, 2: 1541.7, 3: 1474.8, 4: 1558.0, 5: 1557.0}
CLOCKS = {0: 1885.0, 1: 1790.0, 2: 1873.0, 3: 1790.0, 4: 1885.0, 5: 1880.0}


def test_every_gpu_has_its_row_and_a_slow_one_its_sentence_within_the_width() -> None:
    found = runs(SPEEDS, CLOCKS)
    screen = msgspec.structs.replace(screen_of(found), devices=device_rows(NAMES, found))
    text = document_text(screen_document(screen), 60)
    assert all(len(line) <= 60 for line in text.splitlines())
    for word in ("! slow 15%", "! slow 5.4%", "84.7", "unexplained"):
        assert word in text
    words = " ".join(text.split())
    assert words.startswith("Slow: GPUs 1, 3 (")
    assert words.count("GPU 1 is 15% slower than GPU") == words.count("GPU 3 is 5.4% slower than GPU") == 1
    assert "is not slower than GPU" not in words


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
    assert "Incomplete: some runs were skipped." in text


def test_a_screen_on_a_busy_host_begins_with_that_its_speeds_are_not_reliable() -> None:
    busy = "other programs used 40% of the CPU"
    found = runs({0: 100.0, 1: 99.5})
    found = (msgspec.structs.replace(found[0], busy=busy), *found[1:])
    screen = msgspec.structs.replace(screen_of(found), devices=device_rows(TWO, found))
    text = document_text(screen_document(screen), 120)
    assert text.startswith(f"NOT RELIABLE: 1 of 6 runs on a busy host; in the first, {busy}.\nNo slow")


def headline(speeds: dict[int, float], *, complete: bool, names: dict[int, str | None]) -> str:
    found = runs(speeds)
    screen = msgspec.structs.replace(screen_of(found), complete=complete, devices=device_rows(names, found))
    return document_text(screen_document(screen), 200).partition(" (")[0]


TWO: dict[int, str | None] = {0: "A", 1: "A"}


def test_a_screen_that_compared_nothing_clears_no_device() -> None:
    early = headline({0: 100.0}, complete=False, names=TWO)
    assert early.startswith("Not decided: the screen ended after ")
    assert early.endswith(" runs, no GPU was compared with another")
    other_models = headline({0: 100.0, 1: 50.0}, complete=True, names={0: "A", 1: "B"})
    assert other_models == "Not decided: no GPU was compared with another"


def test_only_devices_that_were_judged_are_called_not_slow() -> None:
    names: dict[int, str | None] = {0: "A", 1: "A", 2: "B"}
    some = headline({0: 100.0, 1: 99.5, 2: 50.0}, complete=True, names=names)
    assert some == "GPUs 0, 1 are not slow; not decided for GPU 2"
