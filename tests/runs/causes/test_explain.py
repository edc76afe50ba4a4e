"""Simulated runs with one fault each, two or none, and what the samples of the same seconds explain."""

import pytest

from gputopo.values.run.events import HostLoad
from gputopo.values.run.verdict import Causes, Known
from tests.invented_runs import cpu_devices, gpu_devices
from tests.runs.causes.cards import POWER_BRAKE, POWER_CAP, THERMAL, Readings, always, judged, since
from tests.runs.verdict import drills
from tests.runs.verdict.drills import Trainer

SEEDS = (1, 2, 3)


def causes(trainer: Trainer, steps: int, cards: dict[int, Readings], **more: object) -> Causes:
    (slow,) = judged(trainer, steps, cards, **more).slow
    assert slow.causes is not None
    assert slow.causes.says in slow.says
    assert slow.percent_under is not None
    shared = sum(cause.percent for cause in slow.causes.found) + slow.causes.unexplained_percent
    assert shared == pytest.approx(slow.percent_under)
    for cause in slow.causes.found:
        assert (
            0 <= cause.percent_low <= cause.percent <= cause.percent_high + 1e-9 <= slow.percent_under + 2e-9
        )
    return slow.causes


def ids(found: Causes) -> list[str]:
    return [cause.id for cause in found.found]


@pytest.mark.parametrize(
    ("mask", "cause"),
    [(POWER_CAP, "power-cap"), (THERMAL, "thermal"), (POWER_BRAKE, "hardware-slowdown"), (0, "core-clock")],
)
def test_a_clock_that_fell_is_the_cause_by_the_reason_that_throttled_it(mask: int, cause: str) -> None:
    trainer = Trainer(slow={1: drills.since(200, 10)})
    found = causes(trainer, 400, {1: since(200, graphics_mhz=1620, throttle_mask=mask)})
    assert ids(found) == [cause]
    assert found.found[0].how == "fitted"
    assert found.found[0].percent_low > 8
    assert found.says.startswith("Cause: core clock 1,620 MHz, 10.0 % below its peers")


def test_a_power_cap_all_the_time_is_bounded_by_its_clock_and_only_possible() -> None:
    trainer = Trainer(slow={1: drills.always(10)})
    found = causes(trainer, 200, {1: always(graphics_mhz=1620, throttle_mask=POWER_CAP)})
    assert ids(found) == ["power-cap"]
    assert (found.found[0].how, found.found[0].percent_low) == ("bounded", 0.0)
    assert found.says.startswith("Possible cause: ")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clock_whose_loss_costs_half_is_fitted_and_not_taken_one_to_one(seed: int) -> None:
    trainer = Trainer(slow={1: drills.since(200, 10)}, seed=seed)
    found = causes(trainer, 400, {1: since(200, graphics_mhz=1440)})
    assert ids(found) == ["core-clock"]
    assert found.found[0].percent == pytest.approx(10, abs=1.5)
    assert found.unexplained_percent < 1.5


def test_a_link_that_fell_explains_the_wait_for_weights() -> None:
    trainer = Trainer(waits_s={2: lambda step: 0.15 if step > 100 else 0.0})
    found = causes(trainer, 200, {2: since(101, pcie_width=1)})
    assert ids(found) == ["pcie-link"]
    assert found.covered_share > 0.8
    assert "a PCIe link of 1.0 GB/s, its peers' 15.8 GB/s" in found.says


def test_two_gpus_behind_one_uplink_wait_longer_while_both_copy() -> None:
    # GPUs 1 and 2 copy at half of the rate for as long as both do: from step 100 on, before in turn.
    trainer = Trainer(waits_s=dict.fromkeys((1, 2), lambda step: 0.04 if step > 100 else 0.0))
    known = Known(sharing={1: (2,), 2: (1,)})
    for slow in judged(trainer, 200, known=known).slow:
        assert slow.part == "weights"
        assert slow.causes is not None
        assert ids(slow.causes) == ["pcie-shared"]
        assert "a link to the host that other GPUs copied over at the same time" in slow.says
    assert [slow.tower for slow in judged(trainer, 200, known=known).slow] == [1, 2]


def test_a_memory_that_is_full_is_a_possible_cause_where_that_of_the_peers_is_not() -> None:
    known = Known(memory_mib={str(gpu): 8192 for gpu in range(4)})
    trainer = Trainer(slow={1: drills.always(12)})
    cards = {gpu: always(memory_used_mib=8150 if gpu == 1 else 7000) for gpu in range(4)}
    found = causes(trainer, 200, cards, known=known)
    assert ids(found) == ["memory-full"]
    assert found.says.startswith("Possible cause: GPU memory more than 98 % full, its peers' not")
    everywhere = {gpu: always(memory_used_mib=8150) for gpu in range(4)}
    assert ids(causes(trainer, 200, everywhere, known=known)) == []


def test_cores_that_other_programs_took_are_a_cause_for_a_cpu_device() -> None:
    trainer = Trainer(devices=cpu_devices(2), slow={1: drills.always(40)})
    host = HostLoad(time_s=0.0, seconds=1.0, cores=2, other_cpu_share=0.12)
    found = causes(trainer, 200, {}, host=lambda step: host)
    assert ids(found) == ["cores-taken"]
    assert found.says.startswith("Partly: cores that other programs took, up to 24 % of one device's")
    # ln(1 / 0.76) of ln(1 / 0.6): 54 %.
    assert found.covered_share == pytest.approx(0.54, abs=0.03)


