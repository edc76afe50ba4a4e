"""Why a device, or a whole run, is slow; and real thermal logs, where these are there."""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from gputopo.runs import Judgement
from gputopo.values.run.events import Event, GpuSample, HostLoad, Sample, Step
from gputopo.values.run.verdict import Causes
from tests.invented_runs import cpu_devices, gpu_devices, judged_events
from tests.kit.drills.box import Trainer, flapping, slower, slower_since
from tests.runs.verdict.cards import POWER_BRAKE, POWER_CAP, THERMAL, Readings, always, judged, since

LOGS = Path(__file__).parents[4] / "shared" / "thermal"
LINE = re.compile(r"^(\d+)\timages/sec: ([\d.]+) .* (\d{9,})$", re.MULTILINE)
Heats = list[tuple[float, list[int]]]


def rows() -> list[dict[str, str]]:
    if not (LOGS / "index.csv").is_file():
        pytest.skip(f"the thermal logs are not there: {LOGS}")
    with (LOGS / "index.csv").open() as file:
        return list(csv.DictReader(file))


def readings(row: dict[str, str]) -> Heats:
    text = (LOGS / row["thermal_file"]).read_text()
    lines = (line.replace(" ", "").strip(",").split(",") for line in text.splitlines())
    return [(float(time), [int(one) for one in heats]) for time, _, *heats in lines]


def steps(row: dict[str, str]) -> list[Step]:
    """Ten steps an interval of the log, each as fast as the interval: it has cumulative means only."""
    printed = LINE.findall((LOGS / row["throughput_file"]).read_text())
    found, before, images = [], 0, 64 * int(row["n_gpus"])
    seconds_before = 0.0
    for number, rate, time in printed:
        total = int(number) * images / float(rate)
        count = int(number) - before
        for step in range(before + 1, int(number) + 1):
            seconds = (total - seconds_before) / count
            found.append(
                Step(time_s=float(time), step=step, seconds=seconds, images=images, loss=None, marks=())
            )
        before, seconds_before = int(number), total
    return found


def judged_log(row: dict[str, str]) -> Judgement:
    count, taken = int(row["n_gpus"]), readings(row)
    events: list[Event] = []
    for step in steps(row):
        heats = [heats for time, heats in taken if time <= step.time_s][-1]
        gpus = tuple(GpuSample(gpu=gpu, temperature_c=heats[gpu]) for gpu in range(count))
        events += [Sample(time_s=step.time_s, gpus=gpus), step]
    return judged_events(gpu_devices(count), events)


def test_no_gpu_is_accused_by_its_temperature_and_no_steady_run_is_slow() -> None:
    for row in rows():
        found = judged_log(row)
        assert found.slow == (), row["thermal_file"]
        if row["pattern"].startswith("steady"):
            assert found.run is None, row["thermal_file"]


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
    [
        (POWER_CAP, "power-cap"),
        (0, "core-clock"),
        # Of several reasons heat counts first, the power limit last.
        (THERMAL | POWER_BRAKE | POWER_CAP, "thermal"),
    ],
)
def test_a_clock_that_fell_is_the_cause_by_the_reason_that_throttled_it(mask: int, cause: str) -> None:
    trainer = Trainer(slow={1: slower_since(100, 10)})
    found = causes(trainer, 200, {1: since(100, graphics_mhz=1620, throttle_mask=mask)})
    assert ids(found) == [cause]
    assert found.found[0].how == "fitted"
    assert found.found[0].percent_low > 8
    assert found.says.startswith("Cause: core clock 1,620 MHz, 10.0% below its peers")


def test_a_clock_whose_loss_costs_half_is_fitted_and_not_taken_one_to_one() -> None:
    trainer = Trainer(slow={1: slower_since(150, 10)}, seed=1)
    found = causes(trainer, 300, {1: since(150, graphics_mhz=1440)})
    assert ids(found) == ["core-clock"]
    assert found.found[0].percent == pytest.approx(10, abs=1.5)
    assert found.unexplained_percent < 1.5


# Of the share of a device among the devices, or of one core where there are more cores.
@pytest.mark.parametrize(("devices", "cores", "percent"), [(2, 2, 24), (2, 3, 36)])
def test_cores_that_other_programs_took_are_a_cause_for_a_cpu_device(
    devices: int, cores: int, percent: int
) -> None:
    trainer = Trainer(devices=cpu_devices(devices), slow={1: slower(40)})
    host = HostLoad(time_s=0.0, seconds=1.0, cores=cores, other_cpu_share=0.12)
    found = causes(trainer, 100, {}, host=lambda step: host)
    assert ids(found) == ["cores-taken"]
    assert f"cores that other programs took, up to {percent}% of one device's" in found.says
    covered = math.log(1 - percent / 100) / math.log(0.6)
    assert found.covered_share == pytest.approx(covered, abs=0.03)


def test_a_host_that_is_busy_now_and_then_is_the_cause_where_the_pace_follows_it() -> None:
    def host(step: int) -> HostLoad:
        busy = 0.6 if step % 100 >= 85 else 0.0
        return HostLoad(time_s=0.0, seconds=1.0, other_cpu_share=busy, run_cpu_share=0.4)

    trainer = Trainer(slow={1: lambda step: 1.6 if step % 100 >= 85 else 1.0})
    found = causes(trainer, 500, {}, host=host)
    assert ids(found) == ["host-busy"]


