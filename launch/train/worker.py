"""The child process that trains: `python -m gputopo.launch.train.worker SPEC_FILE EVENTS_FD`.

It reads a frozen spec and writes events to the pipe that the parent gave it. It exits with 0 when the work is
done, otherwise it emits a RankFailed with the reason first. Its standard output and error belong to the
parent.

SIGINT ends it after the current step, with a checkpoint. SIGTERM does the same if the run saves results and
the first step is done: batch systems send SIGTERM to every process of a job, not only to the parent.
Otherwise SIGTERM ends it at once. A worker of rank 1 or above ignores both until its parent ends it: see
`server`.
"""

import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gputopo.launch.failure import MORE_SPACE, UNREACHABLE, asked_to_end
from gputopo.launch.train.lifecycle.folders import DiskError
from gputopo.launch.train.op_errors import cause_and_remedy, first_line, unreachable_rank
from gputopo.launch.train.parent import end_without_launcher
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, HardwareError
from gputopo.values.install import install_tensorflow
from gputopo.values.run.batches import batch_words
from gputopo.values.run.events import (
    SERVING,
    Event,
    MemoryPeak,
    Noticed,
    PhaseBegun,
    PlacementChecked,
    RankFailed,
    Silent,
    encode_line,
)
from gputopo.values.run.spec import RunSpec

_NO_MEMORY = re.compile(r"failed to map segment|[Cc]annot allocate memory")


def main(arguments: list[str]) -> int:
    """Train by the spec in the given file and return the exit code."""
    came: list[int] = []
    spec_file, events_fd = Path(arguments[0]), int(arguments[1])
    spec = schema.decode(spec_file.read_bytes(), RunSpec, origin=str(spec_file))
    if not spec.rank:
        _end_by_sigterm()
        _note(signal.SIGINT, came)

    def emit(event: Event) -> None:
        if spec.rank and not isinstance(event, RankFailed | Silent | PhaseBegun):
            return  # rank 0 reports for all hosts
        data = encode_line(event)
        while data:
            data = data[os.write(events_fd, data) :]
        if isinstance(event, PlacementChecked) and spec.saves_after_a_step:
            faulthandler.unregister(signal.SIGTERM)
            _note(signal.SIGTERM, came)
            # Only the thread that gets the signal: the stacks of threads that run are not safe to read, and
            # this worker still has a checkpoint to save. With all threads, 1 of 66 workers crashed (SIGSEGV).
            faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)

    if spec.rank:
        emit(PhaseBegun(time_s=time.time(), rank=spec.rank, phase=SERVING))  # rank 0 may start its worker
    elif spec.servers:
        ending = (spec.servers[0].host, events_fd)
        threading.Thread(target=end_without_launcher, args=ending, name="ending", daemon=True).start()
    try:
        failure = _work(spec, emit, came)
        if spec.rank and (failure is None or failure.kind == UNREACHABLE):
            while True:  # until SIGTERM: rank 0 and the launchers know when a training is over, and why
                signal.pause()
        if failure is None:
            return ExitCode.OK
        emit(failure)
    except BrokenPipeError:  # the parent has exited and needs no more events
        return ExitCode.HARDWARE
    return failure.exit_code


def _end_by_sigterm() -> None:
    """Let SIGTERM end the process at once, even if TensorFlow has installed its own handler.

    The stacks go to worker.log, because the worker may be ended because it hangs.
    """
    faulthandler.unregister(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)


def _note(signum: signal.Signals, came: list[int]) -> None:
    """Append each arriving signal of this number to `came`."""
    signal.signal(signum, lambda number, _: came.append(number))


