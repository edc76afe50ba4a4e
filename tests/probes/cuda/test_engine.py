"""The real engine and the real cuda.bindings on a double of the driver, whose rates are known."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from gputopo.probes import Copy, CopyJob
from tests.probes.cuda.doubled import (
    MIB,
    SMALL_CARDS,
    alone,
    both,
    box,
    by_kernel,
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

WITHIN = 0.03  # what gputopo promises on the double

_ALONE = (
    (alone(h2d(0)), "h2d", 0, 0, 1),
    (alone(d2h(0)), "d2h", 0, 0, 1),
    (alone(h2d(3, pinned=False)), "h2d_pageable", 3, 0, 1),
    (alone(local(2), 256 * MIB), "local", 2, 0, 2),
    (alone(direct(0, 1)), "p2p", 0, 1, 1),
    (alone(direct(0, 4)), "p2p", 0, 4, 1),
    (alone(read(0, 1)), "read", 0, 1, 1),
    (alone(write(0, 4)), "write", 0, 4, 1),
    (alone(h2d(1), 40 * MIB + 24), "h2d", 1, 0, 1),
    (alone(by_kernel(h2d(2))), "h2d", 2, 0, 1),
    (alone(by_kernel(d2h(2))), "d2h", 2, 0, 1),
)


@pytest.fixture(scope="module")
def quiet() -> Report:
    return measure(box("2x4"), [job for job, *_ in _ALONE])


@pytest.mark.parametrize("number", range(len(_ALONE)), ids=[f"{n}-{row[1]}" for n, row in enumerate(_ALONE)])
def test_each_kind_of_copy_is_measured_as_fast_as_it_is(quiet: Report, number: int) -> None:
    job, kind, a, b, counted = _ALONE[number]
    (copy,) = quiet.windows[number].copies
    assert copy.failure is None
    assert copy.gb_per_s == pytest.approx(counted * box("2x4").rate(kind, a, b) / 1e9, rel=WITHIN)  # type: ignore[arg-type]
    assert copy.bytes == (job.bytes or 4 * MIB)


def test_buffers_leave_memory_free_on_the_card_and_are_reported(quiet: Report) -> None:
    assert all(0 < quiet.free_bytes[gpu] < SMALL_CARDS for gpu in range(5))
    assert quiet.free_bytes[7] == SMALL_CARDS  # nothing was copied there


def test_eight_gpus_at_once_stay_within_their_memory_and_share_what_there_is() -> None:
    spec = box("2x4", memory=8 << 30)
    every = range(8)
    report = measure(spec, [together(*map(h2d, every)), together(*map(d2h, every))], 2 * MIB)
    for window, kind in zip(report.windows, ("h2d", "d2h"), strict=True):
        uplink = spec.rate(kind, 0)  # type: ignore[arg-type]
        assert [copy.failure for copy in window.copies] == [None] * 8
        for copy in window.copies:
            assert copy.gb_per_s == pytest.approx(uplink / 4 / 1e9, rel=WITHIN)
    assert report.pinned_bytes <= 1280 * MIB + 2**21  # with a block of each GPU
    assert 700 * MIB < (8 << 30) - min(report.free_bytes.values()) <= 2**30


def test_unlike_paths_at_once_each_have_the_rate_of_the_time_they_shared() -> None:
    spec = box("chipset")
    report = measure(spec, [together(h2d(0), h2d(2), h2d(3))], 16 * MIB)
    wide, one, other = (copy.gb_per_s for copy in report.windows[0].copies)
    narrow = spec.rate("h2d", 2) / 1e9
    assert wide == pytest.approx(spec.rate("h2d", 0) / 1e9, rel=WITHIN)
    assert one == pytest.approx(narrow / 2, rel=WITHIN)
    assert other == pytest.approx(narrow / 2, rel=WITHIN)


def test_both_directions_at_once_do_not_slow_one_another_on_a_full_duplex_link() -> None:
    spec = box("2x4")
    host, there, back = (("h2d", 0, 0), ("d2h", 0, 0)), (0, 1), (1, 0)
    cases: list[tuple[CopyJob, Any]] = [
        (both(h2d(0), d2h(0)), host),
        (both(by_kernel(h2d(0)), by_kernel(d2h(0))), host),
        (both(direct(*there), direct(*back)), (("p2p", *there), ("p2p", *back))),
        (both(write(*there), write(*back)), (("write", *there), ("write", *back))),
        (both(read(*there), read(*back)), (("read", *there), ("read", *back))),
    ]
    report = measure(spec, [job for job, _ in cases], 8 * MIB)
    for window, (_, paths) in zip(report.windows, cases, strict=True):
        for copy, path in zip(window.copies, paths, strict=True):
            assert copy.gb_per_s == pytest.approx(spec.rate(*path) / 1e9, rel=WITHIN), path


def test_a_staged_copy_is_as_fast_as_the_slower_of_its_two_halves() -> None:
    spec = box("2x4", "rate@d2h:0=3.2")
    report = measure(spec, [alone(staged(0, 4)), alone(staged(4, 0))], 16 * MIB)
    (there,), (back,) = (window.copies for window in report.windows)
    assert there.gb_per_s == pytest.approx(3.2, rel=WITHIN)
    assert back.gb_per_s == pytest.approx(min(spec.rate("d2h", 4), spec.rate("h2d", 0)) / 1e9, rel=WITHIN)


def test_latencies_are_those_of_the_paths_and_no_bandwidth() -> None:
    spec = box("2x4")
    jobs = [
        latency(h2d(0)),
        latency(staged(0, 1)),
        latency(read(0, 4)),
        latency(direct(0, 1)),
        latency(by_kernel(h2d(0))),
        alone(h2d(0), 4096),  # timed several times over
    ]
    copy, twice, chased, pushed, host, small = (window.copies[0] for window in measure(spec, jobs).windows)
    assert host.microseconds == pytest.approx(spec.routes["h2d", 0, 0].chase_ns / 1e3, rel=WITHIN)
    assert copy.microseconds == pytest.approx(spec.routes["h2d", 0, 0].latency_us, rel=WITHIN)
    assert twice.microseconds == pytest.approx(
        spec.routes["d2h", 0, 0].latency_us
        + spec.routes["h2d", 1, 0].latency_us
        + 2 * spec.settings.start_us,
        rel=WITHIN,
    )
    assert chased.microseconds == pytest.approx(spec.routes["read", 0, 4].chase_ns / 1e3, rel=WITHIN)
    assert pushed.microseconds == pytest.approx(spec.routes["p2p", 0, 1].latency_us, rel=WITHIN)
    assert {copy.gb_per_s, twice.gb_per_s, chased.gb_per_s} == {0.0}
    start_us = spec.settings.start_us / 16  # of the first of them
    expected_us = spec.routes["h2d", 0, 0].latency_us + start_us + 4096e6 / spec.rate("h2d", 0)
    assert small.bytes == 4096
    assert small.seconds == pytest.approx(expected_us * 1e-6, rel=WITHIN)


def test_a_chain_that_arrived_wrong_is_reported_and_not_followed() -> None:
    jobs = [latency(read(0, 4)), latency(read(1, 4)), alone(h2d(4))]
    report = measure(box("2x4", "wrong@h2d:0"), jobs)
    wrong, sound, after = (window.copies[0] for window in report.windows)
    assert report.notes == ()
    assert wrong.failure is not None
    assert (wrong.failure.reason, wrong.failure.source) == ("WRONG_DATA", "gpu:0")
    assert (sound.failure, after.failure) == (None, None)  # the GPU that would have followed it goes on


@pytest.mark.parametrize(("share", "is_noted"), [(0.009, False), (0.011, True)])
def test_streams_that_begin_more_than_a_hundredth_of_a_window_apart_are_noted(
    share: float, is_noted: bool
) -> None:
    spec = box("2x4", "start=0")
    window_s = 8 * MIB / spec.rate("h2d", 0)
    report = measure(spec, [both(h2d(0), d2h(0))], 8 * MIB, apart_s=share * window_s)
    assert any("apart" in note for note in report.notes) is is_noted


def test_of_the_streams_of_two_gpus_it_cannot_be_shown_that_they_begin_apart() -> None:
    assert measure(box("2x4"), [together(h2d(0), h2d(1))], apart_s=1.0).notes == ()


def test_readings_are_asked_for_while_the_copies_run() -> None:
    report = measure(
        box("2x4", "polls=5"), [alone(h2d(0)), together(h2d(0), h2d(1)), alone(h2d(0, pinned=False))]
    )
    assert min(report.asked) >= 1


def test_host_memory_lies_on_the_node_that_was_asked_for() -> None:
    spec = box("8two", "far=0.4")
    cpus = dict(enumerate(spec.cpus))
    jobs = [alone(h2d(0, node)) for node in (0, 1, 0)]
    near, far, again = (w.copies[0].gb_per_s for w in measure(spec, jobs, 16 * MIB, node_cpus=cpus).windows)
    assert near == pytest.approx(spec.rate("h2d", 0, 0) / 1e9, rel=WITHIN)
    assert far == pytest.approx(spec.rate("h2d", 0, 1) / 1e9, rel=WITHIN)
    assert again == pytest.approx(near)
    assert far < 0.5 * near


def test_memory_that_comes_from_another_node_than_asked_is_reported_as_what_it_is() -> None:
    spec = box("8two", "far=0.4", "memoryon=0")
    jobs = [
        alone(h2d(4, 1)),  # the GPU's own node is 1
        alone(h2d(4, 1, pinned=False)),
        alone(staged(0, 4)),
        alone(h2d(0, 0, pinned=False)),
    ]
    report = measure(spec, jobs, 16 * MIB, node_cpus=dict(enumerate(spec.cpus)))
    copies = [window.copies[0] for window in report.windows]
    lies_and_wanted = [(copy.numa_node, copy.numa_wanted) for copy in copies]
    assert lies_and_wanted == [(0, 1), (0, 1), (None, None), (0, None)]
    assert copies[0].gb_per_s == pytest.approx(0.4 * spec.rate("h2d", 4, 1) / 1e9, rel=WITHIN)
    assert any("set_mempolicy (Invalid argument)" in note for note in report.notes)


def test_pageable_memory_is_looked_for_as_well() -> None:
    spec = box("8two", "memoryon=0")
    jobs = [alone(h2d(4, 1, pinned=False)), alone(staged(0, 4)), alone(h2d(0, 0, pinned=False))]
    report = measure(spec, jobs, node_cpus=dict(enumerate(spec.cpus)))
    (elsewhere,), (unbound,), (right,) = (window.copies for window in report.windows)
    assert (elsewhere.numa_node, elsewhere.numa_wanted) == (0, 1)
    assert (unbound.numa_node, unbound.numa_wanted) == (None, None)
    assert (right.numa_node, right.numa_wanted) == (0, None)


def test_peer_access_is_kept_to_the_pairs_that_have_it() -> None:
    report = measure(box("2x4", "nop2p@0-1"), [alone(direct(0, 1)), alone(direct(0, 2)), alone(staged(0, 1))])
    assert (0, 1) not in report.peers
    assert (0, 2) in report.peers
    refused, allowed, around = (window.copies[0] for window in report.windows)
    assert refused.failure is not None
    assert refused.failure.reason == "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
    assert allowed.failure is None
    assert around.failure is None


def test_a_gpu_that_cuda_does_not_see_fails_and_the_others_are_measured() -> None:
    report = measure(box("2x4"), [together(h2d(0), h2d(1))], ordinals={0: 0})
    seen, unseen = report.windows[0].copies
    assert seen.failure is None
    assert unseen.failure is not None
    assert unseen.failure.reason == "CUDA_ERROR_NO_DEVICE"


def test_copies_that_pageable_memory_does_not_allow_are_refused_in_words() -> None:
    two = together(h2d(0, pinned=False), h2d(1, pinned=False))
    jobs = [two, alone(by_kernel(h2d(0, pinned=False))), alone(h2d(0))]
    blocking, kernel, after = measure(box("2x4"), jobs).windows
    for window, says in ((blocking, "block in the call"), (kernel, "page-locked")):
        for copy in window.copies:
            assert copy.failure is not None
            assert says in copy.failure.says
    assert after.copies[0].failure is None


def test_a_failure_names_the_path_it_is_about() -> None:
    job = msgspec.structs.replace(both(direct(0, 1), direct(1, 0)), group="pair")
    report = measure(box("2x4", "fail@p2p:1-0=999"), [job])
    good, bad = report.windows[0].copies
    assert good.failure is None
    assert good.gb_per_s > 0
    assert bad.failure is not None
    assert (bad.failure.source, bad.failure.destination, bad.failure.path) == ("gpu:1", "gpu:0", "direct")
    assert (bad.failure.kind, bad.failure.group, bad.failure.method) == (
        "bidirectional",
        "pair",
        "copy_engine",
    )
    assert bad.failure.reason == "CUDA_ERROR_UNKNOWN"


def test_each_copy_has_its_share_of_what_they_pass_together() -> None:
    spec = box("2x4", "start=0", memory=1 << 30)
    gpus = range(4)  # of one switch: each has a link out and a link in
    out, into = spec.rate("d2h", 0) / 1e9, spec.rate("h2d", 0) / 1e9
    cases: list[tuple[list[Copy], float]] = [
        ([write(gpu, (gpu + 1) % 4) for gpu in gpus], spec.rate("write", 0, 1) / 1e9),
        ([direct(0, gpu) for gpu in gpus if gpu], out / 3),
        ([read(gpu, 0) for gpu in gpus if gpu], into / 3),
        ([direct(a, b) for a, b in permutations(gpus, 2)], into / 3),
    ]
    report = measure(spec, [together(*copies) for copies, _ in cases], 8 * MIB)
    for window, (copies, rate) in zip(report.windows, cases, strict=True):
        for copy in window.copies:
            assert copy.failure is None, copies
            assert copy.gb_per_s == pytest.approx(rate, rel=WITHIN), copies
            assert copy.bytes == 8 * MIB, copies


def test_no_more_peers_are_open_than_a_device_may_have_and_copies_at_once_that_need_more_fail() -> None:
    pairs = [alone(direct(a, b)) for a, b in permutations(range(5), 2)]
    jobs = [together(*(write(0, peer) for peer in range(1, 8))), *pairs]
    window, *after = measure(box("2x4", "peers=3"), jobs, MIB).windows
    assert [copy.failure.reason if copy.failure else None for copy in window.copies] == [None] * 3 + [
        "CUDA_ERROR_TOO_MANY_PEERS"
    ] * 4
    assert all(one.copies[0].failure is None for one in after)