def test_a_host_that_is_busy_now_and_then_is_the_cause_where_the_pace_follows_it() -> None:
    def host(step: int) -> HostLoad:
        busy = 0.6 if step % 100 >= 85 else 0.0
        return HostLoad(time_s=0.0, seconds=1.0, other_cpu_share=busy, run_cpu_share=0.4)

    trainer = Trainer(slow={1: lambda step: 1.6 if step % 100 >= 85 else 1.0})
    found = causes(trainer, 1000, {}, host=host)
    assert ids(found) == ["host-busy"]


def test_without_a_fact_that_differs_the_gap_is_not_explained() -> None:
    found = causes(Trainer(slow={1: drills.always(10)}), 200, {})
    assert ids(found) == []
    assert found.unexplained_percent == pytest.approx(10, abs=1)
    assert found.says.startswith("Cause: not explained")


def test_a_lower_clock_all_the_time_explains_as_much_as_it_fell_at_most() -> None:
    found = causes(Trainer(slow={1: drills.always(20)}), 200, {1: always(graphics_mhz=1710)})
    assert ids(found) == ["core-clock"]
    assert found.found[0].percent == pytest.approx(20 * 0.0513 / 0.2231, abs=0.3)
    assert found.says.startswith(
        "Partly: core clock 1,710 MHz, 5.0 % below its peers, which explains at most "
    )
    assert "15 % unexplained" in found.says


def test_two_faults_at_once_each_have_their_share() -> None:
    def there(step: int) -> bool:
        return step % 40 < 30

    def factor(step: int) -> float:
        return (1 / 0.9 if step >= 200 else 1.0) * (1.25 if there(step) else 1.0)

    def card(step: int) -> dict[str, int]:
        return {"graphics_mhz": 1620 if step >= 200 else 1800, "other_processes": int(there(step))}

    found = causes(Trainer(slow={1: factor}), 600, {1: card})
    process, clock = found.found
    assert (process.id, clock.id) == ("other-process", "core-clock")
    # Of a factor of 1.25 / 0.9 the process has 68 % of the logarithm; of all steps the median gap is 24 %.
    assert process.percent == pytest.approx(24 * 0.68, abs=1.5)
    assert clock.percent == pytest.approx(24 * 0.32, abs=1.5)


def test_two_faults_that_began_together_are_both_possible() -> None:
    trainer = Trainer(slow={1: drills.since(200, 20)})
    found = causes(trainer, 400, {1: since(200, graphics_mhz=1620, other_processes=1)})
    assert sorted(ids(found)) == ["core-clock", "other-process"]
    assert found.says.startswith("Possible cause: ")


def test_a_clock_that_changes_without_the_pace_is_not_the_cause() -> None:
    cards: dict[int, Readings] = {1: lambda step: {"graphics_mhz": 1620 if step % 100 >= 50 else 1800}}
    assert ids(causes(Trainer(slow={1: drills.always(10)}), 400, cards)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_that_is_even_has_no_cause_whatever_was_sampled(seed: int) -> None:
    cards = {1: always(graphics_mhz=1500, throttle_mask=POWER_CAP, other_processes=1)}
    judgement = judged(Trainer(seed=seed), 200, cards)
    assert [verdict.causes for verdict in judgement.devices] == [None] * 4


def test_what_was_not_sampled_is_not_checked_and_not_excluded() -> None:
    found = causes(
        Trainer(slow={1: drills.always(10)}),
        200,
        {},
        without=("throttle_mask", "other_processes", "memory_used_mib"),
    )
    assert {
        "power-cap",
        "thermal",
        "hardware-slowdown",
        "other-process",
        "host-busy",
    } <= found.not_checked.keys()
    assert found.not_checked["other-process"] == "other_processes"
    assert set(found.checked) == {"core-clock", "memory-clock"}
    assert "not checked: thermal" in found.says


def test_the_published_table_of_six_cards_is_explained_as_far_as_their_memory_clock_goes() -> None:
    # AlexNet on six GTX 1070, images/sec relative to GPU 0; the memory clock of 1, 2 and 3 is 95 % of it.
    percents = {1: 84.65, 2: 98.83, 3: 94.54}
    trainer = Trainer(
        devices=gpu_devices(6), slow={gpu: drills.always(100 - percent) for gpu, percent in percents.items()}
    )
    judgement = judged(trainer, 300, {gpu: always(memory_mhz=3800) for gpu in percents})
    assert [verdict.word for verdict in judgement.devices] == ["even", "slow", "even", "slow", "even", "even"]
    first, third = (verdict.causes for verdict in judgement.slow)
    assert first is not None
    assert third is not None
    assert third.covered_share > 0.8
    assert third.says.startswith("Possible cause: memory clock 3,800 MHz, 5.0 % below its peers")
    assert first.covered_share < 0.4
    assert first.unexplained_percent == pytest.approx(10.4, abs=1)
    assert first.says.startswith("Partly: memory clock")
