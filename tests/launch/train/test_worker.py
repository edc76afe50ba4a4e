"""The real worker in its own process, with the cheapest model."""

import fcntl
import os
import signal
from pathlib import Path
from statistics import median

import msgspec
import psutil
import pytest

from gputopo.values import schema
from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import (
    CheckpointSaved,
    Device,
    Evaluated,
    Event,
    MemoryPeak,
    ModelBuilt,
    Noticed,
    PhaseBegun,
    PlacementChecked,
    RankFailed,
    Step,
    WarmupDone,
)
from gputopo.values.run.spec import Data, Lifecycle
from tests.launch.forks import run_program
from tests.launch.train.inputs import folders
from tests.launch.train.worker_process import run_worker, trivial_spec, watched

pytestmark = pytest.mark.tensorflow


PARAMETERS = 56_332
PLAIN = trivial_spec(towers=2, num_batches=8)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    code, events, stderr = run_worker(tmp_path_factory.mktemp("plain"), PLAIN)
    assert code == 0, stderr
    return events


def test_the_worker_reports_model_placement_warm_up_and_every_step_in_this_order(plain: list[Event]) -> None:
    events = plain
    kinds = [type(event) for event in events if not isinstance(event, PhaseBegun)]
    assert kinds == [ModelBuilt, PlacementChecked, Step, WarmupDone, *[Step] * 8, MemoryPeak]
    built, placed, *rest, memory = events
    assert isinstance(memory, MemoryPeak)
    assert 4 * PARAMETERS < memory.host_bytes < psutil.virtual_memory().total
    assert memory.devices == {}, "a CPU device has no memory of its own"
    assert isinstance(built, ModelBuilt)
    assert built.parameters == PARAMETERS
    assert isinstance(placed, PlacementChecked)
    assert placed.variables == {"/CPU:0": 4 * PARAMETERS}
    steps = [event for event in rest if isinstance(event, Step)]
    assert [step.step for step in steps] == list(range(9))
    for step in steps:
        assert step.images == 4
        assert step.loss is not None
        assert [mark.tower for mark in step.marks] == [0, 1]
        assert all(mark.weights_s + mark.compute_s <= step.seconds for mark in step.marks)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[Event]]:
    """A run with drills, of which the last spoils a loss; checkpoints of each step; a trace with no place."""
    folder = tmp_path_factory.mktemp("spoiled")
    (folder / "trace").mkdir()
    (folder / "trace" / "step-1").write_text("no folder")
    drills = read_drills(
        "--drill", ["slow-gpu=1:0.05", "slow-weights=1:0.1", "slow-input=0.5@3", "nan@7", "hang@9"]
    )
    saves = Lifecycle(
        checkpoints=str(folder / "kept"), checkpoint_steps=1, trace=str(folder / "trace"), trace_steps=(1,)
    )
    code, events, _ = run_worker(folder, msgspec.structs.replace(PLAIN, drills=drills, lifecycle=saves))
    return folder, code, events


Spoiled = tuple[Path, int, list[Event]]


def test_what_slows_a_tower_down_is_measured_and_leaves_the_losses_alone(
    spoiled: Spoiled, plain: list[Event]
) -> None:
    steps = [event for event in spoiled[2] if isinstance(event, Step)]
    right = [event.loss for event in plain if isinstance(event, Step)]
    computed = [median(step.marks[tower].compute_s for step in steps) for tower in (0, 1)]
    assert computed[0] < computed[1]
    # The warm-up is one step; step 7 is the last one, whose loss is no number.
    assert [step.loss for step in steps[:7]] == pytest.approx(right[:7], rel=1e-6)
    late = [step.waited_s or 0.0 for step in steps]
    assert median(late[:3]) < min(late[3:])
    for step in steps[3:]:
        for mark in step.marks:
            assert mark.start_s + mark.weights_s + mark.compute_s <= step.seconds - (step.waited_s or 0.0)


def test_training_ends_at_a_loss_that_is_no_number_and_no_checkpoint_is_written_from_there(
    spoiled: Spoiled,
) -> None:
    _, code, events = spoiled
    *steps, last = [event for event in events if isinstance(event, Step)]
    assert (last.step, last.loss) == (7, None)
    assert all(step.loss is not None for step in steps)
    saved = [event.steps for event in events if isinstance(event, CheckpointSaved)]
    assert saved == [step.global_step for step in steps]
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert (code, failed.exit_code, failed.kind) == (1, 1, "loss")
    assert "training ended there (--on-nan stop)" in failed.cause
    assert "--resume" in failed.remedy


def test_a_trace_that_cannot_be_written_is_reported_and_training_goes_on(spoiled: Spoiled) -> None:
    folder, _, events = spoiled
    said = [event.says for event in events if isinstance(event, Noticed)]
    begin = f"No trace of step 1, because it cannot be written to {folder / 'trace' / 'step-1'}: "
    assert any(says.startswith(begin) and "--output" in says for says in said), said