def _work(spec: RunSpec, emit: Callable[[Event], None], came: Sequence[int]) -> RankFailed | None:
    """Run the task and return how it failed. `came`: signals so far, which end it after the current step."""
    began = time.perf_counter()
    try:
        import tensorflow as tf
    except (ImportError, MemoryError, SystemError) as error:
        # If memory is exhausted, Python may raise SystemError, and the loader has its own message.
        no_memory = isinstance(error, MemoryError | SystemError) or _NO_MEMORY.search(str(error))
        return _failed(
            "error",
            f"TensorFlow cannot be imported: {str(error) or type(error).__name__}",
            MORE_SPACE if no_memory else install_tensorflow(cuda=spec.backend == "gpu"),
            ExitCode.HARDWARE,
        )
    from gputopo.launch.models import models
    from gputopo.launch.spec.rules import bf16_remark
    from gputopo.launch.train.lifecycle import evaluating
    from gputopo.launch.train.loop import LossError
    from gputopo.launch.train.placement import devices
    from gputopo.launch.train.placement.timing import joined_fastest
    from gputopo.launch.train.training import WorkerStart, train
    from gputopo.launch.train.versions import cpu_flags, worker_versions

    import_s = time.perf_counter() - began
    try:
        devices.set_up_devices(spec)
        options = {} if spec.task == "input" else {"stopped": lambda: bool(came)}
        if spec.rank is not None:
            from gputopo.launch.compare import multi_worker

            options["strategy"] = multi_worker.started(spec)
            _end_by_sigterm()  # on rank 0; other ranks block SIGTERM
        with joined_fastest(spec, emit) as (spec, says):
            if spec.servers and not spec.rank:
                from gputopo.launch.hosts.addresses import open_ports

                first, *others = spec.servers
                says_open = open_ports(first.host, ((server.host, server.address) for server in others))
                emit(Noticed(time_s=time.time(), says=says_open))
            versions = worker_versions(gpus=spec.backend == "gpu") | devices.settings(spec)
            tasks: dict[str, Callable[..., Any]] = {
                "train": train,
                "forward": evaluating.pass_forward,
                "eval": evaluating.evaluate,
                "input": evaluating.measure_input,
            }
            tasks[spec.task](
                models.build_model(spec.model, spec),
                spec,
                emit,
                start=WorkerStart(import_s, versions, (*says, *bf16_remark(spec, cpu_flags()))),
                **options,
            )
        emit(_memory_peak(spec))
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        return _failed(
            "out_of_memory",
            f"out of memory: {first_line(str(error)) or type(error).__name__}",
            f"use a smaller --batch-size (it was {batch_words(spec.batch_size)})",
            ExitCode.HARDWARE,
        )
    except tf.errors.OpError as error:
        traceback.print_exc()  # into worker.log
        text = str(error)
        gone = unreachable_rank(text, type(error).__name__) if spec.servers else None
        if gone is not None:
            return _host_gone(spec, gone)
        cause, remedy = cause_and_remedy(text, type(error).__name__)
        return _failed("error", cause, remedy, ExitCode.HARDWARE)
    except DiskError as error:
        return _failed(error.kind, error.what, error.hint, error.exit_code)
    except LossError as error:
        emit(_memory_peak(spec))
        return _failed("loss", error.what, error.hint, error.exit_code)
    except GputopoError as error:
        kind = "placement" if isinstance(error, HardwareError) else "error"
        return _failed(kind, error.what, error.hint, error.exit_code)
    if not came:
        return None
    # The launcher sends SIGINT when it gets a SIGTERM, so SIGTERM is the cause if both arrived.
    signum = signal.SIGTERM if signal.SIGTERM in came else signal.SIGINT
    return asked_to_end(signum, spec, time_s=time.time())


def _host_gone(spec: RunSpec, rank: int) -> RankFailed:
    server = spec.servers[rank]
    process, log = ("worker", "worker.log") if spec.rank is not None else ("TensorFlow server", "server.log")
    return RankFailed(
        time_s=time.time(),
        rank=rank,
        kind=UNREACHABLE,
        cause=f"the {process} of {server.host} (rank {rank}) at {server.address} is gone",
        remedy=f"see what gputopo printed on that host, and its {log}",
        exit_code=ExitCode.HARDWARE,
    )


def _memory_peak(spec: RunSpec) -> MemoryPeak:
    """Return the peaks from the kernel (`ru_maxrss`, in KiB) and, on GPUs, from TensorFlow's allocators."""
    import resource

    import tensorflow as tf

    peaks = {}
    if spec.backend == "gpu":
        for device in spec.devices:
            if device.rank == (spec.rank or 0):  # TensorFlow knows only this process's memory
                info = tf.config.experimental.get_memory_info(device.device.rpartition("/")[2])
                peaks[device.device] = int(info["peak"])
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return MemoryPeak(time_s=time.time(), host_bytes=host, devices=peaks)


def _failed(kind: str, cause: str, remedy: str, code: ExitCode) -> RankFailed:
    return RankFailed(time_s=time.time(), kind=kind, cause=cause, remedy=remedy, exit_code=code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
