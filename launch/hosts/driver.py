"""Starts `gputopo run` on each host by ssh (`start_hosts`), shows its output, and ends with it.

The stdout of rank 0 is the driver's stdout. Its stderr, and all output of other ranks, comes through pipes.
Every command has its own session: Ctrl-C reaches only the driver, which passes it to rank 0.
"""

import os
import secrets
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gputopo.launch.hosts.agent import AGENT_END_S, SECRET
from gputopo.launch.hosts.allocation import port_by
from gputopo.launch.hosts.host_process import HostCommand, HostProcess, host_command, not_started, passed_on
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import END_S, SILENT_S
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.supervise import signals
from gputopo.report import note, to_stderr
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.index_ranges import host_ranges

_LAST_LINES = 20
_SSH_S = 5.0  # ssh itself, after the time of its agent; not measured on hardware


@dataclass(frozen=True)
class DriverTimeouts:
    """How long hosts may take to end, in seconds; not measured on hardware."""

    leader_s: float = SILENT_S + END_S + 5.0  # rank 0 after another host failed: it saves its result
    # The other hosts after rank 0 failed. They hear of it within a second; the agents end hosts that do not.
    others_s: float = 2.0
    term_s: float = 30.0  # rank 0 after SIGTERM, as in batch systems (KillWait of slurm.conf)
    drain_s: float = 1.0  # for output that arrives after the report of the end


TIMEOUTS = DriverTimeouts()


@dataclass(frozen=True, kw_only=True)
class _Agents:
    """What each host runs: its Python with `words`; other hosts use `remote_python`."""

    words: tuple[str, ...]
    remote_python: str
    folder: str  # current folder of the driver
    environment: Mapping[str, str]  # of the driver


def start_hosts(
    hosts: Sequence[HostAddress],
    options: HostOptions,
    words: Sequence[str],
    timeouts: DriverTimeouts = TIMEOUTS,
) -> int:
    """Start a command on each host, and return its exit code. Raises GputopoError.

    `words`: the words after `gputopo`, without options that choose the hosts.
    """
    environment = dict(os.environ)
    if sys.stdout.isatty():  # the stdout of rank 0 is a pipe
        environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
    agents = _Agents(
        words=("-P", "-m", "gputopo", *words),
        remote_python=options.remote_python or sys.executable,
        folder=os.getcwd(),
        environment=environment,
    )
    return _drive(_commands(hosts, agents), agents, timeouts)


def _commands(hosts: Sequence[HostAddress], agents: _Agents) -> tuple[HostCommand, ...]:
    """Return the commands that start all hosts, by rank.

    If rank 0 has no port, a random port for this run is chosen.
    """
    names = [str(host.name) for host in hosts]
    leader, *others = hosts
    if leader.port is None:
        leader = HostAddress(leader.name, port_by(secrets.token_hex()))
    rest = host_ranges(names[1:]) if all(host.port is None for host in others) else ",".join(map(str, others))
    listed = f"{leader},{rest}" if others else str(leader)
    end = agents.words.index("--") if "--" in agents.words else len(agents.words)
    return tuple(
        host_command(
            rank,
            name,
            (*agents.words[:end], "--hosts", listed, "--node-rank", str(rank), *agents.words[end:]),
            python=agents.remote_python,
            environ=agents.environment,
            folder=agents.folder,
        )
        for rank, name in enumerate(names)
    )


class RankEnds:
    """The ranks that have ended, when to end the others, and the exit code. Times are arguments.

    A rank that fails ends the others; a rank that succeeds does not.
    """

    def __init__(self, timeouts: DriverTimeouts = TIMEOUTS) -> None:
        self.timeouts = timeouts
        self.end_at: float | None = None  # when to end all ranks, by the clock of the caller
        self.codes: dict[int, int] = {}  # exit codes by rank, in the order in which the ranks ended
        self._leader: int | None = None
        self._signals: list[int] = []

    @property
    def exit_code(self) -> int:
        """Exit code of rank 0; if it was killed, 128 + n of a signal, or the first failed rank's code."""
        if self._leader is not None:
            return self._leader
        return 128 + self._signals[0] if self._signals else next(filter(None, self.codes.values()), 0)

    @property
    def blamed(self) -> tuple[int, int] | None:
        """The rank that failed first, with its exit code; None if rank 0 ended by itself or by a signal."""
        by_itself = self._leader is not None or self._signals
        return None if by_itself else next((ended for ended in self.codes.items() if ended[1]), None)

    def is_ending(self, now_s: float) -> bool:
        """Whether the time to end all ranks has come."""
        return self.end_at is not None and now_s >= self.end_at

    def ended(self, rank: int, code: int, now_s: float) -> None:
        """Note that the process of a rank has ended."""
        self.codes[rank] = code
        if rank == 0:
            self._leader = None if self.is_ending(now_s) else code
        if code:
            self.end_within(self.timeouts.leader_s if rank else self.timeouts.others_s, now_s)

    def signalled(self, number: int, now_s: float) -> None:
        """Note a signal, which rank 0 gets too. One Ctrl-C sets no time limit; the third signal ends all."""
        self._signals.append(number)
        if len(self._signals) > 2:
            self.end_within(0.0, now_s)
        elif number != signal.SIGINT or len(self._signals) == 2:
            self.end_within(self.timeouts.term_s, now_s)

    def end_within(self, seconds: float, now_s: float) -> None:
        """Note that all ranks have to end within `seconds`; 0 if a host cannot be started."""
        self.end_at = min(now_s + seconds, now_s + seconds if self.end_at is None else self.end_at)


