from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.thinned import Thinned


def thinned(count: int, capacity: int) -> Thinned[int]:
    found: Thinned[int] = Thinned(capacity)
    for number in range(count):
        found.add(number)
    return found


@given(st.integers(0, 50), st.integers(50, 80))
def test_a_stream_that_fits_is_stored_whole(count: int, capacity: int) -> None:
    assert thinned(count, capacity).items == list(range(count))


@given(st.integers(1, 3000), st.integers(2, 40))
def test_a_longer_one_is_stored_evenly_spread_from_its_first_item_on(count: int, capacity: int) -> None:
    found = thinned(count, capacity)
    assert found.seen == count
    assert len(found.items) <= capacity
    step = found.items[1] - found.items[0] if len(found.items) > 1 else 1
    assert found.items == list(range(0, count, step))
    assert step == 1 or len(found.items) > capacity // 2 - 1
