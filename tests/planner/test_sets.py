"""The best sets against all of them."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.planner.sets import MAX_SETS, SetQuestion, best_sets
from gputopo.values.errors import NoPlanError


def order(question: SetQuestion, gpus: Sequence[int]) -> tuple[object, ...]:
    """Return what sets are compared by, as written down in `SetQuestion`."""
    ranks = [question.ranks[gpu] for gpu in gpus]
    pairs = sorted((question.nearness[pair] for pair in combinations(gpus, 2)), reverse=True)
    avoided = sum(gpu in question.last and gpu != question.required for gpu in gpus)
    return avoided, sum(ranks) if question.by_sum else max(ranks), pairs, gpus


@st.composite
def questions(draw: st.DrawFn) -> tuple[SetQuestion, list[int]]:
    """Return a question about up to seven GPUs, some of them alike."""
    pool = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=7)))
    near = {pair: draw(st.integers(0, 2)) for pair in combinations(pool, 2)}
    return (
        SetQuestion(
            size=draw(st.integers(1, len(pool))),
            nearness=near,
            ranks={gpu: draw(st.integers(0, 1)) for gpu in pool},
            by_sum=draw(st.booleans()),
            required=draw(st.sampled_from([None, *pool])),
            last=draw(st.sets(st.sampled_from(pool), max_size=2)),
        ),
        pool,
    )


@given(questions())
@settings(max_examples=150)
def test_the_best_set_is_that_of_all_sets_and_alike_ones_are_counted(
    asked: tuple[SetQuestion, list[int]],
) -> None:
    question, pool = asked
    every = [
        gpus
        for gpus in combinations(pool, question.size)
        if question.required is None or question.required in gpus
    ]
    found = best_sets(question, pool, len(every))

    assert found[0].gpus == min(every, key=lambda gpus: order(question, gpus))
    assert sum(one.alike for one in found) == len(every)
    assert [one.gpus for one in found] == sorted(
        (one.gpus for one in found), key=lambda gpus: order(question, gpus)
    )
    assert best_sets(question, pool, 2) == found[:2]


def test_more_sets_than_can_be_compared_are_refused_and_alike_ones_are_not() -> None:
    pool = range(32)
    differ = SetQuestion(16, {(a, b): a * b for a, b in combinations(pool, 2)}, dict.fromkeys(pool, 0))
    with pytest.raises(NoPlanError, match=f"more than {MAX_SETS} sets of 16 GPUs differ") as refused:
        best_sets(differ, pool, 1)
    assert "--gpus or --exclude" in str(refused.value.hint)
    alike = SetQuestion(16, dict.fromkeys(combinations(pool, 2), 0), dict.fromkeys(pool, 0))
    assert best_sets(alike, pool, 1)[0].gpus == tuple(range(16))
