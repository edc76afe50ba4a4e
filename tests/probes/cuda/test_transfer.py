"""The chain of pointers, the chunks of a copy, and the rate from the ends of its chunks."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.cuda import BLOCK_BYTES, chain, chunks, fitting, rate_alone, rate_within

CHAIN_BYTES = 2 * 2**20


def test_a_chain_comes_by_every_line_once_before_it_begins_again() -> None:
    base = 0x7F0000000000
    words = chain(base)
    assert len(words) * 8 == CHAIN_BYTES
    at, seen = base, set[int]()
    while at not in seen:
        seen.add(at)
        assert (at - base) % 128 == 0
        at = words[(at - base) // 8]
    assert len(seen) == CHAIN_BYTES // 128


_MIB = 2**20

_ROOMS = st.integers(1, 1024).map(lambda n: n * BLOCK_BYTES)


@given(st.integers(1, 2**31), _ROOMS, _ROOMS, st.integers(1, 64) | st.none())
def test_chunks_are_all_bytes_in_order_and_inside_the_buffers(
    size: int, source_bytes: int, target_bytes: int, blocks: int | None
) -> None:
    cut = chunks(size, source_bytes, target_bytes, None if blocks is None else blocks * BLOCK_BYTES)
    total = sum(chunk.size for chunk in cut)
    assert total == size or (total < size and len(cut) == 256)
    for chunk in cut:
        assert chunk.size > 0
        assert 0 <= chunk.source <= source_bytes - chunk.size
        assert 0 <= chunk.target <= target_bytes - chunk.size
        assert (chunk.source - chunk.target) % BLOCK_BYTES == 0  # the same place of the pattern
    for before, after in pairwise(cut):
        assert after.source in (before.source + before.size, 0)
        assert after.target in (before.target + before.size, 0)
        assert after.target % BLOCK_BYTES == 0


def test_a_copy_larger_than_the_buffers_goes_round_in_them() -> None:
    four, two = 4 * _MIB, 2 * _MIB
    assert chunks(10 * _MIB, four, four) == ((0, 0, four), (0, 0, four), (0, 0, two))
    assert chunks(8 * _MIB, two, four) == tuple((0, n % 2 * two, two) for n in range(4))
    assert chunks(3 * _MIB, four, four) == ((0, 0, 3 * _MIB),)


def test_sizes_are_made_to_fit_by_the_same_part_and_not_below_what_shows_a_link() -> None:
    assert fitting([100 * _MIB, 50 * _MIB], [512 * _MIB, 512 * _MIB]) == [100 * _MIB, 50 * _MIB]
    assert fitting([400 * _MIB, 200 * _MIB], [512 * _MIB, 100 * _MIB]) == [200 * _MIB, 100 * _MIB]
    assert fitting([400 * _MIB, 8 * _MIB], [100 * _MIB, 100 * _MIB]) == [100 * _MIB, 8 * _MIB]
    assert fitting([64 * _MIB], [1 * _MIB]) == [16 * _MIB]
    assert fitting([], []) == []


_SIZES = st.lists(st.integers(1, 40).map(lambda n: n * _MIB), min_size=1, max_size=64)
_RATES = st.floats(1e8, 1e12)


@given(_SIZES, _RATES, st.floats(0.01, 1.0))
def test_an_even_copy_has_its_rate_whenever_another_ends(sizes: list[int], rate: float, part: float) -> None:
    ends = [arrived / rate for arrived in accumulate(sizes)]
    assert rate_within(sizes, ends, ends[-1] * part) == pytest.approx(rate)


@given(st.integers(16, 64), _RATES, st.floats(0.05, 1.0), st.floats(1.0, 8.0))
def test_what_comes_after_the_first_end_counts_for_little(
    count: int, rate: float, shared: float, faster: float
) -> None:
    """A path that gets `faster` once the other one is through: the rate is that of the time together."""
    size = 8 * _MIB
    together = shared * count * size  # bytes that came by then
    moment = together / rate

    def end(arrived: int) -> float:
        return arrived / rate if arrived <= together else moment + (arrived - together) / (rate * faster)

    found = rate_within([size] * count, [end(n * size) for n in range(1, count + 1)], moment)
    # Where a chunk ends within the second half of the window nothing is guessed.
    exact = together >= 2 * size
    assert found == pytest.approx(rate, rel=1e-6 if exact else 1.0)


def test_a_staged_copy_is_counted_between_its_first_arrival_and_its_last() -> None:
    # The first chunk takes two steps of 1 s (out, in), every later one a further second.
    ends = [2.0 + n for n in range(10)]
    assert rate_alone([100] * 10, ends, staged=True) == 100.0
    assert rate_alone([100] * 10, ends) == pytest.approx(1000 / 11)
    assert rate_alone([100] * 4, ends[:4], staged=True) == 80.0  # too few chunks: all the time counts
    assert rate_within([100] * 10, ends, 11.0, staged=True) == 100.0
