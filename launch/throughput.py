"""Measures steps of the user's own script, and reports them to `gputopo run -- PROGRAM`.

    with Steps(examples=64) as steps:
        for batch in data:
            train(batch)
            steps.done()

It works in any framework and in any number of processes. Only `keras_steps` loads TensorFlow. A report that
cannot be written is dropped, so that the training never fails because of it.
"""

import contextlib
import importlib
import os
import signal
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import msgspec

if TYPE_CHECKING:
    from keras.callbacks import Callback

STEPS_FILE = "GPUTOPO_STEPS"  # the named pipe of `gputopo run` for reports of its program
STACKS_FILE = "GPUTOPO_STACKS"  # where the program writes its threads' stacks at STACKS_SIGNAL
# A signal with no other use: C libraries use the first real-time signals, and programs the next ones.
STACKS_SIGNAL = 57  # SIGRTMAX - 7 on Linux; a number, because other systems import this module, too
# Variables with the index of a process on this machine: torchrun, Open MPI, Slurm.
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
# Longest report that a pipe never splits among reports of other processes (POSIX: PIPE_BUF is 512 or more).
MAX_REPORT_BYTES = 512

MAX_SECONDS = 1e9  # limit for a report: 32 years
MAX_EXAMPLES = 2**53  # limit for a report: larger numbers are not exact in JSON

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]

EXAMPLES = "examples"  # the unit of a step, unless the program gives another one


class StepDone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="report", tag="step"):
    """A step of one process, with the steps before it whose reports could not be written."""

    pid: int
    step: Annotated[int, msgspec.Meta(ge=1)]  # from 1, within its `with` block
    seconds: _Seconds  # for all these steps
    examples: Annotated[int, msgspec.Meta(ge=0, le=MAX_EXAMPLES)]  # for all these steps
    steps: Annotated[int, msgspec.Meta(ge=1)] = 1
    unit: str = EXAMPLES
    after_begin: bool = False  # it is the first step after `begin`, for example of an epoch
    device: int | None = None  # index among the planned GPUs, if the process has its own GPU
    busy_s: _Seconds | None = None  # the part in which that device worked, without waiting for others


class StepsEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="report", tag="ended"):
    """A process runs no more steps."""

    pid: int


Report = StepDone | StepsEnded
_reports = msgspec.json.Decoder(Report)


