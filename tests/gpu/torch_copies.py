"""Copies timed by PyTorch, for a comparison: `python -m tests.gpu.torch_copies MACHINE SECONDS`.

Imports nothing of gputopo. MACHINE is a recording, of which the CPUs near each GPU are read. Prints JSON: the
rate of each copy with page-locked memory, and of one within each GPU's memory, which counts what is read and
what is written. After so many seconds no other copy begins.
"""

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

torch: Any = import_module("torch")  # which need not be there where types are checked

MIB = 2**20
BYTES, LOOPS, SAMPLES = 512 * MIB, 16, 5


def gb_per_s(copy: Callable[[], object]) -> float:
    """Return the median of five times 16 copies, after one more. CUDA's events are around each 16."""
    rates: list[float] = []
    for _ in range(SAMPLES + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(LOOPS):
            copy()
        end.record()
        end.synchronize()
        rates.append(LOOPS * BYTES / start.elapsed_time(end) / 1e6)  # milliseconds
    return statistics.median(rates[1:])


def cpus(text: str) -> set[int]:
    """Read a list of CPUs: `0-3,8`."""
    ends = (part.split("-") for part in text.split(","))
    return {cpu for first, *last in ends for cpu in range(int(first), int((last or [first])[0]) + 1)}


def main(recording: str, seconds: float) -> None:
    """Measure all GPUs that PyTorch shows, with host memory near each."""
    near = {gpu["index"]: gpu.get("cpu_affinity") for gpu in json.loads(Path(recording).read_text())["gpus"]}
    until = time.monotonic() + seconds
    found: list[dict[str, object]] = []
    for gpu in range(torch.cuda.device_count()):
        if text := near.get(gpu):
            with contextlib.suppress(OSError):  # not among those of this process
                os.sched_setaffinity(0, cpus(text))
        torch.cuda.set_device(gpu)
        host = torch.empty(BYTES, dtype=torch.uint8).pin_memory()
        source, target = (torch.empty(BYTES, dtype=torch.uint8, device=f"cuda:{gpu}") for _ in range(2))
        place = f"gpu:{gpu}"
        copies = (
            ("h2d", "host", place, 1, lambda a=target, b=host: a.copy_(b, non_blocking=True)),
            ("d2h", place, "host", 1, lambda a=host, b=source: a.copy_(b, non_blocking=True)),
            ("d2d_local", place, place, 2, lambda a=target, b=source: a.copy_(b)),
        )
        for kind, start, end, times, copy in copies:
            if time.monotonic() < until:
                rate = times * gb_per_s(copy)
                ends = {"source": start, "destination": end}
                found.append({"kind": kind, "method": "copy_engine", "gb_per_s": rate, **ends})
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
