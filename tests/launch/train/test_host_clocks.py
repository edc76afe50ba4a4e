"""What each host sent and received in a step, from readings of one clock."""

import numpy as np
import pytest

from gputopo.launch.train import host_exchanges

NAN = float("nan")


def test_a_host_whose_gradients_and_sums_arrive_late_sends_late_and_no_other_does() -> None:
    """Three hosts done at 1.0 s; what host 2 sends takes 0.3 s each way, all else 0.1 s."""
    late, quick = 0.3, 0.1
    rows = [
        [NAN, 1 + quick, 1 + late, NAN, 1.5 + quick, 1.5 + late, 1.5, 1.8],
        [1 + quick, NAN, 1 + late, 1.5 + quick, NAN, 1.5 + late, 1.5, 1.8],
        [1 + quick, 1 + quick, NAN, 1.5 + quick, 1.5 + quick, NAN, 1.5, 1.6],
    ]
    found = host_exchanges([0, 1, 2], np.array([1.0, 1.0, 1.0]), np.array(rows))
    assert [one.rank for one in found] == [0, 1, 2]
    assert [one.sends_s for one in found] == pytest.approx([0.2, 0.2, 0.6])
    assert [one.receives_s for one in found] == pytest.approx([0.2, 0.2, 0.2])
    assert [one.sums_s for one in found] == pytest.approx([0.8, 0.8, 0.6])


def test_a_host_that_receives_late_is_told_from_those_that_send_there() -> None:
    rows = np.full((3, 8), NAN)
    rows[:, :3] = [[NAN, 1.0, 1.0], [1.0, NAN, 1.0], [1.4, 1.4, NAN]]
    found = host_exchanges([0, 1, 2], np.array([1.0, 1.0, 1.0]), rows)
    assert [one.sends_s for one in found] == pytest.approx([0.0, 0.0, 0.0])
    assert [one.receives_s for one in found] == pytest.approx([0.0, 0.0, 0.4])
    assert [one.sums_s for one in found] == [None, None, None], "no sums are sent to all"


def test_what_arrives_before_the_last_gradient_is_done_costs_nothing() -> None:
    rows = np.array([[NAN, 0.9, NAN, NAN, NAN, 1.2], [0.8, NAN, NAN, NAN, NAN, 1.1]])
    found = host_exchanges([0, 0, 1], np.array([0.5, 1.0, 1.0]), rows)
    assert [(one.sends_s, one.receives_s) for one in found] == [(0.0, 0.0), (0.0, 0.0)]
    assert [one.sums_s for one in found] == pytest.approx([0.2, 0.1])
