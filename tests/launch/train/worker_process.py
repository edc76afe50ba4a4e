"""Runs the worker for tests and returns its events."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gputopo.values import schema
from gputopo.values.run.events import Device, Event, decode_line, read_events
from gputopo.values.run.spec import RunSpec


def trivial_spec(towers: int = 1, **fields: Any) -> RunSpec:
    """Return a spec of the cheapest model: seconds, not minutes."""
    given: dict[str, Any] = {
        "model": "trivial-cifar10",
        "devices": tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(towers)),
        "backend": "cpu",
        "ps_device": "/CPU:0",
        "batch_size": 2,
        "num_batches": 3,
        "num_warmup_batches": 1,
    }
    return RunSpec(**{**given, **fields})


def environment(**more: str) -> dict[str, str]:
    """The environment of a program on CPU devices; oneDNN as the launcher sets it, XLA compiling fast."""
    own = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
    own["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    return {**os.environ, **own, **more}


_FORKED = """
import os, sys
from gputopo.launch.train import worker
sys.exit(worker.main([sys.argv[1], str(os.open(sys.argv[2], os.O_WRONLY))]))
"""


def run_worker(folder: Path, spec: RunSpec, *, before: str = "") -> tuple[int, list[Event], str]:
    """Return the worker's exit code, its events and its standard error; TensorFlow is loaded already.

    `before`: Python that its process runs first.
    """
    from tests.launch.forks import run_program  # imports this module

    file, events = folder / "spec.json", folder / "events.jsonl"
    schema.write(file, spec)
    events.write_bytes(b"")
    done = run_program("-c", before + _FORKED, str(file), str(events))
    with events.open("rb") as stream:
        return done.returncode, list(read_events(stream, origin="events.jsonl")), done.stderr


_NAMED = """
import os, sys
from gputopo.launch.train import worker
events = os.open(sys.argv[2], os.O_WRONLY)
os.write(events, b"%d\\n" % os.getpid())
sys.exit(worker.main([sys.argv[1], str(events)]))
"""


def watched(folder: Path, spec: RunSpec, react: Callable[[int, Event], None]) -> tuple[int, list[Event]]:
    """Run a worker, call `react` with its process and each event as it comes; return exit code and events."""
    from tests.launch.forks import run_program

    file = folder / "spec.json"
    schema.write(file, spec)
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as pool, open(reading, "rb") as lines:
        done = pool.submit(run_program, "-c", _NAMED, str(file), f"/proc/{os.getpid()}/fd/{writing}")
        done.add_done_callback(lambda _: os.close(writing))  # from here the lines end
        pid = int(lines.readline())
        events: list[Event] = []
        for line in lines:
            events.append(decode_line(line))
            react(pid, events[-1])
    return done.result().returncode, events
