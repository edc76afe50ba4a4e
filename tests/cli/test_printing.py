"""What commands do where what they print is not taken: by a full disk, or a reader that has gone."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gputopo import probes
from gputopo.probes import SessionProgress
from gputopo.values.bandwidth import Bandwidth
from tests.cli.conftest import ByName, Call, OnTerminal, Terminal
from tests.invented_bandwidths import bandwidth_of
from tests.kit import commands

UNWRITTEN = (
    "gputopo: cannot write the output: No space left on device\n  write it where there is free space\n"
)
NO_OPTION = "gputopo: there is no option '--bad'\n  `gputopo plan --help` shows how it is called\n"

PRINTING = [("--version",), ("inspect", "--from", "7gforce", "--json")]


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
    is_full = os.readlink(f"/proc/self/fd/{place}") == "/dev/full"
    assert (done.code, done.err) == ((3, UNWRITTEN) if is_full else (141, ""))  # a reader had enough


def test_an_error_that_cannot_be_printed_keeps_its_exit_code(place: int, tmp_path: Path) -> None:
    assert run(tmp_path, "inspect", "--watch", err=place) == (3, "", "")


def test_an_error_is_reported_where_data_could_not_be_written(place: int, tmp_path: Path) -> None:
    assert run(tmp_path, "plan", "--bad", out=place) == (2, "", NO_OPTION)


MEASURES = """
from gputopo.cli import main
from gputopo.probes.session import host_memory, measuring
measuring.measure_host_memory = lambda host, **_: host_memory.HostMemoryRates()
main()
"""


def test_progress_that_is_not_taken_changes_nothing_of_a_measurement(place: int, tmp_path: Path) -> None:
    done = commands.run("-c", MEASURES, "bandwidth", "--json", err=place, GPUTOPO_ROOT=str(tmp_path))
    assert done.returncode == 3  # no GPU: the host's memory was measured
    assert done.stdout.startswith("{")


def test_what_is_drawn_again_and_again_is_cut_to_the_size_of_the_terminal(
    on_terminal: OnTerminal, on_scenario: ByName
) -> None:
    on_scenario("dgx1")
    shown = on_terminal("inspect", "--watch", "--duration", "0", columns=40, lines=5)
    first, again = shown.text.removeprefix("\x1b[?25l").split("\r\x1b[2K", 1)
    assert len(first.splitlines()) == 5
    assert max(map(len, first.splitlines())) <= 40
    assert again.count("\x1b[1A\x1b[2K") % 4 == 0, "drawn over"


def test_the_pseudo_terminal_of_a_rank_of_open_mpi_is_no_terminal(
    on_terminal: OnTerminal, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("lost_gpu")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in on_terminal("inspect", "--watch", "--duration", "0").getvalue()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert "\x1b" not in on_terminal("inspect", "--watch", "--duration", "0").getvalue()


@pytest.fixture
def measuring(call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs `bandwidth` with a session that only reports its progress; returns what is printed to `stderr`."""
    on_scenario("four")

    def measuring(*steps: SessionProgress, stderr: io.StringIO) -> str:
        def measure(machine: object, request: object, show: Callable[..., None], **_: object) -> Bandwidth:
            for one in steps:
                show(one)
            return bandwidth_of(4)

        monkeypatch.setattr(probes, "measure_watched", measure)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stderr)
            call("bandwidth")
        return stderr.getvalue()

    return measuring


def step(done: int, total: int, left: float | None = None, now: str = "copy") -> SessionProgress:
    return SessionProgress(done=done, total=total, seconds_left=left, now=now)


def test_a_pipe_gets_a_line_a_quarter_with_what_is_left_and_what_runs(measuring: Callable[..., str]) -> None:
    text = measuring(*(step(done, 100, 21.04) for done in range(100)), stderr=io.StringIO())
    assert text.splitlines() == [
        f"gputopo: measuring {number} of 100, about 21.0 s left: copy" for number in (1, 26, 51, 76)
    ]
    assert measuring(step(1, 1, None, "soak"), stderr=io.StringIO()) == "gputopo: measuring 1 of 1: soak\n"


def test_a_terminal_gets_one_line_that_is_drawn_again_and_taken_away(
    measuring: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    steps = (step(done, 3, 1.0, "a long name of a copy that does not fit") for done in range(3))
    text = measuring(*steps, stderr=Terminal())
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")
    assert max(len(part.replace("\x1b[K", "")) for part in text.split("\r")) <= 30


class Closed(io.StringIO):
    """A stderr that nobody reads, and how often it was written to."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError


def test_a_stderr_that_nobody_reads_is_not_written_to_again(measuring: Callable[..., str]) -> None:
    stderr = Closed()
    measuring(*(step(done, 4) for done in range(4)), stderr=stderr)
    assert stderr.tries == 1
