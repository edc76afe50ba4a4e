"""What a real card costs beside the bytes, on the double: the engine neither pays for it nor counts it."""

from itertools import permutations

import pytest

from tests.probes.cuda.doubled import (
    MIB,
    alone,
    box,
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

pytestmark = needs_gcc
PAIRS = tuple(permutations(range(8), 2))


def seconds(*words: str, copies: int = 1) -> float:
    """Return the virtual seconds of direct copies of all pairs, by three methods and both directions."""
    jobs = [alone(way(a, b)) for way in (direct, read, write) for a, b in PAIRS] * copies
    report = measure(box("2x4", "start=0", *words), jobs, MIB)
    assert all(copy.failure is None for window in report.windows for copy in window.copies)
    return report.ends[-1]


def test_peer_access_is_opened_once_for_all_jobs() -> None:
    slow, fast = seconds("peertime=10000"), seconds("peertime=0")
    assert slow - fast == pytest.approx(len(PAIRS) * 10e-3, rel=0.01)


def test_no_more_peers_are_open_than_a_device_may_have() -> None:
    report = measure(box("2x4", "peers=3"), [alone(direct(a, b)) for a, b in PAIRS], MIB)
    assert all(window.copies[0].failure is None for window in report.windows)
    few = seconds("peers=3", "peertime=10000") - seconds("peertime=0")
    assert few < 3 * 2 * len(PAIRS) * 10e-3  # opened and closed once each, as without any order at worst


def test_copies_at_once_that_need_more_peers_than_there_may_be_fail_alone() -> None:
    jobs = [together(*(write(0, peer) for peer in range(1, 8))), alone(h2d(0))]
    window, after = measure(box("2x4", "peers=3"), jobs).windows
    assert [copy.failure.reason if copy.failure else None for copy in window.copies] == [None] * 3 + [
        "CUDA_ERROR_TOO_MANY_PEERS"
    ] * 4
    assert after.copies[0].failure is None


def test_large_copies_neither_pass_the_cache_nor_show_the_start() -> None:
    spec = box("2x4", "start=10", f"cache={32 * MIB}", memory=1 << 30)
    small, large = (
        window.copies[0].gb_per_s / (2 * spec.rate("local", 0) / 1e9)
        for window in measure(spec, [alone(local(0), 16 * MIB), alone(local(0), 256 * MIB)]).windows
    )
    assert small > 1.5  # the double has a cache: a copy that fits is no measure of the memory
    assert large == pytest.approx(1.0, rel=0.03)


def test_a_staged_copy_hides_the_handover_between_streams() -> None:
    spec = box("2x4", "start=10", memory=256 * MIB)
    (copy,) = measure(spec, [alone(staged(0, 4))], 64 * MIB).windows[0].copies
    assert copy.gb_per_s == pytest.approx(min(spec.rate("d2h", 0), spec.rate("h2d", 4)) / 1e9, rel=0.01)


def test_a_pointer_chase_shows_no_start() -> None:
    spec = box("2x4", "start=20")
    (copy,) = measure(spec, [latency(read(0, 4))]).windows[0].copies
    assert copy.microseconds == pytest.approx(spec.routes["read", 0, 4].chase_ns / 1e3, rel=0.01)
