"""Models with anything in them, and when their gradients are through a link by prediction."""

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from gputopo.prediction import GradientBlock, ModelCosts, Paths, Placement, StepPredictor, require_program


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
