"""The secret of a job, by which its hosts know one another, and the messages that it signs.

The secret is the variable GPUTOPO_SECRET, which a driver sets for the hosts that it starts by ssh, else a
file of the user (mode 600), made where there is none: hosts with one home folder share it.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, MutableMapping
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
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            found = file.read(1024)
    except OSError as error:
        raise HardwareError(f"no secret for the hosts: {path}: {error.strerror}", _HINT) from error
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077 or len(found) < MIN_CHARACTERS:
        raise UsageError(
            f"{path} is no secret",
            f"it must be this user's, of mode 600, with {MIN_CHARACTERS} bytes or more: remove it",
        )
    return found


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


MAGIC = b"gputopo hosts 1\n"
MAX_BYTES = 64 * 1024 * 1024  # of a message; the machine of a host with 16 GPUs is below 1 MiB
_NONCE = _MAC = hashlib.sha256().digest_size
_HEAD = 4 + _MAC


class ChannelError(Exception):
    """The other end does not speak this protocol, does not have the secret, or a message was changed."""


class Channel:
    """One end of a connection, without the connection: `take` what came, send what is in `out`.

    Both ends send a nonce, rank 0 (`leads`) proves the secret first. Then each message has a MAC by a key of
    the secret and both nonces, over its direction and number: it counts once, here, and in its order.
    """

    def __init__(self, secret: bytes, *, leads: bool) -> None:
        self.is_open = False
        self.has_greeted = False  # the other end has begun as one of ours
        self.out = bytearray()
        self._secret, self._leads = secret, leads
        self._own = secrets.token_bytes(_NONCE)
        self._came = bytearray()
        self._key = b""
        self._sent = self._taken = 0
        if not leads:
            self.out += MAGIC + self._own

    def put(self, message: bytes) -> None:
        """Sign a message into `out`; the channel is open."""
        mac = self._mac(message, self._sent, from_leader=self._leads)
        self.out += len(message).to_bytes(4) + mac + message
        self._sent += 1

    def take(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are whole with this data. Raises ChannelError."""
        self._came += data
        while not self.is_open:
            if not (self._agreed() if self._key else self._greeted()):
                return
        while len(self._came) >= _HEAD:
            size = int.from_bytes(self._came[:4])
            if size > MAX_BYTES:
                raise ChannelError("a message is too long")
            if len(self._came) < _HEAD + size:
                return
            mac, message = bytes(self._came[4:_HEAD]), bytes(self._came[_HEAD : _HEAD + size])
            del self._came[: _HEAD + size]
            if not hmac.compare_digest(mac, self._mac(message, self._taken, from_leader=not self._leads)):
                raise ChannelError("a message was changed on its way")
            self._taken += 1
            yield message

    def _greeted(self) -> bool:
        """Take the other end's nonce, and of rank 0 its proof; whether it was there."""
        size = len(MAGIC) + _NONCE + (0 if self._leads else _MAC)
        if not MAGIC.startswith(bytes(self._came[: len(MAGIC)])):
            raise ChannelError("it is not a gputopo run")
        if len(self._came) < size:
            return False
        self.has_greeted = True
        nonce = bytes(self._came[len(MAGIC) : len(MAGIC) + _NONCE])
        proof = bytes(self._came[len(MAGIC) + _NONCE : size])
        del self._came[:size]
        nonces = nonce + self._own if self._leads else self._own + nonce
        key = hmac.digest(self._secret, nonces, "sha256")
        if self._leads:
            self.out += MAGIC + self._own + hmac.digest(key, b"rank 0", "sha256")
        elif not hmac.compare_digest(proof, hmac.digest(key, b"rank 0", "sha256")):
            raise ChannelError("it has another secret")
        else:
            self.out += hmac.digest(key, b"host", "sha256")
            self.is_open = True
        self._key = key
        return True

    def _agreed(self) -> bool:
        """Take the other host's proof; whether it was there."""
        if len(self._came) < _MAC:
            return False
        proof = bytes(self._came[:_MAC])
        del self._came[:_MAC]
        if not hmac.compare_digest(proof, hmac.digest(self._key, b"host", "sha256")):
            raise ChannelError("it has another secret")
        self.is_open = True
        return True

    def _mac(self, message: bytes, number: int, *, from_leader: bool) -> bytes:
        head = bytes((from_leader,)) + number.to_bytes(8)
        return hmac.digest(self._key, head + message, "sha256")
