"""Which placements are measured, and when the fastest is known: by simulated runs."""

import random
from statistics import mean
from typing import Any

import pytest

from gputopo import planner
from gputopo.launch import machine_from
from gputopo.launch.jobs import Race, TimeBudget, contenders
from gputopo.planner import Request, cpu_plan
from gputopo.values.run.noise import lead
from gputopo.values.run.plan import Candidate, TimedRun, mode_of
from tests import there

RUN_S = 20.0


class Simulated:
    """Runs of candidates with these true speeds, noise between runs, and now and then a disturbed one."""

    def __init__(self, speeds: list[float], noise: float, disturbed: float, seed: int) -> None:
        self.speeds, self.noise, self.disturbed = speeds, noise, disturbed
        self.random, self.now, self.runs = random.Random(seed), 0.0, 0

    def measure(self, place: int, _round: int) -> TimedRun | str:
        self.now += RUN_S * self.random.uniform(0.9, 1.0)
        self.runs += 1
        speed = self.speeds[place] * self.random.lognormvariate(0.0, self.noise)
        if self.random.random() < self.disturbed:
            speed *= self.random.uniform(0.4, 0.9)
        return TimedRun(speed, self.noise / 4)

    def race(self, budget_s: float = 600.0) -> Race:
        race = Race(len(self.speeds))
        race.run(self.measure, TimeBudget(budget_s, lambda: self.now))
        return race


def losses(speeds: list[float], noise: float, disturbed: float = 0.0, budget_s: float = 600.0) -> list[float]:
    """Return the share of the best speed that the winner of each of 30 races lacks."""
    found = []
    for seed in range(30):
        winner = there(Simulated(speeds, noise, disturbed, seed).race(budget_s).leader)
        found.append(1 - speeds[winner] / max(speeds))
    return found


@pytest.mark.parametrize(("noise", "others"), [(0.002, (0.99, 0.97)), (0.03, (0.9, 0.88))])
def test_the_winner_is_the_best_within_the_noise(noise: float, others: tuple[float, float]) -> None:
    lost = losses([1000 * others[0], 1000.0, 1000 * others[1]], noise, 0.1)
    within = sum(loss <= max(2 * noise, 0.01) for loss in lost)
    # 2.5 % for each of two comparisons, and as much for looking after every round.
    assert within >= 0.9 * len(lost)
    assert mean(lost) < max(noise, 0.005)


@pytest.mark.parametrize(("budget_s", "noise"), [(0.0, 0.05), (300.0, 0.05)])
def test_it_ends_within_the_budget_or_with_the_run_that_it_began_with(budget_s: float, noise: float) -> None:
    for seed in range(20):
        simulated = Simulated([1000.0, 999.0, 990.0], noise, 0.1, seed)
        race = simulated.race(budget_s)
        assert simulated.now <= budget_s + 0.1 * RUN_S or simulated.runs == 1
        assert race.settled in ("lead", "same", "time")


def test_a_clear_lead_takes_two_rounds_and_what_is_far_behind_runs_no_more() -> None:
    race = Simulated([1000.0, 600.0, 300.0], 0.005, 0.0, 1).race()
    assert (race.settled, [len(runs) for runs in race.runs]) == ("lead", [2, 2, 2])
    race = Simulated([1000.0, 990.0, 300.0], 0.01, 0.0, 1).race()
    assert len(race.runs[2]) == 2 < len(race.runs[0])


def test_equal_ones_end_when_another_round_could_gain_less_than_one_percent() -> None:
    race = Simulated([1000.0, 1000.0], 0.001, 0.0, 1).race()
    assert race.settled == "same"
    assert Simulated([1000.0, 1000.0], 0.05, 0.0, 1).race().settled == "time"


def test_one_that_fails_is_left_out_and_a_stop_keeps_what_was_measured() -> None:
    def fails(place: int, _number: int) -> TimedRun | str:
        return "out of memory" if place == 0 else TimedRun(500.0, 0.0)

    race = Race(2)
    race.run(fails, TimeBudget(None, lambda: 0.0))
    assert (race.leader, race.settled, race.failures) == (1, "failed", {0: "out of memory"})

    def stops(place: int, number: int) -> TimedRun | str:
        if (place, number) == (0, 2):
            raise KeyboardInterrupt
        return TimedRun(100.0 + place, 0.05)

    race = Race(2)
    with pytest.raises(KeyboardInterrupt):
        race.run(stops, TimeBudget(None, lambda: 0.0))
    assert (race.leader, race.settled, [len(runs) for runs in race.runs]) == (1, "stopped", [1, 2])


def test_the_noise_within_runs_counts_where_rounds_agree_by_chance() -> None:
    fast, slow = [TimedRun(1010.0, 0.02)] * 2, [TimedRun(1000.0, 0.02)] * 2
    ahead, noise = lead(fast, slow)
    assert ahead == pytest.approx(0.00995, abs=1e-4)
    assert noise == pytest.approx(12.706 * 0.02 * 2**0.5 / 2**0.5)
    assert lead(fast[:1], slow[:1])[1] == float("inf")


@pytest.mark.parametrize(("rounds", "counts"), [(4, True), (5, False)])
def test_one_disturbed_run_of_five_is_no_noise(rounds: int, counts: bool) -> None:
    fast = [TimedRun(500.0, 0.001), *[TimedRun(1010.0, 0.001)] * (rounds - 1)]
    assert (lead(fast, [TimedRun(1000.0, 0.001)] * rounds)[1] > 0.1) == counts


def modes(found: tuple[Candidate, ...]) -> list[str]:
    return [" ".join(filter(None, (one.variable_update, one.ps_device, one.all_reduce))) for one in found]


def test_on_cpu_devices_those_that_do_least_with_the_variables_come_first() -> None:
    def on_cpu(count: int, **options: Any) -> list[str]:
        plan = cpu_plan(Request(model="alexnet", **options), 4)
        return modes(contenders(plan, count))

    assert on_cpu(3) == ["parameter_server cpu", "parameter_server gpu:spread", "replicated copy"]
    assert on_cpu(99)[-2:] == ["replicated ring", "replicated collective"], "NCCL reduces between GPUs only"
    assert on_cpu(2, variable_update="replicated") == ["replicated copy", "replicated pscpu"]
    assert on_cpu(3, ps="gpu:1") == ["parameter_server gpu:1"]
    assert on_cpu(3, variable_update="independent") == ["independent"]


def test_predicted_ones_are_the_best_that_differ_in_mode() -> None:
    request = Request(model="alexnet", num_gpus=4, single_gpu_images_per_sec=(1560.0,))
    plan = planner.plan(machine_from(["7gforce"]), request)
    found = contenders(plan, 3)
    assert found[0] == plan.choice
    assert len({mode_of(one) for one in found}) == len(found) == 3
    assert {len(one.gpus) for one in found} == {4}
    speeds = [one.images_per_sec or 0.0 for one in found]
    assert speeds == sorted(speeds, reverse=True)
    assert all(one.variable_update != "independent" for one in found)
