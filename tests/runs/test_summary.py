from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.report import document_lines, run_document
from gputopo.runs import Summary, summarise
from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import (
    CheckpointSaved,
    Device,
    Evaluated,
    Event,
    Exported,
    GpuSample,
    LossNotFinite,
    MemoryPeak,
    Noticed,
    RankFailed,
    Resumed,
    RunStarted,
    Sample,
    Step,
    Traced,
)
from tests import there
from tests.invented_runs import (
    BEGAN_S,
    SAYS,
    InventedRun,
    Noise,
    cpu_devices,
    gpu_devices,
    judged_steps,
    step,
    stream,
)

LIFE: tuple[Event, ...] = (
    Resumed(time_s=1.0, path="/kept/1", steps=100),
    Noticed(time_s=1.0, says="checkpoint 2 is damaged"),
    Noticed(time_s=1.0, says="checkpoint 2 is damaged"),
    CheckpointSaved(time_s=1.0, path="/kept/3", steps=110, bytes=2048, seconds=0.5),
    CheckpointSaved(time_s=1.0, path="/kept/4", steps=120, bytes=2048, seconds=0.5, removed=("/kept/3",)),
    LossNotFinite(time_s=1.0, step=4, value="nan", towers=(0, 1)),
    LossNotFinite(time_s=1.0, step=9, value="inf", towers=(1,)),
    Evaluated(time_s=1.0, examples=50, top1=0.5, top5=0.75, loss=1.5, seconds=1.0, steps=120),
    Exported(time_s=1.0, path="/out", formats=("saved_model", "npz"), seconds=1.0),
    Traced(time_s=1.0, path="/run/trace", steps=(3, 4), seconds=0.1),
    MemoryPeak(time_s=1.0, host_bytes=1 << 30),
)


def test_what_was_kept_and_noticed_is_reported_once_and_the_report_shows_it() -> None:
    reported = list(stream(cpu_devices(2), InventedRun(2).steps(30)))
    result = summarise([*reported[:-1], *LIFE, reported[-1]])
    assert result.says[0] == "checkpoint 2 is damaged"
    assert [saved.path for saved in result.checkpoints] == ["/kept/4"]
    assert there(result.loss_not_finite).step == 4
    text = " ".join("".join(piece for piece, _ in line) for line in document_lines(run_document(result), 120))
    text = " ".join(text.split())
    for words in (
        "checkpoint 2 is damaged",
        "resumed after 100 steps",
        "1 checkpoint, the last after 120 steps: /kept/4",
        "top-1 50.00%, top-5 75.00%, loss 1.5, 50 examples (synthetic) after 120 steps",
        "/out (saved_model, npz)",
        "steps 3-4, 100.0 ms together: /run/trace",
        "peak 1.0 GiB on the host",
    ):
        assert words in text


RUN = InventedRun(4, slow={2: 0.4}, noise=Noise(own=0.03))
EVENTS: list[Event] = list(stream(gpu_devices(4), RUN.steps(40)))


def run_of(rows: Sequence[Sequence[tuple[float, float]]], *, seconds: float) -> list[Event]:
    steps = [step(n, row, seconds=seconds) for n, row in enumerate(rows, 1)]
    return list(stream(gpu_devices(len(rows[0])), steps))


def failed(kind: str, exit_code: int) -> RankFailed:
    return RankFailed(time_s=1.0, kind=kind, cause="it was so", remedy="do so", exit_code=exit_code)


def test_each_device_gets_its_medians_and_its_own_pace() -> None:
    # Tower 0: weights 10, 20, 30 ms, compute 80 ms. Tower 1: no wait, compute 200, 190, 210 ms. Step: 250 ms.
    rows = [[(0.01, 0.08), (0.0, 0.20)], [(0.02, 0.08), (0.0, 0.19)], [(0.03, 0.08), (0.0, 0.21)]]
    fast, slow = summarise(run_of(rows, seconds=0.25)).devices
    assert fast.weights_ms == pytest.approx(20)
    assert fast.compute_ms == pytest.approx(80)
    assert fast.other_ms == pytest.approx(250 - 100)
    assert fast.images_per_sec == pytest.approx(8 / 0.1)
    assert fast.percent_of_best == pytest.approx(100)
    assert slow.images_per_sec == pytest.approx(8 / 0.2)
    assert slow.percent_of_best == pytest.approx(50)
    assert (fast.batch_size, slow.device.gpu) == (8, 1)


