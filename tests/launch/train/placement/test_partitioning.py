import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.train.placement import (
    chunk_sizes,
    halves,
    leaders_of,
    owners_of,
    small_runs,
    starts_of,
)


@given(st.integers(0, 10**9), st.integers(1, 300), st.integers(1, 10**6))
def test_chunks_are_all_of_it_nearly_equal_and_not_too_small(size: int, count: int, least: int) -> None:
    cut = chunk_sizes(size, count, least)
    assert sum(cut) == size
    assert max(cut) - min(cut) <= 1
    assert len(cut) == max(1, min(size // least, count))
    assert min(cut) >= least or len(cut) == 1


@given(st.integers(0, 10**9), st.integers(1, 300), st.integers(2, 64))
def test_chunks_begin_at_whole_units_where_there_is_one_for_each(size: int, count: int, unit: int) -> None:
    cut = chunk_sizes(size, count, unit=unit)
    assert sum(cut) == size
    assert len(cut) == max(1, min(size, count))
    if size >= count * unit:
        assert max(cut) - min(cut) < 2 * unit
        assert all(start % unit == 0 for start in itertools.accumulate(cut[:-1]))
    else:
        assert max(cut) - min(cut) <= 1


@given(
    st.lists(st.integers(0, 40), max_size=40),
    st.integers(0, 30),
    st.integers(1, 5),
)
def test_small_neighbours_are_joined_up_to_the_maximum_and_nothing_else_is(
    sizes: list[int], small: int, most: int
) -> None:
    groups = small_runs(sizes, small, most)
    assert [number for group in groups for number in group] == list(range(len(sizes)))
    for group in groups:
        assert len(group) <= most
        assert len(group) == 1 or all(sizes[number] <= small for number in group)
    for before, after in itertools.pairwise(groups):
        could_join = sizes[before[-1]] <= small and sizes[after[0]] <= small
        assert not could_join or len(before) == most


def test_gpus_share_a_large_variable_and_cpu_devices_do_not() -> None:
    sizes = [1000, 900_000, 2000]
    assert owners_of(sizes, ["/GPU:0", "/GPU:1"]) == [("/GPU:1",), ("/GPU:0", "/GPU:1"), ("/GPU:0",)]
    assert owners_of(sizes, ["/CPU:0", "/CPU:1"]) == [("/CPU:1",), ("/CPU:0",), ("/CPU:1",)]


@given(st.integers(2, 16), st.integers(1, 8), st.integers(1, 20), st.integers(0, 300))
def test_in_every_tick_of_a_ring_each_tower_has_one_chunk_for_each_ring(
    towers: int, rings: int, tick: int, first: int
) -> None:
    starts = starts_of(towers * rings, towers, rings, first)
    at = Counter((start + tick) % towers for start in starts)
    assert at == dict.fromkeys(range(towers), rings)


@given(st.integers(1, 12), st.integers(0, 200))
def test_every_tower_leads_and_totals_are_made_everywhere_alternating(towers: int, first: int) -> None:
    groups = halves(towers)
    turns = [leaders_of(groups, first + number) for number in range(len(groups) * towers)]
    for group in range(len(groups)):
        assert {leaders[group] for leaders, _ in turns} == set(groups[group])
    assert set(Counter(main for _, main in turns).values()) == {towers}
    assert {leaders[main] for leaders, main in turns} == set(range(towers))


@given(st.integers(0, 40))
def test_halves_have_all_towers_and_differ_by_one(towers: int) -> None:
    groups = halves(towers)
    assert [tower for group in groups for tower in group] == list(range(towers))
    assert len(groups) <= 2
    assert all(groups)
    assert 0 <= len(groups[0]) - len(groups[-1]) <= 1 if groups else towers == 0
