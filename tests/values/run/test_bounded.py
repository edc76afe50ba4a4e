import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.values.run.bounded import ALL_SAMPLES, BLOCK_SAMPLES, Thinned, WrittenSamples
from gputopo.values.run.events import Sample, Xid


def thinned(count: int, capacity: int) -> Thinned[int]:
    found: Thinned[int] = Thinned(capacity)
    for number in range(count):
        found.add(number)
    return found


@given(st.integers(0, 50), st.integers(50, 80))
def test_a_stream_that_fits_is_stored_whole(count: int, capacity: int) -> None:
    assert thinned(count, capacity).items == list(range(count))


@given(st.integers(1, 3000), st.integers(2, 40))
def test_a_longer_one_is_stored_in_part_from_its_first_item_on(count: int, capacity: int) -> None:
    found = thinned(count, capacity)
    assert found.seen == count
    assert min(count, capacity // 3) <= len(found.items) <= capacity
    assert found.items[0] == 0
    assert found.items == sorted(set(found.items))


@pytest.mark.parametrize("period", [2, 64])
def test_what_repeats_is_stored_in_proportion(period: int) -> None:
    items = thinned(30_000, 400).items
    assert sum(item % period < period / 2 for item in items) == pytest.approx(len(items) / 2, rel=0.1)


def test_each_doubling_of_a_run_writes_half_as_many_samples_as_its_first_hour() -> None:
    written = WrittenSamples()
    plain = Sample(time_s=1.0, gpus=())
    has = [written.has(plain) for _ in range(8 * ALL_SAMPLES)]
    parts = [sum(has[begin * ALL_SAMPLES : 2 * begin * ALL_SAMPLES]) for begin in (1, 2, 4)]
    assert parts == [ALL_SAMPLES // 2] * 3
    assert all(has[:ALL_SAMPLES])
    later = has[ALL_SAMPLES:]
    blocks = [later[at : at + BLOCK_SAMPLES] for at in range(0, len(later), BLOCK_SAMPLES)]
    assert all(len(set(block)) == 1 for block in blocks)  # what is seldom asked is in every one
    assert not has[-1]
    assert written.has(plain)
    for _ in range(BLOCK_SAMPLES):
        left_out = written.has(plain)
    assert not left_out
    assert written.has(Sample(time_s=1.0, gpus=(), xids=(Xid(code=79),)))
    assert written.has(Sample(time_s=1.0, gpus=(), gap_s=3.0))
