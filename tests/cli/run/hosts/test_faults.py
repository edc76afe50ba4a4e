"""Launchers of two hosts on this one, of which one fails: what each reports, exit codes, and what is left.

They are those of `gputopo run`; what they start pretends to be a worker and a server.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.kit import commands
from tests.kit.forks import Program
from tests.kit.ports import free_port
from tests.kit.processes import still_running

Started = Callable[..., AbstractContextManager[tuple[Program, IO[str]]]]


class Host:
    """One of the launchers, with what it prints."""

    def __init__(self, program: Program, printed: IO[str]) -> None:
        self.pid = program.pid
        self.seen = ""
        self._program = program
        self._printed = printed

    def until(self, words: str) -> None:
        """Read until a line has these words."""
        for line in self._printed:
            self.seen += line
            if words in line:
                return
        raise AssertionError(f"{words!r} was not printed: {self.seen}")

    def all(self) -> list[psutil.Process]:
        """Return its process, and that which it has started."""
        own = psutil.Process(self.pid)
        return [own, *own.children(recursive=True)]

    def ended(self) -> tuple[int, str]:
        """Return exit code and all that was printed."""
        self.seen += self._printed.read()
        return self._program.wait(60), self.seen


class Hosts:
    """Starts launchers, two where `hosts` does not name others, by `started`."""

    def __init__(
        self, home: Path, ending: ExitStack, hosts: str = "", started: Started = commands.started
    ) -> None:
        self._home = home
        self._ending = ending
        self._hosts = hosts or f"localhost:{free_port()},localhost"
        self._started = started

    def start(self, rank: int, *options: str, **what: Any) -> Host:
        """Start one; see `launchers`."""
        words = ("-m", "tests.cli.run.launchers", str(rank), self._hosts, json.dumps(what), *options)
        home = str(self._home / str(rank))
        started = self._started(*words, GPUTOPO_HOME=home, GPUTOPO_ROOT=str(self._home))
        return Host(*self._ending.enter_context(started))

    def training(self, *options: str, **what: Any) -> tuple[Host, Host]:
        """Start both, and return them when they train: the guest's server has reported that it serves."""
        first, second = self.start(0, *options, **what), self.start(1, *options, **what)
        first.until("step 1:")
        while len(second.all()) == 1:  # it may start its server later than rank 0 its worker
            time.sleep(0.01)
        return first, second


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    with ExitStack() as ending:
        yield Hosts(tmp_path, ending)


def require_ended(processes: list[psutil.Process]) -> None:
    assert still_running(processes, 15) == []


def test_a_rank_0_that_is_killed_is_named_and_nothing_is_left(hosts: Hosts) -> None:
    first, second = hosts.training(silent_s=0.3)
    processes = first.all() + second.all()
    os.kill(first.pid, signal.SIGKILL)
    code, printed = second.ended()
    assert code == 3
    assert re.search(r"rank 0 at localhost port \d+ has ended", printed)
    require_ended(processes)


def test_a_server_that_is_killed_is_reported_by_its_own_host_and_rank_0_reports_before_that_one_ends(
    hosts: Hosts,
) -> None:
    first, second = hosts.training()
    _, server = second.all()
    server.kill()
    assert (first.ended()[0], second.ended()[0]) == (137, 137)
    assert "Failed: host localhost (rank 1): its TensorFlow server was ended by SIGKILL" in " ".join(
        first.seen.split()
    )
    assert "gputopo: its TensorFlow server was ended by SIGKILL from outside" in second.seen


def test_a_host_that_is_suspended_is_named_and_ends_when_it_goes_on(hosts: Hosts) -> None:
    first, second = hosts.training(silent_s=1.0)
    stopped = second.all()
    for one in stopped:
        one.suspend()
    assert first.ended()[0] == 3
    assert "host localhost (rank 1) no longer answers" in first.seen
    for one in stopped:
        one.resume()
    assert second.ended()[0] == 3
    assert "this host was silent: its gputopo was stopped for" in second.seen
    require_ended(stopped)


def test_a_server_that_is_stopped_is_named_while_the_step_waits_and_when_that_is_given_up(
    hosts: Hosts,
) -> None:
    first, second = hosts.training("--stall-timeout", "1")
    _, server = second.all()
    server.suspend()
    first.until("the process of localhost (rank 1) is stopped (SIGSTOP)")
    code, printed = first.ended()
    assert code == 3
    assert "that of localhost (rank 1) is stopped (SIGSTOP); kill -CONT continues it" in printed
    assert second.ended()[0] == 3
    require_ended([server])


def test_a_signal_to_one_host_lets_rank_0_save_its_last_step(hosts: Hosts, tmp_path: Path) -> None:
    both = hosts.training("--checkpoints", str(tmp_path / "c"), worker="ends_as_asked")
    os.kill(both[1].pid, signal.SIGINT)
    codes = [host.ended()[0] for host in both]
    assert codes == [128 + signal.SIGINT] * 2, both[0].seen + both[1].seen
    assert "checkpoint after 3 steps" in both[0].seen


def test_what_keeps_a_host_from_joining_is_the_reason_on_both_hosts(hosts: Hosts) -> None:
    both = hosts.start(0, machine="four"), hosts.start(1, machine="four+driver_mismatch")
    for host in both:
        assert host.ended()[0] == 3, host.seen
        assert "--cpu uses CPU devices" in host.seen
    what = both[1].seen.splitlines()[0].removeprefix("gputopo: ")
    assert f"gputopo: host localhost (rank 1): {what}\n" in both[0].seen
