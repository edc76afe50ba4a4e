"""A worker process: what is known of it once it has ended."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.supervise import EventLines, NotAnEventError, WorkerOutput, WorkerProcess
from gputopo.values.run.events import Event, RankFailed, WarmupDone, encode_line

MIB = 2**20
LINE_BYTES, LINES = 500, 20  # kept of a line, and lines


def python(program: str) -> Callable[[int], Sequence[str]]:
    return lambda events_fd: (sys.executable, "-I", "-c", program)


def test_its_exit_status_is_that_of_subprocess() -> None:
    with closing(WorkerProcess(python("import os; os.abort()"), dict(os.environ))) as child:
        os.set_blocking(child.ended, True)
        assert os.read(child.ended, 1) == b""
        assert child.end(within_s=60) == -6


ALLOCATES = """
import os, sys
from contextlib import closing
from gputopo.launch.supervise import WorkerProcess

memory = b"x" * int(sys.argv[1])
program = f"print(len(b'x' * {sys.argv[2]}))"
command = (sys.executable, "-I", "-c", program)
with closing(WorkerProcess(lambda events_fd: command, dict(os.environ))) as child:
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
    assert 160 * MIB < peak_bytes(launcher=80 * MIB, worker=160 * MIB) < 240 * MIB


EVENTS: list[Event] = [
    WarmupDone(time_s=1.0, steps=3, seconds=0.5),
    RankFailed(time_s=2.0, kind="error", cause="line\nbreak", remedy="ä", exit_code=3),
    WarmupDone(time_s=3.0, steps=0, seconds=0.0),
]
STREAM = b"".join(map(encode_line, EVENTS))


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_the_stream_is_cut_makes_no_difference(places: list[int]) -> None:
    cuts = [0, *sorted(places), len(STREAM)]
    lines = EventLines()
    got = [event for a, b in pairwise(cuts) for event in lines.take(STREAM[a:b])]
    assert got == EVENTS
    assert not lines.unfinished


def test_a_line_that_is_begun_is_unfinished() -> None:
    lines = EventLines()
    assert list(lines.take(STREAM[:-1])) == EVENTS[:-1]
    assert lines.unfinished


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    lines = EventLines()
    assert list(lines.take(b"x" * (16 * MIB))) == []
    with pytest.raises(NotAnEventError):
        list(lines.take(b"x"))


def taken(path: Path, *pieces: bytes) -> tuple[str, ...]:
    output = WorkerOutput(path)
    for piece in pieces:
        output.take(piece)
    output.close()
    return output.last_lines


def test_all_goes_to_the_log_and_the_last_lines_are_stored(tmp_path: Path) -> None:
    lines = [b"%d\n" % number for number in range(100)]
    assert taken(tmp_path / "log", *lines) == tuple(str(number) for number in range(100 - LINES, 100))
    assert (tmp_path / "log").read_bytes() == b"".join(lines)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    assert taken(tmp_path / "log", *[b"x" * 65536] * 3) == ("x" * LINE_BYTES,)
    assert (tmp_path / "log").stat().st_size == 3 * 65536


def test_a_worker_that_prints_without_end_leaves_the_first_and_the_last_part(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path / "log", first_bytes=1000, last_bytes=2000)
    for number in range(0, 20_000, 10):
        output.take(b"".join(b"line %06d\n" % line for line in range(number, number + 10)))
    output.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "line 000000"
    assert lines[-1] == "line 019999"
    (gap,) = (place for place, one in enumerate(lines) if one.startswith("[gputopo: about "))
    kept = [int(one.split()[1]) for one in lines[gap + 1 :]]
    assert kept == list(range(kept[0], 20_000))
    assert 2000 - LINE_BYTES <= sum(len(one) + 1 for one in lines[gap + 1 :]) <= 4000 + 10 * 12


def test_what_tensorflow_prints_at_every_start_is_in_the_log_and_not_among_the_last_lines(
    tmp_path: Path,
) -> None:
    start = b"I0000 port.cc:153] oneDNN custom operations are on. You may see slightly ...\n"
    assert taken(tmp_path / "log", start, b"it broke\n") == ("it broke",)
    assert (tmp_path / "log").read_bytes() == start + b"it broke\n"


def test_a_log_that_cannot_be_written_costs_the_log_only() -> None:
    assert taken(Path("/dev/full"), b"one\n", b"two\n") == ("one", "two")
    assert taken(Path("/no/such/folder/log"), b"one\n") == ("one",)
