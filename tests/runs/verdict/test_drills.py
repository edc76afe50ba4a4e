"""Simulated runs with one fault each, two, or none, and the verdict that is demanded."""

import random
import re

import msgspec
import pytest

from gputopo.runs import Judgement
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import Expected, Known
from tests import there
from tests.invented_runs import cpu_devices, gpu_devices, judged_events
from tests.kit.drills.box import Factor, Trainer, flapping, hogged, levels, slower, slower_since


def judged(trainer: Trainer, steps: int, *, mode: str | None = None, known: Known | None = None) -> Judgement:
    return judged_events(trainer.devices, trainer.events(steps), mode=mode, known=known)


def slow(judgement: Judgement) -> list[int | None]:
    return [verdict.tower for verdict in judgement.slow]


def words(judgement: Judgement) -> list[str]:
    return [verdict.word for verdict in judgement.devices]


def test_a_slow_card_is_found_within_100_steps_at_a_noise_of_one_percent() -> None:
    judgement = judged(Trainer(slow={1: slower(5)}, seed=1), 100)
    assert words(judgement) == ["even", "slow", "even", "even"]
    found = judgement.slow[0]
    assert found.percent_under == pytest.approx(5, abs=0.8)
    assert 3 < there(found.percent_under_low) < 5
    # The slow one decides how long the others wait: of 0.1 s to compute and 0.02 s else.
    assert there(found.cost).percent == pytest.approx(100 * (1 - 0.12 / (0.12 + 0.1 * 5 / 95)), abs=1)


def test_two_slow_cards_are_both_found_and_cost_together_more_than_each() -> None:
    judgement = judged(Trainer(slow={1: slower(15), 3: slower(15)}), 100)
    assert slow(judgement) == [1, 3]
    assert there(judgement.cost).percent > 10
    # Without one of them the other still decides.
    assert all(one.cost is not None and one.cost.percent < 3 for one in judgement.slow)


def test_in_independent_training_a_slow_card_costs_its_own_images_only() -> None:
    (found,) = judged(Trainer(slow={1: slower(20)}), 100, mode="independent").slow
    assert there(found.cost).percent == pytest.approx(100 * (1 - (3 + 0.11 / 0.135) / 4), abs=1)


@pytest.mark.parametrize(
    ("trainer", "steps", "when"),
    [
        (Trainer(slow={1: levels((0, 8), (100, 20))}), 200, None),
        (Trainer(slow={1: levels((100, 12), (200, 0))}), 400, (100, 200)),
    ],
    ids=["8 then 20 percent", "back again"],
)
def test_a_card_whose_level_changes_more_than_once_is_slow_where_it_is(
    trainer: Trainer, steps: int, when: tuple[int, int | None] | None
) -> None:
    (found,) = judged(trainer, steps).slow
    assert found.tower == 1
    first, last = when or (None, None)
    assert found.from_step == (first if first is None else pytest.approx(first, abs=100))
    assert found.to_step == (last if last is None else pytest.approx(last, abs=30))
    assert ("from about step" in found.says) == (last is not None)


def test_a_card_that_was_slow_twice_is_slow_in_these_episodes() -> None:
    twice = levels((60, 15), (120, 0), (200, 15), (260, 0))
    (found,) = judged(Trainer(slow={1: twice}, seed=1), 330).slow
    assert found.tower == 1
    assert found.steps == pytest.approx(120, abs=20)
    assert found.percent_under == pytest.approx(15, abs=2)
    assert found.from_step == pytest.approx(60, abs=20)
    assert found.to_step == pytest.approx(260, abs=20)
    assert "in parts of steps" in found.says


def test_an_even_card_with_a_few_slow_steps_reports_how_many_and_how_slow() -> None:
    found = judged(Trainer(slow={1: flapping(50, 3, 25)}, seed=1), 400).devices
    assert [one.word for one in found] == ["even"] * 4
    assert found[1].share_of_steps == pytest.approx(0.06, abs=0.01)
    assert re.search(r": [56]\.\d% of its steps take 33% longer$", found[1].says)
    assert [one.share_of_steps for one in found].count(None) == 3


