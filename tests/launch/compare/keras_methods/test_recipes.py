import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.compare.keras_tower import RECIPES, Cut, rows_of_towers
from gputopo.values.errors import UsageError

CUTS = st.sampled_from(["even", "rest"])


@given(st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 200))), CUTS)
def test_every_row_goes_to_exactly_one_tower_in_order(sizes: tuple[int, int], cut: Cut) -> None:
    towers, batch = sizes
    rows = [row for first, count in rows_of_towers(batch, towers, cut) for row in range(first, first + count)]
    assert rows == list(range(batch))


@given(st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 200))))
def test_an_even_cut_differs_by_one_row_at_most(sizes: tuple[int, int]) -> None:
    towers, batch = sizes
    counts = [count for _, count in rows_of_towers(batch, towers, "even")]
    assert max(counts) - min(counts) <= 1


def test_the_last_tower_takes_the_rest() -> None:
    assert rows_of_towers(15, 4, "rest") == [(0, 3), (3, 3), (6, 3), (9, 6)]
    assert rows_of_towers(15, 4, "even") == [(0, 4), (4, 4), (8, 4), (12, 3)]


@given(st.integers(2, 16), CUTS)
def test_fewer_rows_than_towers_are_refused(towers: int, cut: Cut) -> None:
    with pytest.raises(UsageError, match=f"batch of {towers - 1}"):
        rows_of_towers(towers - 1, towers, cut)


def test_the_methods_differ_in_what_they_are_known_for() -> None:
    assert RECIPES["kuza55"].slice_on == RECIPES["fchollet"].slice_on == "tower"
    assert RECIPES["avolkov1"].slice_on == "host"
    assert RECIPES["fchollet"].merge_on == "host"
    assert len({one.says for one in RECIPES.values()}) == 3
