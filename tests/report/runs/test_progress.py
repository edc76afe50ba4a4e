"""The progress of a run: the display of a terminal, and the lines of a pipe."""

import io
import itertools
import sys
from collections.abc import Iterator

import msgspec
import pytest
from rich.console import Console

from gputopo.report import Progress
from gputopo.values.run.events import (
    CheckpointSaved,
    Device,
    Event,
    GpuSample,
    HostLoad,
    Judged,
    LossNotFinite,
    RankFailed,
    Restarted,
    RunStarted,
    Sample,
    Standing,
    Step,
    Traced,
    WarmupDone,
)
from tests.invented_runs import SAYS, InventedRun, Noise, cpu_devices, gpu_devices, stream
from tests.report.runs.displays import drawn, on_the_screen, terminal, text_of

RUN = InventedRun(2, slow={1: 0.5}, noise=Noise(common=0.0, own=0.0, stalls=0.0))
EVENTS: list[Event] = list(stream(gpu_devices(2), RUN.steps(20)))
TRAINING = EVENTS[:-7]
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def plain(events: list[Event], every: int | None = 10) -> list[str]:
    console = Console(file=io.StringIO(), width=20)
    with Progress(console, display_every=every) as progress:
        for event in events:
            progress.event(event)
    return text_of(console).splitlines()


def test_piped_output_is_plain_lines_of_the_first_and_every_tenth_step() -> None:
    reported = plain(EVENTS)
    assert all("\x1b" not in line and "\r" not in line for line in reported)
    # 16 images; tower 1 waits 10 ms and computes 200 ms: 76.2 images/sec.
    assert [line for line in reported if line.startswith("step ")] == [
        "step 1: 76.2 images/sec, loss 1",
        "step 10: 76.2 images/sec, loss 1",
        "step 20: 76.2 images/sec, loss 1",
    ]
    assert "warm-up done (2 steps, 1.00 s)" in reported
    assert sum(line.startswith("step ") for line in plain(EVENTS, every=5)) == 5


def test_a_failure_is_shown_in_both_formats() -> None:
    failure = RankFailed(time_s=1.0, kind="killed", cause="killed by [SIGKILL]", remedy="-", exit_code=137)
    assert plain([*EVENTS[:9], failure])[-1] == "killed: killed by [SIGKILL]"
    console = terminal()
    with Progress(console) as progress:
        progress.event(failure)
    assert "killed: killed by [SIGKILL]" in text_of(console)


def test_the_phases_follow_the_events() -> None:
    shown = [drawn(EVENTS[:count])[0].partition("  ")[0] for count in range(0, len(EVENTS) + 1, 2)]
    assert [phase for phase, _ in itertools.groupby(shown)] == [
        "starting TensorFlow, building the model",
        "first step (tracing)",
        "warming up",
        "training",
        "ending",
    ]


def test_the_display_shows_steps_speed_and_a_bar_for_each_device() -> None:
    lines = drawn(TRAINING)
    assert "76.2 images/sec now, 76.2 on average" in lines[0]
    assert lines[1] == "verdict: GPU 1 looks 48% slower; not significant so far"
    assert " of 20" in lines[2]
    assert lines[3].startswith("GPU 0")
    assert lines[3].endswith("100% of the best  1700 MHz")
    assert lines[4].endswith("52% of the best  1700 MHz")  # 110 ms against 210 ms
    assert lines[3].count("━") > 1.8 * lines[4].count("━") > 0


Standings = tuple[tuple[str, float | None, str | None], ...]
EQUAL = InventedRun(2, noise=Noise(common=0.0, own=0.0, stalls=0.0))


def verdict(
    run: InventedRun, standings: Standings, devices: tuple[Device, ...] = gpu_devices(2)
) -> tuple[str, str]:
    """The verdict on a training run after a look that found this, and the whole display."""
    found = tuple(
        Standing(tower=n, gpu=n, word=word, percent=percent, cause=cause)
        for n, (word, percent, cause) in enumerate(standings)
    )
    look = [Judged(time_s=0.0, step=9, devices=found)] if found else []
    lines = drawn([*list(stream(devices, run.steps(20)))[:-7], *look])
    return next(line.removeprefix("verdict: ") for line in lines if "verdict" in line), "\n".join(lines)


@pytest.mark.parametrize(
    ("standings", "words"),
    [
        ((), "too few steps for a verdict"),
        ((("even", 2.1, None), ("even", 2.91, None)), "no slow device above 3.0%"),
        ((("even", 2.1, None), ("slow", 12.3, "power-cap")), "GPU 1 slow by 12% (power-cap)"),
        ((("even", 2.1, None), ("cannot tell", 8.13, None)), "no slow device above 8.2%"),
        ((("even", 0.3, None), ("cannot tell", None, None)), "no slow device so far"),
    ],
)
def test_the_verdict_so_far_is_in_the_fields_words(standings: Standings, words: str) -> None:
    assert verdict(EQUAL, standings)[0] == words


