"""The order of the runs of a screen."""

from gputopo.launch.jobs.screen_order import alone_order, stages


def test_a_whole_screen_runs_each_alone_in_three_rounds_and_then_all() -> None:
    assert [(stage.kinds[0], stage.number) for stage in stages(False)] == [
        ("alone", 1),
        ("alone", 2),
        ("alone", 3),
        ("independent", 1),
    ]


def test_a_quick_one_runs_all_at_once_first_and_further_rounds_as_a_whole_only() -> None:
    first, *others = stages(True)
    assert first.kinds == ("independent",)
    assert [(stage.kinds[0], stage.whole) for stage in others] == [
        ("alone", False),
        ("together", False),
        ("alone", True),
        ("alone", True),
    ]


def test_rounds_alternate_and_slow_devices_come_first() -> None:
    assert alone_order([0, 1, 2, 3], 1, {}) == [0, 1, 2, 3]
    assert alone_order([0, 1, 2, 3], 2, {}) == [3, 2, 1, 0]
    assert alone_order([0, 1, 2, 3], 1, {2: "slow", 1: "cannot tell"}) == [2, 0, 1, 3]
