import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gputopo.cli.inspect import default_interval
from gputopo.cli.watch import Watched, ticks, watch_source
from gputopo.findings import find_after_watch
from gputopo.probes import DriverStop
from gputopo.values.history import History
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from tests.cli.conftest import ByName, Call
from tests.kit import commands
from tests.kit.nvml import FakeNvml, crash, installed
from tests.kit.scenarios import SCENARIOS

KIT = ("-m", "tests.kit.command")
MACHINE = Machine(source="live", gpus=(Gpu(index=0),))
ONCE = ("--watch", "--duration", "0")
OnScenario = ByName


class Clock:
    """A clock that advances only in sleep(), and by what the work between costs."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.at = 100.0
        self.work_s = work_s
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds

    def run(self, every_s: float, long_s: float | None) -> Iterator[float]:
        for _ in ticks(every_s, long_s, self.now, self.sleep):
            yield self.at - 100.0
            self.at += self.work_s


class Scripted:
    """A source of given samples; after them Ctrl-C is pressed."""

    xid_reason: str | None = None
    stop: DriverStop | None = None

    def __init__(self, *samples: MachineSample) -> None:
        self.samples = list(samples)

    def observe(self) -> MachineSample:
        if not self.samples:
            raise KeyboardInterrupt
        return self.samples.pop(0)


def sample(time_s: float, **facts: Any) -> MachineSample:
    return MachineSample(time_s=time_s, gpus=(GpuSample(gpu=0, **facts),))


def test_samples_come_at_the_interval_whatever_they_cost() -> None:
    assert list(Clock(work_s=0.3).run(1.0, 3.0)) == pytest.approx([0.0, 1.0, 2.0, 3.0])


def test_a_short_watch_is_read_at_its_end_too() -> None:
    cases: list[tuple[float | None, float]] = [(None, 1.0), (0.0, 1.0), (5.0, 1.0), (0.5, 0.5), (0.05, 0.1)]
    for long_s, every_s in cases:
        assert default_interval(long_s) == every_s
        if long_s and long_s >= 0.1:
            assert len(list(Clock().run(every_s, long_s))) > 1


def test_a_watch_that_ends_before_its_second_reading_reports_it(call: Call, on_scenario: OnScenario) -> None:
    on_scenario("desktop")
    done = call("inspect", "--watch", "--duration", "0.5", "--interval", "1")
    assert done.code == 0
    assert done.err == "gputopo: only one sample: the next one is due after 1 s, and --duration is 0.5 s\n"


def test_json_is_a_sample_a_line_and_ctrl_c_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    source = Scripted(sample(1.0, graphics_mhz=1771), sample(2.0, graphics_mhz=1700))
    watch_source(MACHINE, source, history, "json", iter([None] * 9), 1.0)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["schema"] == "gputopo.moment/1"
    assert [one["gpus"][0]["graphics_mhz"] for one in (first, second)] == [1771, 1700]
    assert history.gpus[0].samples == 2


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    xid = MachineSample(time_s=3.0, gpus=(GpuSample(gpu=0),), xids=(Xid(code=79, gpu=0),))
    watch_source(
        MACHINE, Scripted(sample(1.0, temperature_c=70), xid), History(), "table", iter([None] * 9), 1
    )
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert [line.partition(" ")[2] for line in out.splitlines()][:2] == [
        "GPU 0  70 C",
        "GPU 0  does not answer",
    ]
    assert "Xid 79" in out


@pytest.mark.parametrize("scenario", ["7gforce", "dgx1", "lost_gpu", "lost_handle"])
def test_a_box_is_watched_and_what_was_found_is_reported(
    scenario: str, call: Call, on_scenario: OnScenario
) -> None:
    on_scenario(scenario)
    done = call("inspect", *ONCE)
    assert (done.code, done.err) == (0, "")
    assert "\nSeen while watching\n" in done.out
    assert re.search(r"^\d\d:\d\d:\d\d GPU 0  load 0%  core", done.out)


def test_the_last_line_of_json_holds_the_findings(call: Call, on_scenario: OnScenario) -> None:
    from gputopo.values import schema

    on_scenario("desktop")
    *_, last = call("inspect", *ONCE, "--json").out.splitlines()
    assert schema.decode(last, Watched, origin="stdout").findings == ()


def test_csv_is_alone_on_stdout_and_a_watch_may_be_of_some_gpus(call: Call, on_scenario: OnScenario) -> None:
    on_scenario("dgx1")
    done = call("inspect", *ONCE, "--format", "csv", "-i", "5,0")
    assert [line.split(",")[1] for line in done.out.splitlines()] == ["gpu", "0", "5"]
    assert "Seen while watching" in done.err


def test_ecc_errors_that_are_counted_while_a_gpu_is_watched_are_a_finding() -> None:
    history = History()
    for time_s, count in enumerate((0, 2, 3)):
        history.add(sample(float(time_s), ecc_corrected=0, ecc_uncorrected=count))
    (fault,) = find_after_watch(MACHINE, history, MACHINE, 1.0)
    assert (fault.says, fault.severity) == (
        "GPU 0: rose while watched: ECC uncorrected volatile by 3",
        "warning",
    )


def test_findings_of_a_watch_count_for_fail_on() -> None:
    done = commands.run(*KIT, "four+hw_slowdown@2", "--", "inspect", *ONCE, "--fail-on", "error")
    assert done.returncode == 1, done.stderr
    assert "error    GPU 2  throttle.hw_" in done.stdout


def test_a_driver_that_crashes_ends_a_watch_with_the_finding(call: Call, on_scenario: OnScenario) -> None:
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
