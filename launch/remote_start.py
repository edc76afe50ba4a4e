"""The commands by which ssh, srun or mpirun start `gputopo run` on each host of a training. Pure."""

import asyncio
import codecs
import contextlib
import re
import shlex
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from gputopo.launch.hosts.allocation import HostOptions, Starter, claim_of, is_started
from gputopo.launch.hosts.hostlists import HostAddress, fold, read_hosts
from gputopo.launch.hosts.messages import END_S, SILENT_S
from gputopo.launch.remote_agent import AGENT_LEADER_S, AGENT_OTHER_S, MARK
from gputopo.launch.supervise import signals
from gputopo.probes.processes import tethered
from gputopo.values.errors import ExitCode, HardwareError, UsageError
from gputopo.values.option import shown

_AGENT = ("-P", "-m", "gputopo.launch.remote_agent")
# BatchMode: it never asks. ControlMaster: a connection that is shared would hold our pipes open after its
# end. A host that has died is noticed after 3 times 5 s.
_SSH = (
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR"),
)
# A host that ends, or fails, must not end the others: the driver does, after rank 0 has reported why. The
# CPUs of a rank are gputopo's choice, not one core (Slurm's and Open MPI's default for one task).
SRUN = ("srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--cpu-bind=none")
MPIRUN = ("mpirun", "--bind-to", "none")
_RANK_OF_STEP, _RANK_OF_MPI = "SLURM_NODEID", "OMPI_COMM_WORLD_RANK,PMI_RANK"
# Of the driver's environment, for hosts that do not get it from the starter. TF_CONFIG is of one host.
_PASSED_ON = re.compile(r"(?!TF_CONFIG$)(GPUTOPO|TF|NCCL|XLA|KERAS)_\w+|COLUMNS")

_SSH_FAILED, _CANNOT_RUN = 255, (126, 127)
_HINTS = (
    (r"host key|host identification", "confirm the key of the host once by hand: ssh {host} true"),
    (r"permission denied", "`ssh {host} true` must succeed without a password: ssh-copy-id {host}"),
    (r"resolve", "correct the name, or name its address in ~/.ssh/config"),
    (r"timed out|refused|no route|unreachable", "see whether the host is up, and sshd runs on it"),
    (r"", "try it by hand: ssh {host} true"),
)


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts to start a training on. `hosts`: in rank order, empty where `srun` takes those of its job."""

    starter: Starter
    size: int
    hosts: tuple[HostAddress, ...] = ()


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A command that starts the agents of some ranks. `host`: of the one rank; None where it is several.

    `tethers_all`: its stdin goes to all of them, not to rank 0 alone.
    """

    ranks: tuple[int, ...]
    command: tuple[str, ...]
    host: str | None = None
    remote: bool = True
    tethers_all: bool = True


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """What each host is to run: `python` with `words`, on other hosts `remote_python`.

    `environment`: of the driver. `folder`: where it was started.
    """

    words: tuple[str, ...]
    python: str
    remote_python: str
    folder: str
    environment: Mapping[str, str]


def find(options: HostOptions, environ: Mapping[str, str]) -> Starting | None:
    """Return the hosts that this process is to start, None where it is one of them, or alone.

    Raises UsageError where the options contradict one another, and where a starter was asked for and there is
    nothing to start.
    """
    if options.num_hosts == 1:
        return None
    claim_of(options)
    if is_started(options, environ):
        if options.starter != "auto":
            raise UsageError(
                f"--starter {options.starter} starts gputopo on each host, and this one has a rank already",
                "leave --starter out, or start one gputopo run outside of srun and mpirun",
            )
        return None
    hosts = options.hosts or options.hostfile
    in_job = "SLURM_JOB_ID" in environ
    starter = options.starter
    if starter == "auto":
        starter = "srun" if in_job else "ssh"
        if not hosts and (options.num_hosts is None or not in_job):
            return None
    if not hosts and in_job:
        nodes = environ.get("SLURM_JOB_NODELIST", "")
        hosts = read_hosts("SLURM_JOB_NODELIST", nodes)[: options.num_hosts] if nodes else ()
    if not hosts:
        raise UsageError(f"--starter {starter} needs the hosts", "add --hosts LIST, or --hostfile FILE")
    return Starting(starter=starter, size=len(hosts), hosts=hosts)


