"""Runs the worker for tests and returns its events."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values import schema
from gputopo.values.events import Device, Event, decode_line, read_events


def trivial_spec(towers: int = 1, **fields: Any) -> RunSpec:
    """Return a spec of the cheapest model: seconds, not minutes."""
    given: dict[str, Any] = {
        "model": "trivial",
        "devices": tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(towers)),
        "backend": "cpu",
        "ps_device": "/CPU:0",
        "batch_size": 2,
        "num_batches": 3,
        "num_warmup_batches": 1,
    }
    return RunSpec(**{**given, **fields})


def environment(**more: str) -> dict[str, str]:
    """The environment of a program on CPU devices; oneDNN as the launcher sets it."""
    own = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
    return {**os.environ, **own, **more}


_FORKED = """
import os, sys
from gputopo.launch.train import worker
sys.exit(worker.main([sys.argv[1], str(os.open(sys.argv[2], os.O_WRONLY))]))
"""


def run_worker(folder: Path, spec: RunSpec) -> tuple[int, list[Event], str]:
    """Return the worker's exit code, its events and its standard error; TensorFlow is loaded already."""
    from tests.launch.forks import run_program  # imports this module

    file, events = folder / "spec.json", folder / "events.jsonl"
    schema.write(file, spec)
    events.write_bytes(b"")
    done = run_program("-c", _FORKED, str(file), str(events))
    with events.open("rb") as stream:
        return done.returncode, list(read_events(stream, origin="events.jsonl")), done.stderr


def run_fresh_worker(folder: Path, spec: RunSpec, **more: str) -> tuple[int, list[Event], str]:
    """Return what `run_worker` does, of its own program with `more` in its environment."""
    file, events = folder / "spec.json", folder / "events.jsonl"
    schema.write(file, spec)
    with events.open("wb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "gputopo.launch.train.worker", str(file), str(stream.fileno())],
            pass_fds=[stream.fileno()],
            env=environment(**more),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    with events.open("rb") as stream:
        return done.returncode, list(read_events(stream, origin="events.jsonl")), done.stderr


def asked_to_end(folder: Path, spec: RunSpec, *, after: type[Event], code: int) -> list[Event]:
    """Ask a worker by SIGINT to end once it has reported an event of a kind; return all its events."""
    file = folder / "spec.json"
    schema.write(file, spec)
    reading, writing = os.pipe()
    with (
        subprocess.Popen(
            [sys.executable, "-m", "gputopo.launch.train.worker", str(file), str(writing)],
            pass_fds=[writing],
            env=environment(),
            stderr=subprocess.DEVNULL,
        ) as worker,
        open(reading, "rb") as lines,
    ):
        os.close(writing)
        events: list[Event] = []
        for line in lines:
            events.append(decode_line(line))
            if isinstance(events[-1], after):
                worker.send_signal(signal.SIGINT)
        assert worker.wait(60) == code
    return events
