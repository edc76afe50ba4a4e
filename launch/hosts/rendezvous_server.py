"""Rank 0's rendezvous server: the other hosts join, report events, and learn the end."""

import contextlib
import errno
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

import gputopo
from gputopo.launch.hosts.addresses import Bindable, cannot_listen, places_to_listen
from gputopo.launch.hosts.allocation import JOIN_S
from gputopo.launch.hosts.members import Member, Members
from gputopo.launch.hosts.messages import (
    PATIENCE,
    Alive,
    FromHost,
    Heard,
    HostTimeouts,
    Joining,
    Reply,
    Report,
    RunEnd,
    Unable,
)
from gputopo.launch.hosts.secret import Channel, ChannelError
from gputopo.launch.supervise.sampling import EventQueue
from gputopo.launch.user_program.steps import StepsReported
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError
from gputopo.values.run.events import Event

_PRESENT = 3  # intervals of silence after which a host is not waited for at the end
_MAX_CONNECTIONS = 256  # that have not proved the secret; the oldest is closed for another one
_CHUNK_BYTES = 256 * 1024


class _Head(msgspec.Struct):
    """What must be readable of a host of any version."""

    rank: int
    name: str
    version: str


# Made here, in one thread: msgspec crashes where two threads are the first to decode a type (0.22).
_head_decoder = msgspec.json.Decoder(_Head)
_decoder: msgspec.json.Decoder[FromHost] = msgspec.json.Decoder(FromHost)


class _Connection:
    """A connection, of a host or of whoever connects."""

    def __init__(self, connected: socket.socket, address: str, secret: bytes) -> None:
        self.socket = connected
        self.address = address
        self.channel = Channel(secret, leads=True)
        self.began_s = time.monotonic()
        self.member: Member | None = None
        self.is_refused = False  # it waits for the end of rank 0
        self.events = selectors.EVENT_READ  # that are waited for


