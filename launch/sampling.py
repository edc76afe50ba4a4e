"""Samples of the GPUs beside the training, in a thread of their own: a driver that hangs must not stop the launcher."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from gputopo.events import GpuSample, Sample, encode_line

EVERY_S = 1.0  # NVML's own power and utilisation readings are means of up to a second


class Sampler(Protocol):
    """Gives the state of the GPUs of a run, None in a field that does not answer."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Read all GPUs now."""


@contextlib.contextmanager
def sampled(sampler: Sampler | None, every_s: float = EVERY_S) -> Iterator[int]:
    """Sample until the end of the context; give a non-blocking pipe that holds a line (a Sample) for each.

    Without a sampler nothing comes. A sample for which there is no room is dropped.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    over = threading.Event()

    def work(sampler: Sampler) -> None:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            while not over.is_set():
                line = encode_line(Sample(time_s=time.time(), gpus=sampler.sample()))
                with contextlib.suppress(BrokenPipeError):  # the run ended while the driver answered
                    pipe.write(line)
                over.wait(every_s)

    if sampler is None:
        os.close(writing)
    else:
        threading.Thread(target=work, args=(sampler,), name="gpu-samples", daemon=True).start()
    try:
        yield reading
    finally:
        over.set()
        os.close(reading)
