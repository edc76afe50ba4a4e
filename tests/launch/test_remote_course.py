import signal

import pytest

from gputopo.launch.remote_start import LEADER_S, OTHERS_S, SETTLE_S, TERM_S, Course


def test_the_run_is_over_with_its_last_host_and_has_the_exit_code_of_rank_0() -> None:
    course = Course(2)
    course.ended(0, 1, 10.0, has_begun=True)
    assert (course.is_over, course.end_at) == (False, 10.0 + OTHERS_S)
    course.ended(1, 3, 11.0, has_begun=True)
    assert (course.is_over, course.exit_code) == (True, 1)


@pytest.mark.parametrize(("has_begun", "left_s"), [(False, SETTLE_S), (True, LEADER_S)])
def test_a_host_that_failed_ends_all_after_rank_0_could_say_why(has_begun: bool, left_s: float) -> None:
    course = Course(3)
    course.ended(2, 0, 1.0, has_begun=False)  # not needed
    assert course.end_at is None
    course.ended(1, 2, 5.0, has_begun=has_begun)
    assert course.end_at == 5.0 + left_s
    course.ended(0, 143, 5.1 + left_s, has_begun=has_begun)
    assert (course.exit_code, course.blamed) == (2, (1, 2)), "rank 0 did not end by itself"


def test_rank_0_that_ends_by_itself_has_the_last_word() -> None:
    course = Course(2)
    course.ended(1, 2, 5.0, has_begun=False)
    course.ended(0, 3, 5.5, has_begun=False)
    assert (course.exit_code, course.blamed) == (3, None)


def test_a_rank_0_that_fails_before_the_training_leaves_the_others_waiting_in_vain() -> None:
    course = Course(2)
    course.ended(0, 3, 5.0, has_begun=False)
    assert course.end_at == 5.0 + SETTLE_S


def test_a_host_that_cannot_be_started_ends_all_at_once() -> None:
    course, fleet = Course(2), Course(2, needs_all=False)
    for one in (course, fleet):
        one.not_started(False, 7.0)
        one.ended(1, 3, 7.0, has_begun=False)
    assert (course.end_at, fleet.end_at) == (7.0, None)
    fleet.not_started(True, 8.0)
    assert fleet.end_at == 8.0


def test_ctrl_c_leaves_rank_0_its_time_and_more_of_them_do_not() -> None:
    course = Course(1)
    ends = []
    for at in (1.0, 2.0, 3.0):
        course.signalled(signal.SIGINT, at)
        ends.append(course.end_at)
    assert ends == [None, 2.0 + TERM_S, 3.0]
    course.ended(0, 137, 4.0, has_begun=True)
    assert course.exit_code == 130


def test_sigterm_ends_all_within_the_time_that_batch_systems_give() -> None:
    course = Course(1)
    course.signalled(signal.SIGTERM, 1.0)
    assert course.end_at == 1.0 + TERM_S
    course.ended(0, 143, 2.0, has_begun=True)
    assert course.exit_code == 143


def test_a_host_that_may_be_lost_ends_the_others_before_the_training_only() -> None:
    course = Course(3, may_lose=True)
    course.ended(2, 3, 5.0, has_begun=True)
    assert course.end_at is None
    course.ended(1, 3, 6.0, has_begun=False)
    assert course.end_at == 6.0 + SETTLE_S
    course.ended(0, 0, 6.5, has_begun=True)
    assert (course.exit_code, course.blamed) == (0, None), "rank 0 went on without them"
