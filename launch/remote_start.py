"""Starts `gputopo run` on each host of a training by ssh, is its terminal, and ends with it.

What rank 0 writes to stdout is the driver's; stderr and the reports of the agents (`remote_agent`) come by a
pipe. Every command has a session of its own: a Ctrl-C comes to the driver alone, which passes it to rank 0.
"""

import codecs
import contextlib
import re
import secrets
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gputopo.launch.hosts.allocation import HostOptions, claim_of, is_started, port_by
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import END_S, SILENT_S
from gputopo.launch.remote_agent import AGENT_LEADER_S, AGENT_OTHER_S, MARK, SECRET
from gputopo.launch.supervise import signals
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.index_ranges import host_ranges
from gputopo.values.option import shown

_AGENT = ("-P", "-m", "gputopo.launch.remote_agent")
# BatchMode: it never asks. ControlMaster: a connection that is shared would hold our pipes open after its
# end. A host that has died is noticed after 3 times 5 s.
SSH = (
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR"),
)
# Variables of the driver that other hosts get. TF_CONFIG is of one host; a command line shows no secret.
_PASSED_ON = re.compile(rf"(?!(?:TF_CONFIG|{SECRET})$)(GPUTOPO|TF|NCCL|XLA|KERAS)_\w+|COLUMNS")
_SSH_FAILED, _CANNOT_RUN = 255, (126, 127)
_HINTS = (
    (r"host key|host identification", "confirm the key of the host once by hand: ssh {host} true"),
    (r"permission denied", "`ssh {host} true` must succeed without a password: ssh-copy-id {host}"),
    (r"resolve", "correct the name, or name its address in ~/.ssh/config"),
    (r"timed out|refused|no route|unreachable", "see whether the host is up, and sshd runs on it"),
    (r"", "try it by hand: ssh {host} true"),
)
_REPORT = re.compile(r"gputopo (?:started|ended ([0-9]{1,3}) ([01]))\n")
_MARK_OR_TEXT = re.compile(rf"{MARK}[^\n]*\n|[^{MARK}]+")
_CHUNK_BYTES = 64 * 1024
_LAST_LINES = 20
# How long hosts may take to end. Seconds, not measured on hardware.
SETTLE_S = 1.0  # before the training has begun, for those that fail by the same cause
LEADER_S = SILENT_S + END_S + 5.0  # rank 0 after another host has failed: it misses it, and saves its result
# The others after rank 0: they hear of it within a second. Where a network was cut, ssh ends after 20 s, and
# rank 0 after SILENT_S.
OTHERS_S = 12.0
TERM_S = 30.0  # rank 0 after SIGTERM, as batch systems have it (KillWait of slurm.conf)
_SSH_S = 5.0  # ssh itself, after its agent had its time to end, and again after SIGTERM

Show = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class HostCommand:
    """A command that starts the agent of a rank on its host. `remote`: by ssh."""

    rank: int
    host: str
    command: tuple[str, ...]
    remote: bool = True


@dataclass(frozen=True, kw_only=True)
class Agents:
    """What each host is to run: `python` with `words`, on other hosts `remote_python`."""

    words: tuple[str, ...]
    python: str
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


def commands(
    hosts: Sequence[HostAddress], agents: Agents, is_here: Callable[[str], bool]
) -> tuple[HostCommand, ...]:
    """Return the commands that start all hosts, by rank. `is_here`: whether a name is this host's.

    The hosts meet at a port of their own, unless rank 0 has one.
    """
    names = [str(host.name) for host in hosts]
    leader, *others = hosts
    if leader.port is None:
        leader = HostAddress(leader.name, port_by(secrets.token_hex()))
    rest = host_ranges(names[1:]) if all(host.port is None for host in others) else ",".join(map(str, others))
    listed = f"{leader},{rest}" if others else str(leader)
    return tuple(
        _command(agents, rank, name, listed, is_here=is_here(name)) for rank, name in enumerate(names)
    )


