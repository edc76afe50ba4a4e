"""The timeline of a step in words and milliseconds."""

from itertools import combinations
from typing import Literal

import pytest

from gputopo.prediction import (
    GradientBlock,
    ModelCosts,
    Paths,
    Placement,
    StepPredictor,
    require_program,
    step_timeline,
)
from gputopo.prediction.links import HostLink, PairPath, Resource, Uplink, in_words


@pytest.mark.parametrize(
    ("resource", "on_host", "words"),
    [
        (("up", 3), True, "GPU 3 to the host"),
        (("up", 3), False, "link of GPU 3, sending"),
        (("uplink up", 0), False, "uplink of GPUs 0-3"),
        (("nvlink", 0, 1), False, "NVLink 0 to 1"),
        (("nvlink out", 1), False, "NVLinks of GPU 1, sending"),
    ],
)
def test_resources_are_in_words(resource: Resource, on_host: bool, words: str) -> None:
    paths = Paths({}, {}, (Uplink(frozenset(range(4)), 12.0),))
    assert in_words(resource, paths, on_host=on_host) == words


@pytest.mark.parametrize(
    ("kind", "ps", "shown"),
    [
        ("direct", "cpu", {"GPUs 0-3 to the host", "uplink of GPUs 0-3, to the host"}),
        ("direct", "gpu:1", {"link of GPUs 0,2-3, sending", "link of GPU 1, sending"}),
        ("nvlink", "gpu:spread", {"NVLink 1 to 0 and 11 alike"}),
    ],
)
def test_links_that_carry_the_same_are_named_together(
    kind: Literal["direct", "nvlink"], ps: str, shown: set[str]
) -> None:
    hosts = {gpu: HostLink(12.0, 12.0, "link") for gpu in range(4)}
    pairs = {pair: PairPath(kind, 10.0, "link") for pair in combinations(range(4), 2)}
    paths = Paths(hosts, pairs, (Uplink(frozenset(range(4)), 24.0),))
    model = ModelCosts((GradientBlock(4_000_000, 1.0),), (1_000_000,), ("all",))
    predictor = StepPredictor(model, require_program("gputopo"), paths)
    line = step_timeline(predictor, range(4), 0.1, Placement("parameter_server", ps))
    assert shown <= {one.resource for one in line.resources}
