"""The best order of a ring against all orders."""

from itertools import permutations

import pytest
from hypothesis import given

from gputopo.prediction.links.paths import Paths
from gputopo.prediction.links.rings import Rings
from tests.prediction.invented import machines


@given(machines(max_gpus=7))
def test_no_order_is_better_than_the_one_found(paths: Paths) -> None:
    """All orders of up to seven GPUs, by the same account of an order."""
    gpus = tuple(sorted(paths.hosts))
    rings = Rings(paths, gpus)
    share = 2 * (len(gpus) - 1) / len(gpus)
    best = min(rings.seconds((gpus[0], *rest)) for rest in permutations(gpus[1:]))

    seconds, order = rings.best(gpus)

    assert sorted(order) == list(gpus)
    assert seconds == pytest.approx(best * share)
    assert seconds == pytest.approx(rings.seconds(order) * share)
    assert seconds == pytest.approx(max(load.seconds for load in rings.loads(order, 2).values()))
    assert rings.least(gpus) <= seconds * (1 + 1e-9)