def starts(starting: Starting, agents: Agents, is_here: Callable[[str], bool]) -> tuple[Start, ...]:
    """Return the commands that start all hosts. `is_here`: whether a name is that of this host."""
    names = [str(host.name) for host in starting.hosts]
    ranks = tuple(range(starting.size))
    listed = fold(names) if all(host.port is None for host in starting.hosts) else None
    hosts = ("--hosts", listed or ",".join(map(str, starting.hosts)))
    if starting.starter == "srun":
        step = (f"--nodes={starting.size}", f"--ntasks={starting.size}", f"--nodelist={','.join(names)}")
        command = (*SRUN, *step, *_agent(agents, _RANK_OF_STEP, "", hosts, remote=False))
        return (Start(ranks=ranks, command=command),)
    if starting.starter == "mpirun":
        where = ("-n", str(starting.size), "--host", ",".join(names))
        command = (*MPIRUN, *where, *_agent(agents, _RANK_OF_MPI, "", hosts, remote=True))
        return (Start(ranks=ranks, command=command, tethers_all=False),)
    return tuple(_by_ssh(agents, rank, name, hosts, is_here=is_here(name)) for rank, name in enumerate(names))


def _by_ssh(agents: Agents, rank: int, name: str, hosts: Sequence[str], *, is_here: bool) -> Start:
    words = (*hosts, "--node-rank", str(rank))
    agent = _agent(agents, str(rank), name, words, remote=not is_here)
    command = agent if is_here else (*_SSH, "--", name, shlex.join(agent))
    return Start(ranks=(rank,), command=command, host=name, remote=not is_here)


def _agent(agents: Agents, rank: str, name: str, words: Sequence[str], *, remote: bool) -> tuple[str, ...]:
    passed = [
        f"{variable}={text}"
        for variable, text in sorted(agents.environment.items())
        if remote and _PASSED_ON.fullmatch(variable)
    ]
    python = agents.remote_python if remote else agents.python
    own = list(agents.words)
    end = own.index("--") if "--" in own else len(own)
    return ("env", *passed, python, *_AGENT, rank, name, agents.folder, *own[:end], *words, *own[end:])


def not_started(start: Start, code: int, lines: Sequence[str], python: str) -> HardwareError:
    """Return the error of a starter that ended by `code` before gputopo ran; `lines`: what it printed."""
    program = start.command[0]
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    if start.host is None:
        return HardwareError(
            f"{program} ended with exit code {code} before gputopo started: {last}",
            f"see its messages; try `{program} hostname` on the same hosts",
        )
    host = start.host
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


# Before the training has begun, for what fails by the same cause. Ours.
SETTLE_S = 1.0
# For rank 0 after another host has failed: it misses that one after SILENT_S, and saves its result.
LEADER_S = SILENT_S + END_S + 5.0
OTHERS_S = 10.0  # for the others after rank 0: they hear of it within a second, and end their servers
TERM_S = 30.0  # for rank 0 after SIGTERM, as batch systems have it (KillWait of slurm.conf)


