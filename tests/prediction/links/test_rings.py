"""The best order of a ring against all orders."""

from itertools import permutations

import pytest
from hypothesis import given

from gputopo.prediction.links.paths import Paths
from gputopo.prediction.links.rates import RateTable
from gputopo.prediction.links.rings import Rings
from tests.prediction.invented import machines


@given(machines(max_gpus=7))
def test_no_order_is_better_than_the_one_found(paths: Paths) -> None:
    """All orders of up to seven GPUs, by the same account of an order."""
    gpus = tuple(sorted(paths.hosts))
    mask = sum(1 << gpu for gpu in gpus)
    rings = Rings(RateTable(paths, gpus))
    share = 2 * (len(gpus) - 1) / len(gpus)
    best = min(rings.seconds((gpus[0], *rest)) for rest in permutations(gpus[1:]))

    found = rings.best(gpus, mask)
    assert found is not None
    seconds, order = found

    assert sorted(order) == list(gpus)
    assert seconds == pytest.approx(best * share)
    assert seconds == pytest.approx(rings.seconds(order) * share)
    assert rings.may_be_below(seconds * (1 + 1e-9), mask, len(gpus))
    assert rings.best(gpus, mask, seconds * (1 - 1e-9)) is None
    within = rings.best(gpus, mask, seconds * (1 + 1e-9))
    assert within is not None
    assert within[0] == pytest.approx(seconds)
