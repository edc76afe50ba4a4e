from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner.by_distance.subsets import TooManySetsError, closest_sets

Distances = dict[tuple[int, int], int]


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[int], Distances, int, int | None]:
    """GPUs with gaps in their numbers, the distance of each pair, a size, and a GPU that must be in."""
    gpus = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=8)))
    classes = draw(st.integers(0, 4))  # few classes give many ties
    distances = {pair: draw(st.integers(0, classes)) for pair in combinations(gpus, 2)}
    return gpus, distances, draw(st.integers(1, len(gpus))), draw(st.none() | st.sampled_from(gpus))


def farthest_first(gpus: tuple[int, ...], distances: Distances) -> list[int]:
    return sorted((distances[pair] for pair in combinations(gpus, 2)), reverse=True)


def all_sets(gpus: list[int], size: int, required: int | None) -> list[tuple[int, ...]]:
    return [chosen for chosen in combinations(gpus, size) if required is None or required in chosen]


@given(searches())
def test_the_first_set_is_that_of_brute_force(search: tuple[list[int], Distances, int, int | None]) -> None:
    gpus, distances, size, required = search
    found = closest_sets(gpus, lambda a, b: distances[min(a, b), max(a, b)], size, keep=3, required=required)
    costs = {chosen: farthest_first(chosen, distances) for chosen in all_sets(gpus, size, required)}
    best = min(costs, key=lambda chosen: (costs[chosen], chosen))
    assert found[0].gpus == best
    for one in found:
        assert one.equal == sum(cost == costs[one.gpus] for cost in costs.values())


@given(searches())
def test_sets_come_in_order_and_stand_for_all_the_sets_there_are(
    search: tuple[list[int], Distances, int, int | None],
) -> None:
    gpus, distances, size, required = search
    found = closest_sets(
        gpus, lambda a, b: distances[min(a, b), max(a, b)], size, keep=1000, required=required
    )
    order = [(farthest_first(one.gpus, distances), one.gpus) for one in found]
    assert order == sorted(order)
    assert len({one.gpus for one in found}) == len(found)
    assert sum(one.alike for one in found) == len(all_sets(gpus, size, required))


@given(searches(), st.integers(1, 5))
def test_keeping_fewer_gives_the_head_of_the_whole_list(
    search: tuple[list[int], Distances, int, int | None], keep: int
) -> None:
    gpus, distances, size, required = search

    def nearness(a: int, b: int) -> int:
        return distances[min(a, b), max(a, b)]

    whole = closest_sets(gpus, nearness, size, keep=1000, required=required)
    assert closest_sets(gpus, nearness, size, keep=keep, required=required) == whole[:keep]


@given(searches(), st.sets(st.integers(0, 20)))
def test_the_fewest_gpus_deprioritized_come_first_then_the_closest_then_the_lowest_indices(
    search: tuple[list[int], Distances, int, int | None], last: set[int]
) -> None:
    gpus, distances, size, required = search

    def nearness(a: int, b: int) -> int:
        return distances[min(a, b), max(a, b)]

    def cost(chosen: tuple[int, ...]) -> tuple[int, list[int]]:
        return len(set(chosen) & last - {required}), farthest_first(chosen, distances)

    found = closest_sets(gpus, nearness, size, keep=3, required=required, deprioritized=last)
    sets = all_sets(gpus, size, required)
    assert found[0].gpus == min(sets, key=lambda chosen: (cost(chosen), chosen))
    order = [(cost(one.gpus), one.gpus) for one in found]
    assert order == sorted(order)
    for one in found:
        assert one.gpus == tuple(sorted(one.gpus))
        assert one.equal == sum(cost(chosen) == cost(one.gpus) for chosen in sets)
    everything = closest_sets(gpus, nearness, size, keep=1000, required=required, deprioritized=last)
    assert found == everything[:3]
    assert sum(one.alike for one in everything) == len(sets)


def test_where_equal_sets_have_as_many_deprioritized_gpus_the_lowest_indices_count() -> None:
    def nearness(a: int, b: int) -> int:
        return 0 if {a, b} in ({0, 3}, {1, 2}) else 1

    found = closest_sets(range(4), nearness, 2, keep=3, deprioritized={0, 2})
    assert [one.gpus for one in found] == [(1, 3), (0, 3), (1, 2)]


def test_gpus_that_are_all_alike_are_looked_at_once() -> None:
    (found,) = closest_sets(range(16), lambda a, b: 0, 8, keep=10)
    assert found.gpus == tuple(range(8))
    assert found.alike == found.equal == comb(16, 8)


def test_many_near_pairs_do_not_outweigh_one_far_pair() -> None:
    # {0,1,2,3}: six pairs of 1. {4,5,6,7}: five pairs of 0 and one of 2. All others: 3. The first has the
    # closer farthest pair (1 before 2), though the sum of the second is smaller (2 before 6).
    def nearness(a: int, b: int) -> int:
        if a // 4 != b // 4:
            return 3
        return 1 if a < 4 else 2 if {a, b} == {6, 7} else 0

    first, second, *_ = closest_sets(range(8), nearness, 4, keep=3)
    assert (first.gpus, second.gpus) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_search_that_would_take_too_long_is_given_up() -> None:
    # A ring of 40 GPUs, no two alike: comb(40, 20) is more than 10 ** 11.
    with pytest.raises(TooManySetsError):
        closest_sets(range(40), lambda a, b: min((a - b) % 40, (b - a) % 40), 20, keep=10, max_steps=10_000)


def test_sixteen_gpus_of_which_no_two_are_alike_need_fewer_steps_than_are_allowed() -> None:
    # Every distance is another, so nothing is skipped as alike. A set begun with k GPUs ends at index
    # 7 + k at the highest, so there are comb(8 + k, k) of them; for k = 1..8 together comb(17, 8) - 1.
    most = comb(17, 8) - 1
    found = closest_sets(range(16), lambda a, b: 16 * min(a, b) + max(a, b), 8, keep=20_000, max_steps=most)
    assert len(found) == comb(16, 8)