class RendezvousServer:
    """The rendezvous of all hosts at a port of rank 0; a context manager, for rank 0's main thread.

    `events`: what the other hosts report, with their rank and times of rank 0's clock. A host that falls
    silent, or whose connection ends, is a RankFailed of its rank, once. `steps`: what their programs report.

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
        self.decided_s = patience.silent_s + patience.every_s  # after which a host that is gone is lost
        self._members = Members(names, job=job, asked=asked or {}, patience=patience, note=note)
        self._changed = threading.Condition()  # guards the members, their connections and the end
        self._end: RunEnd | None = None
        self._is_closed = False
        self._connections: dict[socket.socket, _Connection] = {}
        self._listening = _listening(
            self._name, places_to_listen(self._name, allow_public=allow_public), port
        )
        self.port = int(self._listening.getsockname()[1])
        self.events: EventQueue[Event] = EventQueue()
        self.steps: EventQueue[StepsReported] = EventQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        for source in (self._listening, self._wake):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)

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
            with self._changed:
                self._is_closed = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            for one in (*self._connections, self._listening):
                one.close()
            self._selector.close()
            os.close(self._wake)
            self.events.close()
            self.steps.close()

    # For rank 0

    @contextlib.contextmanager
    def members(self) -> Iterator[Members]:
        """Lock the other hosts while in the context; they get what is for them after it."""
        with self._changed:
            yield self._members
            self._changed.notify_all()
        os.eventfd_write(self._wake, 1)

    def wait(self, timeout_s: float = JOIN_S) -> dict[int, Joining]:
        """Wait until all other hosts have joined; return what they brought, by rank.

        Raises HardwareError (UsageError where one was refused), which names the hosts that are missing, after
        `timeout_s` seconds, or at once when there is no host left to wait for. Where a host reports why it
        cannot join, that is raised at once, with its kind and hint.
        """
        members = self._members
        with self._changed:
            self._changed.wait_for(lambda: members.is_decided() or members.unable is not None, timeout_s)
            if members.unable is not None:
                raise members.unable.error
            if not members.missing():
                return {rank: member.joining for rank, member in sorted(members.joined.items())}
            if members.is_decided():
                kind = UsageError if members.are_refused() else HardwareError
                raise kind(members.absence(""), "correct that, and start all hosts again")
            # A host with another secret, or number of hosts, ends by exit code 2.
            raise (UsageError if members.strangers else HardwareError)(
                members.absence(f" within {timeout_s:g} s"),
                f"start gputopo on all hosts at the same time; they must reach {self._name} port {self.port} "
                "(host name, firewall); --join-timeout waits longer",
            )

    def answer(self, replies: Mapping[int, Reply]) -> None:
        """Answer each host that `wait` returned. One that starts must not be lost from here on."""
        with self.members() as members:
            for rank, reply in replies.items():
                members.joined[rank].answer(reply)

    def quiet(self, seconds: float) -> frozenset[int]:
        """Return the ranks that were started, are not known to have failed, and were silent for so long."""
        with self._changed:
            return frozenset(
                rank
                for rank, one in self._members.joined.items()
                if one.start is not None and one.failure is None and one.silence.seconds >= seconds
            )

    def end(self, end: RunEnd) -> None:
        """Report the end of the run to all hosts, and wait until those that are there have heard it."""
        gone_s = _PRESENT * self._patience.every_s

        def all_told() -> bool:
            joined = self._members.joined.values()
            return all(one.has_last or one.is_gone or one.silence.seconds >= gone_s for one in joined)

        with self.members() as members:
            self._end = end
            members.end(end)
        with self._changed:
            self._changed.wait_for(all_told, self._patience.end_s)

    # In the server's thread

    def _serve(self) -> None:
        looked_s = 0.0
        while not self._is_closed:
            ready = self._selector.select(self._patience.look_s)
            with self._changed:
                for key, _ in ready:
                    if key.fileobj is self._listening:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._receive(self._connections.get(key.fileobj))
                    else:
                        with contextlib.suppress(BlockingIOError):
                            os.eventfd_read(self._wake)
                if (now_s := time.monotonic()) - looked_s >= self._patience.look_s:
                    looked_s = now_s
                    self._look(now_s)
                for one in list(self._connections.values()):
                    self._send(one)
                self._changed.notify_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # no more, one that is gone already, too many open files
            while True:
                connected, address = self._listening.accept()
                connected.setblocking(False)
                self._connections[connected] = _Connection(connected, str(address[0]), self._secret)
                self._selector.register(connected, selectors.EVENT_READ)
                if len(self._connections) > _MAX_CONNECTIONS + len(self._members.joined):
                    strange = (one for one in self._connections.values() if not one.channel.is_open)
                    if (oldest := next(strange, None)) is not None:
                        self._close(oldest)

    def _receive(self, one: _Connection | None) -> None:
        if one is None:  # closed since
            return
        try:
            data = one.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(one)
            return
        try:
            for message in one.channel.take(data):
                self._take(one, message)
        except (ChannelError, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
            self._close(one)

    def _send(self, one: _Connection) -> None:
        if one.member is not None:
            for message in one.member.outbox:
                one.channel.put(schema.encode(message))
            one.member.outbox.clear()
        out = one.channel.out
        try:
            while out:
                del out[: one.socket.send(out[:_CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._close(one)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0)
        if events != one.events:
            one.events = events
            self._selector.modify(one.socket, events)

    def _close(self, one: _Connection) -> None:
        if self._connections.pop(one.socket, None) is None:
            return
        self._selector.unregister(one.socket)
        one.socket.close()
        if one.member is not None:
            one.member.is_gone = True
            self._look(time.monotonic())
        elif one.channel.has_greeted and not one.channel.is_open:
            self._members.note_secret(one.address)

    def _look(self, now_s: float) -> None:
        """Look for hosts that are lost, and for connections that take too long to prove the secret."""
        self.events.put(*self._members.look(now_s, time.time()))
        for one in list(self._connections.values()):
            if not one.channel.is_open and now_s - one.began_s > self._patience.greeting_s:
                self._close(one)

    def _take(self, one: _Connection, body: bytes) -> None:
        """Take a message of a host that has proved the secret. Raises what msgspec does."""
        if one.member is None:
            if not one.is_refused:
                self._join(one, body)
            return
        message, member = _decoder.decode(body), one.member
        member.silence.heard(time.monotonic())
        if isinstance(message, Heard):
            member.has_last = True
        elif isinstance(message, Report):
            member.serves = message.serves
            later_s = time.time() - message.sent_s
            taken = self._members.take(member.joining.rank, message.events, later_s=later_s)
            # Steps first: an end of the program among the events is after them.
            self.steps.put(*(event for event in taken if isinstance(event, StepsReported)))
            self.events.put(*(event for event in taken if not isinstance(event, StepsReported)))
            member.outbox.append(Alive())

    def _join(self, one: _Connection, body: bytes) -> None:
        head = _head_decoder.decode(body)
        one.is_refused = True
        if head.version != gputopo.__version__:
            refused = self._members.refuse_other_version(head.rank, head.name, head.version)
        else:
            message = _decoder.decode(body)
            if isinstance(message, Unable):
                self._members.cannot_join(message)
            if not isinstance(message, Joining):
                return
            found = self._members.join(message, time.monotonic())
            if isinstance(found, Member):
                one.member = found
                return
            refused = found
        one.channel.put(schema.encode(refused))


def _listening(name: str, places: Sequence[Bindable], port: int) -> socket.socket:
    """Listen at the first place that this host has. Where its port is in use, no other will do.

    A host that tries them in the same order would meet what has that port. Raises GputopoError.
    """
    refused: OSError | None = None
    for family, address in places:
        dual = family == socket.AF_INET6 and address == "::"
        try:
            # All hosts of a large allocation come at once.
            found = socket.create_server((address, port), family=family, backlog=1024, dualstack_ipv6=dual)
            found.setblocking(False)
            return found
        except OSError as error:
            refused = refused or error
            if error.errno == errno.EADDRINUSE:
                raise cannot_listen(name, port, error) from error
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
