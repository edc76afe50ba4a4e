"""The secret of a job, by which its hosts know one another, and the messages that it signs.

The secret is the variable GPUTOPO_SECRET, which a driver sets for the hosts that it starts by ssh, else a
file of the user (mode 600), made where there is none: hosts with one home folder share it.
"""

import asyncio
import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import MutableMapping
from pathlib import Path

from gputopo.launch.remote_agent import SECRET
from gputopo.values.errors import HardwareError, UsageError

MIN_CHARACTERS = 16
INSECURE = b"gputopo run --insecure"  # a secret that everybody knows
_HINT = "set GPUTOPO_SECRET to the same 16 characters or more on all hosts, or trust the network: --insecure"


def take_secret(environ: MutableMapping[str, str], home: Path, *, insecure: bool = False) -> bytes:
    """Return the secret of this job, and remove it from the environment: no child needs it.

    `home`: the folder of the file. Raises UsageError, HardwareError where there can be none.
    """
    given = environ.pop(SECRET, "")
    if insecure:
        return INSECURE
    if given and len(given) < MIN_CHARACTERS:
        raise UsageError(f"{SECRET} has {len(given)} characters", f"give it {MIN_CHARACTERS} or more")
    return given.encode() if given else _of_file(home / "secret")


def _of_file(path: Path) -> bytes:
    try:
        if not os.path.lexists(path):
            _make(path)
        # Not the end of a link, and not a pipe, which would be waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            found = file.read(1024)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _no_secret(path, "is a symbolic link") from error
        raise HardwareError(f"no secret for the hosts: {path}: {error.strerror}", _HINT) from error
    if about.st_uid != os.geteuid():
        raise _no_secret(path, f"belongs to user {about.st_uid}")
    if (mode := stat.S_IMODE(about.st_mode)) & 0o077:
        raise _no_secret(path, f"has mode {mode:o}")
    if len(found) < MIN_CHARACTERS:
        raise _no_secret(path, f"has {len(found)} bytes")
    return found


def _no_secret(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} cannot be the secret of the hosts: it {why}",
        f"it must be a file of this user, of mode 600, with {MIN_CHARACTERS} bytes or more; "
        "without it the next run makes one",
    )


def _make(path: Path) -> None:
    """Make the file, whole, unless another host is quicker. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
    finally:
        own.unlink()


MAGIC = b"gputopo hosts 2\n"
MAX_BYTES = 64 * 1024 * 1024  # of a message; the machine of a host with 16 GPUs is below 1 MiB
_MAC = hashlib.sha256().digest_size  # bytes, of a nonce too


class ChannelError(Exception):
    """The other end does not speak this protocol, does not have the secret, or a message was changed."""


class Channel:
    """A connection with another host: messages that both sign by the secret of the job.

    Both ends send a nonce, rank 0 (`leads`) proves the secret first. Then each message has a MAC by a key of
    the secret and both nonces, over its direction and number: it counts once, here, and in its order.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, *, leads: bool
    ) -> None:
        self.has_greeted = False  # the other end has begun as one of ours
        self._reader, self._writer = reader, writer
        self._secret, self._leads = secret, leads
        self._key = b""
        self._sent = self._taken = 0

    async def open(self) -> None:
        """Prove the secret, and have it proved. Raises ChannelError, EOFError, OSError."""
        own = secrets.token_bytes(_MAC)
        if not self._leads:
            self._writer.write(MAGIC + own)
        for expected in MAGIC:  # byte by byte: another program may send fewer, and wait
            if await self._reader.readexactly(1) != bytes((expected,)):
                raise ChannelError("is not a gputopo run")
        other = await self._reader.readexactly(_MAC)
        self.has_greeted = True
        key = hmac.digest(self._secret, other + own if self._leads else own + other, "sha256")
        proofs = [hmac.digest(key, end, "sha256") for end in (b"host", b"rank 0")]
        if self._leads:
            self._writer.write(MAGIC + own + proofs[1])
        if not hmac.compare_digest(await self._reader.readexactly(_MAC), proofs[not self._leads]):
            raise ChannelError("has another secret")
        if not self._leads:
            self._writer.write(proofs[0])
        self._key = key

    def send(self, message: bytes = b"") -> None:
        """Send a message; an empty one is a sign of life. The channel is open, or has ended."""
        assert self._key, "the other end has proved the secret"
        if not self._writer.is_closing():
            mac = self._mac(message, self._sent, from_leader=self._leads)
            self._writer.write(len(message).to_bytes(4) + mac + message)
            self._sent += 1

    async def take(self) -> bytes:
        """Return the next message. Raises ChannelError, EOFError at the end, OSError."""
        assert self._key, "the other end has proved the secret"
        head = await self._reader.readexactly(4 + _MAC)
        if (size := int.from_bytes(head[:4])) > MAX_BYTES:
            raise ChannelError("a message is too long")
        message = await self._reader.readexactly(size)
        if not hmac.compare_digest(head[4:], self._mac(message, self._taken, from_leader=not self._leads)):
            raise ChannelError("a message was changed on its way")
        self._taken += 1
        return message

    def finish(self) -> None:
        """Send no more; the other end learns that by the end of what it takes."""
        with contextlib.suppress(OSError):  # it has ended
            self._writer.write_eof()

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    def _mac(self, message: bytes, number: int, *, from_leader: bool) -> bytes:
        head = bytes((from_leader,)) + number.to_bytes(8)
        return hmac.digest(self._key, head + message, "sha256")
