"""Rank 0's rendezvous server: the other hosts join, report events, and learn the end."""

import asyncio
import contextlib
import errno
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec

import gputopo
from gputopo.launch.hosts.addresses import Bindable, cannot_listen, places_to_listen
from gputopo.launch.hosts.allocation import JOIN_S
from gputopo.launch.hosts.channel import Channel, ChannelError
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.members import Member, Members
from gputopo.launch.hosts.messages import PATIENCE, HostTimeouts, Joining, Reply, Report, RunEnd
from gputopo.launch.supervise.sampling import EventQueue
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError
from gputopo.values.run.events import Event

# Connections that have not proved the secret, at most a quarter of the files that this process may have open;
# the oldest is ended for another one.
_MAX_STRANGERS = 256
_BACKLOG, _AT_ONCE = 128, 16  # connections that the kernel holds, and that are accepted at once
_ENDS = (ChannelError, EOFError, OSError, *schema.UNREADABLE)


class _Head(msgspec.Struct):
    """What must be readable of a host of any version."""

    rank: int
    name: str
    version: str


# Made here, in one thread: msgspec crashes where two threads are the first to decode a type (0.22).
_head_decoder = msgspec.json.Decoder(_Head)
_joining_decoder = msgspec.json.Decoder(Joining)
_report_decoder = msgspec.json.Decoder(Report)


