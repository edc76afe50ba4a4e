"""The loop with invented steps: which steps it takes and what it reports of each."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.train import Loop, LossWatch, ScaleWatch, StepOutcome
from gputopo.values.errors import InputError
from gputopo.values.run.events import (
    Event,
    LossNotFinite,
    Noticed,
    PlacementChecked,
    Step,
    TowerMarks,
    WarmupDone,
)
from gputopo.values.run.spec import RunSpec
from gputopo.values.run.speed import LONGEST_S, MIN_COUNTED
from tests.launch.specs import cpu_spec

NAN = float("nan")


class Steps:
    """A stepper whose outcomes are given; the input ends after the last."""

    source: Any = SimpleNamespace(waited_s=0.0)

    def __init__(self, outcomes: Sequence[StepOutcome]) -> None:
        self.outcomes = list(outcomes)
        self.numbers: list[int] = []
        self.now_s = 0.0

    def __call__(self, number: int) -> StepOutcome:
        if len(self.numbers) == len(self.outcomes):
            raise StopIteration
        self.numbers.append(number)
        return self.outcomes[len(self.numbers) - 1]

    def first(self, number: int) -> tuple[StepOutcome, None]:
        return self(number), None

    def check_variables(self) -> dict[str, int]:
        return {"/CPU:0": 4}


def outcome(losses: Sequence[float] = (1.0, 1.0), examples: Sequence[int] | None = None) -> StepOutcome:
    counts = None if examples is None else np.array(examples, np.float32)
    return StepOutcome(np.array(losses, np.float32), np.zeros((2, 3)), examples=counts)


def taken(spec: RunSpec, steps: Steps, *, trained: int = 0) -> tuple[list[Event], Loop, bool]:
    events: list[Event] = []
    stepper: Any = steps
    loop = Loop(stepper, spec, events.append, trained=trained, clock=lambda: steps.now_s)
    return events, loop, loop.run()


def numbers(events: Sequence[Event]) -> list[tuple[int, int | None]]:
    return [(event.step, event.global_step) for event in events if isinstance(event, Step)]


def test_a_run_trains_its_warm_up_and_its_counted_steps_and_no_other() -> None:
    steps = Steps([outcome()] * 20)
    events, loop, ended = taken(cpu_spec(num_warmup_batches=2, num_batches=3), steps)
    assert (loop.trained, ended) == (5, False)
    assert steps.numbers == [0, 1, 2, 3, 4]
    assert numbers(events) == [(-1, 1), (0, 2), (1, 3), (2, 4), (3, 5)]
    kinds = [type(event) for event in events]
    assert kinds == [PlacementChecked, Step, Step, WarmupDone, Step, Step, Step]
    assert next(event.steps for event in events if isinstance(event, WarmupDone)) == 2


def test_without_a_warm_up_the_first_step_is_counted() -> None:
    steps = Steps([outcome()] * 20)
    events, loop, _ = taken(cpu_spec(num_warmup_batches=0, num_batches=3), steps)
    assert loop.trained == 3
    assert numbers(events) == [(1, 1), (2, 2), (3, 3)]
    assert [type(event) for event in events[:3]] == [PlacementChecked, WarmupDone, Step]


def test_an_evaluation_takes_the_batches_of_the_data_and_times_all_but_the_first() -> None:
    steps = Steps([outcome()] * 20)
    events: list[Event] = []
    stepper: Any = steps
    loop = Loop(stepper, cpu_spec(num_warmup_batches=10, num_batches=3), events.append)
    assert not loop.run_evaluation()
    assert numbers(events) == [(0, 1), (1, 2), (2, 3)]


class Clocked(Steps):
    """Steps that take these seconds by the clock of the loop, the first one the compiling."""

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__([outcome()] * len(seconds))
        self._seconds = seconds

    def __call__(self, number: int) -> StepOutcome:
        self.now_s += self._seconds[len(self.numbers)]
        return super().__call__(number)


COUNTED: dict[str, Any] = {"num_warmup_batches": 1, "num_batches": None, "time_budget_s": 20.0}


def test_no_step_is_begun_that_would_go_beyond_the_time_budget() -> None:
    spec = cpu_spec(**{**COUNTED, "time_budget_s": 2.5})
    events, _, ended = taken(spec, Clocked([1.0] * 20))
    assert (numbers(events), ended) == ([(0, 1), (1, 2), (2, 3)], False)


@pytest.mark.parametrize(
    ("seconds", "counted"),
    [
        ([0.2] * 500, MIN_COUNTED),  # the speed is known at once
        ([0.11] * 500, 19),  # after 2 s at least
        ([0.5, 1.5] * 100, 20),  # never known to 1%: 20 s
        ([9.0, 11.0] * 50, 6),  # no more than a minute
    ],
)
def test_counting_by_error_takes_12_steps_at_least_20_s_at_most_and_a_minute_for_few(
    seconds: list[float], counted: int
) -> None:
    spec = cpu_spec(**COUNTED, max_error=0.01, max_batches=None)
    events, _, ended = taken(spec, Clocked([3.0, *seconds]))
    assert (numbers(events)[-1][0], ended) == (counted, False)
    assert sum(seconds[:counted]) <= LONGEST_S


def test_counting_by_error_ends_when_the_error_is_small_enough() -> None:
    """Speeds 9% away from their mean: it takes about 81 steps."""
    spec = cpu_spec(**COUNTED, max_error=0.01, max_batches=None)
    events, _, _ = taken(spec, Clocked([0.2, *[0.2 / 1.09, 0.2 / 0.91] * 50]))
    assert 70 <= numbers(events)[-1][0] <= 95


def test_a_number_of_steps_is_exact_whatever_is_known() -> None:
    spec = cpu_spec(num_warmup_batches=1, num_batches=40, time_budget_s=1.0, max_error=0.01)
    events, _, _ = taken(spec, Clocked([0.1] * 50))
    assert numbers(events)[-1][0] == 40


def test_data_that_end_in_the_warm_up_are_an_error_and_later_the_end_of_the_run() -> None:
    spec = cpu_spec(num_warmup_batches=2, num_batches=3)
    with pytest.raises(InputError, match="fewer examples than one step needs"):
        taken(spec, Steps([]))
    with pytest.raises(InputError, match="step 2 of the warm-up"):
        taken(spec, Steps([outcome()]))
    assert taken(spec, Steps([outcome()] * 4))[2]


def test_the_loss_of_a_step_is_the_mean_of_its_examples_also_where_a_tower_has_few_or_none() -> None:
    steps = Steps(
        [
            outcome([2.0, 4.0], [4, 4]),
            outcome([2.0, 4.0], [3, 1]),
            outcome([2.0, 0.0], [1, 0]),
            outcome([2.0, 4.0]),
        ]
    )
    events, _, _ = taken(cpu_spec(num_warmup_batches=0, num_batches=4), steps)
    whole, uneven, one, training = [(event.loss, event.images) for event in events if isinstance(event, Step)]
    assert (whole, uneven, one) == ((3.0, 8), (2.5, 4), (2.0, 1))
    assert training[0] == 3.0


def warmup_of(seconds: Sequence[float], **fields: Any) -> int:
    """Return the steps of a warm-up whose steps would take these seconds, the first one the compiling."""
    events, _, _ = taken(cpu_spec(num_batches=1, **fields), Clocked(seconds))
    return next(event.steps for event in events if isinstance(event, WarmupDone))


@given(
    st.integers(1, 30),
    st.sampled_from([None, 0.0, 1.0]),
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30),
)
def test_no_warmup_is_shorter_than_asked_or_longer_than_its_time(
    least: int, min_s: float | None, seconds: list[float]
) -> None:
    taken_s = [*seconds, *[1.0] * 40]
    steps = warmup_of(taken_s, num_warmup_batches=least, min_warmup_s=min_s)
    assert steps >= least
    # The first step, which compiles, is no part of the time.
    assert steps == least or sum(taken_s[1 : steps - 1]) < (min_s or 0.0) <= sum(taken_s[1:steps])


def test_a_warm_up_of_very_short_steps_ends_after_a_thousand() -> None:
    assert warmup_of([9.0, *[0.0] * 1500], num_warmup_batches=3, min_warmup_s=1.0) == 1000


OUTCOME = StepOutcome(np.zeros(1), np.zeros((1, 3)))


def watched(reports: Sequence[Any], *, first: int = 1) -> list[str]:
    """What is reported of steps `first`, `first` + 1, ... after which the scale stands so."""
    reported: list[Event] = []
    at = 0
    watch = ScaleWatch(lambda: reports[at], reported.append)
    for at, number in enumerate(range(first, first + len(reports))):  # noqa: B007 - `watch` looks at it
        watch.before(number)
        watch.after(Step(time_s=0.0, step=number, seconds=0.1, images=4, loss=None, marks=()), OUTCOME)
    watch.close()
    return [event.says for event in reported if isinstance(event, Noticed)]


def test_the_first_skipped_step_is_reported_at_once_and_the_total_at_the_end() -> None:
    stands = [((128.0,), (0,)), ((64.0,), (1,)), ((32.0,), (2,))]
    assert watched(stands) == [
        "Step 2 was skipped: a gradient was not finite. Current loss scale: 64.",
        "Steps skipped because a gradient was not finite: 2. Current loss scale: 32.",
    ]


def test_skipped_steps_of_the_warm_up_have_no_number_and_those_of_independent_towers_are_apart() -> None:
    first, last = watched([((64.0, 32.0), (0, 1))], first=-2)
    assert first.startswith("A step of the warm-up was skipped: a gradient was not finite.")
    assert last == (
        "Steps skipped because a gradient was not finite: 1 on device 1. Current loss scales: 64, 32."
    )


def test_a_loss_that_is_not_finite_is_reported_once_of_its_tower_or_of_all() -> None:
    cases: list[tuple[list[float], list[tuple[int, ...]]]] = [
        ([1.0, 2.0], []),
        ([1.0, NAN], [(1,)]),
        ([NAN], [(0, 1)]),
    ]
    for losses, towers in cases:
        events: list[Event] = []
        watch = LossWatch(events.append)
        marks = tuple(
            TowerMarks(tower=tower, start_s=0.0, weights_s=0.1, compute_s=0.3) for tower in range(2)
        )
        for number in range(2):
            step = Step(time_s=0.0, step=number, seconds=0.5, images=8, loss=None, marks=marks)
            watch.after(step, outcome(losses))
        assert [event.towers for event in events if isinstance(event, LossNotFinite)] == towers
