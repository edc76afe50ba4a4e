"""The GPUs that explain slow copies, and the pairs that are left."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.copies.numbers import Pair
from gputopo.copies.slow_ends import slow_ends


def every(count: int) -> set[Pair]:
    return set(permutations(range(count), 2))


def of_gpu(count: int, *gpus: int) -> set[Pair]:
    return {pair for pair in every(count) if {*pair} & {*gpus}}


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("gpu", [0, 2])
def test_a_gpu_that_is_slow_with_all_its_peers_explains_its_pairs(count: int, gpu: int) -> None:
    found = slow_ends(of_gpu(count, gpu), every(count))
    assert (found.gpus, found.pairs) == ([gpu], [])
    assert found.out == {gpu: [(gpu, other) for other in range(count) if other != gpu]}


def test_several_gpus() -> None:
    found = slow_ends(of_gpu(8, 1, 4, 5), every(8))
    assert (found.gpus, found.pairs) == ([1, 4, 5], [])


def test_one_direction_of_a_gpu() -> None:
    found = slow_ends({(3, other) for other in range(3)}, every(4))
    assert (list(found.out), list(found.into), found.pairs) == ([3], [], [])


def test_a_single_pair_is_no_fault_of_its_gpus() -> None:
    assert slow_ends({(0, 2), (2, 0)}, every(4)).pairs == [(0, 2), (2, 0)]
    assert slow_ends({(0, 2), (2, 0)}, every(4)).gpus == []


def test_the_pair_of_two_gpus_is_a_pair() -> None:
    assert slow_ends(every(2), every(2)).pairs == [(0, 1), (1, 0)]


@given(st.sets(st.sampled_from(sorted(every(5)))), st.sets(st.sampled_from(sorted(every(5)))))
def test_each_slow_copy_is_explained_once(slow: set[Pair], others: set[Pair]) -> None:
    found = slow_ends(slow, slow | others)
    explained = [pair for pairs in (*found.out.values(), *found.into.values()) for pair in pairs]
    assert sorted([*explained, *found.pairs]) == sorted(slow)
