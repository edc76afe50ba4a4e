"""The cost of `gputopo inspect --watch` on eight simulated GPUs: processor time of the whole process.

Run `python -m tests.benchmarks.bench_watch [SECONDS]`. The process runs for one sample (the cost of its
start) and for SECONDS at 1 Hz; the difference per second is the cost of watching. The cost of the test kit is
included. Measured for a pipe and for a terminal.
"""

import os
import pty
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.bench_inspect import inspect_command

GOAL_PERCENT = 2.0  # of one core


def watch_command(tree: Path, seconds: float) -> list[str]:
    """Return the command that watches the scenario for `seconds` at 1 Hz."""
    return inspect_command(tree, "--watch", "--interval", "1", "--duration", str(seconds))


def cpu_seconds(command: Sequence[str], *, terminal: bool) -> float:
    """Return the user and system time of one process. Raises CalledProcessError if it fails."""
    before = _children()
    if terminal:
        _run_on_terminal(command)
    else:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return _children() - before


def main(seconds: float) -> int:
    """Print start, watching and its share of a core; exit code 1 if the goal is missed."""
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        for terminal in (False, True):
            tree = Path(folder)
            cpu_seconds(watch_command(tree, 0), terminal=terminal)  # fills the caches
            start = cpu_seconds(watch_command(tree, 0), terminal=terminal)
            whole = cpu_seconds(watch_command(tree, seconds), terminal=terminal)
            percent = 100 * (whole - start) / seconds
            missed = missed or percent > GOAL_PERCENT
            place = "terminal" if terminal else "pipe"
            print(f"{place:9} start {1000 * start:5.0f} ms, watching {percent:.2f} % of a core at 1 Hz")
    print(
        f"goal: under {GOAL_PERCENT} %; {seconds:g} s, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}"
    )
    return int(missed)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run_on_terminal(command: Sequence[str]) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    reader = threading.Thread(target=_discard, args=(ours,))
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        os.close(theirs)
        reader.start()
        code = process.wait()
    reader.join()
    if code:
        raise subprocess.CalledProcessError(code, command)


def _discard(file: int) -> None:
    try:
        while os.read(file, 65536):
            pass
    except OSError:  # Linux: the other end is closed
        pass
    os.close(file)


if __name__ == "__main__":
    raise SystemExit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0))
