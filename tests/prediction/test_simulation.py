"""The closed form of the line of gradients against flows that share links fairly, event by event."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.prediction import ModelCosts, Paths, Placement
from gputopo.prediction.links import GB, Flows, HostLink, PairPath, Uplink
from tests.prediction.invented import models, through
from tests.prediction.simulation import ends_of, flows_of

PLACINGS = (
    Placement("parameter_server", "cpu"),
    Placement("parameter_server", "gpu:0"),
    Placement("parameter_server", "gpu:spread"),
)


def trees(noise: float) -> st.SearchStrategy[Paths]:
    """Return one or two switches with two to four GPUs each, whose links differ by up to `noise`."""
    factors = st.lists(st.floats(1 - noise, 1 + noise), min_size=50, max_size=50)
    numbers = st.integers(1, 2), st.integers(2, 4)
    return st.builds(_tree, *numbers, st.floats(0.5, 50.0), st.floats(0.5, 50.0), factors)


def _tree(switches: int, each: int, link: float, uplink: float, factors: list[float]) -> Paths:
    gpus = range(switches * each)
    factor = iter(factors)
    hosts = {gpu: HostLink(link * next(factor), link * next(factor), "link") for gpu in gpus}
    pairs = {
        (a, b): PairPath("direct", (1.0 if a // each == b // each else 0.8) * link * next(factor), "link")
        for a, b in combinations(gpus, 2)
    }
    uplinks = (
        Uplink(frozenset(range(first, first + each)), uplink * next(factor))
        for first in range(0, len(gpus), each)
    )
    return Paths(hosts, pairs, tuple(uplinks))


def _differences(
    paths: Paths, placing: Placement, model: ModelCosts, overlap: float, scale: float
) -> list[float]:
    """Return by how much the simulation ends later, by block, over the step; backward takes a second."""
    gpus = sorted(paths.hosts)
    flows = Flows(paths)
    spread = gpus if placing.owner is None else [placing.owner]
    owners = [None] if placing.traffic == "host" else spread
    for gpu in gpus:
        for owner in owners:
            flows.between(gpu, owner, 1 / len(owners))
    # Bytes are scaled so that the slowest link is about as busy as the GPUs.
    slowest = max(flows.seconds.values()) / GB
    factor = scale / (slowest * sum(block.bytes for block in model.blocks))
    blocks = tuple(block._replace(bytes=round(block.bytes * factor)) for block in model.blocks)
    closed = through(blocks, overlap, slowest)
    ends = map(max, zip(*ends_of(flows_of(paths, gpus, placing, blocks, overlap)), strict=True))
    return [
        (simulated - end) / (0.5 + max(1.0, closed[-1])) for simulated, end in zip(ends, closed, strict=True)
    ]


@given(trees(0.0), st.sampled_from(PLACINGS), models(), st.floats(0.0, 1.0), st.floats(0.1, 10.0))
@settings(max_examples=20)
def test_on_equal_trees_it_is_what_fair_sharing_gives(
    paths: Paths, placing: Placement, model: ModelCosts, overlap: float, scale: float
) -> None:
    """Within a thousandth of the step, for every block."""
    for difference in _differences(paths, placing, model, overlap, scale):
        assert difference == pytest.approx(0.0, abs=1e-3)


@given(trees(0.5), st.sampled_from(PLACINGS), models(), st.floats(0.0, 1.0), st.floats(0.1, 10.0))
@settings(max_examples=20)
def test_where_links_differ_it_misses_less_than_a_hundredth(
    paths: Paths, placing: Placement, model: ModelCosts, overlap: float, scale: float
) -> None:
    """So nothing is simulated to predict a step. Fair sharing is never faster than the slowest link alone."""
    difference = _differences(paths, placing, model, overlap, scale)[-1]

    assert -1e-6 <= difference < 0.01
