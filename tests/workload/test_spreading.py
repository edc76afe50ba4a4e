from hypothesis import given
from hypothesis import strategies as st

from gputopo.workload import MIN_CHUNK, spread_by_size

EVEN = 1.05  # the fullest owner has at most so many fair shares
SIZES = st.lists(st.integers(1, 30 * MIN_CHUNK), min_size=1, max_size=30)
COUNTS = st.integers(1, 8)


def largest_load(sizes: list[int], count: int) -> float:
    """Return the numbers on the fullest owner; owners of one variable have equal parts."""
    loads = [0.0] * count
    for size, owners in zip(sizes, spread_by_size(sizes, count), strict=True):
        for owner in owners:
            loads[owner] += size / len(owners)
    return max(loads)


@given(SIZES, COUNTS)
def test_every_variable_has_one_owner_or_all(sizes: list[int], count: int) -> None:
    everyone = tuple(range(count))
    for owners in spread_by_size(sizes, count):
        assert owners == everyone or owners in [(owner,) for owner in everyone]


@given(SIZES, COUNTS)
def test_what_exceeds_a_fair_share_is_cut_unless_its_parts_were_too_small(
    sizes: list[int], count: int
) -> None:
    for size, owners in zip(sizes, spread_by_size(sizes, count), strict=True):
        if size * count > sum(sizes) and size >= count * MIN_CHUNK:
            assert len(owners) == count
        if size < count * MIN_CHUNK:
            assert len(owners) == 1


@given(SIZES, COUNTS)
def test_loads_are_even_where_variables_can_be_cut(sizes: list[int], count: int) -> None:
    """The last variable that is assigned whole raises the largest load by less than its own size."""
    fair = sum(sizes) / count
    largest = largest_load(sizes, count)
    assert largest <= max(EVEN * fair, fair + count * MIN_CHUNK) + 1e-6


@given(SIZES, COUNTS)
def test_without_cuts_each_goes_to_the_least_loaded_largest_first(sizes: list[int], count: int) -> None:
    chosen = spread_by_size(sizes, count, cuts=False)
    loads = [0] * count
    for number in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        (owner,) = chosen[number]
        assert owner == loads.index(min(loads))
        loads[owner] += sizes[number]