def test_the_verdict_so_far_does_not_contradict_the_bars() -> None:
    standings = (("even", 2.1, None), ("even", 2.9, None))
    words, display = verdict(InventedRun(2, slow={1: 0.22}, noise=EQUAL.noise), standings)
    assert "80% of the best" in display
    assert words == "GPU 1 looks 20% slower; not significant so far"


def test_devices_that_share_the_cores_have_a_verdict_only_if_one_is_proven_to_be_slow() -> None:
    unknown, slow = ("cannot tell", None, None), ("slow", 48.0, None)
    says, _ = verdict(RUN, (("even", 0.3, None), unknown), cpu_devices(2))
    assert says == "CPU devices share the cores: differences between them are not judged"
    assert verdict(RUN, (("even", 0.3, None), slow), cpu_devices(2))[0] == "CPU device 1 slow by 48%"


def busy_from(step: int, others: float = 0.9) -> list[Event]:
    """A run on CPU devices beside other programs, sampled once before this step."""
    load = HostLoad(time_s=0.0, seconds=1.0, cores=2, run_cpu_share=1 - others, other_cpu_share=others)
    sample = Sample(time_s=1.0, gpus=(), host=load)
    events = list(stream(cpu_devices(2), EQUAL.steps(4)))
    at = next(place for place, one in enumerate(events) if isinstance(one, Step) and one.step == step)
    return [*events[:at], sample, *events[at:]]


def test_a_speed_beside_other_programs_is_called_not_reliable_first_and_also_of_a_short_run() -> None:
    step = 0  # a short run may have its only sample in the warm-up
    says = "NOT RELIABLE: other programs used 90% of the CPU"
    assert drawn(busy_from(step)[:-3])[0] == says
    lines = plain(busy_from(step), every=1)
    assert says in next(line for line in lines if line.startswith("step 4"))
    assert "NOT RELIABLE" not in "".join(plain(busy_from(step, others=0.02), every=1))


FULL = GpuSample(
    gpu=1, graphics_mhz=1500, temperature_c=83, power_w=150.4, throttle_mask=4, pcie_gen=3, pcie_width=8
)


@pytest.mark.parametrize("width", [60, 100])
def test_no_line_wraps_and_a_device_has_what_fits_into_its_line(width: int) -> None:
    # The temperature and the width are not asked in every sample.
    later = msgspec.structs.replace(FULL, temperature_c=None, pcie_width=None)
    samples = [Sample(time_s=1.0, gpus=(FULL,)), Sample(time_s=2.0, gpus=(later,))]
    lines = drawn([*TRAINING, *samples], width)
    assert len(lines) == 5
    assert max(map(len, lines)) <= width
    facts = ["52%", "1500 MHz", "power limit", "83 C", "150 W", "PCIe gen 3 x8"]
    shown = [fact for fact in facts if fact in lines[4]]
    assert shown == facts[: len(shown)]
    assert len(shown) >= (6 if width >= 100 else 3)


BY_COUNT: dict[str, object] = {"num_batches": 40}
BY_TIME: dict[str, object] = {"num_batches": None, "time_budget_s": 40.0, "max_batches": None}
BY_ERROR: dict[str, object] = {**BY_TIME, "time_budget_s": 20.0, "max_error": 0.01}


@pytest.mark.parametrize(
    ("spec", "step", "took", "left"),
    [
        (BY_COUNT, 10, 5.0, "15.0 s left"),
        (BY_TIME, 10, 5.0, "35.0 s left"),
        ({**BY_TIME, "max_batches": 50}, 45, 31.5, "3.50 s left"),
        ({**BY_TIME, "max_batches": 50}, 10, 35.0, "5.00 s left"),  # the time is
        (BY_ERROR, 15, 12.0, "at most 8.00 s left"),  # 20 s
        (BY_ERROR, 5, 45.0, "at most 15.0 s left"),  # a minute
        ({**BY_COUNT, "task": "eval"}, 37, 18.5, "1.00 s left"),  # its first batch is not counted
    ],
)
def test_the_time_that_is_left_is_that_until_the_nearest_end(
    spec: dict[str, object], step: int, took: float, left: str
) -> None:
    now = 0.0

    def until_the_step() -> Iterator[Event]:
        nonlocal now
        for event in stream(gpu_devices(2), EQUAL.steps(step)):
            if isinstance(event, RunStarted):
                event = msgspec.structs.replace(event, spec={**event.spec, **spec})
            if not isinstance(event, Step) or event.step < step:
                yield event
            elif event.step == step:
                now = took
                yield event
                return

    line = next(line for line in drawn(until_the_step(), clock=lambda: now) if line.startswith("steps"))
    assert line.partition(", ")[2] == left
    bar = line.count("━") + line.count("╸") / 2
    seconds = float(left.split()[-3]) if left else 0.0
    assert bar / 25 == pytest.approx(took / (took + seconds), abs=0.03)