def test_an_evaluation_of_a_folder_states_how_many_examples_it_left_out(
    tmp_path: Path, spoiled: Spoiled
) -> None:
    data = Data(folder=str(folders.cifar(tmp_path / "data")[0]), name="cifar10")
    kept = Lifecycle(checkpoints=str(spoiled[0] / "kept"))
    judge = trivial_spec(task="eval", data=data, batch_size=3, lifecycle=kept, num_batches=2, max_batches=2)
    code, events, stderr = run_worker(tmp_path, judge)
    assert code == 0, stderr
    assert [event.examples for event in events if isinstance(event, Evaluated)] == [6]
    said = [event.says for event in events if isinstance(event, Noticed)]
    assert said == ["Evaluated on 6 of 7 examples (--num-batches); without it, on all."]


def test_a_worker_that_is_asked_to_end_takes_its_step_saves_and_exports_nothing(tmp_path: Path) -> None:
    kept = Lifecycle(checkpoints=str(tmp_path / "kept"), export=str(tmp_path / "export"))
    spec = trivial_spec(num_batches=1_000_000, lifecycle=kept)
    locked: list[bool] = []

    def interrupt(pid: int, event: Event) -> None:
        if isinstance(event, Step) and not locked:
            locked.extend(is_locked(tmp_path / name) for name in ("kept", "export"))
            # As where a batch system sends SIGTERM to all processes, and the launcher asks for the end then.
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(pid, number)

    code, events = watched(tmp_path, spec, interrupt)
    assert (code, locked) == (143, [True, True])
    assert not is_locked(tmp_path / "kept")
    *_, last, saved, memory, failed = events
    assert isinstance(last, PhaseBegun)
    assert isinstance(saved, CheckpointSaved)
    assert isinstance(memory, MemoryPeak)
    assert isinstance(failed, RankFailed)
    assert (failed.kind, failed.exit_code) == ("terminated", 143)
    steps = [event for event in events if isinstance(event, Step)]
    assert saved.steps == steps[-1].global_step
    assert list((tmp_path / "export").iterdir()) == []


def is_locked(folder: Path) -> bool:
    """Return whether another process has locked a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


WITHOUT_GPUS = trivial_spec(backend="gpu", devices=(Device(tower=0, device="/GPU:0"),), ps_device="/GPU:0")


def test_without_gpus_a_gpu_spec_fails_with_a_cause_and_a_remedy(tmp_path: Path) -> None:
    code, events, _ = run_worker(tmp_path, WITHOUT_GPUS)
    (failed,) = events
    assert isinstance(failed, RankFailed)
    assert (code, failed.exit_code) == (3, 3)
    assert "TensorFlow sees 0 of the 1 planned GPUs" in failed.cause
    assert failed.remedy


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))"
# TensorFlow's allocator for CPUs would try for 10 s.
EXHAUSTED = """
import tensorflow as tf
from gputopo.launch.train import training
def train(*given, **named):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[40000,154587]")
training.train = train
"""


@pytest.mark.parametrize(("before", "says"), [(LIMIT, "allocate"), (EXHAUSTED, "allocating tensor")])
def test_memory_that_is_not_there_is_reported_as_out_of_memory_with_the_batch_size(
    tmp_path: Path, before: str, says: str
) -> None:
    spec = trivial_spec(model="trivial", batch_size=40_000, data=Data(source="python"))  # 25 GB of images
    code, events, stderr = run_worker(tmp_path, spec, before=before)
    assert events, stderr
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert (failed.kind, code) == ("out_of_memory", 3)
    assert "40000" in failed.remedy
    assert says in failed.cause


CLOSED = """
import os, sys
from gputopo.launch.train import worker
reading, writing = os.pipe()
os.close(reading)
sys.exit(worker.main([sys.argv[1], str(writing)]))
"""


def test_a_worker_whose_parent_closed_the_pipe_ends_without_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    schema.write(file, WITHOUT_GPUS)
    done = run_program("-c", CLOSED, str(file))
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_reported_before_training(tmp_path: Path) -> None:
    kept = Lifecycle(checkpoints="/proc/no/kept")
    code, (failed,), _ = run_worker(tmp_path, trivial_spec(lifecycle=kept))
    assert isinstance(failed, RankFailed)
    assert (failed.kind, failed.exit_code, code) == ("checkpoint", 2, 2)
    assert "/proc/no/kept" in failed.cause
    assert "--checkpoints" in failed.remedy


def test_an_op_that_fails_in_a_step_is_placed_in_the_users_code(tmp_path: Path) -> None:
    code, events, stderr = run_worker(tmp_path, trivial_spec(model="tests.launch.train.user_models:picks"))
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert (failed.kind, failed.exit_code, code) == ("error", 3, 3)
    assert failed.cause.startswith(
        "indices[0] = 99 is not in [0, 2) (tests/launch/train/user_models.py, line "
    )
    assert failed.cause.endswith(
        ": return tf.gather(x, tf.cast(x[:, 0] * 0 + 99, tf.int32)) if training else x)"
    )
    assert failed.remedy == "look at that line, or see worker.log in the run folder"
    assert "Traceback" in stderr
