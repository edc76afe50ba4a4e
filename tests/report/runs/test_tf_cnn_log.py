import re
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from gputopo.report import TfCnnLog
from gputopo.values.run.events import Evaluated, Event, Replanned, RunStarted
from gputopo.values.run.plan import Candidate
from tests.invented_runs import SAYS, InventedRun, Noise, cpu_devices, gpu_devices, stream
from tests.report.shown import assert_golden

RUN = InventedRun(2, noise=Noise(own=0.1))
EVENTS: list[Event] = list(stream(gpu_devices(2), RUN.steps(25)))

# What scripts around tf_cnn_benchmarks look for.
STEP_LINE = re.compile(
    r"^(\d+)\timages/sec: ([0-9.]+) \+/- ([0-9.]+) \(jitter = ([0-9.]+)\)\t([0-9.]+|nan)$", re.MULTILINE
)


def lines(events: Iterable[Event], display_every: int | None = None) -> Iterator[str]:
    """The log lines of a run, as its events come."""
    log = TfCnnLog(display_every)
    for event in events:
        yield from log.lines(event)


def test_the_first_and_every_tenth_step_are_shown_in_the_known_form() -> None:
    text = "\n".join(lines(EVENTS))
    assert [int(number) for number, *_ in STEP_LINE.findall(text)] == [1, 10, 20]
    assert [int(n) for n, *_ in STEP_LINE.findall("\n".join(lines(EVENTS, 5)))] == [1, 5, 10, 15, 20, 25]
    assert "Step\tImg/sec\ttotal_loss" in text.splitlines()


def test_a_step_line_holds_the_figures_of_the_steps_until_there() -> None:
    seconds = [item.seconds for item in RUN.steps(25)][:20]
    speeds = [16 / value for value in seconds]
    middle = statistics.median(speeds)
    _, mean, uncertainty, jitter, loss = STEP_LINE.findall("\n".join(lines(EVENTS)))[2]
    assert mean == f"{16 / statistics.fmean(seconds):.1f}"
    assert uncertainty == f"{statistics.pstdev(speeds) / 20**0.5:.1f}"
    assert jitter == f"{1.4826 * statistics.median(abs(speed - middle) for speed in speeds):.1f}"
    assert loss == "1.000"


def test_the_header_has_the_reduction_that_trained_where_that_of_the_plan_failed() -> None:
    started, *rest = EVENTS
    assert isinstance(started, RunStarted)
    nccl, copies = ({**started.spec, "all_reduce": name} for name in ("nccl", "copy"))
    one = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="copy")
    replanned = Replanned(time_s=started.time_s, planned=one, cause="c", choice=one, spec=copies)
    text = "\n".join(lines([msgspec.structs.replace(started, spec=nccl), replanned, *rest]))
    assert re.findall(r"^AllReduce: +(\w+)$", text, re.MULTILINE) == ["copy"]


def test_the_log_is_as_it_was() -> None:
    """The header with the labels at their places, the warm-up, the steps, and the total."""
    assert_golden("tf_cnn_benchmarks log", "\n".join([*lines(EVENTS), ""]))


def test_a_rehearsal_is_labelled_before_anything_else() -> None:
    events = stream(cpu_devices(2), RUN.steps(3), rehearsal=True)
    assert next(lines(events)) == SAYS


def test_a_run_that_broke_off_has_no_total_that_a_script_could_take_for_a_result() -> None:
    text = "\n".join(lines(stream(cpu_devices(2), RUN.steps(12), status="interrupted")))
    assert len(STEP_LINE.findall(text)) == 2
    assert "total images/sec" not in text
    assert "interrupted after 12 steps" in text


def header_of(**spec: Any) -> list[str]:
    started, *rest = EVENTS
    assert isinstance(started, RunStarted)
    reported = list(lines([msgspec.structs.replace(started, spec={**started.spec, **spec}), *rest]))
    return reported[: reported.index("==========")]


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"variable_update": "replicated", "all_reduce": "ring#2"}, "AllReduce:   ring#2"),
        ({"exchange": {"staged": True}}, "Staged vars: True"),
        ({"optimization": {"optimizer": "momentum"}}, "Optimizer:   momentum"),
        ({"precision": {"compute": "fp16", "loss_scale": 128.0}}, "Precision:   fp16, loss scale 128"),
        ({"task": "forward"}, "Mode:        forward only"),
        ({"model": "resnet20"}, "Dataset:     cifar10 (synthetic)"),
        ({"method": "kuza55"}, "Trainer:     kuza55"),
        ({"model": "resnet20", "batch_size": 1000}, "Num epochs:  1.00"),
        ({"batch_size": [4, 6]}, "Batch size:  10 global"),
        ({"batch_size": [4, 6]}, "             4,6 by device"),
    ],
)
def test_the_header_shows_what_is_not_plain(spec: dict[str, Any], line: str) -> None:
    assert line in header_of(**spec)


def test_an_evaluation_has_the_line_of_its_accuracy() -> None:
    judged = Evaluated(time_s=1.0, examples=50, top1=0.5, top5=0.75, loss=1.0, seconds=1.0)
    assert "Accuracy @ 1 = 0.5000 Accuracy @ 5 = 0.7500 [50 examples]" in lines([*EVENTS[:-1], judged])