def _drive(starts: Sequence[HostCommand], agents: _Agents, timeouts: DriverTimeouts) -> int:
    """Start all hosts, wait until they have ended, and return the exit code of the run.

    What the hosts write to stderr is printed there. Raises HardwareError if a host cannot be started, after
    the others have been ended.
    """
    ends = RankEnds(timeouts)
    with signals.caught() as came, selectors.DefaultSelector() as selector:
        driver = _Driver(selector, came, agents, ends)
        try:
            driver.start(starts)
            driver.follow(lambda: ends.end_at)
        except HardwareError as error:
            driver.error = error
        finally:
            driver.end()
    if driver.error is not None:
        raise driver.error
    if (blamed := ends.blamed) is not None:
        note(f"{starts[blamed[0]].host} (rank {blamed[0]}) failed first, with exit code {blamed[1]}")
    return ends.exit_code


@dataclass
class _Driver:
    selector: selectors.BaseSelector
    came: int  # file descriptor that reports signals to the driver (`signals.caught`)
    agents: _Agents
    ends: RankEnds
    error: HardwareError | None = None

    def start(self, starts: Sequence[HostCommand]) -> None:
        """Start the commands. Raises HardwareError if there is no such program."""
        self.hosts: list[HostProcess] = []
        variables = {**passed_on(self.agents.environment), SECRET: secrets.token_hex(32)}
        self.selector.register(self.came, selectors.EVENT_READ, None)
        for start in starts:
            self.hosts.append(HostProcess(start, variables, "stderr" if start.rank else "ours"))
            self.selector.register(self.hosts[-1].stderr, selectors.EVENT_READ, self.hosts[-1])

    def follow(self, until_s: Callable[[], float | None]) -> None:
        """Handle signals, output and reports until all hosts have ended or the time is over.

        After a program has ended, its remaining output may arrive late, and other processes may have its
        output open.
        """
        drained_s = None
        while not all(host.is_over for host in self.hosts):
            if drained_s is None and all(host.is_done for host in self.hosts):
                drained_s = time.monotonic() + self.ends.timeouts.drain_s
            limits = [limit for limit in (until_s(), drained_s) if limit is not None]
            left_s = min(limits) - time.monotonic() if limits else None
            if left_s is not None and left_s <= 0:
                return
            for key, _ in self.selector.select(left_s):
                if key.data is None:
                    self._signalled()
                else:
                    self._take(key.data)

    def end(self) -> None:
        """End all hosts that still run: close the stdin of their agents, then kill ssh itself."""
        for host in self.hosts:
            host.release()
        limit_s = time.monotonic() + AGENT_END_S + _SSH_S
        self.follow(lambda: limit_s)
        for host in self.hosts:
            host.close()

    def _signalled(self) -> None:
        for number in signals.take(self.came):
            self.ends.signalled(number, time.monotonic())
            if self.hosts:
                self.hosts[0].tell(bytes((number,)))

    def _take(self, host: HostProcess) -> None:
        rank, before = host.start.rank, "" if host.has_started else host.said
        texts = [*before.splitlines(keepends=True), *host.take()]
        if host.has_started:  # earlier output is of ssh, and is shown with its error
            label = f"{host.start.host}: " if rank else ""
            to_stderr("".join(label + text for text in texts))
        if host.ended is not None and rank not in self.ends.codes:
            self.ends.ended(rank, host.ended, time.monotonic())
        if not host.is_over:
            return
        self.selector.unregister(host.stderr)
        code, now_s = host.wait(), time.monotonic()
        if rank in self.ends.codes:
            return
        if not self.ends.is_ending(now_s):
            if host.has_started:
                note(f"the connection to {host.start.host} (rank {rank}) was lost, exit code {code}")
            else:
                lines = host.said.splitlines()[-_LAST_LINES:]
                error = not_started(host.start, code, lines, self.agents.remote_python)
                self.error = self.error or error
                self.ends.end_within(0.0, now_s)
        self.ends.ended(rank, int(ExitCode.HARDWARE), now_s)