def test_a_process_more_than_on_the_peer_costs_half_of_the_wait_for_weights_at_most() -> None:
    # Its wait is 110 ms of 210, the others' 10 of 110: the half of the wait is more than half of the gap.
    trainer = Trainer(waits_s={2: lambda step: 0.1})
    cards = {gpu: always(other_processes=3 if gpu == 2 else 2) for gpu in range(4)}
    (process,) = causes(trainer, 200, cards).found
    assert process.id == "other-process"
    assert process.percent == pytest.approx(100 * 0.1 / 0.21 * 0.055 / 0.1, abs=1.5)


def test_a_lower_clock_all_the_time_explains_as_much_as_it_fell_at_most() -> None:
    found = causes(Trainer(slow={1: slower(20)}), 100, {1: always(graphics_mhz=1710)})
    assert ids(found) == ["core-clock"]
    assert found.found[0].percent == pytest.approx(20 * 0.0513 / 0.2231, abs=0.3)
    assert found.says.startswith(
        "Partly: core clock 1,710 MHz, 5.0% below its peers, which explains at most "
    )
    assert "15% unexplained" in found.says
    # 0.5 % lower, of 20 %, is too little to be told.
    assert not causes(Trainer(slow={1: slower(20)}), 100, {1: always(graphics_mhz=1791)}).found


def test_two_faults_at_once_each_have_their_share() -> None:
    def there(step: int) -> bool:
        return step % 40 < 30

    def factor(step: int) -> float:
        return (1 / 0.9 if step >= 100 else 1.0) * (1.25 if there(step) else 1.0)

    def card(step: int) -> dict[str, int]:
        return {"graphics_mhz": 1620 if step >= 100 else 1800, "other_processes": int(there(step))}

    found = causes(Trainer(slow={1: factor}), 300, {1: card})
    process, clock = found.found
    assert (process.id, clock.id) == ("other-process", "core-clock")
    # Of a factor of 1.25 / 0.9 the process has 68 % of the logarithm; of all steps the median gap is 24 %.
    assert process.percent == pytest.approx(24 * 0.68, abs=1.5)
    assert clock.percent == pytest.approx(24 * 0.32, abs=1.5)


def test_a_device_that_is_even_has_no_cause_whatever_was_sampled() -> None:
    cards = {1: always(graphics_mhz=1500, throttle_mask=POWER_CAP, other_processes=1)}
    judgement = judged(Trainer(), 100, cards)
    assert [verdict.causes for verdict in judgement.devices] == [None] * 4


def test_what_was_not_sampled_is_not_checked_and_not_excluded() -> None:
    found = causes(
        Trainer(slow={1: slower(10)}),
        100,
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


@dataclass
class Grown:
    """Seconds more of each step from 100 on; `waited`: in them, all towers waited for the input."""

    seconds: float
    waited: bool

    def causes(self) -> Causes:
        trainer = Trainer()
        run = judged_events(trainer.devices, map(self._grown, trainer.events(200))).run
        assert run is not None
        assert run.causes is not None
        assert run.causes.says in run.says
        return run.causes

    def _grown(self, event: Event) -> Event:
        if not isinstance(event, Step):
            return event
        more = self.seconds if event.step >= 100 else 0.0
        waited_s = 0.001 + (more if self.waited else 0.0)
        return msgspec.structs.replace(event, seconds=event.seconds + more, waited_s=waited_s)


@pytest.mark.parametrize(
    ("waited", "cause", "says", "milliseconds"),
    [
        (True, "input-starved", "Waiting for the input", "40.0"),
        (False, "reduction-slow", "Reducing gradients and updating", "39.9"),
    ],
)
def test_a_run_that_became_slower_names_the_part_of_the_step_that_grew(
    waited: bool, cause: str, says: str, milliseconds: str
) -> None:
    found = Grown(0.04, waited).causes()
    assert found.found[0].id == cause
    assert found.found[0].how == "measured"
    assert found.covered_share > 0.8
    assert found.says.startswith(
        f"{says} takes {milliseconds} ms more, 25% ("
    )  # a part of the step is no cause


@pytest.mark.parametrize(("mask", "why"), [(THERMAL, " (thermal slowdown)"), (0, "")])
def test_clocks_of_all_gpus_that_fell_are_named_beside_the_part_that_grew(mask: int, why: str) -> None:
    trainer = Trainer(slow={tower: slower_since(100, 15) for tower in range(4)})
    fell = {gpu: since(100, graphics_mhz=1530, throttle_mask=mask) for gpu in range(4)}
    run = judged(trainer, 200, fell).run
    assert run is not None
    cause = f"Cause: the core clock of all 4 GPUs fell from 1,800 to 1,530 MHz{why}; computing takes "
    assert cause in run.says
    one_left = judged(trainer, 200, {gpu: fell[gpu] for gpu in range(3)}).run
    assert one_left is not None
    assert "core clock" not in one_left.says


def test_the_clock_of_a_card_that_is_slow_now_and_then_is_that_of_its_slow_steps_once() -> None:
    trainer = Trainer(slow={1: flapping(20, 5, 25)})
    throttled = {1: lambda step: {"graphics_mhz": 1350, "throttle_mask": 0x8} if step % 20 >= 15 else {}}
    (found,) = judged(trainer, 400, throttled).slow
    assert found.causes is not None
    assert len(found.causes.found) == 1
    assert found.causes.found[0].says.startswith("core clock 1,350 MHz, 25.0% below its peers (hardware")


def test_a_gpu_that_is_lost_is_named_beside_its_missing_marks_and_not_called_slow() -> None:
    trainer = Trainer(marks_end={2: 50})
    verdict = judged(trainer, 100, {2: since(51, lost=True)}).devices[2]
    assert verdict.word == "cannot tell"
    assert verdict.why == "no time marks after step 50; NVML reported that the GPU is lost"
    assert verdict.causes is None
