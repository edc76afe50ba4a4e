import msgspec

from gputopo.report import bandwidth_change_document, document_text
from gputopo.values.difference import BandwidthDifference, Changed

WORSE = Changed(
    what="h2d host to gpu:1 (pinned)", was=12.25, is_=6.1, percent=-50.2, noise_percent=3.0, better=False,
    conditions=("GPU 1: PCIe lanes 8, was 16",),
)  # fmt: skip
BETTER = msgspec.structs.replace(
    WORSE, what="latency host to gpu:0", was=9.0, is_=6.0, percent=-33.3, better=True, microseconds=True,
    conditions=(),
)  # fmt: skip


def shown(found: BandwidthDifference) -> str:
    return " ".join(document_text(bandwidth_change_document(found, "2026-11-18"), 80).split())


def test_what_sank_and_what_rose_stand_apart_with_both_numbers_and_the_noise() -> None:
    text = shown(BandwidthDifference(changes=(WORSE, BETTER), compared=20))
    worse, _, better = text.partition("Better than on 2026-11-18")
    assert "Worse than on 2026-11-18" in worse
    assert "6.10 GB/s, was 12.2 (-50.2%, noise 3.0%); GPU 1: PCIe lanes 8, was 16" in worse
    assert "6.00 us, was 9.00 (-33.3%, noise 3.0%)" in better
    assert "20 numbers compared" in better


def test_nothing_new_is_reported_and_so_is_that_nothing_could_be_compared() -> None:
    assert "nothing changed beyond noise" in shown(BandwidthDifference(compared=3))
    none = shown(BandwidthDifference())
    assert "No number could be compared" in none
    assert "nothing changed" not in none


def test_what_fails_now_is_reported_and_long_lists_are_cut() -> None:
    found = BandwidthDifference(
        compared=1, failing=("h2d host to gpu:0: WRONG_DATA",), gone=tuple(f"copy {n}" for n in range(9))
    )
    text = shown(found)
    assert "Fails now, worked before - h2d host to gpu:0: WRONG_DATA" in text
    assert "copy 4 - and 4 more" in text
