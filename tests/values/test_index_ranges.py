"""Indices and pairs in few words: the words name exactly the indices, and a pair never reads as a range."""

import re
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from gputopo.values.index_ranges import Pair, index_ranges, pairs_in_words, parse_cpus, parse_ranges

gpus = st.integers(0, 7)
some_pairs = st.sets(st.tuples(gpus, gpus).filter(lambda pair: pair[0] < pair[1]), min_size=1)


def test_pairs_are_reported_as_what_they_are_together() -> None:
    cases: list[tuple[list[Pair], str]] = [
        ([(3, 0)], "GPUs 0 and 3"),
        ([(0, 1), (1, 0)], "GPUs 0 and 1"),
        ([*combinations(range(4), 2)], "any two of GPUs 0-3"),
        ([*product((0, 1, 2), (3, 4, 5, 6))], "each of GPUs 0-2 with each of 3-6"),
        ([(0, 6), (1, 6), (2, 6)], "each of GPUs 0-2 with 6"),
        ([(0, 1), (2, 3)], "pairs 0<->1, 2<->3"),
        ([(a, a + 1) for a in range(0, 12, 2)], "pairs 0<->1, 2<->3, 4<->5, 6<->7 and 2 more"),
    ]
    for pairs, words in cases:
        assert pairs_in_words(pairs) == words


def read_back(words: str) -> set[Pair]:
    def numbers(text: str) -> list[int]:
        found: list[int] = []
        for low, high in re.findall(r"(\d+)(?:-(\d+))?", text):
            found += range(int(low), int(high or low) + 1)
        return found

    if "with" in words:
        one, other = map(numbers, words.split("with"))
        return {(min(pair), max(pair)) for pair in product(one, other)}
    if "any two" in words or "and" in words:
        return set(combinations(numbers(words), 2))
    return {(int(a), int(b)) for a, b in re.findall(r"(\d+)<->(\d+)", words)}


@given(some_pairs)
def test_the_words_name_exactly_the_pairs(pairs: set[Pair]) -> None:
    assert read_back(pairs_in_words(pairs, max_named=100)) == pairs


@given(st.sets(st.integers(0, 999_999), min_size=1))
def test_ranges_are_read_back(indices: set[int]) -> None:
    assert parse_ranges(index_ranges(indices)) == tuple(sorted(indices))


def test_another_text_is_no_list_of_ranges() -> None:
    for text in ["", "a", "1-", "-1", "1,,2", "3-1", "1 ,2"]:
        assert parse_ranges(text) is None


@given(st.frozensets(st.integers(0, 8191), min_size=1, max_size=60))
def test_a_written_list_of_cpus_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(index_ranges(cpus)) == cpus


def test_what_is_no_list_is_not_guessed() -> None:
    cases: list[str] = [
        "",
        "-31,64-95",
        "5-3",
        "0-9 ",
        "٣",
        "0-99999999999",
        "9" * 5000,
        "0-8192",
    ]
    for text in cases:
        assert parse_cpus(text) is None
