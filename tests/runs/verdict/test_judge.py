import re
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs import Judgement
from gputopo.values.run.events import Device, Step
from gputopo.values.run.verdict import Verdict
from tests import there
from tests.invented_runs import InventedRun, Noise, cpu_devices, gpu_devices, judged_steps, step

MARKS_OFFSET_S = 0.00015  # by which time marks of towers that do the same differ
MARKS_RESOLUTION_S = 0.0005  # under load
GTX_1080 = Device(tower=0, device="/GPU:1", gpu=6, gpu_name="GTX 1080")
QUIET = Noise(common=0.1, own=0.01, stalls=0.0)


def named(check: Judgement) -> list[int]:
    assert check.not_made is None
    return [slow.tower for slow in check.slow if slow.tower is not None]


def words(check: Judgement) -> list[str]:
    return [verdict.word for verdict in check.devices]


def under(verdict: Verdict) -> tuple[float, float]:
    assert verdict.percent_under_low is not None
    return there(verdict.percent_under), verdict.percent_under_low


def check_run(run: InventedRun, count: int = 60, devices: Sequence[Device] | None = None) -> Judgement:
    towers = cpu_devices(run.towers) if devices is None else devices
    return judged_steps(towers, run.steps(count) if towers else ())


def with_batches(
    batches: Sequence[int], *, fixed_s: float = 0.0, slow: dict[int, float] | None = None
) -> Judgement:
    """Towers that compute 1 ms for each example, and `fixed_s` for a step."""
    quiet = InventedRun(len(batches), noise=QUIET, slow=slow or {}).steps(40)
    scaled = [
        msgspec.structs.replace(
            one,
            marks=tuple(
                msgspec.structs.replace(mark, compute_s=mark.compute_s * (batch * 1e-3 + fixed_s) / 0.1)
                for mark, batch in zip(one.marks, batches, strict=True)
            ),
        )
        for one in quiet
    ]
    return judged_steps(cpu_devices(len(batches)), scaled, batches)


@pytest.mark.parametrize(("batches", "fixed_s"), [((10, 100), 0.02), ((60, 60, 90, 120), 0.5)])
def test_neither_a_larger_nor_a_smaller_batch_makes_a_device_slow(
    batches: tuple[int, ...], fixed_s: float
) -> None:
    assert named(with_batches(batches, fixed_s=fixed_s)) == []


def test_a_slow_device_is_named_whatever_its_batch() -> None:
    assert named(with_batches((64, 64, 64, 80), slow={3: 0.2})) == [3]
    assert named(with_batches((64, 64, 64, 80), slow={0: 0.4})) == [0]
    # As long as the others with half of their batch: a step may cost that much whatever its batch.
    assert named(with_batches((40, 80, 80), slow={0: 0.4})) == []


@pytest.mark.parametrize(("towers", "lost"), [(2, 0.15), (8, 0.60)])
def test_a_slowed_tower_is_named_and_no_other(towers: int, lost: float) -> None:
    check = check_run(InventedRun(towers, slow={1: lost}, noise=Noise(own=0.04)), count=100)
    assert named(check) == [1]
    percent, low = under(check.slow[0])
    assert low < 100 * lost
    # The median of 100 differences with a noise of 6 %: 3 percentage points are four standard errors.
    assert percent == pytest.approx(100 * lost, abs=3)


def test_three_percent_under_is_even_to_within_some_more() -> None:
    run = InventedRun(8, slow={1: 0.03}, noise=Noise(own=0.01, stalls=0.0))
    check = check_run(run, count=200)
    assert words(check) == ["even"] * 8
    assert 3 < there(check.devices[1].percent_under_high) < 5


@pytest.mark.parametrize(
    ("towers", "slow", "is_named"),
    [
        (4, {1, 2, 3}, True),
        (8, {0, 1, 2, 3, 4, 5}, True),
        # One fast device of eight makes the seven others no slow ones.
        (8, set(range(1, 8)), False),
    ],
)
def test_a_slow_half_or_majority_is_still_named_and_the_healthy_are_not(
    towers: int, slow: set[int], is_named: bool
) -> None:
    run = InventedRun(towers, slow=dict.fromkeys(slow, 0.3), noise=Noise(own=0.04))
    check = check_run(run)
    assert named(check) == (sorted(slow) if is_named else [])
    assert all(under(found)[0] > 25 for found in check.slow)