def test_after_a_restart_the_steps_that_are_left_are_those_that_the_first_worker_left() -> None:
    now = 0.0
    started = EVENTS[0]
    assert isinstance(started, RunStarted)

    def trained(before: int, steps: int) -> Iterator[Event]:
        nonlocal now
        yield WarmupDone(time_s=0.0, steps=1, seconds=1.0)
        for one in EQUAL.steps(steps):
            now += 0.5
            yield msgspec.structs.replace(one, global_step=before + one.step)

    events = itertools.chain(
        [msgspec.structs.replace(started, spec={**started.spec, "num_batches": 40})],
        trained(3, 20),  # 43 in all
        [Restarted(time_s=0.0, number=1, of=1, cause="killed", steps=13)],
        trained(16, 10),
    )
    # (43 - 26) steps of half a second
    assert any(line.endswith(", 8.50 s left") for line in drawn(events, clock=lambda: now))


def test_what_is_shown_first_stays_on_the_terminal_once_and_the_display_leaves_nothing() -> None:
    console = terminal()
    console.print("before")
    with Progress(console) as progress:
        for event in stream(cpu_devices(2), RUN.steps(20), rehearsal=True):
            progress.event(event)
            progress.draw()  # as the drawing thread does
    console.print("after")
    assert on_the_screen(text_of(console)) == ["before", SAYS, "after"]


def test_many_traced_steps_are_reported_in_few_words() -> None:
    traced = Traced(time_s=1.0, path="/run/trace", steps=(1, *range(3, 32)), seconds=0.1)
    assert plain([traced]) == ["traced steps 1,3-31: /run/trace"]


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = terminal()
    with Progress(console) as progress:
        progress.event(EVENTS[0])
    assert "\x1b" not in text_of(console)


def test_the_terminal_is_given_back_when_something_breaks() -> None:
    console, out, err = terminal(), sys.stdout, sys.stderr

    def broken() -> None:
        with Progress(console) as progress:
            progress.event(EVENTS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    text = text_of(console)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.index(HIDE_CURSOR) < text.index(SHOW_CURSOR)
    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_loss_that_is_no_number_is_reported_once() -> None:
    lost = LossNotFinite(time_s=1.0, step=5, value="nan", towers=(0,))
    nan = [
        msgspec.structs.replace(event, loss=None) if isinstance(event, Step) and event.step >= 5 else event
        for event in EVENTS
    ]
    begin = next(number for number, event in enumerate(nan) if isinstance(event, Step) and event.step == 6)
    reported = plain([*nan[:begin], lost, *nan[begin:]])
    assert len([line for line in reported if "nan" in line or "not a number" in line]) == 1
    assert any(line.startswith("step 20:") for line in reported)


def test_news_of_the_run_are_lines_as_they_come() -> None:
    kept = CheckpointSaved(time_s=1.0, path="/kept/1", steps=10, bytes=2048, seconds=0.5)
    reported = plain([*EVENTS[:-1], kept, EVENTS[-1]])
    assert "checkpoint after 10 steps: /kept/1 (2.0 KiB, 0.50 s)" in reported


def test_plain_lines_of_steps_come_by_time_with_the_time_that_is_left() -> None:
    now = itertools.count(0.0, 0.5)
    console = Console(file=io.StringIO(), width=80)
    events = list(stream(gpu_devices(2), RUN.steps(100)))
    started = next(event for event in events if isinstance(event, RunStarted))
    asked = msgspec.structs.replace(started, spec={**started.spec, "num_batches": 100})
    seconds = 0.0
    with Progress(console, clock=lambda: seconds) as progress:
        for event in events:
            seconds = next(now) if isinstance(event, Step) else seconds
            progress.event(asked if event is started else event)
    lines = [line for line in text_of(console).splitlines() if line.startswith("step ")]
    assert [line.partition(":")[0] for line in lines] == [f"step {number}" for number in range(1, 101, 10)]
    assert lines[1].endswith(", 44.5 s left")


def test_the_display_shows_that_a_gpu_was_lost() -> None:
    lost = Sample(time_s=1.0, gpus=(GpuSample(gpu=1, lost=True),))
    assert drawn([*EVENTS[:-1], lost])[-1].endswith("of the best  lost")
