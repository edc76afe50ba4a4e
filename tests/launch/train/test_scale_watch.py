from collections.abc import Sequence

import pytest

from gputopo.launch.train.scale_watch import ScaleReport, ScaleWatch
from gputopo.values.events import Event, Noticed, Step


def watched(reports: Sequence[ScaleReport | None], *, first: int = 1) -> list[str]:
    """What is said of steps `first`, `first` + 1, ... after which the scale stands so."""
    told: list[Event] = []
    at = 0
    watch = ScaleWatch(lambda: reports[at], told.append)
    for at, number in enumerate(range(first, first + len(reports))):  # noqa: B007 - `watch` looks at it
        watch.before(number)
        watch.after(Step(time_s=0.0, step=number, seconds=0.1, images=4, loss=None, marks=()), None)
    watch.close()
    return [event.says for event in told if isinstance(event, Noticed)]


def test_the_first_step_left_out_is_told_at_once_and_all_of_them_at_the_end() -> None:
    stands = [ScaleReport((128.0,), (0,)), ScaleReport((64.0,), (1,)), ScaleReport((32.0,), (2,))]
    assert watched(stands) == [
        "Step 2 was left out: a gradient was not finite. The loss scale is 64 now.",
        "Steps left out because a gradient was not finite: 2. The loss scale is 32 now.",
    ]


def test_a_step_of_the_warm_up_is_told_as_that_and_not_by_a_number_below_one() -> None:
    told = watched([ScaleReport((64.0,), (1,))], first=-2)
    assert told[0].startswith("A step of the warm-up was left out: a gradient was not finite.")


def test_independent_towers_are_told_apart() -> None:
    assert watched([ScaleReport((64.0, 32.0), (0, 1))])[-1] == (
        "Steps left out because a gradient was not finite: 1 of tower 1. Loss scales: 64, 32."
    )


@pytest.mark.parametrize("stands", [None, ScaleReport((128.0,), (0,))])
def test_nothing_is_said_where_nothing_was_left_out(stands: ScaleReport | None) -> None:
    assert watched([stands, stands]) == []