def test_what_the_events_reported_is_in_the_result() -> None:
    result = summarise(EVENTS)
    assert (result.status, result.exit_code, result.failure) == ("complete", 0, None)
    assert (result.steps, result.warmup_steps, result.images) == (40, 2, 40 * 32)
    assert (result.parameters, result.import_s, result.build_s) == (61_842_345, 3.0, 1.0)
    assert (result.first_step_s, result.warmup_s) == (5.0, 1.0)
    assert (result.first_loss, result.last_loss, result.replica_difference) == (1.0, 1.0, 0.0)
    assert result.variables_on == {"/GPU:0": 247_369_380}
    assert result.versions == {"gputopo": "0.1.0", "tensorflow": "2.21.0"}
    assert result.wall_s is not None
    assert result.spec["model"] == "alexnet"


def test_a_complete_run_has_the_anomalies_that_its_steps_show() -> None:
    result = summarise(EVENTS)
    check = judged_steps(gpu_devices(4), [event for event in EVENTS if isinstance(event, Step)])
    (slow,) = check.slow
    (found,) = result.anomalies
    assert result.anomaly_check == check.check == "made"
    assert (found.tower, found.percent_under) == (2, slow.percent_under)
    assert result.run_verdict is None
    assert result.is_slow
    # The samples of the run say something of its cause, which steps alone do not.
    assert "core-clock" in there(found.causes).checked
    assert [row.anomaly for row in result.devices] == [None, None, found.says, None]


def test_an_anomaly_that_was_reported_keeps_its_time_and_is_not_doubled() -> None:
    (found,) = summarise(EVENTS).anomalies
    reported = msgspec.structs.replace(found, time_s=BEGAN_S + 99)
    assert summarise([*EVENTS[:-1], reported, EVENTS[-1]]).anomalies == (reported,)
    # What is not so over all steps is no anomaly, and stands in the result with the reason.
    withdrawn = msgspec.structs.replace(reported, tower=0, says="GPU 0 is slow")
    result = summarise([*EVENTS[:-1], withdrawn, EVENTS[-1]])
    assert [one.tower for one in result.anomalies] == [found.tower]
    even = there(result.devices[0].verdict)
    assert result.says[-1] == f"Reported during the run: GPU 0 is slow. Over all steps: {even.says}."


def test_a_reported_anomaly_stands_where_the_steps_are_lost() -> None:
    (found,) = summarise(EVENTS).anomalies
    reported = msgspec.structs.replace(found, time_s=5.0)
    result = summarise([EVENTS[0], reported])
    assert result.anomalies == (reported,)
    assert result.anomaly_check.startswith("not made: no step was counted")


def test_clocks_are_medians_of_the_counted_seconds_with_their_share_of_the_maximum() -> None:
    started, *rest = stream(gpu_devices(2), [step(n, [(0.0, 1.0)] * 2) for n in range(1, 6)])
    idle = Sample(time_s=BEGAN_S + 1, gpus=(GpuSample(gpu=0, graphics_mhz=139, memory_mhz=405),))
    late = Sample(time_s=BEGAN_S + 900, gpus=(GpuSample(gpu=0, graphics_mhz=139, memory_mhz=405),))
    first, second = summarise([started, idle, *rest, late]).devices
    # 1700 of 2000 MHz and 3800 of 4000 MHz.
    assert (first.graphics_mhz, second.memory_mhz) == (1700, 3800)
    assert first.graphics_percent == pytest.approx(85)
    assert second.memory_percent == pytest.approx(95)


@pytest.mark.parametrize("spec", [{}, {"max_clocks_mhz": {"0": {"graphics": "fast"}}}])
def test_a_clock_without_a_known_maximum_has_no_percentage(spec: dict[str, object]) -> None:
    started, *rest = EVENTS
    assert isinstance(started, RunStarted)
    bare = RunStarted(time_s=1.0, host="", spec=spec, devices=started.devices, backend="gpu")
    row = summarise([bare, *rest]).devices[0]
    assert (row.graphics_mhz, row.graphics_percent, row.memory_percent) == (1700, None, None)
    assert row.batch_size == 8  # from the images of a step


def test_a_rehearsal_on_cpu_devices_takes_no_clock_for_the_gpus_it_stands_for() -> None:
    stand_ins = tuple(Device(tower=t, device=f"/CPU:{t}", gpu=t, gpu_name="GTX 1070") for t in range(2))
    events = list(stream(stand_ins, InventedRun(2).steps(10), rehearsal=True))
    stray = Sample(time_s=events[-1].time_s, gpus=(GpuSample(gpu=0, graphics_mhz=1000),))
    result = summarise([*events[:-1], stray, events[-1]])
    assert result.rehearsal_of == "7gforce"
    assert result.says == (SAYS,)
    assert {row.graphics_mhz for row in result.devices} == {None}


