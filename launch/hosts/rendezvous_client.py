"""The rendezvous client of a host of rank 1 or above: its launcher's connection to rank 0's."""

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

import msgspec

from gputopo.launch.hosts.allocation import JOIN_S
from gputopo.launch.hosts.messages import (
    EXCUSE_S,
    LAST_S,
    PATIENCE,
    Alive,
    FromHost,
    FromLeader,
    Heard,
    HostEvent,
    HostStart,
    HostTimeouts,
    Joining,
    Refused,
    Reply,
    Report,
    RunEnd,
    Silence,
    Unable,
    Unused,
)
from gputopo.launch.hosts.secret import Channel, ChannelError
from gputopo.values import schema
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.events import RankFailed, RunFinished

wall_s = time.time
_CHUNK_BYTES = 256 * 1024
_decoder: msgspec.json.Decoder[FromLeader] = msgspec.json.Decoder(FromLeader)


class LeaderGoneError(HardwareError):
    """Rank 0 has not answered for so long that it must have ended, or its connection has ended."""


class RendezvousClient:
    """The connection of the host `rank` to the server at `name` and `port` of rank 0.

    `secret`: of the job: nothing is taken from who does not prove it. `serves`: number of the Start by which
    this host's server runs.
    """

    _socket: socket.socket | None = None

    def __init__(
        self, rank: int, name: str, port: int, secret: bytes, *, patience: HostTimeouts = PATIENCE
    ) -> None:
        self.patience = patience
        self.serves = 0
        self._where = f"rank 0 at {name} port {port}"
        self._place = (name, port)
        self._secret = secret
        self._silence = Silence(time.monotonic(), expected_s=2 * patience.every_s)
        self._next_s = 0.0  # when the next report is due, of a monotonic clock
        self.unanswered = 0  # reports

    def join(self, joining: Joining, timeout_s: float = JOIN_S) -> Reply:
        """Join, and return rank 0's reply once it has planned all hosts.

        Tries for `timeout_s` seconds to reach rank 0, which may start later than this host; then waits as
        long as rank 0 answers. Raises HardwareError if it cannot be reached, LeaderGoneError if it ends
        meanwhile, UsageError if something else answers at its port.
        """
        self._connect(timeout_s)
        self._send(joining)
        for message in self._listen():
            if isinstance(message, HostStart | Unused | Refused):
                return message
        raise AssertionError("it listens for ever")

    def excuse(self, unable: Unable, timeout_s: float = EXCUSE_S) -> bool:
        """Report that this host cannot join, and let rank 0 end first (see `outlast`); whether it was there.

        Tries for `timeout_s` seconds to reach rank 0, which may start later; in vain where it has no address.
        """
        try:
            self._connect(timeout_s, may_be_named_later=False)
            self._send(unable)
        except (HardwareError, UsageError):
            return False
        self.outlast()
        return True

    def tell(self, events: Iterable[HostEvent] = ()) -> None:
        """Report events, and that this host is there. Raises LeaderGoneError."""
        self._send(Report(sent_s=wall_s(), serves=self.serves, events=tuple(events)))
        self.unanswered += 1
        self._next_s = time.monotonic() + self.patience.every_s

    def take(self, timeout_s: float) -> Iterator[FromLeader]:
        """Yield what rank 0 has sent, once there is something or the time is over.

        Raises LeaderGoneError after `silent_s` seconds without a message, or at the end of the connection.
        """
        assert self._socket is not None, "it is connected"
        if not select.select([self._socket], [], [], timeout_s)[0]:
            if self._silence.look(time.monotonic()) >= self.patience.silent_s:
                raise self._gone(f"has not answered for {self.patience.silent_s:g} s")
            return
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except OSError as error:
            raise self._gone(f"has ended: {_reason(error)}") from error
        if not data:
            raise self._gone("has ended")
        self._silence.heard(time.monotonic())
        try:
            for body in self._channel.take(data):
                message = _decoder.decode(body)
                self.unanswered -= isinstance(message, Alive)
                if isinstance(message, RunEnd | Unused | Refused):
                    with contextlib.suppress(LeaderGoneError):
                        self._send(Heard())
                yield message
        except ChannelError as error:
            raise self._gone(f"is not to be trusted: {error}") from error

    def settle(self) -> None:
        """Wait until rank 0 has answered what was reported. Raises LeaderGoneError."""
        for _ in self._listen(time.monotonic() + self.patience.silent_s):
            if self.unanswered <= 0:
                return

    def outlast(self, timeout_s: float = LAST_S) -> None:
        """Wait until rank 0 has ended, at most so long, unless it is gone already.

        For a host that ends by an error: mpirun, and srun --kill-on-bad-exit, end all others then, and rank 0
        has not reported why.
        """
        with contextlib.suppress(LeaderGoneError):
            for _ in self._listen(time.monotonic() + timeout_s):
                pass

    def _listen(self, until_s: float = math.inf) -> Iterator[FromLeader]:
        """Yield what rank 0 sends, and report each second that this host is there. Raises LeaderGoneError."""
        while self._socket is not None and (now_s := time.monotonic()) < until_s:
            if now_s >= self._next_s:
                self.tell()
            yield from self.take(min(self._next_s, until_s) - now_s)

    def fileno(self) -> int:
        """Return the file descriptor of the connection."""
        assert self._socket is not None, "it is connected"
        return self._socket.fileno()

    def _connect(self, timeout_s: float, *, may_be_named_later: bool = True) -> None:
        """Connect, and have rank 0 prove the secret. Raises HardwareError, UsageError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self._greet()
                return
            except ChannelError as error:
                raise UsageError(
                    f"{self._where}: {error}",
                    "set GPUTOPO_SECRET to the same text on all hosts, or name another port on all of them",
                ) from error
            except (OSError, UnicodeError) as error:  # a name too long for DNS is a UnicodeError
                over = time.monotonic() >= deadline_s
                if over or (_is_unresolved(error) and not may_be_named_later):
                    raise self._unreachable(error, timeout_s) from error
            time.sleep(self.patience.retry_s)

    def _greet(self) -> None:
        """Raises OSError, ChannelError."""
        channel = Channel(self._secret, leads=False)
        connected = socket.create_connection(self._place, timeout=self.patience.greeting_s)
        try:
            deadline_s = time.monotonic() + self.patience.greeting_s
            while True:
                connected.sendall(channel.out)
                channel.out.clear()
                if channel.is_open:
                    break
                connected.settimeout(max(0.01, deadline_s - time.monotonic()))
                data = connected.recv(_CHUNK_BYTES)
                if not data:
                    raise ConnectionResetError("the connection was closed")
                for _ in channel.take(data):
                    pass
        except BaseException:
            connected.close()
            raise
        connected.settimeout(self.patience.silent_s)
        self._socket, self._channel = connected, channel
        self._silence.heard(time.monotonic())

    def _send(self, message: FromHost) -> None:
        assert self._socket is not None, "it is connected"
        self._channel.put(schema.encode(message))
        try:
            self._socket.sendall(self._channel.out)
        except OSError as error:
            raise self._gone(f"has ended: {_reason(error)}") from error
        self._channel.out.clear()

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    __del__ = close

    def _gone(self, what: str) -> LeaderGoneError:
        self.close()
        return LeaderGoneError(
            f"{self._where} {what}", "see the output of rank 0, and whether its host is up"
        )

    def _unreachable(self, error: Exception, timeout_s: float) -> HardwareError:
        what = f"{self._where} did not answer within {timeout_s:g} s: {_reason(error)}"
        if _is_unresolved(error):
            return HardwareError(
                what, "name rank 0 by its IP address, or by a name that this host can resolve"
            )
        if isinstance(error, ConnectionRefusedError):
            hint = "start rank 0 too, with the same port; its name must mean the same address on all hosts"
            return HardwareError(what, hint)
        return HardwareError(
            what, "look for a firewall between the hosts, or name rank 0 by an address on another interface"
        )


class Reporting:
    """Reports events from a thread of its own, and that this host is there; a context manager.

    `also`: returns what else is to be reported, before what was put; it is asked each time. `ready`: a file
    descriptor that is readable once `end` is set: the run is over, or rank 0 is gone; and once `start` is:
    this host's server is to be started anew by that. When the context is left, what was put before has been
    sent, if rank 0 answers.
    """

    def __init__(self, client: RendezvousClient, also: Callable[[], Iterable[HostEvent]] = tuple) -> None:
        self.end: RunEnd | None = None
        self.start: HostStart | None = None
        self.ready = os.eventfd(0)
        self._client = client
        self._also = also
        self._urgent = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._new: list[HostEvent] = []
        self._is_left = False
        self._thread = threading.Thread(target=self._tell, name="reporting", daemon=True)

    def put(self, *events: HostEvent) -> None:
        """Report events within `every_s` seconds, a failure or an end at once."""
        with self._lock:
            self._new.extend(events)
        if any(isinstance(one, RankFailed | RunFinished) for one in events):
            os.eventfd_write(self._urgent, 1)

    def serves(self, number: int) -> None:
        """Report at once that this host's server runs by the Start of that number."""
        self._client.serves = number
        os.eventfd_write(self._urgent, 1)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_left = True
        os.eventfd_write(self._urgent, 1)
        self._thread.join(2 * self._client.patience.silent_s)  # that under way, and the last
        if not self._thread.is_alive():
            os.close(self.ready)
            os.close(self._urgent)

    def _tell(self) -> None:
        try:
            self._tell_until_the_end()
        except LeaderGoneError as gone:
            self.end = RunEnd(exit_code=int(gone.exit_code), cause=gone.what, hint=gone.hint)
        finally:  # also where that fails: who waits for the end must not wait for ever
            os.eventfd_write(self.ready, 1)

    def _tell_until_the_end(self) -> None:
        client, every_s = self._client, self._client.patience.every_s
        next_s, is_left = 0.0, False
        while self.end is None:
            left_s = max(0.0, next_s - time.monotonic())
            came = select.select([client.fileno(), self._urgent], [], [], left_s)[0]
            if self._urgent in came or not came:
                is_left = self._is_left
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._urgent)
                with self._lock:
                    new, self._new = self._new, []
                client.tell([*self._also(), *new])
                next_s = time.monotonic() + every_s
            for message in client.take(0.0):
                if isinstance(message, RunEnd):
                    self.end = message
                elif isinstance(message, HostStart):
                    self.start = message
                    os.eventfd_write(self.ready, 1)
            if is_left and client.unanswered <= 0:
                return


def _is_unresolved(error: Exception) -> bool:
    return isinstance(error, socket.gaierror | UnicodeError)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()