def at_random(share: float, longer: float) -> Factor:
    """So many times as long in a share of the steps."""
    return lambda step: longer if random.Random(step).random() < share else 1.0


@pytest.mark.parametrize(
    ("steps", "factor", "share", "size"),
    [
        (500, flapping(100, 25, 18), 0.25, 22),
        (500, at_random(0.1, 1.526), 0.116, 52.6),  # as drawn
        (500, at_random(0.5, 1.105), 0.53, 10.5),
        (2_000, at_random(0.05, 2.5), 0.056, 150),  # as drawn
    ],
)
def test_a_card_that_is_slow_now_and_then_is_slow_by_the_time_it_loses(
    steps: int, factor: Factor, share: float, size: float
) -> None:
    found = judged(Trainer(devices=gpu_devices(2), slow={1: factor}), steps)
    assert slow(found) == [1]
    (verdict,) = found.slow
    lost = share * size / (1 + share * size / 100)
    assert verdict.percent_under == pytest.approx(lost, abs=0.7)
    assert verdict.share_of_steps == pytest.approx(share, rel=0.1)
    described = re.search(r"(\d+)% of its steps take (\d+)% longer", verdict.says.replace("4.0%", "4%"))
    assert described is not None, verdict.says
    assert int(described[2]) == pytest.approx(size, rel=0.1)


def stalled(seed: int) -> Factor:
    """Ten times as long in 12 of 400 steps."""
    steps = random.Random(seed).sample(range(1, 401), 12)
    return lambda step: 10.0 if step in steps else 1.0


def test_a_few_stalls_are_a_fault_of_one_card_and_noise_where_another_has_as_many() -> None:
    devices = gpu_devices(3)
    assert slow(judged(Trainer(devices=devices, slow={1: stalled(1)}), 400)) == [1]
    both = judged(Trainer(devices=devices, slow={1: stalled(1), 2: stalled(2)}), 400)
    assert words(both) == ["even", "cannot tell", "cannot tell"]


@pytest.mark.parametrize(
    "trainer",
    [
        Trainer(devices=cpu_devices(2), noise=0.2, seed=1),
        Trainer(noise=0.05, memory=0.9, seed=2),
        Trainer(slow={1: slower(2)}, seed=1),
    ],
    ids=["very noisy", "correlated", "2 percent"],
)
def test_nobody_is_accused(trainer: Trainer) -> None:
    judgement = judged(trainer, 200)
    assert slow(judgement) == []
    assert judgement.run is None


def test_beside_a_busy_host_the_host_is_the_verdict() -> None:
    trainer = Trainer(devices=cpu_devices(2), slow={1: slower(20)}, other_cpu=lambda step: 0.61)
    found = judged(trainer, 100).devices[1]
    assert (found.word, found.why) == ("cannot tell", "other programs used 61% of the CPU")
    assert re.search(
        r"at most 2[12]% slower than its peers \(99.9% confidence; 20% in these steps\)", found.says
    )


def test_a_cpu_device_is_slow_where_other_programs_took_too_little_to_explain_it() -> None:
    trainer = Trainer(
        devices=cpu_devices(2), slow={1: slower(27)}, other_cpu=lambda step: 0.1, cores=2, noise=0.03
    )
    (found,) = judged(trainer, 200).slow
    assert found.tower == 1
    assert "; other programs took 10% of the CPU, which explains at most 20%" in found.says
    # One core of eight is 12.5 %: all of it may be taken from the thread that a device waits for.
    trainer.cores = 8
    assert words(judged(trainer, 200)) == ["even", "cannot tell"]


def test_a_device_that_is_slow_while_no_other_program_took_the_cpu_is_named_on_a_busy_host() -> None:
    def load(step: int) -> float:
        return 0.3 if step // 20 % 2 else 0.0

    trainer = Trainer(devices=cpu_devices(2), slow={1: slower(30)}, other_cpu=load, noise=0.03, cores=2)
    (found,) = judged(trainer, 200).slow
    assert found.tower == 1
    assert "steps in which no other program used the CPU" in found.says
    trainer.slow = {1: hogged(load, 2)}
    assert words(judged(trainer, 200))[1] == "cannot tell"


