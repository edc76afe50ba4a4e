"""A worker process: what is known of it once it has ended."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from gputopo.launch.supervise.child import Child

MIB = 2**20


def python(program: str) -> Callable[[int], Sequence[str]]:
    return lambda events_fd: (sys.executable, "-I", "-c", program)


@pytest.mark.parametrize(("program", "status"), [("raise SystemExit(7)", 7), ("import os; os.abort()", -6)])
def test_its_exit_status_is_that_of_subprocess(program: str, status: int) -> None:
    with closing(Child(python(program), dict(os.environ))) as child:
        os.set_blocking(child.ended, True)
        assert os.read(child.ended, 1) == b""
        assert child.end(within_s=60) == status


ALLOCATES = """
import os, sys
from contextlib import closing
from gputopo.launch.supervise.child import Child

memory = b"x" * int(sys.argv[1])
program = f"print(len(b'x' * {sys.argv[2]}))"
with closing(Child(lambda events_fd: (sys.executable, "-I", "-c", program), dict(os.environ))) as child:
    os.set_blocking(child.ended, True)
    assert os.read(child.ended, 1) == b""
    assert child.end(within_s=60) == 0
    print(child.peak_bytes)
"""


def peak_bytes(*, launcher: int, worker: int) -> int:
    """Peak memory of a worker that allocates so many bytes, of a launcher that does."""
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATES, str(launcher), str(worker)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_the_peak_memory_is_that_of_the_worker_alone() -> None:
    assert 200 * MIB < peak_bytes(launcher=1, worker=200 * MIB) < 300 * MIB
    assert 300 * MIB < peak_bytes(launcher=200 * MIB, worker=300 * MIB) < 400 * MIB


def test_of_a_worker_smaller_than_its_launcher_the_memory_is_not_known() -> None:
    assert peak_bytes(launcher=200 * MIB, worker=1) == 0