def test_what_is_not_proven_is_neither_slow_nor_even() -> None:
    # 75 % of pace in 20 noisy steps: the run cannot show it, and must not say that all is well.
    check = check_run(InventedRun(2, slow={1: 0.25}, noise=Noise(own=0.3)), count=20)
    assert words(check)[1] == "cannot tell"
    verdict = check.devices[1]
    assert there(verdict.resolution_percent) > under(verdict)[0] > 10
    assert re.search(
        r"^CPU device 1 is at most \d\d% slower than its peers \(99.9% confidence; \d\d% in these steps\)$",
        verdict.says,
    )
    assert verdict.more_steps is None, "no number of steps excludes less than what is seen"


@pytest.mark.parametrize("towers", [2, 8])
def test_the_steps_that_a_verdict_asks_for_exclude_five_percent(towers: int) -> None:
    run = InventedRun(towers, noise=Noise(own=0.06, stalls=0.0), seed=7)
    asked = max(verdict.more_steps or 0 for verdict in check_run(run, count=40).devices)
    assert asked > 0
    # What 40 steps show of the noise is itself noisy.
    excluded = [there(verdict.percent_under_high) for verdict in check_run(run, count=40 + asked).devices]
    assert max(excluded) < 5.5


def test_a_difference_as_large_as_the_resolution_is_named() -> None:
    found = 0
    for seed in range(6):
        run = InventedRun(2, slow={1: 0.06}, noise=Noise(own=0.03, stalls=0.0), seed=seed)
        check = check_run(run, count=200)
        resolved = there(check.devices[1].resolution_percent)
        assert 4.5 < resolved < 6.3
        found += 1 in named(check)
    assert found >= 5  # of 6; 95 % are 5.7


def test_a_tower_that_was_slow_in_the_first_half_is_named_with_the_steps() -> None:
    slow_first = InventedRun(2, slow={1: 0.4}, noise=QUIET).steps(50)
    even_later = InventedRun(2, noise=QUIET).steps(50, first=51)
    check = judged_steps(cpu_devices(2), [*slow_first, *even_later])
    assert words(check) == ["even", "slow"]
    assert "until about step 50 " in check.slow[0].says
    assert (check.slow[0].from_step, check.slow[0].to_step) == (None, 50)


# With chance 2^-n all of n values lie on one side; half of 0.1% is shared among the comparisons, of the
# waits only behind the same link. 2 towers: 0.025 % > 2^-12; 8 and 7 waits: 0.0033 % > 2^-15.
@pytest.mark.parametrize(("towers", "needed"), [(2, 12), (8, 15)])
def test_too_few_steps_give_a_bound_and_accuse_nobody_and_40_are_enough_when_it_is_plain(
    towers: int, needed: int
) -> None:
    for seed in range(3):
        run = InventedRun(towers, slow={1: 0.3}, noise=QUIET, seed=seed)
        few = check_run(run, needed - 1)
        assert few.slow == ()
        assert 30 < there(few.devices[1].percent_under_high) < 60
        assert named(check_run(run, 40)) == [1]


def test_every_device_has_a_bound_from_two_steps_on() -> None:
    for count in (2, 3, 5, 8, 20):
        found = check_run(InventedRun(4, noise=Noise(own=0.2), seed=count), count).devices
        assert all(0 <= there(one.percent_under_high) <= 100 for one in found)
        assert all("99.9% confidence" in one.says for one in found if one.word == "cannot tell")
    assert check_run(InventedRun(2), 1).devices[0].says.endswith("a bound needs at least two counted steps")


@pytest.mark.parametrize(
    ("devices", "slow", "check"),
    [
        (cpu_devices(1), {}, "not made: one device has no peer"),
        ((*gpu_devices(1, "GTX 1070"), GTX_1080), {}, "not made: no peer of its kind"),
        # Of another kind: no peer, although it is the fastest.
        (
            (*gpu_devices(3, "GTX 1070"), GTX_1080),
            dict.fromkeys(range(3), 0.4),
            "made, but not for GPU 6 (GTX 1080): not compared: no peer of its kind",
        ),
    ],
)
def test_a_device_without_a_peer_of_its_kind_is_not_compared(
    devices: Sequence[Device], slow: dict[int, float], check: str
) -> None:
    numbered = [msgspec.structs.replace(one, tower=tower) for tower, one in enumerate(devices)]
    found = check_run(InventedRun(len(devices), slow=slow, noise=QUIET), devices=numbered)
    assert found.slow == ()
    assert found.check == check
    assert (found.not_made is None) == check.startswith("made")