class Course:
    """What is known of all ranks. `end_at`: when they are to be ended, by the clock of the caller.

    `needs_all`: a rank that fails ends the others; rank 0 does in any case. `may_lose`: one that fails after
    the training has begun does not: rank 0 knows whether it can go on.
    """

    def __init__(self, size: int, *, needs_all: bool = True, may_lose: bool = False) -> None:
        self._needs_all = needs_all
        self._may_lose = may_lose
        self.end_at: float | None = None
        self.failed: tuple[int, int] | None = None
        self._left = set(range(size))
        self._leader: int | None = None
        self._signals: list[int] = []

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended."""
        return not self._left

    @property
    def exit_code(self) -> int:
        """That of rank 0; where it was ended, that of the first rank that failed, or of the signal."""
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

    def ended(self, rank: int, code: int, now_s: float, *, has_begun: bool) -> None:
        """Note that the process of a rank has ended; `has_begun`: after the training has begun there."""
        self._left.discard(rank)
        was_ended = self.end_at is not None and now_s >= self.end_at
        if code and self.failed is None:
            self.failed = (rank, code)
        if rank == 0:
            self._leader = None if was_ended else code
            self._end_within(OTHERS_S if has_begun or not code else SETTLE_S, now_s)
        elif code and self._needs_all and not (self._may_lose and has_begun):
            self._end_within(LEADER_S if has_begun else SETTLE_S, now_s)

    def not_started(self, leads: bool, now_s: float) -> None:
        """Note that a host, or the one that `leads`, cannot be started, and is waited for in vain."""
        if leads or self._needs_all:
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


_REPORT = re.compile(r"gputopo ([0-9]{1,9}) (?:started|ended ([0-9]{1,3}) ([01]))\n")
_MARK_OR_TEXT = re.compile(rf"{MARK}[^\n]*\n|[^{MARK}]+")
_CHUNK_BYTES = 64 * 1024
_LAST_LINES = 20
# For the command of a starter, after its agents had their time to end, and again after SIGTERM. Ours.
_STARTER_S = 5.0

Show = Callable[[str], None]


def drive(
    starts: Sequence[Start],
    *,
    python: str,
    show: Show,
    note: Show,
    needs_all: bool = True,
    may_lose: bool = False,
) -> int:
    """Start all hosts, wait until they have ended, and return the exit code of the run.

    `show`: writes what the hosts wrote to stderr, `note`: a line of the driver. `python`: of other hosts, for
    messages. Raises HardwareError where a host cannot be started; then the others have been ended, unless the
    run does not need all. `may_lose`: as of `Course`.
    """
    course = Course(sum(len(one.ranks) for one in starts), needs_all=needs_all, may_lose=may_lose)
    return asyncio.run(_Driver(starts, python, show, note, course, needs_all=needs_all).run())


class _Driver:
    def __init__(
        self,
        starts: Sequence[Start],
        python: str,
        show: Show,
        note: Show,
        course: Course,
        *,
        needs_all: bool,
    ) -> None:
        self._starts = starts
        self._python = python
        self._show = show
        self._note = note
        self._needs_all = needs_all
        self._course = course
        self._processes: list[_Process] = []
        self._error: HardwareError | None = None

    async def run(self) -> int:
        with signals.caught() as came:
            loop = asyncio.get_running_loop()
            changed = asyncio.Event()
            following: list[asyncio.Task[None]] = []
            loop.add_reader(came, self._signalled, came, changed)
            try:
                for one in self._starts:
                    process = await _started(one, self._show)
                    self._processes.append(process)
                    following.append(asyncio.create_task(_then(self._follow(process, changed), changed)))
                await self._until_end(following, changed)
            except HardwareError as error:
                self._error = error
            finally:
                loop.remove_reader(came)
                await self._end(following)
        if self._error is not None:
            raise self._error
        if (blamed := self._course.blamed) is not None:
            self._note(f"{self._name(blamed[0])} failed first, with exit code {blamed[1]}")
        return self._course.exit_code

    async def _until_end(self, following: Sequence["asyncio.Task[None]"], changed: asyncio.Event) -> None:
        while not all(one.done() for one in following):
            end_at = self._course.end_at
            left = None if end_at is None else end_at - time.monotonic()
            if left is not None and left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
            changed.clear()

    async def _follow(self, process: "_Process", changed: asyncio.Event) -> None:
        async for rank, code, has_begun in process.reports():
            if code is not None:
                self._course.ended(rank, code, time.monotonic(), has_begun=has_begun)
                changed.set()
        code = await process.ended()
        now_s = time.monotonic()
        lost = [rank for rank in process.start.ranks if not self._course.has_ended(rank)]
        is_ending = self._course.end_at is not None and now_s >= self._course.end_at
        if lost and not is_ending and not process.has_started:
            error = not_started(process.start, code, process.lines_before, self._python)
            if self._needs_all or 0 in lost:
                self._error = self._error or error
            else:
                self._note(f"{error.what}; {error.hint}")
            self._course.not_started(0 in lost, now_s)
        for rank in lost:
            if process.has_started and not is_ending:
                self._note(f"the connection to {self._name(rank)} was lost, exit code {code}")
            self._course.ended(rank, int(ExitCode.HARDWARE), now_s, has_begun=process.has_started)

    def _signalled(self, came: int, changed: asyncio.Event) -> None:
        for number in signals.take(came):
            self._course.signalled(number, time.monotonic())
            for process in self._processes:
                if 0 in process.start.ranks:
                    process.tell(number)
        changed.set()

    async def _end(self, following: Sequence["asyncio.Task[None]"]) -> None:
        """End all that still runs: by the tether, and the starters themselves where that does not do."""
        for process in self._processes:
            process.release()
            if self._course.has_ended(0) and not process.start.tethers_all:
                process.terminate()
        if not following:
            return
        patience = AGENT_OTHER_S if self._course.has_ended(0) else AGENT_LEADER_S
        for ends in (_Process.terminate, _Process.kill):
            if not (await asyncio.wait(following, timeout=patience + _STARTER_S))[1]:
                break
            patience = 0.0
            for process in self._processes:
                ends(process)
        for one in following:  # something else has their pipes, or they cannot be killed
            one.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    def _name(self, rank: int) -> str:
        host = next((one.host for one in self._starts if rank in one.ranks), None)
        return f"rank {rank}" if host is None else f"{host} (rank {rank})"


async def _then(work: Coroutine[Any, Any, None], changed: asyncio.Event) -> None:
    try:
        await work
    finally:
        changed.set()


async def _started(start: Start, show: Show) -> "_Process":
    """Start a command. Raises HardwareError where there is no such program."""
    # srun outlives a driver that is killed, and so does mpirun; ssh ends by its closed pipes.
    command = list(start.command) if start.host else tethered(list(start.command), signal.SIGTERM)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise HardwareError(
            f"cannot start {start.command[0]}: {error.strerror}",
            "install it, or choose another one by --starter ssh, srun or mpirun",
        ) from error
    return _Process(start, process, show)


class _Process:
    """A command of a starter, with what it writes to stderr."""

    def __init__(self, start: Start, process: asyncio.subprocess.Process, show: Show) -> None:
        self.start = start
        self.has_started = False
        self._before = ""
        self._process = process
        self._show = show

    @property
    def lines_before(self) -> list[str]:
        """What it wrote before an agent had started: the last lines."""
        return self._before.splitlines()[-_LAST_LINES:]

    async def reports(self) -> AsyncIterator[tuple[int, int | None, bool]]:
        """Show what comes on stderr; yield the reports within: rank, exit code or None, has it begun."""
        assert self._process.stderr is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        while data := await self._process.stderr.read(_CHUNK_BYTES):
            texts, rest = _split(rest + decoder.decode(data))
            for text in texts:
                found = _REPORT.fullmatch(text.removeprefix(MARK)) if text.startswith(MARK) else None
                if found is None:
                    self._relay(text)
                    continue
                self._note_start()
                yield int(found[1]), None if found[2] is None else int(found[2]), found[3] == "1"
        self._relay(rest)

    def _note_start(self) -> None:
        if not self.has_started and self.start.host is not None:
            self._show("".join(f"{self.start.host}: {line}\n" for line in self.lines_before))
        self.has_started = True

    def _relay(self, text: str) -> None:
        if not self.has_started:
            self._before += text
            if self.start.host is not None:  # ssh's own words, which are shown with the host
                return
        if text:
            self._show(text)

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    def tell(self, number: int) -> None:
        """Pass a signal to rank 0."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(bytes((number,)))

    def release(self) -> None:
        """Close the tether."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.close()

    def terminate(self) -> None:
        """End the command itself."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kill the command itself."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


def _split(text: str) -> tuple[list[str], str]:
    """Return reports and the text between them, and a report that has not ended."""
    begun = text.rfind(MARK)
    if begun >= 0 and "\n" not in text[begun:]:
        return _MARK_OR_TEXT.findall(text[:begun]), text[begun:]
    return _MARK_OR_TEXT.findall(text), ""
