"""The secret of a job, with which its hosts authenticate to each other.

The secret is the variable GPUTOPO_SECRET, which a driver sets for the hosts that it starts by ssh. Otherwise
it is in a file of the user (mode 600), which is created if needed; hosts with one home folder share it.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import MutableMapping
from pathlib import Path

from gputopo.launch.hosts.agent import SECRET
from gputopo.values.errors import HardwareError, UsageError

MIN_CHARACTERS = 16
INSECURE = b"gputopo run --insecure"  # a secret that everybody knows
_HINT = "set GPUTOPO_SECRET to the same 16 characters or more on all hosts, or trust the network: --insecure"


def take_secret(environ: MutableMapping[str, str], home: Path, *, insecure: bool = False) -> bytes:
    """Return the secret of this job, and remove it from the environment, because no child needs it.

    `home`: the folder of the file. Raises UsageError or HardwareError if there can be no secret.
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
        # Do not follow a link, and do not wait for a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            secret = file.read(1024)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _no_secret(path, "is a symbolic link") from error
        raise HardwareError(f"no secret for the hosts: {path}: {error.strerror}", _HINT) from error
    if about.st_uid != os.geteuid():
        raise _no_secret(path, f"belongs to user {about.st_uid}")
    if (mode := stat.S_IMODE(about.st_mode)) & 0o077:
        raise _no_secret(path, f"has mode {mode:o}")
    if len(secret) < MIN_CHARACTERS:
        raise _no_secret(path, f"has {len(secret)} bytes")
    return secret


def _no_secret(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} cannot be the secret of the hosts: it {why}",
        f"it must be a file of this user, of mode 600, with {MIN_CHARACTERS} bytes or more; if you "
        "remove it, the next run creates one",
    )


def _make(path: Path) -> None:
    """Create the complete file, unless another host is faster. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink()
