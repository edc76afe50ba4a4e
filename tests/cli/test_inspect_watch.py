import json
import os
import re
import signal
import time
from itertools import accumulate, repeat

import pytest

from gputopo.findings import find_after_watch
from gputopo.values.history import History
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.events import GpuSample, MachineSample
from tests.cli.conftest import ByName, Call
from tests.kit import commands
from tests.kit.nvml import FakeNvml, crash, installed
from tests.kit.scenarios import SCENARIOS

KIT = ("-m", "tests.kit.command")
ONCE = ("--watch", "--duration", "0")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that advances by 10 ms each time it is read, and by what is slept, which is returned."""
    slept: list[float] = []
    reads = accumulate(repeat(0.01))
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + next(reads) + sum(slept))
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ("--duration 3 --interval 1", 4),  # whatever a sample costs
        ("--duration 5", 6),
        ("--duration 0.5", 2),  # a short one is read at its end too
        ("--duration 0.05", 1),
    ],
)
def test_samples_come_at_the_interval(
    options: str, samples: int, call: Call, on_scenario: ByName, clock: list[float]
) -> None:
    on_scenario("desktop")
    done = call("inspect", "--watch", "--json", *options.split())
    assert done.code == 0
    documents = [json.loads(line) for line in done.out.splitlines()]
    assert [one["schema"] for one in documents] == ["gputopo.moment/1"] * samples + ["gputopo.watched/1"]
    assert documents[0]["gpus"][0]["graphics_mhz"] == 210
    assert documents[-1]["findings"] == []


@pytest.mark.parametrize("scenario", ["7gforce", "lost_gpu"])
def test_a_box_is_watched_and_what_was_found_is_reported(
    scenario: str, call: Call, on_scenario: ByName
) -> None:
    on_scenario(scenario)
    done = call("inspect", *ONCE)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert "\nSeen while watching\n" in done.out
    assert re.search(r"^\d\d:\d\d:\d\d GPU 0  load 0%  core", done.out)


def test_csv_is_alone_on_stdout_and_a_watch_may_be_of_some_gpus(call: Call, on_scenario: ByName) -> None:
    on_scenario("dgx1")
    done = call("inspect", *ONCE, "--format", "csv", "-i", "5,0")
    assert [line.split(",")[1] for line in done.out.splitlines()] == ["gpu", "0", "5"]
    assert "Seen while watching" in done.err


def test_ecc_errors_that_are_counted_while_a_gpu_is_watched_are_a_finding() -> None:
    machine, history = Machine(source="live", gpus=(Gpu(index=0),)), History()
    for time_s, count in enumerate((0, 2, 3)):
        gpu = GpuSample(gpu=0, ecc_corrected=0, ecc_uncorrected=count)
        history.add(MachineSample(time_s=float(time_s), gpus=(gpu,)))
    (fault,) = find_after_watch(machine, history, machine, 1.0)
    assert (fault.says, fault.severity) == (
        "GPU 0: rose while watched: ECC uncorrected volatile by 3",
        "warning",
    )


def test_findings_of_a_watch_count_for_fail_on(call: Call, on_scenario: ByName) -> None:
    on_scenario("four+hw_slowdown@2")
    done = call("inspect", *ONCE, "--fail-on", "error")
    assert done.code == 1, done.err
    assert "error    GPU 2  throttle.hw_" in done.out


def test_a_driver_that_crashes_ends_a_watch_with_the_finding(call: Call, on_scenario: ByName) -> None:
    on_scenario("four")
    fake = FakeNvml(SCENARIOS["four"])
    fake.spoil("nvmlEventSetWait_v2", crash, after_calls=1)
    with installed(fake):
        done = call("inspect", "--watch", "--interval", "0.1")
    assert done.code == 3
    assert "error    driver  driver.crashed" in done.out
    assert "nvmlEventSetWait_v2 ended the process with SIGSEGV" in " ".join(done.out.split())
    assert "gpu.lost" not in done.out


def test_without_a_gpu_there_is_nothing_to_watch(call: Call, without_gpu: None) -> None:
    done = call("inspect", "--watch")
    assert done.code == 3
    assert "there is nothing to watch" in done.err
    assert len(done.err.splitlines()) == 2


def test_ctrl_c_ends_a_watch_with_0_and_the_findings() -> None:
    command = (*KIT, "desktop", "--", "inspect", "--watch", "--interval", "60")
    with commands.started(*command) as (program, printed):
        assert "GPU 0" in printed.readline()
        os.kill(program.pid, signal.SIGINT)
        rest = printed.read()
        assert program.wait(60) == 0, rest
    assert "Seen while watching\n  None." in rest


def test_a_terminal_is_drawn_over_in_its_place() -> None:
    watch = ("inspect", "--watch", "--interval", "0.1", "--duration", "0.2")
    code, got = commands.on_a_terminal(*KIT, "desktop", "--", *watch, NO_COLOR="")
    assert code == 0
    redrawn = got.count("\r\x1b[2K")  # to the first column, erase the line
    assert redrawn >= 1
    assert got.count("Ctrl-C ends.") == redrawn + 1
    assert "Seen while watching" in got
