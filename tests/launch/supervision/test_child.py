"""A worker process: what is known of it once it has ended."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from gputopo.launch.supervision.child import Child

MIB = 2**20


def python(program: str) -> Callable[[int], Sequence[str]]:
    return lambda events_fd: (sys.executable, "-I", "-c", program)


@pytest.mark.parametrize(("program", "status"), [("raise SystemExit(7)", 7), ("import os; os.abort()", -6)])
def test_its_exit_status_is_that_of_subprocess(program: str, status: int) -> None:
    with closing(Child(python(program), dict(os.environ))) as child:
        os.set_blocking(child.ended, True)
        assert os.read(child.ended, 1) == b""
        assert child.end(within_s=60) == status


def test_the_most_memory_that_it_held_is_its_own() -> None:
    peaks = []
    for size in (200 * MIB, 1):
        with closing(Child(python(f"print(len(b'x' * {size}))"), dict(os.environ))) as child:
            os.set_blocking(child.ended, True)
            assert os.read(child.ended, 1) == b""
            assert child.end(within_s=60) == 0
            peaks.append(child.peak_bytes)
    assert 200 * MIB < peaks[0] < 400 * MIB
    assert 0 < peaks[1] < 150 * MIB