def test_the_numbers_of_a_run_without_noise_are_exact() -> None:
    # 80 ms against 100 ms: a pace of 80 %, so 20 % under.
    steps = [step(n, [(0.01, 0.08), (0.01, 0.10)]) for n in range(1, 21)]
    found = judged_steps(cpu_devices(2), steps)
    (slow,) = found.slow
    assert slow.percent_under == pytest.approx(20)
    # Marks of 110 ms may be apart by 0.15 ms.
    assert slow.percent_under_low == pytest.approx(20 - 100 * MARKS_OFFSET_S / 0.11)
    event = found.anomaly(slow, 12.5)
    assert (event.part, event.confidence) == ("compute", 0.999)
    assert (event.tower, event.time_s, event.says) == (1, 12.5, slow.says)


@pytest.mark.parametrize(("percent", "expected"), [(3.0, []), (3.2, [1])])
def test_the_line_is_drawn_where_three_percent_are_proven(percent: float, expected: list[int]) -> None:
    steps = [step(n, [(0.0, 0.2 * (1 - percent / 100)), (0.0, 0.2)]) for n in range(1, 41)]
    assert named(judged_steps(cpu_devices(2), steps)) == expected


def test_a_longer_wait_for_weights_is_named_beside_peers_on_the_same_class_of_link() -> None:
    run = InventedRun(4, waits={2: 0.03}, noise=QUIET)
    (slow,) = check_run(run).slow
    assert (slow.tower, slow.part) == (2, "weights")
    # 30 ms more, of 10 + 30 + 100 ms: 21 %.
    assert slow.percent_under == pytest.approx(100 * 30 / 140, abs=1.5)
    assert "waits longer for weights" in slow.says


@pytest.mark.parametrize("part", ["weights", "compute"])
def test_a_difference_that_time_marks_cannot_resolve_names_none_and_the_verdict_reports_it(part: str) -> None:
    alike = [msgspec.structs.replace(device, hop_to_variables=None) for device in cpu_devices(2)]

    def named_with(gap_s: float) -> Judgement:
        slow = (0.0001 + gap_s, 0.002) if part == "weights" else (0.0001, 0.002 + gap_s)
        steps = [step(number, [slow, (0.0001, 0.002)]) for number in range(1, 41)]
        return judged_steps(alike, steps)

    found = named_with(MARKS_RESOLUTION_S)  # 20 % of such a step
    assert words(found)[0] == "cannot tell"
    assert "ms; use a larger batch" in found.devices[0].says
    assert named(named_with(MARKS_RESOLUTION_S + 1.1 * MARKS_OFFSET_S)) == [0]


def test_steps_below_ten_milliseconds_cannot_resolve_five_percent() -> None:
    for compute_s, word in ((0.0099, "cannot tell"), (0.0101, "even")):
        steps = [step(number, [(0.0, compute_s)] * 2) for number in range(1, 41)]
        assert words(judged_steps(cpu_devices(2), steps)) == [word, word]


def test_a_step_with_an_impossible_mark_is_passed_over() -> None:
    bad = (0.01, float("nan"))
    good = [step(n, [(0.01, 0.1), (0.01, 0.2)]) for n in range(1, 13)]
    broken = [step(n, [(0.01, 0.1), bad], seconds=1.0) for n in range(13, 16)]
    assert named(judged_steps(cpu_devices(2), [*good, *broken])) == [1]
    assert named(judged_steps(cpu_devices(2), [*good[:11], *broken])) == [], "11 steps are too few"


marks = st.tuples(st.floats(0, 10), st.floats(0, 10))


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(marks, min_size=n, max_size=n), max_size=20)))
def test_any_marks_give_a_verdict(rows: list[list[tuple[float, float]]]) -> None:
    steps: list[Step] = [step(n, row) for n, row in enumerate(rows, 1)]
    check = judged_steps(cpu_devices(len(rows[0]) if rows else 2), steps)
    assert (check.not_made is None) == check.check.startswith("made")
    assert all(under(slow)[1] > 3 for slow in check.slow)
