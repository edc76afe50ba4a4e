"""The stderr of a program: it reaches the user as it was written, and its last lines are known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.user_program.error_output import known_cause
from tests.kit import commands

LAUNCHER = """
import os, sys
from gputopo.launch.user_program.program import run_to_end
ending = run_to_end(sys.argv[2:], os.environ)
open(sys.argv[1], "w").write("\\n".join(ending.last_lines))
sys.exit(ending.exit_code)
"""
BOTH = """
import os
for number in range(500):
    os.write(1 + number % 2, b"%d\\n" % number)
"""


def launcher(folder: Path, *program: str) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, str(folder / "last"), *program]


def last_lines(folder: Path) -> list[str]:
    return (folder / "last").read_text().splitlines()


@pytest.mark.parametrize("where", ["a pipe", "a file"])
def test_lines_of_both_streams_keep_their_order_and_the_last_are_known(where: str, tmp_path: Path) -> None:
    command = launcher(tmp_path, sys.executable, "-c", BOTH)
    if where == "a pipe":
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        printed = done.stdout.decode()
    else:
        with (tmp_path / "printed").open("w") as file:
            file.write("of earlier\n")
            file.flush()
            subprocess.run(command, stdout=file, stderr=file, check=True)
        printed = (tmp_path / "printed").read_text().removeprefix("of earlier\n")
    assert printed.splitlines() == [str(number) for number in range(500)]
    assert last_lines(tmp_path)[-20:] == [str(number) for number in range(480, 500)]


def test_bytes_that_are_no_text_reach_the_user_as_they_are(tmp_path: Path) -> None:
    data = os.urandom(4 * 2**20)
    (tmp_path / "data").write_bytes(data)
    command = launcher(tmp_path, "sh", "-c", f"cat {tmp_path}/data >&2; echo out")
    done = subprocess.run(command, capture_output=True, check=True)
    assert (done.stdout, done.stderr == data) == (b"out\n", True)


def test_a_program_whose_stderr_nobody_reads_any_more_gets_sigpipe(tmp_path: Path) -> None:
    command = launcher(tmp_path, "sh", "-c", "yes >&2")
    with subprocess.Popen(command, stderr=subprocess.PIPE) as started:
        assert started.stderr is not None
        assert started.stderr.read(2) == b"y\n"
        started.stderr.close()
        assert started.wait(60) == 141


def test_what_is_left_behind_is_passed_on_too(tmp_path: Path) -> None:
    left = "trap 'echo ended >&2; exit' TERM; echo ready; while :; do :; done"
    command = launcher(tmp_path, "sh", "-c", f'sh -c "{left}" | {{ read line; kill -9 $$; }}')
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (137, b"ended\n")


def test_a_terminal_stays_the_programs_own_and_a_closed_stderr_stays_closed(tmp_path: Path) -> None:
    look = "test -t 0 && test -t 1 && test -t 2 && echo all >&2"
    assert commands.on_a_terminal(*launcher(tmp_path, "sh", "-c", look)[1:]) == (0, "all\r\n")
    assert last_lines(tmp_path) == []
    closed = ["sh", "-c", '"$@" 2>&-', "sh", *launcher(tmp_path, "sh", "-c", "echo lost >&2 || exit 5")]
    assert subprocess.run(closed, check=False).returncode == 5


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["Failed to initialize NVML: Driver/library version mismatch"], "driver library and kernel"),
        (["CUDA out of memory", *["W: of torchrun"] * 60], "CUDA out of memory"),
        (["ValueError: first", "MyError: last"], "MyError: last"),
        (["ResourceExhaustedError: ..."], "out of memory"),
        (["an ordinary line"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_cause_is_a_known_message_else_the_last_exception(lines: list[str], says: str | None) -> None:
    found = known_cause(lines)
    assert (found is None) == (says is None)
    assert found is None or (says is not None and found[0].startswith(says))