def test_a_program_that_ran_for_a_moment_is_no_excuse() -> None:
    trainer = Trainer(
        devices=cpu_devices(2), slow={1: slower(20)}, other_cpu=lambda step: 0.61 if step < 15 else 0.0
    )
    assert slow(judged(trainer, 100)) == [1]


def test_all_slow_alike_is_seen_against_what_is_expected_only() -> None:
    trainer = Trainer(slow={tower: slower(15) for tower in range(4)})
    assert slow(judged(trainer, 100)) == []
    # 256 images in 0.12 s would be 2133; the common noise of a step is 3 %.
    expected = Expected(images_per_sec=2080, low=2000, high=2150, source="earlier runs")
    known = Known(expected=expected)
    found = there(judged(trainer, 100, known=known).run)
    assert (found.word, found.against) == ("slow", "expected")
    fine = there(judged(Trainer(), 100, known=known).run)
    assert fine.word == "even"
    nothing = there(judged(trainer, 0, known=Known(unexpected="no earlier run")).run)
    assert nothing.word == "cannot tell"
    assert nothing.says == "Not compared with what this run should reach: no earlier run"
    vague = Known(expected=msgspec.structs.replace(expected, low=1900, high=2600))
    assert there(judged(trainer, 100, known=vague).run).word == "cannot tell"


@pytest.mark.parametrize(
    ("start", "steps", "expected"),
    [(150, 300, None), (0, 100, Expected(images_per_sec=2080, low=2000, high=2150, source="runs"))],
)
def test_a_run_that_is_slow_beside_a_busy_host_is_not_called_slow(
    start: int, steps: int, expected: Expected | None
) -> None:
    known = Known(expected=expected)
    all_slow = {tower: slower_since(start, 15) for tower in range(4)}
    found = there(judged(Trainer(slow=all_slow, other_cpu=lambda step: 0.95), steps, known=known).run)
    assert (found.word, found.why) == ("cannot tell", "other programs used 95% of the CPU")
    assert found.says.startswith("Cannot tell: other programs used 95% of the CPU (the run ")
    idle = there(judged(Trainer(slow=all_slow, other_cpu=lambda step: 0.05), steps, known=known).run)
    assert idle.word == "slow"


def test_a_mixed_box_is_compared_by_the_speeds_that_its_cards_should_reach() -> None:
    devices = (
        *gpu_devices(2, "GTX 1070"),
        Device(tower=2, device="/GPU:2", gpu=2, gpu_name="GTX 1080"),
    )

    def found(known: Known | None, slow: dict[int, Factor]) -> Judgement:
        return judged(Trainer(devices=devices, slow=slow), 100, known=known)

    def speeds(of_1080: float, share: float = 0.03) -> Known:
        def one(rate: float) -> Expected:
            low, high = rate * (1 - share), rate * (1 + share)
            return Expected(images_per_sec=rate, low=low, high=high, source="runs of one GPU here")

        return Known(speeds={0: one(100), 1: one(100), 2: one(of_1080)})

    # The 1080 should be 25 % faster, and is as fast as the others.
    (slow,) = found(speeds(125), {}).slow
    assert slow.tower == 2
    assert slow.percent_under == pytest.approx(20, abs=1)
    assert "slower than it should compared with devices of another model (runs of one GPU here)" in slow.says
    # So it must be seen as more than what is unsure of both speeds.
    assert words(found(speeds(125, share=0.3), {})) == ["even", "even", "cannot tell"]
    # It should be slower, and is: nobody is accused. A slow card is found among its kind.
    assert words(found(speeds(50), {2: slower(50)}))[:2] == ["even", "even"]
    assert words(found(speeds(50), {2: slower(50), 1: slower(10)}))[:2] == ["even", "slow"]
