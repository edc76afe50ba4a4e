"""A connection between two hosts of a job, which exchange signed messages and heartbeats."""

import asyncio
import contextlib
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable

from gputopo.launch.hosts.messages import HostTimeouts
from gputopo.values import schema

MAGIC = b"gputopo hosts 2\n"
MAX_BYTES = 64 * 1024 * 1024  # of a message; the machine of a host with 16 GPUs takes less than 1 MiB
_MAC = hashlib.sha256().digest_size  # bytes, also of a nonce


SILENT, LEFT = "no longer answers", "closed the connection"  # how the connection to the other end was lost
_LOOKS_LATE = 4  # on a busy host, silence checks may be up to this many times further apart than planned
_STOPPED_S = 2.0  # how long after a stop of this process `stopped_s` reports the stop; not measured


class ChannelError(Exception):
    """The other end does not speak this protocol or does not have the secret, or a message was changed."""


class Channel:
    """One end of a connection between rank 0 and another host; both sign messages with the job's secret.

    Both ends send a nonce, rank 0 (`leads`) proves the secret first. Then each message has a MAC by a key of
    the secret and both nonces, over its direction and number: it counts once, here, and in its order.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, *, leads: bool
    ) -> None:
        self.has_greeted = False  # the other end has sent the greeting of a gputopo run
        self._reader, self._writer = reader, writer
        self._secret, self._leads = secret, leads
        self._key = b""
        self._sent = self._taken = 0
        self._urgent = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._silent_s = 0.0
        self._looked_s = time.monotonic()
        self._stopped = 0.0, 0.0  # how long this process was stopped; until when to report it

    async def open(self) -> None:
        """Prove the secret, and check the other end's proof. Raises ChannelError, EOFError, OSError."""
        nonce = secrets.token_bytes(_MAC)
        if not self._leads:
            self._writer.write(MAGIC + nonce)
        for expected in MAGIC:  # byte by byte: another program may send fewer bytes, and wait
            if await self._reader.readexactly(1) != bytes((expected,)):
                raise ChannelError("is not a gputopo run")
        other_nonce = await self._reader.readexactly(_MAC)
        self.has_greeted = True
        key = hmac.digest(self._secret, other_nonce + nonce if self._leads else nonce + other_nonce, "sha256")
        proofs = [hmac.digest(key, end, "sha256") for end in (b"host", b"rank 0")]
        if self._leads:
            self._writer.write(MAGIC + nonce + proofs[1])
        if not hmac.compare_digest(await self._reader.readexactly(_MAC), proofs[not self._leads]):
            raise ChannelError("has a different secret")
        if not self._leads:
            self._writer.write(proofs[0])
        self._key = key

    def send(self, message: bytes = b"") -> None:
        """Send a message; an empty message is a heartbeat. `open` must have succeeded before."""
        assert self._key, "the other end has proved the secret"
        if not self._writer.is_closing():
            mac = self._mac(message, self._sent, from_leader=self._leads)
            self._writer.write(len(message).to_bytes(4) + mac + message)
            self._sent += 1

    async def take(self) -> bytes:
        """Return the next message. Raises ChannelError, OSError, and EOFError if the connection is closed."""
        assert self._key, "the other end has proved the secret"
        head = await self._reader.readexactly(4 + _MAC)
        if (size := int.from_bytes(head[:4])) > MAX_BYTES:
            raise ChannelError("a message is too long")
        message = await self._reader.readexactly(size)
        if not hmac.compare_digest(head[4:], self._mac(message, self._taken, from_leader=not self._leads)):
            raise ChannelError("a message was modified in transit")
        self._taken += 1
        return message

    async def keep(
        self, patience: HostTimeouts, beat: Callable[[], bytes | None], take: Callable[[bytes], object]
    ) -> str:
        """Pass messages to `take` until the other end closes or is silent; return which, in words.

        Until `close`, send `beat()` every `every_s` seconds, and at once after `hurry`; None: nothing.
        """
        self._looked_s = time.monotonic()
        self._beating = asyncio.create_task(self._beat(patience, beat))
        try:
            while True:
                message = await self.take()
                self._silent_s = 0.0
                if message:
                    take(message)
        except (ChannelError, *schema.UNREADABLE) as error:
            how = f"sent an invalid message: {error}"
        except (EOFError, OSError):
            how = LEFT
        self._look(patience)
        how = SILENT if self._silent_s >= patience.silent_s else how
        self._silent_s = -math.inf  # the other end sends no more, but can still be sent the end of the run
        return how

    def hurry(self) -> None:
        """Send the next `beat()` immediately."""
        self._urgent.set()

    @property
    def stopped_s(self) -> float:
        """The seconds for which this process was stopped, or 0 if it did not continue just now."""
        return self._stopped[0] if time.monotonic() < self._stopped[1] else 0.0

    async def _beat(self, patience: HostTimeouts, beat: Callable[[], bytes | None]) -> None:
        while self._silent_s < patience.silent_s:
            message = beat()
            if message is not None:
                self.send(message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience.every_s):
                    await self._urgent.wait()
            self._urgent.clear()
            self._look(patience)
        self._writer.transport.abort()

    def _look(self, patience: HostTimeouts) -> None:
        now_s = time.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        # The other end counts silence from its check before the last heartbeat, which is up to two checks
        # earlier.
        if passed_s >= patience.silent_s - 2 * patience.every_s:
            self._stopped = passed_s, now_s + _STOPPED_S
        # The other end was not silent while this process was stopped, for example by a batch system.
        self._silent_s += min(passed_s, _LOOKS_LATE * patience.every_s)

    def finish(self) -> None:
        """Send no more; the other end sees the end of the stream."""
        with contextlib.suppress(OSError):  # the connection has ended
            self._writer.write_eof()

    def close(self) -> None:
        """End the connection."""
        if self._beating is not None:
            self._beating.cancel()
        self._writer.close()

    def _mac(self, message: bytes, number: int, *, from_leader: bool) -> bytes:
        head = bytes((from_leader,)) + number.to_bytes(8)
        return hmac.digest(self._key, head + message, "sha256")
