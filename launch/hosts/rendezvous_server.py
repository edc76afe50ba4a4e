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
from gputopo.launch.hosts.channel import Channel, ChannelError
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.members import Member, Members
from gputopo.launch.hosts.messages import PATIENCE, HostTimeouts, Joining, Reply, Report, RunEnd
from gputopo.launch.hosts.options import JOIN_S
from gputopo.launch.supervise import EventQueue
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError
from gputopo.values.run.events import Event

# Limit of connections that have not proved the secret, but no more than a quarter of the files that this
# process may have open. A new connection ends the oldest one.
_MAX_STRANGERS = 256
_BACKLOG, _AT_ONCE = 128, 16  # connections that the kernel queues, and connections accepted in one call
_ENDS = (ChannelError, EOFError, OSError, *schema.UNREADABLE)


class _Head(msgspec.Struct):
    """The fields of a joining message that every version can read."""

    rank: int
    name: str
    version: str


# Made at import, in one thread: msgspec crashes if two threads are the first to decode a type (0.22).
_head_decoder = msgspec.json.Decoder(_Head)
_joining_decoder = msgspec.json.Decoder(Joining)
_report_decoder = msgspec.json.Decoder(Report)


class RendezvousServer:
    """The rendezvous of all hosts at a port of rank 0; a context manager, for rank 0's main thread.

    `events`: the other hosts' reports, with their rank and with times of rank 0's clock. If a host falls
    silent or its connection ends, there is one RankFailed for its rank.

    If the context ends before `end` was called, with or without an exception, the other hosts are told so.
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
        """Listen. `names`: of all ranks, None if not known; rank 0 listens at its own name.

        `port`: 0 for a free port. `secret`: of the job; messages from hosts that do not prove it are ignored.
        `job`: the starter's id of this job; hosts of another job are refused. `asked`: rank 0's options, as
        in `Joining.asked`. `allow_public`: rank 0 may listen on a public address. `note`: prints a line.
        Raises UsageError for a name or port that it cannot listen on, and HardwareError for a port that is in
        use.
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

    # Methods for rank 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Members]:
        with self._changed:
            yield self._members
            self._changed.notify_all()

    def wait(self, timeout_s: float = JOIN_S) -> dict[int, Joining]:
        """Wait until all other hosts have joined; return their joining messages, by rank.

        Raises HardwareError, or UsageError if a host was refused, with the missing hosts: after `timeout_s`
        seconds, or as soon as no more hosts can come. If a host reports why it cannot join, its error is
        raised immediately, with its kind and hint.
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
        """Reply to each host that `wait` returned. From then on, the loss of a started host is a failure."""
        with self._locked() as members:
            for rank, reply in replies.items():
                members.joined[rank].answer(reply)

    def end(self, end: RunEnd) -> None:
        """Tell all hosts that the run is over, and wait until the connected hosts have heard it."""
        with self._locked() as members:
            self._end = end
            members.end(end)
        with self._changed:
            self._changed.wait_for(self._members.are_gone, self._patience.end_s)

    # Methods that run in the server's thread

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listening, backlog=_AT_ONCE)
        self._listening.listen(_BACKLOG)  # start_server has set the kernel's queue to _AT_ONCE
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
                await self._over.wait()  # closing the connection tells the other host that rank 0 ended
        except _ENDS:
            if writer in self._strangers and channel.has_greeted:
                with self._locked() as members:
                    members.note_stranger(address, "it does not have the secret of this run")
        except asyncio.CancelledError:
            pass  # rank 0 is ending
        finally:
            self._strangers.pop(writer, None)
            channel.close()

    async def _speak(self, channel: Channel, address: str) -> bool:
        """Serve a host that has proved the secret, until it ends. Raises `_ENDS`.

        Return whether its connection stays open until the run is over. It does not if the host was refused
        and the run continues.
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
            answer: Member | RunEnd
            if head.version != gputopo.__version__:
                answer = members.refuse_other_version(head.rank, head.name, head.version, address)
            else:
                answer = members.join(_joining_decoder.decode(body), send, address)
        if isinstance(answer, Member):
            return answer
        send(schema.encode(answer))
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
    """Listen at the first address that this host has. If its port is in use, no other address is tried.

    A host that tries the addresses in the same order would connect to the program that uses the port. Raises
    GputopoError.
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
    """Return what the other hosts are told if rank 0 ends with an exception, or without calling `end`."""
    if isinstance(error, GputopoError):
        return RunEnd(exit_code=int(error.exit_code), cause=error.what, hint=error.hint)
    code: int = ExitCode.BUG if error else ExitCode.HARDWARE
    for kind, number in ((KeyboardInterrupt, signal.SIGINT), (BrokenPipeError, signal.SIGPIPE)):
        if isinstance(error, kind):
            code = 128 + number
    return RunEnd(exit_code=code, cause="rank 0 has ended", hint="see its output")
