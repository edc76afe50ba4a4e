"""Paths and models with anything in them, and the steps of a candidate by simulation of its events."""

from collections.abc import Sequence
from itertools import combinations

import msgspec
from hypothesis import strategies as st

from gputopo.prediction import (
    GradientBlock,
    ModelCosts,
    Paths,
    Placement,
    ProgramConstants,
    StepPredictor,
    require_program,
)
from gputopo.prediction.links import HostLink, PairPath, Uplink
from gputopo.values.run.all_reduce import NAMES

REDUCTIONS = tuple(name for name in NAMES if Placement("replicated", None, name).traffic is not None)
RATES = st.floats(0.5, 200.0)


def programs() -> st.SearchStrategy[ProgramConstants]:
    """Return constants of a program within what fits may find."""
    shares = st.floats(0.0, 1.0)
    micros = st.floats(0.0, 100.0)
    return st.builds(
        ProgramConstants,
        name=st.just("invented"),
        source=st.just(""),
        overlap=shares,
        ring_overlap=shares,
        wait=shares,
        return_share=shares,
        link_share=st.floats(0.3, 1.0),
        ring_share=st.floats(0.3, 1.2),
        host_add_gb_per_s=st.floats(1.0, 60.0),
        us_cpu=micros,
        us_add=micros,
        us_device=micros,
        us_ring=micros,
        ring_mb=st.floats(0.0, 1.0),
        adds=st.sampled_from(("copy", "psgpu")),
        cuts_variables=st.booleans(),
        gathers=st.booleans(),
    )


def models() -> st.SearchStrategy[ModelCosts]:
    """Return models of one to eight blocks with one or two variables each."""
    block = st.tuples(st.lists(st.integers(1, 25 * 10**6), min_size=1, max_size=2), st.floats(0.01, 1.0))
    return st.lists(block, min_size=1, max_size=8).map(_model)


def _model(parts: Sequence[tuple[Sequence[int], float]]) -> ModelCosts:
    whole = sum(cost for _, cost in parts)
    return ModelCosts(
        tuple(GradientBlock(4 * sum(sizes), cost / whole) for sizes, cost in parts),
        tuple(size for sizes, _ in parts for size in sizes),
        tuple(f"block{number}" for number in range(len(parts))),
    )


def through(blocks: Sequence[GradientBlock], overlap: float, seconds_per_byte: float) -> tuple[float, ...]:
    """Return when the gradients of each block, the last one first, are through a link; backward: a second."""
    program = msgspec.structs.replace(require_program("gputopo"), overlap=overlap)
    predictor = StepPredictor(ModelCosts(tuple(blocks), ()), program, Paths({}, {}, ()))
    return predictor.terms(Placement("independent"), 1).line.through(seconds_per_byte)


@st.composite
def machines(draw: st.DrawFn, max_gpus: int = 6) -> Paths:
    """Return paths of two GPUs or more, often with GPUs that are alike."""
    count = draw(st.integers(2, max_gpus))
    links = draw(st.lists(st.builds(HostLink, RATES, RATES, st.just("link")), min_size=1, max_size=2))
    kinds = st.builds(
        PairPath,
        st.sampled_from(("nvlink", "direct", "redirected", "staged")),
        RATES,
        st.just("link"),
    )
    choices = draw(st.lists(kinds, min_size=1, max_size=2))
    groups = st.sets(st.integers(0, count - 1), min_size=2)
    uplinks = draw(st.lists(st.builds(Uplink, groups.map(frozenset), RATES), max_size=3))
    return Paths(
        {gpu: draw(st.sampled_from(links)) for gpu in range(count)},
        {pair: draw(st.sampled_from(choices)) for pair in combinations(range(count), 2)},
        tuple(uplinks),
        dict.fromkeys(draw(st.sets(st.integers(0, count - 1))), draw(RATES)),
    )


def placings(gpus: Sequence[int]) -> tuple[Placement, ...]:
    """Return every kind of place for the variables of these GPUs, but the reductions of even numbers."""
    return (
        Placement("parameter_server", "cpu"),
        *(Placement("parameter_server", f"gpu:{gpu}") for gpu in gpus),
        Placement("parameter_server", "gpu:spread"),
        *(Placement("replicated", None, name) for name in REDUCTIONS),
        Placement("independent"),
    )