class Steps:
    """Measures steps; a step lasts from one `done` to the next. A context manager, which starts the clock.

    `examples`: of one step of this process, counted in `unit`, a word such as images or tokens. `device`: the
    planned GPU that this process uses, by the process's numbering; by default the local rank of torchrun,
    mpirun or srun. `examples_per_sec`: without the first step, which builds and compiles; None before the
    second step ends. `str` is a summary.
    """

    def __init__(self, examples: int, *, device: int | None = None, unit: str = EXAMPLES) -> None:
        self._examples, self._unit = examples, unit
        self._after_begin = False
        self._late_steps, self._late_examples, self._late_s = 0, 0, 0.0  # not reported yet
        self._device = _local_rank() if device is None else device
        self._number = 0
        self._counted, self._seconds = 0, 0.0
        self._pipe: int | None = None
        self._stacks: int | None = None
        self._begun = time.perf_counter()

    def __enter__(self) -> Self:
        name = os.environ.get(STEPS_FILE)
        if name:
            with contextlib.suppress(OSError):
                # A run that reads slowly, or has stopped reading, must not block the training.
                self._pipe = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
                self._stacks = _stacks_at_a_signal()
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._report(StepsEnded(pid=os.getpid()))
        self._close()
        if self._stacks is not None:
            import faulthandler

            faulthandler.unregister(STACKS_SIGNAL)
            os.close(self._stacks)
            self._stacks = None

    def __str__(self) -> str:
        speed = self.examples_per_sec
        known = "no speed yet" if speed is None else f"{speed:.1f} {self._unit}/sec without the first"
        return f"{self._number} step{'' if self._number == 1 else 's'}, {known}"

    @property
    def examples_per_sec(self) -> float | None:
        """Examples per second of all steps after the first; None before the second step ends."""
        return self._counted / self._seconds if self._seconds > 0 else None

    def begin(self) -> None:
        """Start the next step now: the time since the last step, such as an evaluation, is not used.

        Also call it at the start of each epoch: the run then reports if the first steps of epochs are slower.
        """
        self._after_begin = True
        self._begun = time.perf_counter()

    def done(self, examples: int | None = None, *, busy_s: float | None = None) -> None:
        """End a step. `examples`: given if the number differs from the usual one.

        `busy_s`: seconds in which this process's device worked, without waiting for other processes. If each
        process gives it, the run compares the devices by it.
        """
        now = time.perf_counter()
        seconds, self._begun = now - self._begun, now
        count = self._examples if examples is None else examples
        self._number += 1
        if self._number > 1:
            self._counted += count
            self._seconds += seconds
        if self._pipe is None:
            return
        done = StepDone(
            pid=os.getpid(),
            step=self._number,
            seconds=seconds + self._late_s,
            examples=count + self._late_examples,
            steps=1 + self._late_steps,
            unit=self._unit,
            after_begin=self._after_begin,
            device=self._device,
            busy_s=busy_s,
        )
        self._after_begin = False
        if self._report(done) or self._number == 1:  # the warm-up is not merged with other steps
            self._late_steps, self._late_examples, self._late_s = 0, 0, 0.0
        else:
            self._late_steps, self._late_examples, self._late_s = done.steps, done.examples, done.seconds

    def _report(self, report: Report) -> bool:
        """Write a report; return False if the run reads too slowly: the next report includes the step."""
        if self._pipe is None:
            return True
        try:
            os.write(self._pipe, msgspec.json.encode(report) + b"\n")
        except BlockingIOError:
            return False
        except OSError:  # the run is over
            self._close()
        return True

    def _close(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.close(self._pipe)
            self._pipe = None


def keras_steps(examples: int, *, device: int | None = None, unit: str = EXAMPLES) -> "Callback":
    """Return a Keras callback that reports the steps of `fit`. `examples`: the batch size.

    `device`, `unit`: as in `Steps`. Under `MultiWorkerMirroredStrategy`, `examples` is the batch of all
    workers, and each worker reports its part. Evaluation between epochs is not part of a step. The callback's
    attribute `steps` is the `Steps`. Raises ImportError without Keras.
    """
    # `tf.keras` under TF_USE_LEGACY_KERAS requires more methods of its callbacks than Keras 3.
    legacy = "tf_keras" in sys.modules
    base: Any = importlib.import_module("tf_keras" if legacy else "keras").callbacks.Callback

    class KerasSteps(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.steps = Steps(examples, device=device, unit=unit)

        def on_train_begin(self, logs: Any = None) -> None:
            self.steps.__enter__()

        def on_train_end(self, logs: Any = None) -> None:
            self.steps.__exit__(None, None, None)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.steps.begin()

        def on_test_end(self, logs: Any = None) -> None:
            self.steps.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # A call of compiled code may run several steps: a number, or a variable in legacy Keras.
            of_step = examples_of_worker(examples, getattr(self.model, "distribute_strategy", None))
            of_call = getattr(self.model, "steps_per_execution", None) or 1
            self.steps.done(of_step * int(of_call.numpy() if hasattr(of_call, "numpy") else of_call))

    return cast("Callback", KerasSteps())


def read_report(line: bytes) -> Report | None:
    """Return the report in a line, or None if the line is not a report: a program may write anything."""
    try:
        report: Report = _reports.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return report


def _stacks_at_a_signal() -> int | None:
    """Have the stacks of all threads written at a signal if the run sets a file for them; return the file.

    The handler is C code, which also runs while Python waits for a call that never returns. Raises OSError if
    the file cannot be opened.
    """
    name = os.environ.get(STACKS_FILE)
    if not name or signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        return None
    import faulthandler

    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    return file


def examples_of_worker(examples: int, strategy: Any) -> int:
    """Return this worker's part of the examples of a step; the parts of all workers add up."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return examples
    resolver = strategy.cluster_resolver
    tasks = resolver.cluster_spec().as_dict()
    kinds = [kind for kind in ("chief", "worker") if kind in tasks]
    if resolver.task_type not in kinds:  # there is no cluster
        return examples
    before = sum(len(tasks[kind]) for kind in kinds[: kinds.index(resolver.task_type)])
    place: int = before + resolver.task_id
    workers = sum(len(tasks[kind]) for kind in kinds)
    return examples * (place + 1) // workers - examples * place // workers


def _local_rank() -> int | None:
    for name in LOCAL_RANKS:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None