def passed_on(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that other hosts get, as words of `env`."""
    return [f"{name}={text}" for name, text in sorted(environ.items()) if _PASSED_ON.fullmatch(name)]


def _command(agents: Agents, rank: int, name: str, listed: str, *, is_here: bool) -> HostCommand:
    passed = [] if is_here else passed_on(agents.environment)
    python = agents.python if is_here else agents.remote_python
    end = agents.words.index("--") if "--" in agents.words else len(agents.words)
    own = (*agents.words[:end], "--hosts", listed, "--node-rank", str(rank), *agents.words[end:])
    agent = ("env", *passed, python, *_AGENT, str(rank), name, agents.folder, *own)
    command = agent if is_here else (*SSH, "--", name, shlex.join(agent))
    return HostCommand(rank=rank, host=name, command=command, remote=not is_here)


def not_started(start: HostCommand, code: int, lines: Sequence[str], python: str) -> HardwareError:
    """Return the error of a command that ended by `code` before gputopo ran; `lines`: what it printed."""
    host = start.host
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    if code == _SSH_FAILED and start.remote:
        words = last.casefold()
        hint = next(hint for cause, hint in _HINTS if re.search(cause, words)).format(host=host)
        return HardwareError(f"ssh cannot connect to {host}: {last}", hint)
    if code in _CANNOT_RUN or "No module named" in last:
        return HardwareError(
            f"gputopo cannot be started on {host}: {last}",
            f"install it there too, the same version, for {shlex.quote(python)}; "
            "--remote-python PATH names another Python",
        )
    return HardwareError(
        f"{host} ended with exit code {code} before gputopo started: {shown(last)}",
        f"try it by hand: ssh {host} {shlex.quote(python)} -m gputopo --version",
    )


class RankEnds:
    """Which ranks have ended, when the others are to be ended, and the exit code. Pure: times are given."""

    def __init__(self, size: int, *, may_lose: bool = False) -> None:
        """A rank that fails ends the others.

        `may_lose`: one that fails after the training has begun does not: rank 0 knows whether it can go on.
        """
        self._may_lose = may_lose
        self.end_at: float | None = None  # when all are to be ended, by the clock of the caller
        self.failed: tuple[int, int] | None = None  # the first rank that failed, and its exit code
        self._left = set(range(size))
        self._leader: int | None = None
        self._signals: list[int] = []

    @property
    def exit_code(self) -> int:
        """Exit code of rank 0; if it was killed, of the first rank that failed, or 128 + n of a signal."""
        if self._leader is not None:
            return self._leader
        if self._signals:
            return 128 + self._signals[0]
        return 0 if self.failed is None else self.failed[1]

    @property
    def blamed(self) -> tuple[int, int] | None:
        """The rank that failed first, with its exit code, where rank 0 did not end by itself."""
        return self.failed if self._leader is None and not self._signals else None

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank has ended."""
        return rank not in self._left

    def is_ending(self, now_s: float) -> bool:
        """Whether all are ended now."""
        return self.end_at is not None and now_s >= self.end_at

    def ended(self, rank: int, code: int, now_s: float, *, has_begun: bool) -> None:
        """Note that the process of a rank has ended; `has_begun`: after the training has begun there."""
        self._left.discard(rank)
        if code and self.failed is None:
            self.failed = (rank, code)
        if rank == 0:
            self._leader = None if self.is_ending(now_s) else code
            self._end_within(OTHERS_S if has_begun or not code else SETTLE_S, now_s)
        elif code and not (self._may_lose and has_begun):
            self._end_within(LEADER_S if has_begun else SETTLE_S, now_s)

    def not_started(self, now_s: float) -> None:
        """Note that a host cannot be started: the others are ended."""
        self._end_within(0.0, now_s)

    def signalled(self, number: int, now_s: float) -> None:
        """Note a signal, which rank 0 gets too. After one Ctrl-C it may take its time; the third ends all."""
        self._signals.append(number)
        if len(self._signals) > 2:
            self._end_within(0.0, now_s)
        elif number != signal.SIGINT or len(self._signals) == 2:
            self._end_within(TERM_S, now_s)

    def _end_within(self, seconds: float, now_s: float) -> None:
        end_at = now_s + seconds
        self.end_at = end_at if self.end_at is None else min(self.end_at, end_at)


def drive(
    starts: Sequence[HostCommand],
    *,
    python: str,
    show: Show,
    note: Show,
    may_lose: bool = False,
) -> int:
    """Start all hosts, wait until they have ended, and return the exit code of the run.

    `show`: writes what the hosts wrote to stderr, `note`: a line of the driver. `python`: of other hosts, for
    messages. Raises HardwareError where a host cannot be started; then the others have been ended.
    `may_lose`: as of `RankEnds`.
    """
    endings = RankEnds(len(starts), may_lose=may_lose)
    with signals.caught() as came, selectors.DefaultSelector() as selector:
        driver = _Driver(selector, came, python, show, note, endings)
        try:
            driver.start(starts)
            driver.follow(lambda: endings.end_at)
        except HardwareError as error:
            driver.error = error
        finally:
            driver.end()
    if driver.error is not None:
        raise driver.error
    if (blamed := endings.blamed) is not None:
        note(f"{starts[blamed[0]].host} (rank {blamed[0]}) failed first, with exit code {blamed[1]}")
    return endings.exit_code


@dataclass
class _Driver:
    selector: selectors.BaseSelector
    came: int  # signals to the driver (`signals.caught`)
    python: str
    show: Show
    note: Show
    endings: RankEnds
    error: HardwareError | None = None

    def start(self, starts: Sequence[HostCommand]) -> None:
        """Start the commands. Raises HardwareError where there is no such program."""
        self.hosts: list[_Host] = []
        secret = secrets.token_hex(32)
        self.selector.register(self.came, selectors.EVENT_READ, None)
        for one in starts:
            self.hosts.append(_Host(one, self.show))
            self.hosts[-1].tell(f"{secret}\n".encode())
            self.selector.register(self.hosts[-1].stderr, selectors.EVENT_READ, self.hosts[-1])

    def follow(self, until_s: Callable[[], float | None]) -> None:
        """Take signals, output and reports until all hosts have ended, or a time has come."""
        while any(not host.is_over for host in self.hosts):
            at_s = until_s()
            left_s = None if at_s is None else at_s - time.monotonic()
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
        leader_s = AGENT_OTHER_S if self.endings.has_ended(0) else AGENT_LEADER_S
        for within_s, ends in ((leader_s + _SSH_S, "terminate"), (_SSH_S, "kill")):
            limit_s = time.monotonic() + within_s
            self.follow(lambda: limit_s)  # noqa: B023 (called at once)
            for host in self.hosts:
                host.end_by(ends)
        for host in self.hosts:
            host.close()

    def _signalled(self) -> None:
        for number in signals.take(self.came):
            self.endings.signalled(number, time.monotonic())
            if self.hosts:
                self.hosts[0].tell(bytes((number,)))

    def _take(self, host: "_Host") -> None:
        for code, has_begun in host.reports():
            self.endings.ended(host.start.rank, code, time.monotonic(), has_begun=has_begun)
        if not host.is_over:
            return
        self.selector.unregister(host.stderr)
        rank, code, now_s = host.start.rank, host.exit_code(), time.monotonic()
        if self.endings.has_ended(rank):
            return
        if not self.endings.is_ending(now_s):
            if host.has_started:
                self.note(f"the connection to {host.start.host} (rank {rank}) was lost, exit code {code}")
            else:
                error = not_started(host.start, code, host.lines_before, self.python)
                self.error = self.error or error
                self.endings.not_started(now_s)
        self.endings.ended(rank, int(ExitCode.HARDWARE), now_s, has_begun=host.has_started)


class _Host:
    """The command of a host, with what it writes to stderr. `is_over`: that has ended."""

    def __init__(self, start: HostCommand, show: Show) -> None:
        """Start it. Raises HardwareError where there is no such program."""
        self.start = start
        self.has_started = False
        self.is_over = False
        self._before = ""
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._show = show
        try:
            self._process = subprocess.Popen(
                start.command,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise HardwareError(
                f"cannot start {start.command[0]}: {error.strerror}",
                "install it, or start gputopo on each host with --node-rank N",
            ) from error
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._stdin, self.stderr = self._process.stdin, self._process.stderr

    @property
    def lines_before(self) -> list[str]:
        """What it wrote before the agent had started: the last lines."""
        return self._before.splitlines()[-_LAST_LINES:]

    def reports(self) -> Iterator[tuple[int, bool]]:
        """Show what has come on stderr; yield the reports of an end within: exit code, has it begun."""
        data = self.stderr.read(_CHUNK_BYTES) or b""
        self.is_over = not data
        texts, self._rest = _split(self._rest + self._decoder.decode(data, final=self.is_over))
        for text in [*texts, *([self._rest] if self.is_over else [])]:
            found = _REPORT.fullmatch(text.removeprefix(MARK)) if text.startswith(MARK) else None
            if found is None:
                self._relay(text)
                continue
            if not self.has_started:
                self.has_started = True
                self._show("".join(f"{self.start.host}: {line}\n" for line in self.lines_before))
            if found[1] is not None:
                yield int(found[1]), found[2] == "1"

    def _relay(self, text: str) -> None:
        if self.has_started:
            self._show(text)
        else:  # ssh's own words, which are shown with the host
            self._before = (self._before + text)[-_CHUNK_BYTES:]

    def exit_code(self) -> int:
        """Wait for its end, and return its exit code, 128 + n for signal n."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def tell(self, data: bytes) -> None:
        """Pass the agent the secret, or a signal for rank 0, by its stdin: see `remote_agent`."""
        with contextlib.suppress(OSError, ValueError):
            self._stdin.write(data)

    def release(self) -> None:
        """Close stdin, by which the agent ends its process."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end_by(self, ends: str) -> None:
        """End the command itself: `terminate` or `kill`."""
        if not self.is_over:
            getattr(self._process, ends)()

    def close(self) -> None:
        """Close stderr, and reap a command that was killed while something else has its stderr."""
        self.stderr.close()
        if not self.is_over:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it cannot be killed
                self._process.wait(_SSH_S)


def _split(text: str) -> tuple[list[str], str]:
    """Return reports and the text between them, and a report that has not ended."""
    begun = text.rfind(MARK)
    if begun >= 0 and "\n" not in text[begun:]:
        return _MARK_OR_TEXT.findall(text[:begun]), text[begun:]
    return _MARK_OR_TEXT.findall(text), ""
