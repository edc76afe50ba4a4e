"""Which smaller batches are tried after a worker ran out of memory, and what is said then."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs import find_batch
from gputopo.launch.supervise import Record, RunFolder, Workers
from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Event, Noticed, PhaseBegun, RankFailed
from gputopo.values.run.spec import Lifecycle, RunSpec
from tests.launch.specs import cpu_spec


class Memory(Workers):
    """In place of workers: with more examples than `room` on all devices, one runs out of memory.

    `each_s`: how long one takes, by its clock.
    """

    def __init__(self, room: int, each_s: float = 0.0, fails: str = "out_of_memory") -> None:
        self.room, self.each_s, self.fails = room, each_s, fails
        self.now_s = 0.0
        self.tried: list[RunSpec] = []

    def run(self, spec: RunSpec, command: Any, record: Record, log: Path, sources: Any = ()) -> None:
        self.now_s += self.each_s
        self.tried.append(spec)
        if sum(spec.batches) > self.room:
            record.add(failure(self.fails))


def failure(kind: str = "out_of_memory") -> RankFailed:
    return RankFailed(time_s=0, kind=kind, cause="full", remedy="", exit_code=3)


def searched(workers: Memory, spec: RunSpec) -> tuple[list[BatchSize], str, list[Event]]:
    """Return what is tried, the remedy in the end, and all events."""
    events: list[Event] = []
    record = Record(None, events.append)
    record.add(failure())
    with tempfile.TemporaryDirectory() as folder:
        find_batch(spec, RunFolder(Path(folder)), record, workers, clock=lambda: workers.now_s)
        assert not list(Path(folder).iterdir())
    (failed,) = (event for event in events if isinstance(event, RankFailed))
    return [trial.batch_size for trial in workers.tried], failed.remedy, events


@given(asked=st.integers(2, 2**31 - 1), room=st.integers(0, 2**31 - 1))
def test_the_largest_half_that_fits_is_found_and_none_is_tried_twice(asked: int, room: int) -> None:
    tried, remedy, _ = searched(Memory(2 * room), cpu_spec(batch_size=asked))  # two devices
    sizes = [asked >> times for times in range(1, asked.bit_length())]
    fits = next((size for size in sizes if size <= room), None)
    assert tried == [size for size in sizes if fits is None or size >= fits]
    if fits is None:
        said = "even --batch-size 1 does not fit: use fewer devices (--num-gpus) or a smaller model"
    else:
        said = f"use --batch-size {fits}: the largest that fits (found by halving)"
    assert remedy == said


def test_batches_that_differ_by_device_are_halved_together_and_stay_above_0() -> None:
    tried, remedy, _ = searched(Memory(12), cpu_spec(batch_size=(16, 3)))
    assert tried == [(8, 1)]
    assert remedy == "use --batch-size 8,1: the largest that fits (found by halving)"


def test_a_trial_keeps_nothing_and_takes_two_steps() -> None:
    workers = Memory(1000)
    kept: dict[str, Any] = {"lifecycle": Lifecycle(checkpoints="/c", export="/e"), "num_batches": 500}
    searched(workers, cpu_spec(batch_size=4, num_warmup_batches=20, min_warmup_s=1.0, **kept))
    searched(workers, cpu_spec(batch_size=4, task="eval", **kept))
    trial, of_eval = workers.tried
    assert (trial.batch_size, trial.num_batches, trial.num_warmup_batches) == (2, 2, 0)
    assert trial.min_warmup_s is None
    assert trial.lifecycle == Lifecycle()
    assert of_eval.task == "forward"


def test_the_search_begins_no_try_after_its_time_and_names_each_before_it() -> None:
    tried, remedy, events = searched(Memory(0, each_s=60.0), cpu_spec(batch_size=512))
    assert tried == [256, 128]
    said = [event.says for event in events if isinstance(event, Noticed)]
    assert said == [
        "trying batch size 256 per device (tries begin for 120 s more)",
        "trying batch size 128 per device (tries begin for 60 s more)",
        "the search ends after 120 s",
    ]
    assert [event.phase for event in events if isinstance(event, PhaseBegun)] == ["batch search"]
    assert remedy == "use a --batch-size below 128, which does not fit; smaller batches were not tried"


def test_no_search_goes_on_where_another_failure_comes() -> None:
    tried, remedy, _ = searched(Memory(0, fails="killed"), cpu_spec(batch_size=100))
    assert tried == [50]
    assert "use a smaller --batch-size (now 100 per device)" in remedy
