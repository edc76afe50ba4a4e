"""Every candidate, against those that the search for the fastest finds one by one."""

from itertools import combinations
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.prediction.every import DETAILED, MAX_SETS, every_candidate
from gputopo.prediction.line import Block
from gputopo.prediction.links.paths import HostLink, PairPath, Paths
from gputopo.prediction.programs import DEFAULT, Program, require_program
from gputopo.prediction.search import fastest
from gputopo.prediction.sets import DIGITS, Found, Question
from gputopo.prediction.step import Model, Placing
from gputopo.values.errors import NoPlanError
from tests.prediction.invented import machines, models, placings, programs

OTHERS = (Placing("replicated", None, "ring"), Placing("replicated", None, "psgpu"))


@given(machines(), models(), programs(), st.data())
@settings(max_examples=30)
def test_each_candidate_of_the_search_is_listed_in_its_order(
    paths: Paths, model: Model, program: Program, data: st.DataObject
) -> None:
    """With the same parts and links; other places follow, each with all sets."""
    pool = sorted(paths.hosts)
    size = data.draw(st.integers(1, len(pool)))
    compute = {gpu: data.draw(st.sampled_from((0.05, 0.1))) for gpu in pool}
    last = data.draw(st.sets(st.sampled_from(pool), max_size=2))
    question = Question(
        paths, model, program, compute, placings(pool), size, lambda a, b: (b - a) % 3, last=last
    )

    def order(one: Found) -> tuple[object, ...]:
        near = sorted((question.nearness(a, b) for a in one.gpus for b in one.gpus if a < b), reverse=True)
        avoided = len(last & set(one.gpus))
        return avoided, round(one.prediction.step_s, DIGITS), near, one.gpus

    found = fastest(question, pool, 10_000)
    listed = list(every_candidate(question, pool, OTHERS))

    first, after = listed[: len(found)], listed[len(found) :]
    assert list(map(order, first)) == list(map(order, found))
    assert sorted(map(repr, first)) == sorted(map(repr, found))
    other = fastest(question._replace(placings=OTHERS), pool, 10_000)
    assert list(map(order, after)) == list(map(order, other))
    assert {one.placing for one in after} == set(OTHERS)


def _different(count: int, size: int) -> tuple[Question, range]:
    """Return a question of GPUs of which each has another speed."""
    gpus = range(count)
    paths = Paths(
        {gpu: HostLink(12.0, 12.0, "measured") for gpu in gpus},
        {pair: PairPath("direct", 10.0, "measured") for pair in combinations(gpus, 2)},
        (),
    )
    compute = {gpu: 0.1 + 0.01 * gpu for gpu in gpus}
    model, program = Model((Block(10**8, 1.0),), (10**8,)), require_program(DEFAULT)
    return Question(paths, model, program, compute, OTHERS[:1], size, lambda a, b: 0), gpus


def test_of_many_candidates_the_first_have_the_links_that_limit_them() -> None:
    question, gpus = _different(14, 4)
    listed = list(every_candidate(question, gpus, OTHERS[1:]))
    assert len(listed) == 2 * comb(14, 4) > DETAILED
    assert [one.prediction.gradients_by is not None for one in listed] == [
        place < DETAILED for place in range(len(listed))
    ]


def test_more_sets_than_can_be_listed_are_refused() -> None:
    """All sets of sixteen GPUs can be, and of more where many are alike."""
    assert max(comb(16, size) for size in range(17)) <= MAX_SETS
    with pytest.raises(NoPlanError, match="too many to list"):
        every_candidate(*_different(18, 9))
    question, gpus = _different(18, 9)
    alike = question._replace(compute_s=dict.fromkeys(gpus, 0.1))
    assert [one.alike for one in every_candidate(alike, gpus)] == [comb(18, 9)]
