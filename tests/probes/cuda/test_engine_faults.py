"""What goes wrong stays with the copies that it is about: each fault on the double of the driver."""

import pytest

from gputopo.probes import CopyTime
from gputopo.values.bandwidth import Failure
from tests.probes.cuda.doubled import (
    MIB,
    alone,
    both,
    box,
    d2h,
    direct,
    h2d,
    latency,
    local,
    measure,
    needs_gcc,
    read,
    staged,
    together,
    write,
)
from tests.probes.cuda.engine_worker import Report

pytestmark = needs_gcc


def _failed(copy: CopyTime) -> Failure:
    assert copy.failure is not None
    assert (copy.gb_per_s, copy.seconds) == (0.0, 0.0)
    return copy.failure


def _good(copy: CopyTime) -> None:
    assert copy.failure is None, copy.failure
    assert copy.gb_per_s > 0


def test_wrong_data_is_named_with_its_place_and_the_other_paths_go_on() -> None:
    report = measure(box("2x4", "wrong@h2d:1"), [together(h2d(0), h2d(1), h2d(2)), alone(d2h(2))])
    fine, bad, also = report.windows[0].copies
    _good(fine)
    _good(also)
    assert _failed(bad).reason == "WRONG_DATA"
    assert "byte " in _failed(bad).says
    _good(report.windows[1].copies[0])


def test_without_kernels_everything_else_is_measured_and_checked() -> None:
    spec = box("2x4", "wrong@h2d:1", "oldsymbols=cuModuleLoadData")
    jobs = [alone(direct(0, 1)), alone(local(0)), alone(read(0, 1)), latency(read(0, 1)), alone(h2d(1))]
    report = measure(spec, jobs)
    *measured, read_peer, chase, wrong = (window.copies[0] for window in report.windows)
    for copy in measured:
        _good(copy)
    for copy in (read_peer, chase):
        assert "cuModuleLoadData" in _failed(copy).says
    assert _failed(wrong).reason == "WRONG_DATA"
    assert all(reported and "kernels" in reported for reported in report.kernels.values())


def test_a_copy_that_ends_with_an_error_fails_alone() -> None:
    jobs = [alone(direct(0, 1)), alone(direct(1, 0)), alone(staged(0, 1))]
    report = measure(box("2x4", "late@engine:0-1=999"), jobs)
    refused, back, around = (window.copies[0] for window in report.windows)
    assert _failed(refused).reason == "CUDA_ERROR_UNKNOWN"
    _good(back)
    _good(around)


def test_a_lost_gpu_fails_at_once_from_then_on_and_the_rest_goes_on() -> None:
    jobs = [
        together(h2d(0), h2d(1)),
        *[alone(h2d(1))] * 3,
        alone(staged(0, 1)),
        alone(h2d(0)),
        alone(local(0)),
    ]
    report = measure(box("2x4", "lost@1=719,2"), jobs)
    _good(report.windows[0].copies[0])
    assert _failed(report.windows[3].copies[0]).reason == "CUDA_ERROR_LAUNCH_FAILED"
    assert "no longer used" in _failed(report.windows[4].copies[0]).says
    _good(report.windows[5].copies[0])
    _good(report.windows[6].copies[0])
    assert not report.hung


def test_a_copy_that_never_ends_is_timed_out_and_its_neighbour_is_measured() -> None:
    jobs = [together(d2h(0), d2h(1)), alone(h2d(1)), alone(h2d(0))]
    hanging = measure(box("2x4", "hang@d2h:1"), jobs, patience_s=0.2)
    fine, stuck = hanging.windows[0].copies
    _good(fine)
    assert _failed(stuck).reason == "TIMED_OUT"
    assert hanging.hung


def test_less_memory_is_taken_where_large_allocations_are_refused() -> None:
    report = measure(box("2x4", f"nomem@0={3 * MIB}"), [alone(h2d(0)), alone(h2d(1))], 8 * MIB)
    for window in report.windows:
        _good(window.copies[0])
    assert report.free_bytes[0] > report.free_bytes[1]


def test_an_allocation_that_is_refused_fails_on_its_gpu_only() -> None:
    report = measure(box("2x4", "nomem@1=1024"), [together(h2d(0), h2d(1)), alone(d2h(1))])
    fine, refused = report.windows[0].copies
    _good(fine)
    assert _failed(refused).reason == "CUDA_ERROR_OUT_OF_MEMORY"
    assert _failed(report.windows[1].copies[0]).reason == "CUDA_ERROR_OUT_OF_MEMORY"


_HELD = (
    alone(staged(0, 1)),
    both(h2d(0), d2h(0)),
    together(write(0, 4), write(0, 1), write(1, 0)),
    latency(h2d(0)),
)


