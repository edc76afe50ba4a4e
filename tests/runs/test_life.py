import pytest

from gputopo.report.document import document_lines
from gputopo.report.runs.news import news
from gputopo.report.runs.report import run_document
from gputopo.runs.life import Life
from gputopo.runs.summary import summarise
from gputopo.values.run.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Exported,
    LossNotFinite,
    MemoryPeak,
    Noticed,
    RankFailed,
    Resumed,
    Step,
    Traced,
)
from tests.invented_runs import InventedRun, cpu_devices, stream

EVENTS: tuple[Event, ...] = (
    Resumed(time_s=1.0, path="/kept/1", steps=100),
    Noticed(time_s=1.0, says="checkpoint 2 is damaged"),
    Noticed(time_s=1.0, says="checkpoint 2 is damaged"),
    CheckpointSaved(time_s=1.0, path="/kept/3", steps=110, bytes=2048, seconds=0.5),
    CheckpointSaved(time_s=1.0, path="/kept/4", steps=120, bytes=2048, seconds=0.5, removed=("/kept/3",)),
    LossNotFinite(time_s=1.0, step=4, value="nan", towers=(0, 1)),
    LossNotFinite(time_s=1.0, step=9, value="inf", towers=(1,)),
    Evaluated(time_s=1.0, examples=50, top1=0.5, top5=0.75, loss=1.5, seconds=1.0, steps=120),
    Exported(time_s=1.0, path="/out", formats=("saved_model", "npz"), seconds=1.0),
    Traced(time_s=1.0, path="/run/trace", steps=(3, 4), seconds=0.1, says=("no copies in it",)),
    MemoryPeak(time_s=1.0, host_bytes=1 << 30),
)


def test_what_was_kept_and_noticed_is_reported_once() -> None:
    life = Life()
    for event in EVENTS:
        life.add(event)
    found = life.fields()
    assert life.notices == ("checkpoint 2 is damaged", "no copies in it")
    assert [saved.path for saved in found["checkpoints"]] == ["/kept/4"]
    assert found["resumed"].steps == 100
    assert found["loss_not_finite"].step == 4
    assert (found["evaluations"][0].top1, found["exports"][0].path) == (0.5, "/out")
    assert found["memory"].host_bytes == 1 << 30


def test_a_result_holds_them_and_its_report_shows_them() -> None:
    reported = list(stream(cpu_devices(2), InventedRun(2).steps(30)))
    result = summarise([*reported[:-1], *EVENTS, reported[-1]])
    text = " ".join("".join(piece for piece, _ in line) for line in document_lines(run_document(result), 120))
    text = " ".join(text.split())
    for words in (
        "checkpoint 2 is damaged",
        "resumed after 100 steps",
        "1 checkpoint, the last after 120 steps: /kept/4",
        "top-1 50.00 %, top-5 75.00 %, loss 1.5, 50 examples (synthetic) after 120 steps",
        "/out (saved_model, npz)",
        "steps 3-4, 100.0 ms together: /run/trace",
        "peak 1.0 GiB on the host",
    ):
        assert words in text


@pytest.mark.parametrize("event", EVENTS[:-1], ids=lambda event: type(event).__name__)
def test_each_is_news_in_one_line_while_the_run_goes(event: Event) -> None:
    line = news(event)
    assert line
    assert "\n" not in line


def test_steps_and_memory_are_no_news_and_a_failure_is() -> None:
    assert news(EVENTS[-1]) is None
    assert news(Step(time_s=1.0, step=1, seconds=1.0, images=1, loss=1.0, marks=())) is None
    lost = RankFailed(time_s=1.0, kind="killed", cause="by SIGKILL", remedy="look", exit_code=137)
    assert news(lost) == "killed: by SIGKILL"


def test_a_loss_that_is_lost_in_the_warm_up_reports_it() -> None:
    lost = LossNotFinite(time_s=1.0, step=-3, value="inf", towers=(1,))
    assert news(lost) == "the loss is inf from the warm-up on (tower 1)"
