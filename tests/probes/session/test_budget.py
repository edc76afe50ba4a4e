from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.copy_jobs import Copy, CopyJob, Setting
from gputopo.probes.session.budget import (
    FEWEST_REPEATS,
    MAX_BYTES,
    MIN_BYTES,
    QUICK_EFFORTS,
    QUICK_SECONDS,
    Effort,
    JobTime,
    Pace,
    Speeds,
    choose_effort,
    sizes,
)
from gputopo.probes.session.jobs import jobs
from gputopo.values.ends import HOST, End

UP = Copy(kind="h2d", source=End("host"), destination=End("gpu:0"), pinned=True)
OTHER = Copy(kind="h2d", source=End("host"), destination=End("gpu:1"), pinned=True)
ALONE = CopyJob(kind="h2d", copies=(UP,))
BOTH = CopyJob(kind="h2d", copies=(UP, OTHER), group="h2d gpus:0,1")


def speeds(**gb_per_s: float) -> Speeds:
    known = Speeds()
    known.see(UP, gb_per_s["up"])
    known.see(OTHER, gb_per_s.get("other", gb_per_s["up"]))
    return known


def test_a_slow_link_still_copies_what_a_judged_number_needs() -> None:
    assert sizes(ALONE, speeds(up=0.8), Effort(0.0, 3)) == (MIN_BYTES,)
    assert sizes(ALONE, speeds(up=0.8), Effort(0.008, 5)) == (MIN_BYTES,)


def test_single_copies_with_the_host_last_as_long_as_a_reading_of_the_link() -> None:
    pair = Copy(kind="p2p_direct", source=End("gpu:1"), destination=End("gpu:0"))
    known = speeds(up=12.0)
    known.see(pair, 12.0)
    each = [CopyJob(kind=one.kind, copies=(one,)) for one in (UP, pair)]
    (host,), (peer,) = (sizes(job, known, Effort(0.004, 5, host_window_s=0.008)) for job in each)
    assert host == pytest.approx(2 * peer, rel=0.1)


@given(st.floats(0.05, 60), st.floats(0.05, 60), st.sampled_from(QUICK_EFFORTS))
def test_paths_that_run_at_once_take_equally_long(a: float, b: float, effort: Effort) -> None:
    first, second = sizes(BOTH, speeds(up=a, other=b), effort)
    # Sizes are whole MiB, so a small one may be off by up to that.
    assert abs(first / a - second / b) <= 2**20 / min(a, b)
    assert max(first, second) <= MAX_BYTES
    assert min(first, second) >= MIN_BYTES or max(first, second) > MAX_BYTES - 2**20


def test_a_path_between_gpus_is_guessed_from_its_parts() -> None:
    known = Speeds()
    known.see(UP, 0.8)
    staged = Copy(kind="p2p_staged", source=End("gpu:3"), destination=End("gpu:0"))
    assert known.of(staged) == 0.8
    known.see(staged, 0.5)
    assert known.of(staged) == 0.5


def test_what_a_copy_of_the_speeds_learns_stays_there() -> None:
    known = speeds(up=12.0)
    known.copy().see(UP, 3.0)
    assert known.of(UP) == 12.0


def test_long_copies_are_repeated_less_often_but_never_under_three_times() -> None:
    sweep = CopyJob(kind="h2d", copies=(UP,), bytes=512 * 2**20)
    assert JobTime.of(sweep, speeds(up=25.0)).repeats(Effort(0.04, 9)) == 9
    assert JobTime.of(sweep, speeds(up=0.1)).repeats(Effort(0.04, 9)) == FEWEST_REPEATS


@given(st.floats(0.01, 500))
def test_less_time_means_first_fewer_bytes_then_fewer_repeats(left_s: float) -> None:
    setting = Setting(gpus=tuple(range(8)), peers=frozenset(permutations(range(8), 2)))
    known = Speeds()
    for gpu in range(8):
        known.see(Copy(kind="h2d", source=End("host"), destination=End(f"gpu:{gpu}"), pinned=True), 0.8)
    effort, seconds = choose_effort(jobs(setting), known, "quick", left_s, 1.0)
    richer, seconds_richer = choose_effort(jobs(setting), known, "quick", 2 * left_s, 1.0)
    assert QUICK_EFFORTS.index(richer) <= QUICK_EFFORTS.index(effort)
    assert seconds <= left_s or effort == QUICK_EFFORTS[-1]
    assert seconds_richer >= seconds
    assert effort.repeats >= FEWEST_REPEATS


def test_eight_gpus_on_one_lane_fit_into_a_quick_session() -> None:
    known = Speeds()
    for gpu in range(8):
        known.see(Copy(kind="h2d", source=HOST, destination=End.of_gpus(gpu), pinned=True), 0.8)
        known.see(Copy(kind="d2h", source=End.of_gpus(gpu), destination=HOST, pinned=True), 0.8)
    effort, seconds = choose_effort(jobs(Setting(gpus=tuple(range(8)))), known, "quick", QUICK_SECONDS, 1.0)
    assert seconds <= QUICK_SECONDS
    assert effort.repeats >= FEWEST_REPEATS


def test_the_pace_is_learnt_and_one_odd_job_does_not_upset_it() -> None:
    pace = Pace()
    assert pace.factor == 1.0
    pace.learn(0.01, 1.0)
    assert pace.factor < 3.0
    for _ in range(100):
        pace.learn(0.1, 0.2)
    assert pace.factor == pytest.approx(2.0, rel=0.1)
