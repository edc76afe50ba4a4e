"""What commands do where what they print is not taken: by a full disk, or a reader that has gone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit import commands

UNWRITTEN = (
    "gputopo: cannot write the output: No space left on device\n  write it where there is free space\n"
)
NO_OPTION = "gputopo: there is no option '--bad'\n  `gputopo plan --help` shows how it is called\n"

PRINTING = [("--help",), ("--version",), ("plan", "--help"), ("inspect", "--from", "7gforce", "--json")]
FAILING = [("plan", "--bad"), ("plan", "--model", "alexnet"), ("inspect", "--watch"), ("run", "--", "/none")]
CODES = {FAILING[0]: 2, FAILING[1]: 3, FAILING[2]: 3, FAILING[3]: 2}


class Ended(NamedTuple):
    """How a command ended; of its streams what went elsewhere than to the place that takes nothing."""

    code: int
    out: str
    err: str


@pytest.fixture(params=["a full disk", "a pipe that nobody reads"])
def place(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the descriptor of a place that takes nothing."""
    if request.param == "a full disk":
        if not Path("/dev/full").exists():
            pytest.skip("this system has no /dev/full")
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    yield writing
    os.close(writing)


def run(root: Path, *arguments: str, out: int | None = None, err: int | None = None) -> Ended:
    """Run gputopo on a machine without any PCI device, with buffers as they are when nobody asks."""
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    done = commands.run("-m", "gputopo", *arguments, out=out, err=err, GPUTOPO_ROOT=str(root))
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_data_that_is_not_taken_ends_a_command_without_a_traceback(
    arguments: tuple[str, ...], place: int, tmp_path: Path
) -> None:
    done = run(tmp_path, *arguments, out=place)
    assert (done.code, done.err) in ((2, UNWRITTEN), (141, ""))  # who has read enough gets no complaint


@pytest.mark.parametrize("arguments", FAILING, ids=" ".join)
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(
    arguments: tuple[str, ...], place: int, tmp_path: Path
) -> None:
    assert run(tmp_path, *arguments, err=place) == (CODES[arguments], "", "")


def test_an_error_is_reported_where_data_could_not_be_written(place: int, tmp_path: Path) -> None:
    assert run(tmp_path, "plan", "--bad", out=place) == (2, "", NO_OPTION)


def test_output_and_its_error_may_both_not_be_taken(place: int, tmp_path: Path) -> None:
    assert run(tmp_path, "--version", out=place, err=place).code in (2, 141)


def test_progress_that_is_not_taken_changes_nothing_of_a_measurement(place: int, tmp_path: Path) -> None:
    done = run(tmp_path, "bandwidth", "--quick", "--json", err=place)
    assert done.code == 3  # no GPU: the host's memory was measured
    assert done.out.startswith("{")