@pytest.fixture(scope="module")
def held_by_words() -> Report:
    return measure(box("2x4"), _HELD)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("memops=refused", "CUDA_ERROR_NOT_SUPPORTED"),
        ("memops=ignored", "cuStreamWaitValue32 did not block a stream"),
        ("oldsymbols=cuStreamWaitValue32", "the driver has no cuStreamWaitValue32"),
    ],
)
def test_a_kernel_holds_streams_where_they_do_not_wait_for_a_word(
    held_by_words: Report, word: str, why: str
) -> None:
    report = measure(box("2x4", word), _HELD)
    for window, same in zip(report.windows, held_by_words.windows, strict=True):
        for copy, reference in zip(window.copies, same.copies, strict=True):
            assert copy.failure is None, copy.failure
            assert copy.gb_per_s == pytest.approx(reference.gb_per_s, rel=1e-3)
            assert copy.microseconds == (reference.microseconds and pytest.approx(reference.microseconds))
    (note,) = report.notes
    assert note.startswith("streams were held back by a kernel: ")
    assert why in note
    assert held_by_words.notes == ()


def test_copies_that_need_a_stream_held_back_fail_with_the_reason_if_nothing_holds_one() -> None:
    spec = box("2x4", "memops=refused", "oldsymbols=cuModuleLoadData")
    held, again, free = measure(spec, [alone(h2d(0)), alone(local(0)), alone(h2d(0, pinned=False))]).windows
    for window in (held, again):
        failure = _failed(window.copies[0])
        assert failure.reason == "NOT_HELD"
        assert "CUDA_ERROR_NOT_SUPPORTED" in failure.says
        assert "cuModuleLoadData" in failure.says
    _good(free.copies[0])


def test_a_window_that_lasts_longer_than_the_kernel_that_holds_it_does_not_count() -> None:
    jobs = [alone(h2d(0)), latency(h2d(0)), alone(h2d(0))]
    before, full, after = measure(box("2x4", "memops=refused", "depth=8"), jobs).windows
    _good(before.copies[0])
    assert _failed(full.copies[0]).reason == "NOT_HELD"
    _good(after.copies[0])


# A fault in one copy of the first job on a path, and the job. No two share a path.
ONCE = {
    "once@h2d:0": alone(h2d(0), 40 * MIB),
    "once@d2h:3": both(h2d(3), d2h(3)),
    "once@local:2": alone(local(2)),
    "once@engine:3-4": alone(direct(3, 4), 40 * MIB),
    "once@read:3-6": alone(read(3, 6)),
    "once@h2d:7=3": alone(staged(6, 7), 40 * MIB),
    "once@h2d:4": alone(h2d(4, pinned=False)),
    "once@h2d:1=5": alone(h2d(1), 4096),
    "once@h2d:2=9": latency(h2d(2)),
}


def test_one_wrong_byte_anywhere_in_a_copy_is_found() -> None:
    report = measure(box("2x4", *ONCE), [job for job in ONCE.values() for _ in range(2)])
    for fault, first, second in zip(ONCE, report.windows[::2], report.windows[1::2], strict=True):
        failures = [copy.failure.reason for copy in first.copies if copy.failure]
        assert failures == ["WRONG_DATA"], fault
        assert [copy.failure for copy in second.copies] == [None] * len(second.copies), fault


def test_an_error_at_the_end_of_a_staged_copy_is_reported_there_and_not_later() -> None:
    jobs = [alone(staged(0, 1), 16 * MIB), alone(h2d(0)), alone(local(0)), alone(h2d(1))]
    first, *rest = measure(box("2x4", "late@d2h:0=719", "spare=4096"), jobs).windows
    assert _failed(first.copies[0]).reason == "CUDA_ERROR_LAUNCH_FAILED"
    for window in rest:
        _good(window.copies[0])


def test_a_driver_that_does_not_take_all_copies_behind_a_hold_is_reported_and_does_not_hang() -> None:
    spec = box("2x4", "depth=8")
    jobs = [latency(h2d(0)), together(h2d(0), h2d(1)), alone(h2d(0)), alone(h2d(0, pinned=False))]
    report = measure(spec, jobs, 32 * MIB, patience_s=0.3)
    assert _failed(report.windows[0].copies[0]).reason == "NOT_HELD"
    assert {_failed(copy).reason for copy in report.windows[1].copies} == {"NOT_HELD"}
    _good(report.windows[2].copies[0])
    _good(report.windows[3].copies[0])
    assert not report.hung


def test_an_interruption_gives_everything_back_and_keeps_what_was_measured() -> None:
    spec = box("2x4", "polls=5")
    jobs = [alone(h2d(0)), both(staged(0, 1), staged(1, 0)), alone(h2d(2))]
    report = measure(spec, jobs, interrupts=[1])
    assert report.interrupted
    assert len(report.windows) == 1
    _good(report.windows[0].copies[0])
    assert (report.hung, report.unreturned) == (False, ())
    assert report.left == dict.fromkeys(range(8), 96 * MIB)


def test_a_copy_that_does_not_come_back_after_an_interruption_is_reported() -> None:
    report = measure(box("2x4", "hang@d2h:1"), [together(d2h(0), d2h(1))], patience_s=0.2, interrupts=[0])
    assert report.interrupted
    assert [(one.source, one.reason) for one in report.unreturned] == [("gpu:1", "TIMED_OUT")]
    assert report.hung
    assert report.left[0] == 96 * MIB