def test_a_run_with_a_drill_is_labelled_in_its_result_and_in_the_title_of_its_report() -> None:
    drills = msgspec.to_builtins(read_drills("--drill", ["slow-gpu=1:0.85"]))
    started, *rest = EVENTS
    assert isinstance(started, RunStarted)
    spec = {**started.spec, "drills": drills}
    result = summarise([msgspec.structs.replace(started, spec=spec), *rest])
    assert result.drills == ("slow-gpu=1:0.85",)
    assert "DRILL slow-gpu=1:0.85" in run_document(result).answer
    assert any("slow-gpu 0.85" in row for row in run_document(result).tables[0].rows)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("interrupted", "interrupted"),
        ("terminated", "interrupted"),
        ("killed", "failed"),
    ],
)
def test_a_run_without_an_end_takes_its_status_from_its_failure(kind: str, status: str) -> None:
    result = summarise([*EVENTS[:30], failed(kind, 130), failed("error", 3)])
    assert (result.status, result.exit_code) == (status, 130)
    assert there(result.failure).kind == kind
    assert result.steps > 0


def test_no_events_at_all_are_a_result_too() -> None:
    result = summarise([])
    assert (result.status, result.backend, result.devices, result.steps) == ("failed", "unknown", (), 0)
    assert result.anomaly_check == "not made: no devices are known"


def test_a_lost_loss_is_reported_once_with_the_step_it_began() -> None:
    steps = [step(n, [(0.0, 1.0)], loss=None if n >= 3 else 2.0) for n in range(1, 8)]
    result = summarise(stream(cpu_devices(1), steps))
    assert (result.first_loss, result.last_loss) == (2.0, None)
    (says,) = result.says
    assert says.startswith("The loss is not a number from step 3 on")
    in_warmup = summarise([EVENTS[0], step(0, [(0, 1)], loss=None), *steps])
    assert in_warmup.says[0].startswith("The loss is not a number from the warm-up on")
    assert in_warmup.warmup_steps == 1


@settings(max_examples=5)
@given(st.integers(0, len(EVENTS)), st.integers(0, len(EVENTS)))
def test_every_beginning_of_a_run_gives_a_result_and_counts_only_grow(a: int, b: int) -> None:
    shorter, longer = (summarise(EVENTS[:length]) for length in sorted((a, b)))
    assert shorter.steps <= longer.steps
    assert shorter.images <= longer.images
    assert shorter.warmup_steps <= longer.warmup_steps
    assert (shorter.status == "complete") == (min(a, b) == len(EVENTS))
    assert shorter.failure is None or shorter.failure.kind == "unfinished"


def test_events_one_by_one_give_what_they_give_together() -> None:
    summary = Summary()
    for number, event in enumerate(EVENTS):
        summary.add(event)
        if number in (5, 20):
            summary.result()  # looking at it changes nothing
    assert summary.result() == summarise(EVENTS)


def test_batches_that_differ_are_those_of_each_device() -> None:
    # 1 ms an example: towers of 60 and 90 examples compute 60 and 90 ms.
    first, *rest = run_of([[(0.0, 0.06), (0.0, 0.09)]] * 12, seconds=0.1)
    assert isinstance(first, RunStarted)
    result = summarise([msgspec.structs.replace(first, spec={**first.spec, "batch_size": [60, 90]}), *rest])
    assert (result.batch_size, result.global_batch_size) == (None, 150)
    assert [row.batch_size for row in result.devices] == [60, 90]
    assert [row.images_per_sec for row in result.devices] == pytest.approx([1000, 1000])
    assert result.anomalies == ()


def test_the_input_alone_has_no_slow_device() -> None:
    slow = [step(n, [(0.0, 0.1), (0.0, 0.2)], loss=None) for n in range(1, 30)]
    started, *rest = stream(cpu_devices(2), slow)
    assert isinstance(started, RunStarted)
    alone = RunStarted(time_s=1.0, host="h", devices=started.devices, backend="cpu", spec={"task": "input"})
    assert summarise([started, *rest]).anomalies
    found = summarise([alone, *rest])
    assert (found.anomalies, found.anomaly_check[:8]) == ((), "not made")


def test_the_share_of_waiting_is_of_the_counted_steps_that_show_it() -> None:
    steps = [step(n, [(0.0, 0.1)] * 2) for n in range(5)]
    reported = [
        msgspec.structs.replace(one, seconds=0.2, waited_s=waited)
        for one, waited in zip(steps, (0.2, 0.1, 0.0, None, 0.1), strict=True)
    ]
    assert summarise(stream(cpu_devices(2), reported)).input_waited_share == pytest.approx(1 / 3)
    assert summarise(stream(cpu_devices(2), steps)).input_waited_share is None
