"""The GPUs that explain slow copies, and the pairs that are left."""

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.copies import slow_ends
from gputopo.values.bandwidth import Bandwidth, CopyRate, Pair, Path, Run, Sample, Samples
from gputopo.values.ends import End
from gputopo.values.rates import PairSpeed, pair_speeds
from tests.invented_bandwidths import pair


def speeds(*samples: Sample) -> dict[tuple[int, int], PairSpeed]:
    return pair_speeds(Bandwidth(source="test", samples=Samples(samples)))


def test_the_faster_path_of_the_worse_direction_counts() -> None:
    found = speeds(
        pair(0, 1, 11.0), pair(0, 1, 5.0, staged=True), pair(1, 0, 0.73), pair(1, 0, 0.77, staged=True)
    )
    assert found == {(0, 1): PairSpeed(0.77, "staged", 0.73, 0.77)}
    assert found[0, 1].says == "measured 0.77 GB/s, staged; direct is slower: 0.73 GB/s"
    assert found[0, 1].direct_is_slower


def test_a_pair_known_in_one_direction_only_counts_as_not_measured() -> None:
    found = speeds(pair(0, 1, 11.0), pair(1, 2, 11.0), pair(2, 1, 11.0))
    assert set(found) == {(1, 2)}


def both(a: int, b: int, speed: float, path: Path | None = "direct") -> Sample:
    """Return the sum of both directions at once."""
    return CopyRate(
        kind="bidirectional",
        source=End(f"gpu:{a}"),
        destination=End(f"gpu:{b}"),
        path=path,
        median_gb_per_s=speed,
    )


def test_half_of_both_directions_counts_where_one_was_not_measured_alone() -> None:
    found = speeds(both(0, 1, 97.0), both(1, 0, 96.8), both(0, 1, 15.5, "staged"))
    assert found[0, 1].gb_per_s == 48.4
    assert found[0, 1].says == "measured 96.8 GB/s both directions, direct"
    assert speeds(both(0, 1, 97.0), pair(0, 1, 30.0), pair(1, 0, 31.0))[0, 1].says.startswith("measured 30.0")
    assert speeds(both(0, 1, 97.0, None))[0, 1].says == "measured 97.0 GB/s both directions"
    slower = speeds(both(0, 1, 10.0), both(0, 1, 14.0, "staged"))[0, 1].says
    assert slower == "measured 14.0 GB/s both directions, staged; direct is slower: 10.0 GB/s"


def test_a_number_that_is_not_valid_is_no_speed_and_several_runs_stand_with_their_median() -> None:
    cannot_be = msgspec.structs.replace(pair(0, 1, 400.0), invalid="above_link")
    assert speeds(cannot_be, pair(0, 1, 24.0), pair(1, 0, 25.0))[0, 1].gb_per_s == 24.0
    runs = tuple(Run(name=str(number), value=value) for number, value in enumerate((24.6, 25.0, 72.7)))
    several = msgspec.structs.replace(pair(0, 1, 25.0), runs=runs)
    assert speeds(several, pair(1, 0, 26.0))[0, 1].says == (
        "measured 25.0 GB/s (24.6 to 72.7 in 3 runs), direct"
    )


def test_a_path_that_is_slower_by_noise_only_is_not_called_slower() -> None:
    assert PairSpeed(0.82, "staged", 0.815, 0.82).says == "measured 0.82 GB/s, staged"
    assert PairSpeed(0.82, "staged", 0.73, 0.82).says.endswith("direct is slower: 0.73 GB/s")


def every(count: int) -> set[Pair]:
    return set(permutations(range(count), 2))


def of_gpu(count: int, *gpus: int) -> set[Pair]:
    return {pair for pair in every(count) if {*pair} & {*gpus}}


@pytest.mark.parametrize("count", [3, 8])
def test_a_gpu_that_is_slow_with_all_its_peers_explains_its_pairs(count: int) -> None:
    found = slow_ends(of_gpu(count, 2), every(count))
    assert (found.blamed, found.pairs) == ([2], [])
    assert found.out == {2: [(2, other) for other in range(count) if other != 2]}


def test_a_single_pair_is_no_fault_of_its_gpus() -> None:
    assert slow_ends({(0, 2), (2, 0)}, every(4)).pairs == [(0, 2), (2, 0)]
    assert slow_ends({(0, 2), (2, 0)}, every(4)).blamed == []


@given(st.sets(st.sampled_from(sorted(every(5)))), st.sets(st.sampled_from(sorted(every(5)))))
def test_each_slow_copy_is_explained_once(slow: set[Pair], others: set[Pair]) -> None:
    found = slow_ends(slow, slow | others)
    explained = [pair for pairs in (*found.out.values(), *found.into.values()) for pair in pairs]
    assert sorted([*explained, *found.pairs]) == sorted(slow)
