import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.topology import cpulist


@given(st.frozensets(st.integers(0, 8191), min_size=1, max_size=60))
def test_what_is_written_reads_back_the_same(cpus: frozenset[int]) -> None:
    assert cpulist.parse(cpulist.write(cpus)) == cpus


def test_neighbours_are_written_as_a_range() -> None:
    assert cpulist.write([3, 0, 1, 2, 7, 20, 21]) == "0-3,7,20-21"


@pytest.mark.parametrize(
    "text", ["", "-31,64-95", "0-", "5-3", "0,,1", "a-b", "0-9 ", "٣", "0-99999999999", "9" * 5000]
)
def test_what_is_no_list_is_not_guessed(text: str) -> None:
    assert cpulist.parse(text) is None
