"""Logs of `nvidia-smi --query-gpu -l`: which rows are a sample, what is stored, and what is counted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import merge, read_text
from gputopo.findings import find
from gputopo.values import schema
from gputopo.values.machine import Machine
from gputopo.values.samples import at_samples

NAME = "Tesla V100-SXM2-16GB"
HEAD = "timestamp, index, name, pstate, utilization.gpu [%], clocks.sm [MHz], temperature.gpu, power.draw [W]"
HEAD += ", clocks_event_reasons.active, pcie.link.gen.current, pcie.link.width.current"
BUSY: dict[str, Any] = {"pstate": "P0", "load": 99, "mhz": 1530, "heat": 60}
BUSY |= {"watts": 250.0, "mask": 0, "gen": 3}
IDLE: dict[str, Any] = {"pstate": "P8", "load": 0, "mhz": 135, "heat": 30, "watts": 25.0, "mask": 1, "gen": 1}


def row(second: int, gpu: int, **facts: Any) -> str:
    one = BUSY | facts
    at = f"2026/11/23 {10 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{gpu:03}"
    return (
        f"{at}, {gpu}, {NAME}, {one['pstate']}, {one['load']} %, {one['mhz']} MHz, {one['heat']}, "
        f"{one['watts']:.2f} W, {one['mask']:#018x}, {one['gen']}, 16"
    )


def log(*readings: dict[str, Any], gpus: int = 2) -> str:
    """A log of GPU 0 under load and others with these readings, one a second."""
    rows = [
        row(second, gpu, **(facts if gpu else {}))
        for second, facts in enumerate(readings)
        for gpu in range(gpus)
    ]
    return "\n".join([HEAD, *rows]) + "\n"


def read(text: str) -> Machine:
    return read_text(text, origin="log.csv")


def ids(machine: Machine) -> set[tuple[str, str]]:
    """The rules that found something, with each GPU or other subject."""
    return {
        (one.id, subject)
        for one in find(machine)
        for subject in ([f"gpu:{gpu}" for gpu in one.subject.gpus] or [one.subject.text])
    }


def test_each_reading_is_a_sample_and_the_last_is_shown() -> None:
    machine = read(log(IDLE, BUSY) + HEAD + "\n" + f"{row(2, 0)}\n{row(2, 1, heat=61)}\n")
    assert len(machine.gpus) == 2
    assert [sample.time for sample in machine.samples] == [f"2026-11-23T10:00:0{n}.000" for n in range(3)]
    assert machine.gpus[1].temperature_c.gpu == 61
    assert [history.samples for history in machine.series] == [3, 3]


def test_a_fault_in_one_of_many_samples_is_found() -> None:
    readings = [BUSY | {"watts": 200.0 + second % 50} for second in range(250)]
    readings[123] = BUSY | {"mask": 0x40, "mhz": 600}
    machine = read(log(*readings))
    assert len(machine.samples) < 20
    (found,) = [one for one in find(machine) if one.id == "throttle.hw_thermal_slowdown"]
    assert (found.subject.text, found.severity) == ("gpu:1", "error")
    assert found.says.endswith("under 1% of the time")


def test_a_low_clock_under_load_is_stored_beside_a_lower_one_of_idle() -> None:
    readings = [BUSY] * 50 + [IDLE] * 50 + [BUSY | {"mhz": 300}] + [BUSY] * 50
    assert ("clocks.core_below_maximum", "gpu:1") in ids(read(log(*readings)))


def test_a_gpu_that_is_lost_in_the_log_is_lost() -> None:
    lost = ", ".join([row(1, 1).split(", ")[0], "1", *["[GPU is lost]"] * 9])
    machine = read(log(BUSY) + row(1, 0) + "\n" + lost + "\n")
    assert ("gpu.lost", "gpu:1") in ids(machine)


def test_a_gpu_that_is_in_the_log_no_more_is_named() -> None:
    rest = "".join(row(second, 0) + "\n" for second in range(2, 9))
    machine = read(log(BUSY, BUSY) + rest)
    assert len(machine.gpus) == 2
    assert [gap.text for gap in machine.gaps] == ["GPU 1 is in none of the last 7 of 9 samples"]


READINGS = st.fixed_dictionaries(
    {
        "pstate": st.sampled_from(["P0", "P2", "P8"]),
        "load": st.sampled_from([0, 30, 99, 100]),
        "mhz": st.sampled_from([135, 600, 1200, 1500, 1530]),
        "heat": st.sampled_from([30, 60, 82, 86, 90]),
        "watts": st.sampled_from([25.0, 150.0, 299.0]),
        "mask": st.sampled_from([0, 1, 4, 0x20, 0x40, 0x80]),
        "gen": st.sampled_from([1, 3]),
    }
)


@settings(max_examples=4)
@given(st.lists(READINGS, min_size=1, max_size=6))
def test_a_log_has_the_faults_of_each_of_its_rows(readings: list[dict[str, Any]]) -> None:
    whole = ids(read(log(*readings)))
    for one in readings:
        assert ids(read(log(one))) <= whole


@settings(max_examples=4)
@given(st.lists(READINGS, min_size=2, max_size=6))
def test_a_log_is_read_as_its_rows_one_by_one(readings: list[dict[str, Any]]) -> None:
    machine = read(log(*readings))
    apart = []
    for second, facts in enumerate(readings):
        apart.append(read("\n".join([HEAD, row(second, 0), row(second, 1, **facts)]) + "\n"))
    alone = [one.gpus for one in at_samples(merge(apart))]
    assert all(one.gpus in alone for one in at_samples(machine))
    assert schema.decode(schema.encode(machine), Machine, origin="x") == machine


def without(text: str, *columns: str) -> str:
    rows = [line.split(", ") for line in text.splitlines()]
    out = [at for at, name in enumerate(rows[0]) if name in columns]
    return "".join(", ".join(cell for at, cell in enumerate(line) if at not in out) + "\n" for line in rows)


@pytest.mark.parametrize("lost", [None, 5])
def test_rows_that_name_no_gpu_are_placed_by_their_time(lost: int | None) -> None:
    rows = without(log(*[BUSY, IDLE] * 20, gpus=3), "index").splitlines()
    machine = read("\n".join(row for at, row in enumerate(rows) if at != lost) + "\n")
    assert len(machine.gpus) == 3
    assert [history.samples for history in machine.series] == [40 - bool(lost)] * 3
    assert [history.loaded for history in machine.series] == [40 - bool(lost), 20, 20]


def test_many_rows_of_one_name_are_one_gpu_and_few_are_one_each() -> None:
    head = "name, utilization.gpu [%]\n"
    assert len(read(head + "T4, 5 %\n" * 500).gpus) == 1
    assert len(read(head + "T4, 5 %\n" * 8).gpus) == 8
