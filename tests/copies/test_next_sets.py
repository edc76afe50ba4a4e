"""Which GPUs are copied to at once, until the results show which of them share an uplink."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.copies import fair_rates, next_sets, uplink_groups
from gputopo.values.bandwidth import CopyRate, Kind
from gputopo.values.ends import HOST, End
from gputopo.values.machine import Machine

Groups = list[tuple[set[int], float]]  # the GPUs behind each uplink, and what it carries in GB/s


def at_once(rates: dict[int, float]) -> list[CopyRate]:
    """Return samples of a group, or of a GPU alone if there is only one."""
    return [
        CopyRate(
            kind="h2d",
            source=HOST,
            destination=End.of_gpus(gpu),
            pinned=True,
            group=f"h2d gpus:{','.join(map(str, rates))}" if len(rates) > 1 else None,
            median_gb_per_s=rate,
        )
        for gpu, rate in rates.items()
    ]


def alone(count: int) -> list[CopyRate]:
    return [sample for gpu in range(count) for sample in at_once({gpu: 12.0})]


def measured(count: int, groups: Groups) -> list[CopyRate]:
    """Return what a session would have in the end on a machine with these uplinks."""
    uplinks = {frozenset(gpus): carries for gpus, carries in groups}
    done = alone(count) + at_once(fair_rates(dict.fromkeys(range(count), 12.0), uplinks))
    tried: set[tuple[Kind, tuple[int, ...]]] = set()
    while wanted := next_sets(done, tried):
        assert tried.isdisjoint(wanted)
        tried.update(wanted)
        for _, gpus in wanted:
            done += at_once(fair_rates(dict.fromkeys(gpus, 12.0), uplinks))
    return done


def found(samples: list[CopyRate]) -> set[frozenset[int]]:
    return {frozenset(group.gpus) for group in uplink_groups(samples, Machine(source="live"))}


@pytest.mark.parametrize(
    ("count", "groups"),
    [
        (8, [({0, 1, 2, 3}, 12.3), ({4, 5, 6, 7}, 12.3)]),
        (8, [({2, 3}, 3.0)]),
        (8, [({0, 1, 2, 3, 4}, 30.0)]),
        (8, []),
        (16, [({0, 5, 9, 14}, 20.0), ({1, 2}, 13.0)]),
        (16, [({0, 1}, 13.0), ({2, 3}, 13.0), ({0, 1, 2, 3}, 20.0), (set(range(4, 16)), 15.0)]),
    ],
)
def test_few_sets_find_the_shared_uplinks(count: int, groups: Groups) -> None:
    done = measured(count, groups)
    assert found(done) == {frozenset(gpus) for gpus, _ in groups}
    assert len({sample.group for sample in done} - {None}) < 100


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.floats(0.3, 5.0))
def test_the_sets_come_to_an_end_and_are_bounded(uplink_of: list[int], width: float) -> None:
    count = len(uplink_of)
    groups = [
        ({gpu for gpu in range(count) if uplink_of[gpu] == uplink}, 12.0 * width) for uplink in set(uplink_of)
    ]
    names = {sample.group for sample in measured(count, groups)} - {None}
    assert len(names) <= 1 + count * (count - 1) // 2 + count


def test_a_set_that_was_tried_and_failed_is_not_asked_for_again() -> None:
    done = alone(3) + at_once(dict.fromkeys(range(3), 4.0))
    asked = next_sets(done, ())
    assert asked == [("h2d", (0, 1)), ("h2d", (0, 2)), ("h2d", (1, 2))]
    assert next_sets(done, asked) == []
