"""The stderr of a program: it reaches the user as it was written, and its last lines are known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.user_program import known_cause
from tests.kit import commands

LAUNCHER = """
import os, sys
from gputopo.launch.user_program import run_to_end
ending = run_to_end(sys.argv[3:], os.environ, left_s=float(sys.argv[2]))
open(sys.argv[1], "w").write("\\n".join(ending.last_lines))
sys.exit(ending.exit_code)
"""
BOTH = """
import os
for number in range(500):
    os.write(1 + number % 2, b"%d\\n" % number)
"""


def launcher(folder: Path, *program: str, left_s: float = 2.0) -> list[str]:
    return ["-c", LAUNCHER, str(folder / "last"), str(left_s), *program]


def last_lines(folder: Path) -> list[str]:
    return (folder / "last").read_text().splitlines()


def test_lines_of_both_streams_keep_their_order_in_a_pipe_and_the_last_are_known(tmp_path: Path) -> None:
    with commands.started(*launcher(tmp_path, sys.executable, "-c", BOTH)) as (program, printed):
        assert printed.read().splitlines() == [str(number) for number in range(500)]
        assert program.wait() == 0
    assert last_lines(tmp_path)[-20:] == [str(number) for number in range(480, 500)]


def test_bytes_that_are_no_text_reach_the_user_as_they_are(tmp_path: Path) -> None:
    data = os.urandom(2**20)
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "err").open("wb") as err:
        program = launcher(tmp_path, "sh", "-c", f"cat {tmp_path}/data >&2; echo out")
        assert commands.run(*program, err=err.fileno()).stdout == "out\n"
    assert (tmp_path / "err").read_bytes() == data


def test_a_program_whose_stderr_nobody_reads_any_more_gets_sigpipe(tmp_path: Path) -> None:
    with commands.started(*launcher(tmp_path, "sh", "-c", "yes >&2")) as (program, printed):
        assert printed.readline() == "y\n"
        printed.close()
        assert program.wait(60) == 141


def test_what_is_left_behind_is_passed_on_too(tmp_path: Path) -> None:
    left = "trap 'echo ended >&2; exit' TERM; echo ready; while :; do :; done"
    done = commands.run(
        *launcher(tmp_path, "sh", "-c", f'sh -c "{left}" | {{ read line; kill -9 $$; }}', left_s=0.1)
    )
    assert (done.returncode, done.stderr) == (137, "ended\n")


def test_a_terminal_stays_the_programs_own_and_a_closed_stderr_stays_closed(tmp_path: Path) -> None:
    look = "test -t 0 && test -t 1 && test -t 2 && echo all >&2"
    assert commands.on_a_terminal(*launcher(tmp_path, "sh", "-c", look)) == (0, "all\r\n")
    assert last_lines(tmp_path) == []
    closed = [
        "sh",
        "-c",
        '"$@" 2>&-',
        "sh",
        sys.executable,
        *launcher(tmp_path, "sh", "-c", "echo lost >&2 || exit 5"),
    ]
    assert subprocess.run(closed, check=False).returncode == 5


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["Failed to initialize NVML: Driver/library version mismatch"], "driver library and kernel"),
        (["CUDA out of memory", *["W: of torchrun"] * 60], "CUDA out of memory"),
        (["ValueError: first", "MyError: last"], "MyError: last"),
        (["an ordinary line"], None),
    ],
)  # fmt: skip
def test_the_cause_is_a_known_message_else_the_last_exception(lines: list[str], says: str | None) -> None:
    found = known_cause(lines)
    assert (found is None) == (says is None)
    assert found is None or (says is not None and found[0].startswith(says))