class RendezvousServer:
    """The rendezvous of all hosts at a port of rank 0; a context manager, for rank 0's main thread.

    `events`: what the other hosts report, with their rank and times of rank 0's clock. A host that falls
    silent, or whose connection ends, is a RankFailed of its rank, once.

    Left before `end` was called, by an exception or not, it reports that to the other hosts.
    """

    def __init__(
        self,
        names: Sequence[str | None],
        port: int,
        secret: bytes,
        *,
        job: str | None = None,
        asked: Mapping[str, Any] | None = None,
        allow_public: bool = False,
        patience: HostTimeouts = PATIENCE,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Listen. `names`: of all ranks, None where not known; that of rank 0 is where it listens.

        `port`: 0 for a free one. `secret`: of the job: who does not prove it is not listened to. `job`: the
        starter's id of this job: hosts of another one are refused.
        `asked`: rank 0's options, as in `Joining.asked`. `allow_public`: rank 0 may listen on an address that
        can be reached from everywhere. `note`: prints a line. Raises UsageError for a name or port that
        cannot be listened on, HardwareError for a port that is in use.
        """
        self._name = names[0] or ""
        self._secret = secret
        self._patience = patience
        self._changed = threading.Condition()  # guards the members and the end
        self._end: RunEnd | None = None
        places = places_to_listen(self._name, allow_public=allow_public)
        self._listening = _listening(self._name, places, port)
        self.port = int(self._listening.getsockname()[1])
        self._members = Members(
            names,
            HostAddress(names[0], self.port),
            job=job,
            asked=asked or {},
            note=note,
        )
        self.events: EventQueue[Event] = EventQueue()
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._max_strangers = min(_MAX_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            if self._end is None:
                self.end(_end_by(error))
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self.events.close()

    # For rank 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Members]:
        with self._changed:
            yield self._members
            self._changed.notify_all()

    def wait(self, timeout_s: float = JOIN_S) -> dict[int, Joining]:
        """Wait until all other hosts have joined; return what they brought, by rank.

        Raises HardwareError (UsageError where one was refused), which names the hosts that are missing, after
        `timeout_s` seconds, or at once when there is no host left to wait for. Where a host reports why it
        cannot join, that is raised at once, with its kind and hint.
        """
        members = self._members
        with self._changed:
            self._changed.wait_for(members.is_decided, timeout_s)
            if members.unable is not None:
                raise members.unable
            if not members.missing():
                return {rank: member.joining for rank, member in sorted(members.joined.items())}
            if members.is_decided():
                raise members.absence("", "correct that, and start all hosts again")
            raise members.absence(
                f" within {timeout_s:g} s",
                f"start gputopo on all hosts at the same time; they must reach {self._name} port {self.port} "
                "(host name, firewall); --join-timeout waits longer",
            )

    def answer(self, replies: Mapping[int, Reply]) -> None:
        """Answer each host that `wait` returned. One that starts must not be lost from here on."""
        with self._locked() as members:
            for rank, reply in replies.items():
                members.joined[rank].answer(reply)

    def end(self, end: RunEnd) -> None:
        """Report the end of the run to all hosts, and wait until those that are there have heard it."""
        with self._locked() as members:
            self._end = end
            members.end(end)
        with self._changed:
            self._changed.wait_for(self._members.are_gone, self._patience.end_s)

    # In the server's thread

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listening, backlog=_AT_ONCE)
        self._listening.listen(_BACKLOG)  # the loop has told the kernel what it takes at once
        await self._over.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer, self._secret, leads=True)
        address = str((writer.get_extra_info("peername") or ("an address that is gone",))[0])
        self._strangers[writer] = None
        if len(self._strangers) > self._max_strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(self._patience.greeting_s):
                await channel.open()
            self._strangers.pop(writer, None)
            if await self._speak(channel, address):
                await self._over.wait()  # by its end the other host sees that of rank 0
        except _ENDS:
            if writer in self._strangers and channel.has_greeted:
                with self._locked() as members:
                    members.note_stranger(address, "it does not have the secret of this run")
        except asyncio.CancelledError:
            pass  # rank 0 ends
        finally:
            self._strangers.pop(writer, None)
            channel.close()

    async def _speak(self, channel: Channel, address: str) -> bool:
        """Speak with a host that has proved the secret, until it ends. Raises `_ENDS`.

        Return whether its connection is to outlast the run: not if it was refused, and the run continues.
        """
        member = self._join(
            await channel.take(), partial(self._loop.call_soon_threadsafe, channel.send), address
        )
        how = await channel.keep(self._patience, bytes, partial(self._take, member))
        with self._locked() as members:
            lost = [] if member is None else members.lose(member, how, channel.stopped_s)
            ends_run = bool(members.missing()) and members.is_decided()
        self._put(lost)
        return member is not None or ends_run

    def _join(self, body: bytes, send: Callable[[bytes], object], address: str) -> Member | None:
        head = _head_decoder.decode(body)
        with self._locked() as members:
            found: Member | RunEnd
            if head.version != gputopo.__version__:
                found = members.refuse_other_version(head.rank, head.name, head.version, address)
            else:
                found = members.join(_joining_decoder.decode(body), send, address)
        if isinstance(found, Member):
            return found
        send(schema.encode(found))
        return None

    def _take(self, member: Member | None, body: bytes) -> None:
        report = _report_decoder.decode(body)
        if member is not None:
            with self._locked() as members:
                taken = members.take(member, report, later_s=time.time() - report.sent_s)
            self._put(taken)

    def _put(self, events: Iterable[Event]) -> None:
        for event in events:
            self.events.put(event)


def _listening(name: str, places: Sequence[Bindable], port: int) -> socket.socket:
    """Listen at the first place that this host has. Where its port is in use, no other will do.

    A host that tries them in the same order would meet what has that port. Raises GputopoError.
    """
    refused: OSError | None = None
    for family, address in places:
        dual = family == socket.AF_INET6 and address == "::"
        try:
            return socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        except OSError as error:
            refused = refused or error
            if error.errno == errno.EADDRINUSE:
                break
    assert refused is not None, "a name has an address"
    raise cannot_listen(name, port, refused) from refused


def _end_by(error: BaseException | None) -> RunEnd:
    """Return what the other hosts are told when rank 0 ends by an exception, or without a word."""
    if isinstance(error, GputopoError):
        return RunEnd(exit_code=int(error.exit_code), cause=error.what, hint=error.hint)
    code: int = ExitCode.BUG if error else ExitCode.HARDWARE
    for kind, number in ((KeyboardInterrupt, signal.SIGINT), (BrokenPipeError, signal.SIGPIPE)):
        if isinstance(error, kind):
            code = 128 + number
    return RunEnd(exit_code=code, cause="rank 0 has ended", hint="see its output")
