"""The child process on a host whose devices rank 0 uses: `... server SPEC_FILE RANK EVENTS_FD`.

It is a TensorFlow server with the host's devices of the spec, or the host's worker if each host has one
(`RunSpec.rank`). It serves until its parent sends SIGTERM. If it cannot serve, it writes a RankFailed to the
pipe that the parent gave it.

It ignores SIGINT, which asks a worker to finish its step, and SIGTERM from other processes: batch systems
send SIGTERM to every process of a job, and then rank 0 still takes a last step and saves.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gputopo.launch.device_names import JOB
from gputopo.launch.train.parent import end_for_parent
from gputopo.values import schema
from gputopo.values.errors import ExitCode
from gputopo.values.run.events import SERVING, Event, PhaseBegun, RankFailed, encode_line
from gputopo.values.run.spec import RunSpec

if TYPE_CHECKING:
    from gputopo.launch.train.placement.devices import Answering  # loads TensorFlow


def main(arguments: list[str]) -> int:
    """Serve the devices of a rank and return the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also in TensorFlow's and numpy's threads
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec_file, rank, events_fd = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    spec = schema.decode(spec_file.read_bytes(), RunSpec, origin=str(spec_file))
    trains = spec.rank is not None
    ending = threading.Thread(
        target=end_for_parent, kwargs={"writes_stacks": trains}, name="ending", daemon=True
    )
    ending.start()
    if trains:
        from gputopo.launch.train import worker

        return worker.main([arguments[0], arguments[2]])

    def emit(event: Event) -> None:
        os.write(events_fd, encode_line(event))

    from gputopo.probes import load_cuda_libraries

    if spec.backend == "gpu":
        load_cuda_libraries()
    import tensorflow as tf

    from gputopo.launch.train.placement import devices

    _answering = devices.register(answers())
    cluster = devices.cluster_of(spec)
    try:
        _serving = tf.distribute.Server(
            cluster, job_name=JOB, task_index=rank, protocol="grpc", config=devices.server_config(spec, rank)
        )
    except tf.errors.OpError as error:
        failed = devices.cannot_listen(spec, rank, error)
        emit(
            RankFailed(
                time_s=time.time(),
                rank=rank,
                kind="error",
                cause=failed.what,
                remedy=failed.hint,
                exit_code=failed.exit_code,
            )
        )
        return failed.exit_code
    emit(PhaseBegun(time_s=time.time(), rank=rank, phase=SERVING))
    ending.join()
    return ExitCode.OK


def answers() -> "Answering":
    """Return the function that answers rank 0's questions about this host's files and memory."""
    import msgspec
    import numpy as np
    import psutil

    from gputopo.launch.data import list_files

    of_host: dict[bytes, Answering] = {
        b"files": lambda *named: msgspec.json.encode(list_files(*(name.decode() for name in named))),
        b"free_bytes": lambda: np.int64(psutil.virtual_memory().available),
    }
    return lambda question, *given: of_host[question](*given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
