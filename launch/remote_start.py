"""Starts `gputopo run` on each host of a training by ssh, is its terminal, and ends with it.

What rank 0 writes to stdout is the driver's; stderr, and all output of other ranks, comes by pipes. Every
command has a session of its own: a Ctrl-C comes to the driver alone, which passes it to rank 0.
"""

import secrets
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gputopo.launch.hosts.allocation import HostOptions, claim_of, is_started, port_by
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import END_S, SILENT_S
from gputopo.launch.remote_agent import AGENT_END_S, SECRET
from gputopo.launch.remote_process import HostCommand, HostProcess, host_command, not_started, passed_on
from gputopo.launch.supervise import signals
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.index_ranges import host_ranges

_LAST_LINES = 20
# How long hosts may take to end. Seconds, not measured on hardware.
LEADER_S = SILENT_S + END_S + 5.0  # rank 0 after another host has failed: it misses it, and saves its result
# The others after rank 0 has failed: they hear of it within a second; the agents end those that do not.
OTHERS_S = 2.0
TERM_S = 30.0  # rank 0 after SIGTERM, as batch systems have it (KillWait of slurm.conf)
_SSH_S = 5.0  # ssh itself, after its agent had its time to end
_DRAIN_S = 1.0  # for output that comes after the report of the end

Show = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Agents:
    """What each host is to run: its Python with `words`, on other hosts `remote_python`."""

    words: tuple[str, ...]
    remote_python: str
    folder: str  # in which the driver was started
    environment: Mapping[str, str]  # of the driver


def to_start(options: HostOptions, environ: Mapping[str, str]) -> tuple[HostAddress, ...]:
    """Return the hosts that this process is to start, () where it is one of them, or alone.

    Raises UsageError where the options contradict one another.
    """
    if options.num_hosts == 1:
        return ()
    claim_of(options)
    return () if is_started(options, environ) else options.hosts or options.hostfile


def commands(hosts: Sequence[HostAddress], agents: Agents) -> tuple[HostCommand, ...]:
    """Return the commands that start all hosts, by rank.

    The hosts meet at a port of their own, unless rank 0 has one.
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
    """Which ranks have ended, when the others are to be ended, and the exit code. Pure: times are given.

    A rank that fails ends the others; one that ends well does not.
    """

    def __init__(self) -> None:
        self.end_at: float | None = None  # when all are to be ended, by the clock of the caller
        self.codes: dict[int, int] = {}  # exit codes of ranks, in the order of their ends
        self._leader: int | None = None
        self._signals: list[int] = []

    @property
    def exit_code(self) -> int:
        """Exit code of rank 0; if it was killed, of the first rank that failed, or 128 + n of a signal."""
        if self._leader is not None:
            return self._leader
        return 128 + self._signals[0] if self._signals else next(filter(None, self.codes.values()), 0)

    @property
    def blamed(self) -> tuple[int, int] | None:
        """The rank that failed first, with its exit code, if rank 0 did not end by itself."""
        by_itself = self._leader is not None or self._signals
        return None if by_itself else next((one for one in self.codes.items() if one[1]), None)

    def is_ending(self, now_s: float) -> bool:
        """Whether all are ended now."""
        return self.end_at is not None and now_s >= self.end_at

    def ended(self, rank: int, code: int, now_s: float) -> None:
        """Note that the process of a rank has ended."""
        self.codes[rank] = code
        if rank == 0:
            self._leader = None if self.is_ending(now_s) else code
        if code:
            self.end_within(LEADER_S if rank else OTHERS_S, now_s)

    def signalled(self, number: int, now_s: float) -> None:
        """Note a signal, which rank 0 gets too. After one Ctrl-C it may take its time; the third ends all."""
        self._signals.append(number)
        if len(self._signals) > 2:
            self.end_within(0.0, now_s)
        elif number != signal.SIGINT or len(self._signals) == 2:
            self.end_within(TERM_S, now_s)

    def end_within(self, seconds: float, now_s: float) -> None:
        """Note that all are to be ended: 0 s if a host cannot be started."""
        self.end_at = min(now_s + seconds, now_s + seconds if self.end_at is None else self.end_at)


def drive(starts: Sequence[HostCommand], agents: Agents, *, show: Show, note: Show) -> int:
    """Start all hosts, wait until they have ended, and return the exit code of the run.

    `show`: writes what the hosts wrote to stderr, `note`: a line of the driver. Raises HardwareError where a
    host cannot be started; then the others have been ended.
    """
    ends = RankEnds()
    with signals.caught() as came, selectors.DefaultSelector() as selector:
        driver = _Driver(selector, came, agents, show, note, ends)
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
    came: int  # signals to the driver (`signals.caught`)
    agents: Agents
    show: Show
    note: Show
    ends: RankEnds
    error: HardwareError | None = None

    def start(self, starts: Sequence[HostCommand]) -> None:
        """Start the commands. Raises HardwareError where there is no such program."""
        self.hosts: list[HostProcess] = []
        variables = {**passed_on(self.agents.environment), SECRET: secrets.token_hex(32)}
        self.selector.register(self.came, selectors.EVENT_READ, None)
        for one in starts:
            self.hosts.append(HostProcess(one, variables, "stderr" if one.rank else "ours"))
            self.selector.register(self.hosts[-1].stderr, selectors.EVENT_READ, self.hosts[-1])

    def follow(self, until_s: Callable[[], float | None]) -> None:
        """Take signals, output and reports until all hosts have ended, or a time has come.

        A program that has ended may have left output on its way, and others that have its output open.
        """
        drained_s = None
        while not all(host.is_over for host in self.hosts):
            if drained_s is None and all(host.is_done for host in self.hosts):
                drained_s = time.monotonic() + _DRAIN_S
            limits = [one for one in (until_s(), drained_s) if one is not None]
            left_s = min(limits) - time.monotonic() if limits else None
            if left_s is not None and left_s <= 0:
                return
            for key, _ in self.selector.select(left_s):
                if key.data is None:
                    self._signalled()
                else:
                    self._take(key.data)

    def end(self) -> None:
        """End all that still run: by the closed stdin of their agents, then ssh itself."""
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
        if host.has_started:  # before, the words are those of ssh, which are shown with its error
            label = f"{host.start.host}: " if rank else ""
            self.show("".join(label + text for text in texts))
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
                self.note(f"the connection to {host.start.host} (rank {rank}) was lost, exit code {code}")
            else:
                lines = host.said.splitlines()[-_LAST_LINES:]
                error = not_started(host.start, code, lines, self.agents.remote_python)
                self.error = self.error or error
                self.ends.end_within(0.0, now_s)
        self.ends.ended(rank, int(ExitCode.HARDWARE), now_s)
