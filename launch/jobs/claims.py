"""Claims of GPUs: a lock (flock) for each, so that runs that start together do not take the same GPUs.

The kernel frees a lock when its process ends, however it ends. The files, one for each UUID (or PCI address),
stay, and state who holds the lock: pid, command and time. All users of a machine share them, in
`/run/lock/gputopo`, or in `/tmp/gputopo-claims` where /run/lock is not for all users; `$GPUTOPO_HOME/claims`
if that is set. A container has its own. A program that gputopo runs may use the claims of that gputopo.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.launch.locks import try_lock
from gputopo.planner.available import hidden_gpus, require_unclaimed
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Gpu, Machine

if TYPE_CHECKING:
    from gputopo.launch.target import Target

MAX_ATTEMPTS = 20  # a lock may be refused only since another process looks who holds it
_SHARED = Path("/run/lock")
_MAX_BYTES = 4096
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # the folder is for all users


class GpuClaim(msgspec.Struct, frozen=True):
    """Who has claimed a GPU: process, command such as `gputopo run`, and time in seconds since the epoch."""

    pid: int = 0
    command: str = ""
    time_s: float = 0.0

    @property
    def words(self) -> str:
        """`claimed by gputopo run (pid 123)`."""
        if not self.pid:
            return "claimed by another process"
        command = re.sub(r"[^ -~]", "?", self.command)[:80]  # anybody can write the file
        return f"claimed by {command} (pid {self.pid})"


class ClaimedError(Exception):
    """Another process has claimed one of the GPUs."""


def claims_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the claims, which is the same for all users unless GPUTOPO_HOME is set."""
    home = environ.get("GPUTOPO_HOME")
    if home:
        return Path(home) / "claims"
    try:
        is_for_all = bool(_SHARED.stat().st_mode & stat.S_IWOTH)
    except OSError:
        is_for_all = False
    return _SHARED / "gputopo" if is_for_all else Path("/tmp/gputopo-claims")


