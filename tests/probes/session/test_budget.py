"""How much is copied and how often, by the speeds that are known and the time that is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes import Copy, CopyJob, SessionRequest
from gputopo.probes.session import Effort, Speeds, choose_effort, sizes
from gputopo.values.bandwidth import LARGE_BYTES
from gputopo.values.ends import HOST, End
from tests.probes.session.double import EngineDouble, doors, machine, measure
from tests.probes.session.test_jobs import session

MAX_BYTES = 2**30
LEAST = Effort(0.0, 3)
UP = Copy(kind="h2d", source=HOST, destination=End("gpu:0"), pinned=True)
OTHER = Copy(kind="h2d", source=HOST, destination=End("gpu:1"), pinned=True)
ALONE = CopyJob(kind="h2d", copies=(UP,))
BOTH = CopyJob(kind="h2d", copies=(UP, OTHER), group="h2d gpus:0,1")


def speeds(**gb_per_s: float) -> Speeds:
    known = Speeds()
    known.see(UP, gb_per_s["up"])
    known.see(OTHER, gb_per_s.get("other", gb_per_s["up"]))
    return known


def test_a_slow_link_still_copies_what_a_judged_number_needs() -> None:
    assert sizes(ALONE, speeds(up=0.8), Effort(0.008, 5)) == (LARGE_BYTES,)


def test_with_time_left_a_window_lasts_eight_milliseconds() -> None:
    known = speeds(up=12.0)
    effort, _ = choose_effort([ALONE], known, "quick", 48.0, 1.0)
    assert effort == Effort(0.008, 5)
    assert sizes(ALONE, known, effort) == (92 << 20,)  # 96 MB, in whole MiB


def test_single_copies_with_the_host_last_as_long_as_a_reading_of_the_link() -> None:
    pair = Copy(kind="p2p_direct", source=End("gpu:1"), destination=End("gpu:0"))
    known = speeds(up=12.0)
    known.see(pair, 12.0)
    each = [CopyJob(kind=one.kind, copies=(one,)) for one in (UP, pair)]
    (host,), (peer,) = (sizes(job, known, Effort(0.004, 5, host_window_s=0.008)) for job in each)
    assert host == pytest.approx(2 * peer, rel=0.1)


@given(st.floats(0.05, 60), st.floats(0.05, 60), st.sampled_from((Effort(0.008, 5), LEAST)))
def test_paths_that_run_at_once_take_equally_long(a: float, b: float, effort: Effort) -> None:
    first, second = sizes(BOTH, speeds(up=a, other=b), effort)
    # Sizes are whole MiB, so a small one may be off by up to that.
    assert abs(first / a - second / b) <= 2**20 / min(a, b)
    assert max(first, second) <= MAX_BYTES
    assert min(first, second) >= LARGE_BYTES or max(first, second) > MAX_BYTES - 2**20


def test_a_path_between_gpus_is_guessed_from_its_parts() -> None:
    known = Speeds()
    known.see(UP, 0.8)
    staged = Copy(kind="p2p_staged", source=End("gpu:3"), destination=End("gpu:0"))
    assert known.of(staged) == 0.8
    known.see(staged, 0.5)
    assert known.of(staged) == 0.5


@pytest.mark.parametrize(("rate", "repeats"), [(25.0, 9), (0.1, 3)])
def test_long_copies_are_repeated_less_often_but_never_under_three_times(rate: float, repeats: int) -> None:
    request = SessionRequest(level="full", sizes=(512 << 20,))
    found = measure(machine(1), request, doors=doors(EngineDouble(gpus=1, rate=lambda copy: rate)))
    assert {len(one.repeats_gb_per_s) for one in found.samples if one.kind == "h2d"} == {repeats}


def known_of_slow() -> Speeds:
    """The speeds of three GPUs, each on one lane."""
    known = Speeds()
    for gpu in range(3):
        known.see(Copy(kind="h2d", source=HOST, destination=End.of_gpus(gpu), pinned=True), 0.8)
        known.see(Copy(kind="d2h", source=End.of_gpus(gpu), destination=HOST, pinned=True), 0.8)
    return known


@given(st.floats(0.01, 100))
def test_less_time_means_first_fewer_bytes_then_fewer_repeats(left_s: float) -> None:
    jobs, known = session(3).jobs, known_of_slow()
    effort, seconds = choose_effort(jobs, known, "quick", left_s, 1.0)
    richer, seconds_richer = choose_effort(jobs, known, "quick", 2 * left_s, 1.0)
    assert (richer.repeats, richer.window_s) >= (effort.repeats, effort.window_s)
    assert seconds <= left_s or effort == LEAST
    assert seconds_richer >= seconds
    assert effort.repeats >= 3
    assert effort.window_s == 0.0 or effort.repeats == 5
