"""Starts the agents of all hosts, is their terminal, and ends with them.

What rank 0 writes to stdout is the driver's; their stderr and their reports come by a pipe. Every command has
a session of its own: a Ctrl-C comes to the driver alone, which tells rank 0.
"""

import asyncio
import codecs
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from gputopo.launch.drive.agent import LEADER_S, MARK, OTHER_S
from gputopo.launch.drive.commands import Start, not_started
from gputopo.launch.drive.course import Course
from gputopo.launch.supervise.process import signals
from gputopo.probes.processes import tethered
from gputopo.values.errors import ExitCode, HardwareError

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
        patience = OTHER_S if self._course.has_ended(0) else LEADER_S
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
