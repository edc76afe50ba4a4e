"""Temperatures are described as what they are: by real thermal logs of trainings, where these are there."""

import csv
import re
from pathlib import Path

import pytest

from gputopo.runs.verdict.causes import COOLING, STEADY, WARMING, heat
from gputopo.runs.verdict.judge import Judgement, judge
from gputopo.runs.verdict.paces import Paces
from gputopo.values.run.events import GpuSample, Sample, Step
from tests.invented_runs import gpu_devices

LOGS = Path(__file__).parents[4] / "shared" / "thermal"
LINE = re.compile(r"^(\d+)\timages/sec: ([\d.]+) .* (\d{9,})$", re.MULTILINE)
Readings = list[tuple[float, list[int]]]


def test_a_temperature_that_rises_or_falls_by_five_degrees_is_no_steady_one() -> None:
    cooled = None
    for last, word in ((64.0, STEADY), (66.0, WARMING), (54.0, COOLING)):
        cooled = heat([60.0] * 4 + [62.0] * 4 + [last] * 4)
        assert cooled is not None
        assert cooled.word == word
    assert cooled is not None
    assert cooled.says("GPU 1") == "GPU 1 became 6 °C cooler (60 to 54 °C)"
    assert heat([60.0] * 5 + [float("nan")] * 9) is None


def rows() -> list[dict[str, str]]:
    if not (LOGS / "index.csv").is_file():
        pytest.skip(f"the thermal logs are not there: {LOGS}")
    with (LOGS / "index.csv").open() as file:
        return list(csv.DictReader(file))


def readings(row: dict[str, str]) -> Readings:
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


def judged(row: dict[str, str]) -> Judgement:
    count, taken = int(row["n_gpus"]), readings(row)
    paces = Paces(gpu_devices(count))
    for step in steps(row):
        for time, heats in taken:
            if time <= step.time_s:
                gpus = tuple(GpuSample(gpu=gpu, temperature_c=heats[gpu]) for gpu in range(count))
                last = Sample(time_s=step.time_s, gpus=gpus)
        paces.add(last)
        paces.add(step)
    return judge(paces)


def test_no_gpu_is_accused_by_its_temperature_and_no_steady_run_is_slow() -> None:
    for row in rows():
        found = judged(row)
        assert found.slow == (), row["thermal_file"]
        if row["pattern"].startswith("steady"):
            assert found.run is None, row["thermal_file"]


def test_warming_and_cooling_in_real_logs_are_described_as_such() -> None:
    for row in rows():
        begin, end = float(row["steady_start_unix"]), float(row["steady_end_unix"])
        taken = readings(row)
        used = range(int(row["n_gpus"]))
        words = {
            found.word
            for gpu in used
            if (found := heat([heats[gpu] for time, heats in taken if begin <= time <= end])) is not None
        }
        assert ("still warming" in row["pattern"]) == (WARMING in words or COOLING in words), row["id"]
    # Before its first step the machine cools down from the run before it.
    first = rows()[0]
    idle = [heats[0] for time, heats in readings(first) if time < float(first["steady_start_unix"]) - 4]
    before = heat(idle)
    assert before is not None
    assert before.word in (COOLING, STEADY)
    assert before.last_c < before.first_c
