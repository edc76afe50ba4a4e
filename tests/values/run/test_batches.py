import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gputopo.values.errors import UsageError
from gputopo.values.run.batches import (
    as_typed,
    batch_words,
    batches_of,
    plain,
    read_batch_size,
    require_one_each,
    shares,
    stored_batches,
)

SPEEDS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=16)


@given(SPEEDS, st.integers(1, 2048))
def test_shares_are_within_one_example_of_proportional(speeds: list[float], each: int) -> None:
    total = each * len(speeds)
    exact = [total * speed / sum(speeds) for speed in speeds]
    assume(min(exact) >= 1)
    for share, proportional in zip(shares(total, speeds), exact, strict=True):
        assert abs(share - proportional) < 1 + 1e-6


@given(SPEEDS, st.integers(1, 2048), st.integers(0, 15), st.floats(1.0, 10.0))
def test_a_device_that_becomes_faster_loses_no_example(
    speeds: list[float], each: int, which: int, factor: float
) -> None:
    which %= len(speeds)
    total = each * len(speeds)
    faster = [speed * factor if one == which else speed for one, speed in enumerate(speeds)]
    assert shares(total, faster)[which] >= shares(total, speeds)[which]


@given(SPEEDS, st.integers(1, 2048))
def test_no_device_takes_longer_than_the_slowest_does_with_equal_shares(
    speeds: list[float], each: int
) -> None:
    longest = max(
        share / speed for share, speed in zip(shares(each * len(speeds), speeds), speeds, strict=True)
    )
    assert longest <= each / min(speeds) * (1 + 1e-9)


def test_six_cards_and_a_faster_one_share_the_joint_batch() -> None:
    # 448 examples: 64 / 7.2 of each 1.0, 1.2 times as many on the last: 62.2 and 74.7
    assert shares(448, [1.0] * 6 + [1.2]) == (63, 62, 62, 62, 62, 62, 75)


def test_a_device_that_is_very_slow_has_one_example_of_the_joint_batch() -> None:
    assert shares(8, [100.0, 1.0, 100.0]) == (4, 1, 3)


def test_a_batch_is_one_number_one_for_each_device_or_auto() -> None:
    cases: list[tuple[str, object]] = [
        ("64", 64),
        ("64,64,80", (64, 64, 80)),
        (" 8, 4 ", (8, 4)),
        ("AUTO", "auto"),
    ]
    for text, expected in cases:
        assert read_batch_size("--batch-size", text) == expected


def test_what_is_no_batch_is_refused() -> None:
    cases: list[tuple[str, str]] = [
        ("0", "--batch-size cannot be 0"),
        ("64,-1", "--batch-size cannot be -1"),
        ("64,", "'64,': it is not an integer"),
        ("4294967296", "cannot be 4294967296"),
        ("", "not an integer"),
    ]
    for text, what in cases:
        with pytest.raises(UsageError) as refused:
            read_batch_size("--batch-size", text)
        assert what in refused.value.what


@given(st.text(max_size=20))
def test_any_text_is_a_batch_or_a_usage_error(text: str) -> None:
    try:
        found = read_batch_size("--batch-size", text)
    except UsageError:
        return
    assert found == "auto" or min(batches_of(found, 1)) >= 1


def test_a_list_has_one_number_for_each_device() -> None:
    require_one_each((64, 80), 2)
    require_one_each(64, 3)
    with pytest.raises(UsageError, match="--batch-size has 2 numbers for 3 devices") as refused:
        require_one_each((64, 80), 3)
    assert refused.value.hint == "give one number for all, or 3; --num-gpus 2 uses as many devices"


def test_equal_batches_are_one_number() -> None:
    assert plain((4, 4)) == 4
    assert plain((4, 5)) == (4, 5)
    assert (batch_words(4), batch_words((4, 5))) == ("4 per device", "4,5 by device")
    assert read_batch_size("--batch-size", as_typed((4, 5))) == (4, 5)


def test_batches_of_a_stored_spec_are_read_where_they_are_known() -> None:
    assert stored_batches(4, 2) == (4, 4)
    assert stored_batches([4, 5], 2) == (4, 5)
    assert stored_batches([4, 5], 3) == ()
    assert stored_batches("4", 2) == stored_batches(None, 2) == stored_batches([4, "5"], 2) == ()
