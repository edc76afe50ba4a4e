"""Steps that hosts report: bounded on their way, in the order of time where they are recorded."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.recorded.reported import MAX_REPORTS, Batch, InOrder, bounded
from gputopo.launch.throughput import MAX_EXAMPLES, Report, StepDone, StepsEnded
from gputopo.values.run.events import Sample


def step(pid: int, number: int, *, examples: int = 8, busy_s: float | None = None) -> StepDone:
    return StepDone(pid=pid, step=number, seconds=0.5, examples=examples, busy_s=busy_s)


def timed(*reports: Report) -> list[tuple[float, Report]]:
    return [(float(number), report) for number, report in enumerate(reports)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=200), st.integers(5, 30))
def test_whatever_is_reported_keeps_its_sums_and_the_order_of_each_process(
    made: list[tuple[int, int]], limit: int
) -> None:
    """0 of 9 ends a loop."""
    numbers = dict.fromkeys(range(3), 0)
    reports: list[Report] = []
    for pid, kind in made:
        numbers[pid] = numbers[pid] + 1 if kind else 0
        reports.append(step(pid, numbers[pid], examples=kind) if kind else StepsEnded(pid=pid))
    found = [report for _, report in bounded(timed(*reports), max(limit, len(reports) // 2))]
    for pid in range(3):
        its = [one for one in found if one.pid == pid]
        assert _sums(its) == _sums([one for one in reports if one.pid == pid])
        for before, after in pairwise(one for one in its if isinstance(one, StepDone)):
            assert after.step == 1 or after.step - after.steps >= before.step


def _sums(reports: list[Report]) -> list[tuple[int, int]]:
    """Return steps and examples of each loop."""
    loops = [(0, 0)]
    for one in reports:
        if isinstance(one, StepsEnded):
            loops.append((0, 0))
        else:
            steps, examples = loops[-1]
            loops[-1] = (steps + one.steps, examples + one.examples)
    return loops


def test_ten_thousand_steps_a_second_become_as_many_reports_as_may_be_sent() -> None:
    batch = Batch()
    for number in range(2, 10_002):
        batch.add(number / 1e4, step(1, number, busy_s=0.1))
    ((reported,), none) = (batch.take(), batch.take())
    assert (len(reported.reports), none) == (MAX_REPORTS, ())
    time_s, last = reported.reports[-1]
    assert isinstance(last, StepDone)
    assert (time_s, last.step, last.steps, last.examples, last.seconds) == (1.0001, 10_001, 10, 80, 5.0)
    assert last.busy_s is not None
    assert abs(last.busy_s - 1.0) < 1e-9


def test_reports_that_cannot_become_fewer_are_cut_off() -> None:
    loops = [one for pid in range(5000) for one in (step(pid, 1), StepsEnded(pid=pid))]
    assert len(bounded(timed(*loops))) == 2 * MAX_REPORTS


def test_no_sum_is_more_than_a_report_may_have() -> None:
    (one,) = (report for _, report in bounded(timed(*(step(1, n, examples=MAX_EXAMPLES) for n in (2, 3))), 1))
    assert isinstance(one, StepDone)
    assert one.examples == MAX_EXAMPLES


def test_reports_and_samples_of_all_hosts_come_in_the_order_of_time_once_they_are_due() -> None:
    order = InOrder()
    for host, times in ((0, (5.0, 6.0, 7.0)), (1, (5.5, 6.5, 9.0))):
        for time_s in times:
            order.reported(host, time_s, step(host, 2), now_s=10.0)
    order.sampled(Sample(time_s=5.2, gpus=()))
    assert [time_s for time_s, _ in order.due(6.0)] == [5.0, 5.2, 5.5, 6.0]
    assert [time_s for time_s, _ in order.due(8.0)] == [6.5, 7.0]
    order.reported(1, 8.5, step(1, 3), now_s=10.0)  # by a clock that was set back meanwhile
    assert [item for _, item in order.due(9.0)] == [(1, step(1, 2)), (1, step(1, 3))]


def test_a_clock_of_rank_0_that_is_set_back_holds_nothing_up() -> None:
    order = InOrder()
    assert order.due(100.0) == []
    order.reported(0, 101.0, step(0, 2), now_s=103.0)
    assert order.due(40.0) == [(101.0, (0, step(0, 2)))]
    order.reported(0, 41.0, step(0, 3), now_s=44.0)
    assert order.due(42.0) == [(41.0, (0, step(0, 3)))]
