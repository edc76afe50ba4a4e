from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs import run
from gputopo.launch.supervise.job import Workers
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.run_folder import RunFolder
from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Event, Noticed, PhaseBegun, RankFailed
from gputopo.values.run.spec import Lifecycle, RunSpec
from tests.launch.specs import cpu_spec


@given(asked=st.integers(1, 2**31 - 1), room=st.integers(0, 2**31 - 1))
def test_the_largest_half_that_fits_is_found_and_none_is_tried_twice(asked: int, room: int) -> None:
    tried: list[BatchSize] = []

    def fits(batch_size: BatchSize) -> bool:
        tried.append(batch_size)
        assert isinstance(batch_size, int)
        return batch_size <= room

    found, failed = run.search(asked, fits)
    sizes = [asked >> times for times in range(1, asked.bit_length())]
    assert found == next((size for size in sizes if size <= room), None)
    assert failed == next((size for size in reversed(sizes) if size > room), None)
    assert tried == [size for size in sizes if found is None or size >= found]


def test_batches_that_differ_by_device_are_halved_together_and_stay_above_0() -> None:
    tried: list[BatchSize] = []

    def fits(batch_size: BatchSize) -> bool:
        tried.append(batch_size)
        return sum(batch_size if isinstance(batch_size, tuple) else ()) <= 12

    assert run.search((16, 16, 3), fits) == ((4, 4, 1), (8, 8, 1))
    assert tried == [(8, 8, 1), (4, 4, 1)]
    spec = cpu_spec(batch_size=(16, 3))
    fitting = run.remedy(spec, (8, 1), None)
    assert fitting == "use --batch-size 8,1: the largest that fits (found by halving)"
    below = run.remedy(spec, None, (2, 1))
    assert below == "use a --batch-size below 2,1, which does not fit; smaller batches were not tried"


def test_a_trial_keeps_nothing_and_takes_two_steps() -> None:
    spec = cpu_spec(
        lifecycle=Lifecycle(checkpoints="/c", export="/e"),
        num_batches=500,
        num_warmup_batches=20,
        min_warmup_s=1.0,
    )
    trial = run.trial_of(spec, 2)
    assert (trial.batch_size, trial.num_batches, trial.num_warmup_batches) == (2, 2, 0)
    assert trial.min_warmup_s is None
    assert trial.lifecycle == Lifecycle()
    assert run.trial_of(msgspec.structs.replace(spec, task="eval"), 2).task == "forward"


def test_the_remedy_names_what_fits() -> None:
    cases: list[tuple[int | None, int | None, str]] = [
        (25, 50, "use --batch-size 25: the largest that fits (found by halving)"),
        (None, 1, "even --batch-size 1 does not fit: use fewer devices (--num-gpus) or a smaller model"),
        (None, 25, "use a --batch-size below 25, which does not fit; smaller batches were not tried"),
        (None, None, "use a smaller --batch-size (now 100 per device)"),
    ]
    for found, failed, said in cases:
        assert run.remedy(cpu_spec(batch_size=100), found, failed) == said


class FullWorkers(Workers):
    """In place of workers: each runs out of memory after a minute of the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tried: list[BatchSize] = []

    def run(self, spec: RunSpec, command: Any, record: Record, log: Path, sources: Any = ()) -> None:
        self.now += 60
        self.tried.append(spec.batch_size)
        record.add(failure())


def failure() -> RankFailed:
    return RankFailed(time_s=0, kind="out_of_memory", cause="full", remedy="", exit_code=3)


def test_the_search_begins_no_try_after_its_time_and_names_each_before_it(tmp_path: Path) -> None:
    events: list[Event] = []
    workers, record = FullWorkers(), Record(None, events.append)
    record.add(failure())
    folder = RunFolder(tmp_path)
    run.find_batch(cpu_spec(batch_size=512), folder, record, workers, clock=lambda: workers.now)
    assert workers.tried == [256, 128]
    said = [event.says for event in events if isinstance(event, Noticed)]
    assert said == [
        "trying batch size 256 per device (tries begin for 120 s more)",
        "trying batch size 128 per device (tries begin for 60 s more)",
        "the search ends after 120 s",
    ]
    assert [event.phase for event in events if isinstance(event, PhaseBegun)] == ["batch search"]


def test_no_search_begins_where_no_batch_is_smaller(tmp_path: Path) -> None:
    events: list[Event] = []
    record = Record(None, events.append)
    record.add(failure())
    run.find_batch(cpu_spec(batch_size=1), RunFolder(tmp_path), record, FullWorkers())
    assert [type(event) for event in events] == [RankFailed]