def held_handles(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the handles of this process's claims: who inherits one holds the claim as long as it lives."""
    folder = f"{claims_folder(environ)}/"
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            if os.readlink(f"/proc/self/fd/{name}").startswith(folder):
                found.append(int(name))
    return tuple(found)


def claimed_by_others(machine: Machine, folder: Path) -> dict[int, str]:
    """Return the GPUs that other processes have claimed, with by whom in words."""
    found: dict[int, str] = {}
    ours = _ancestors()
    for gpu in machine.gpus:
        name = _file_name(gpu)
        if name is None:
            continue
        try:
            handle = os.open(folder / name, os.O_RDONLY | _FLAGS)
        except OSError:  # nobody has claimed it yet
            continue
        try:
            if not try_lock(handle, fcntl.LOCK_SH) and (holder := _read(handle)).pid not in ours:
                found[gpu.index] = holder.words
        finally:
            os.close(handle)
    return found


@contextlib.contextmanager
def claimed(
    gpus: Iterable[Gpu], folder: Path, command: str, *, on_problem: Callable[[str], None]
) -> Iterator[None]:
    """Claim GPUs while in the context.

    Raises ClaimedError if another process has claimed one of them; then none is. Where no lock can be made
    (no folder that can be written) there are no claims, and `on_problem` gets the reason.
    """
    names = sorted({name for gpu in gpus if (name := _file_name(gpu)) is not None})
    with contextlib.ExitStack() as held:
        try:
            if names:
                _make(folder)
            for name in names:
                _claim(folder / name, command, held)
        except OSError as error:
            held.close()
            on_problem(f"no GPU is claimed: cannot write {folder}: {error.strerror}")
        yield


def claim_free(
    machine: Machine,
    named: tuple[int, ...] | None,
    environ: Mapping[str, str],
    command: str,
    held: contextlib.ExitStack,
    *,
    on_problem: Callable[[str], None],
) -> dict[int, str]:
    """Claim the named GPUs, or those of the machine that no other process has claimed, until `held` closes.

    Return the claimed ones that were left out, with by whom. Raises HardwareError where another process has
    claimed a named one, or each.
    """
    folder = claims_folder(environ)
    hidden = hidden_gpus(environ, machine)
    for _ in range(MAX_ATTEMPTS):
        others = claimed_by_others(machine, folder)
        require_unclaimed(named or (), others, machine)
        wanted = [gpu for gpu in machine.gpus if named is None or gpu.index in named]
        gpus = [gpu for gpu in wanted if not gpu.lost and gpu.index not in {*others, *hidden}]
        if not gpus and others:
            raise HardwareError(
                f"no GPU is free: GPU {min(others)} is {others[min(others)]}", "wait until these have ended"
            )
        try:
            held.enter_context(claimed(gpus, folder, command, on_problem=on_problem))
        except ClaimedError:
            continue
        return others if named is None else {}
    raise never_free()


def choose_and_claim(
    machine: Machine,
    choose: "Callable[[Mapping[int, str]], Target]",
    held: contextlib.ExitStack | None,
    environ: Mapping[str, str],
    command: str,
    *,
    on_problem: Callable[[str], None],
) -> "Target":
    """Choose GPUs that no other process has claimed, and claim them until `held` closes (None: do not).

    Where another process is quicker, choose again. Raises GputopoError.
    """
    folder = claims_folder(environ)
    for _ in range(MAX_ATTEMPTS):
        chosen = choose(claimed_by_others(machine, folder))
        if held is None or chosen.backend == "cpu":
            return chosen
        gpus = [gpu for gpu in machine.gpus if gpu.index in chosen.plan.choice.gpus]
        with contextlib.suppress(ClaimedError):
            held.enter_context(claimed(gpus, folder, command, on_problem=on_problem))
            return chosen
    raise never_free()


def never_free() -> HardwareError:
    """Return the error for GPUs of which others were quicker to claim one at each attempt."""
    return HardwareError("other processes claimed the chosen GPUs at each attempt", "start it again")


def _claim(file: Path, command: str, held: contextlib.ExitStack) -> None:
    """Lock the file of a GPU until `held` closes, and write who did. Raises ClaimedError and OSError."""
    for _ in range(MAX_ATTEMPTS):
        handle = _opened(file)
        held.callback(os.close, handle)
        if not try_lock(handle, fcntl.LOCK_EX):
            if _read(handle).pid in _ancestors():
                return
            raise ClaimedError
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(file)):
                break
    else:  # it is removed at each attempt
        raise ClaimedError
    with contextlib.suppress(OSError):  # of another user, or a full disk: the lock is what counts
        os.ftruncate(handle, 0)
        os.write(handle, msgspec.json.encode(GpuClaim(os.getpid(), command, time.time())))


def _opened(file: Path) -> int:
    """Open the file of a GPU, made if need be, which all users may write. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        handle = os.open(file, _FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(handle, 0o666)  # whatever the umask
        return handle
    try:
        handle = os.open(file, _FLAGS | os.O_RDWR)
    except PermissionError:
        return os.open(file, _FLAGS | os.O_RDONLY)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # not one that we made
        os.close(handle)
        raise OSError(0, "not a file of a claim", str(file))
    return handle


def _make(folder: Path) -> None:
    """Make the folder if need be; where anybody may make it, for all users. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_shared = bool(folder.parent.stat().st_mode & stat.S_IWOTH)
    if is_shared and folder.is_symlink():
        raise OSError(0, "it is a link", str(folder))
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        if is_shared:
            folder.chmod(0o1777)  # nobody removes the files of others


def _read(handle: int) -> GpuClaim:
    """Return who holds a lock, as far as its file shows that."""
    try:
        return msgspec.json.decode(os.pread(handle, _MAX_BYTES, 0), type=GpuClaim)
    except (OSError, ValueError):  # just being written
        return GpuClaim()


def _file_name(gpu: Gpu) -> str | None:
    known = gpu.uuid or gpu.pci_address
    return None if known is None else re.sub(r"[^\w.-]", "_", known, flags=re.ASCII)[:100] + ".lock"


def _ancestors() -> set[int]:
    """Return this process and those that started it: what they have claimed is for it, too."""
    found = {os.getpid()}
    pid = os.getppid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found
