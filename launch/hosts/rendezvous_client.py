"""The rendezvous client of a host of rank 1 or above: it connects to the server of rank 0."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import msgspec

from gputopo.launch.hosts.channel import LEFT, SILENT, Channel, ChannelError
from gputopo.launch.hosts.messages import (
    LAST_S,
    PATIENCE,
    HostEvent,
    HostStart,
    HostTimeouts,
    Joining,
    Reply,
    Report,
    RunEnd,
)
from gputopo.launch.hosts.options import JOIN_S
from gputopo.values import schema
from gputopo.values.errors import GputopoError, HardwareError, UsageError
from gputopo.values.run.events import RankFailed

_decoder: msgspec.json.Decoder[HostStart | RunEnd] = msgspec.json.Decoder(HostStart | RunEnd)


class LeaderGoneError(HardwareError):
    """Rank 0 has not answered for so long that it must have ended, or its connection has ended."""


class RendezvousClient:
    """The connection of this host to the server at `name` and `port` of rank 0, in its own thread.

    From `join` on, it reports that this host is up. `secret`: of the job; messages from an end that does not
    prove it are ignored. `end`: set once the run is over or rank 0 is gone. `ready`: a file descriptor that
    is readable from then on.
    """

    def __init__(
        self,
        name: str,
        port: int,
        secret: bytes,
        *,
        patience: HostTimeouts = PATIENCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: seconds since the epoch, by this host."""
        self.patience = patience
        self._clock = clock
        self.end: RunEnd | None = None
        self.ready = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._where = f"rank 0 at {name} port {port}"
        self._place = (name, port)
        self._secret = secret
        self._loop = asyncio.new_event_loop()
        self._channel: Channel | None = None
        self._new: list[HostEvent] = []
        self._reply: Future[Reply] = Future()
        self._thread = threading.Thread(target=self._run, name="reporting", daemon=True)

    def join(self, joining: Joining, timeout_s: float = JOIN_S) -> Reply:
        """Join, or report that this host cannot; return rank 0's reply once it has planned all hosts.

        Tries for `timeout_s` seconds to reach rank 0, which may start later than this host. Then waits as
        long as rank 0 sends heartbeats. A host that cannot join does not retry if rank 0's name cannot be
        resolved. Raises HardwareError if rank 0 cannot be reached, LeaderGoneError if it ends meanwhile, and
        UsageError if something else answers at its port.
        """
        self._joining, self._timeout_s = joining, timeout_s
        self._thread.start()
        return self._reply.result()

    def put(self, *events: HostEvent) -> None:
        """Report events within `every_s` seconds, and a failure immediately."""
        self._in_loop(self._put, events)

    def outlast(self, timeout_s: float = LAST_S) -> None:
        """Wait up to `timeout_s` seconds until rank 0 has ended.

        A host that ends with an error calls this, because mpirun and srun --kill-on-bad-exit then end all
        others before rank 0 has reported the cause.
        """
        self._thread.join(timeout_s)

    def _in_loop(self, work: Callable[..., object], *given: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work, *given)

    def _put(self, events: Iterable[HostEvent]) -> None:
        self._new += events
        if self._channel is not None and any(isinstance(event, RankFailed) for event in events):
            self._channel.hurry()

    # Methods that run in the client's thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._take_part())
        except GputopoError as error:
            self._over(RunEnd(exit_code=int(error.exit_code), cause=error.what, hint=error.hint), error)
        finally:  # also after an unexpected error: nobody may wait for the end for ever
            self._over(RunEnd(exit_code=3, cause=f"{self._where} has ended"))

    def _over(self, end: RunEnd, error: GputopoError | None = None) -> None:
        if self.end is None:
            self.end = end
            os.eventfd_write(self.ready, 1)
        if not self._reply.done():
            self._reply.set_result(end) if error is None else self._reply.set_exception(error)

    async def _take_part(self) -> None:
        """Join, and handle rank 0's messages until it ends. Raises GputopoError."""
        self._channel = channel = await self._connected()
        with contextlib.closing(channel):
            channel.send(schema.encode(self._joining))
            how = await channel.keep(self.patience, self._report, self._taken)
        if self.end is None:
            words = {SILENT: f"has not answered for {self.patience.silent_s:g} s", LEFT: "has ended"}
            what = f"{self._where} {words.get(how, how)}"
            if channel.stopped_s and how == LEFT:
                what = (
                    f"this host was silent: its gputopo was stopped for {channel.stopped_s:.0f} s, and {what}"
                )
            raise LeaderGoneError(what, "see the output of rank 0, and whether its host is up")

    def _taken(self, body: bytes) -> None:
        message = _decoder.decode(body)
        if isinstance(message, RunEnd):
            self._over(message)
            assert self._channel is not None
            self._channel.finish()
        elif not self._reply.done():
            self._reply.set_result(message)

    def _report(self) -> bytes | None:
        """Return the new events as a report, or None once the run is over."""
        if self.end is not None:
            return None
        events, self._new = tuple(self._new), []
        return schema.encode(Report(sent_s=self._clock(), events=events))

    async def _connected(self) -> Channel:
        """Connect, and let rank 0 prove the secret. Raises HardwareError, UsageError."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                connected = socket.create_connection(self._place, timeout=self.patience.greeting_s)
                channel = Channel(*(await asyncio.open_connection(sock=connected)), self._secret, leads=False)
                try:
                    async with asyncio.timeout(self.patience.greeting_s):
                        await channel.open()
                except BaseException:
                    channel.close()
                    raise
                return channel
            except ChannelError as error:
                raise UsageError(
                    f"{self._where} {error}",
                    "set GPUTOPO_SECRET to the same text on all hosts, or use another port on all of them",
                ) from error
            except (OSError, EOFError, UnicodeError) as error:  # a name too long for DNS
                is_unresolved = isinstance(error, socket.gaierror | UnicodeError)
                if time.monotonic() >= deadline_s or (is_unresolved and self._joining.unable is not None):
                    raise self._unreachable(error) from error
            await asyncio.sleep(self.patience.retry_s)

    def _unreachable(self, error: Exception) -> HardwareError:
        hint = "look for a firewall between the hosts, or use an address of rank 0 on another interface"
        if isinstance(error, socket.gaierror | UnicodeError):
            hint = "use the IP address of rank 0, or a name that this host can resolve"
        elif isinstance(error, ConnectionRefusedError):
            hint = "start rank 0 with the same port; its name has to resolve to the same address on all hosts"
        what = f"{self._where} did not answer within {self._timeout_s:g} s: {_reason(error)}"
        return HardwareError(what, hint)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, EOFError):
        return "the connection was closed"
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()
