"""Claims of GPUs: a lock (flock) for each, so that runs that start together do not use the same GPUs.

The kernel releases a lock when its process ends, however it ends. The files stay, one for each UUID (or PCI
address). Each contains the pid, command and time of the holder. All users of a machine share them, in
`/run/lock/gputopo`, or in `/tmp/gputopo-claims` if not all users can write to /run/lock;
`$GPUTOPO_HOME/claims` if that is set. A container has its own files. A program that gputopo runs may use the
claims of that gputopo.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from gputopo.launch.locks import try_lock
from gputopo.planner import hidden_gpus, require_unclaimed
from gputopo.report import note
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Gpu, Machine

T = TypeVar("T")

MAX_ATTEMPTS = 20  # an attempt may fail only because another process is reading the holder
_SHARED = Path("/run/lock")
_MAX_BYTES = 4096
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # the folder is writable for all users


class GpuClaim(msgspec.Struct, frozen=True):
    """The holder of a GPU: process, command such as `gputopo run`, and time in seconds since the epoch."""

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
    """Return the folder of the claims, which all users share unless GPUTOPO_HOME is set."""
    home = environ.get("GPUTOPO_HOME")
    if home:
        return Path(home) / "claims"
    try:
        is_for_all = bool(_SHARED.stat().st_mode & stat.S_IWOTH)
    except OSError:
        is_for_all = False
    return _SHARED / "gputopo" if is_for_all else Path("/tmp/gputopo-claims")


def held_handles(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the file descriptors of this process's claims. A child that inherits one keeps the claim."""
    folder = f"{claims_folder(environ)}/"
    handles = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if os.readlink(f"/proc/self/fd/{name}").startswith(folder):
                handles.append(int(name))
    return tuple(handles)


def claimed_by_others(machine: Machine, folder: Path) -> dict[int, str]:
    """Return the GPUs that other processes have claimed, with a description of the holder."""
    holders: dict[int, str] = {}
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
                holders[gpu.index] = holder.words
        finally:
            os.close(handle)
    return holders


@contextlib.contextmanager
def claimed(gpus: Iterable[Gpu], folder: Path, command: str) -> Iterator[None]:
    """Claim GPUs while in the context.

    Raises ClaimedError if another process has claimed one of them; then no GPU is claimed. If no folder for
    locks can be written, there are no claims, and the reason is printed to stderr.
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
            note(f"no GPU is claimed: cannot write {folder}: {error.strerror}")
        yield


def choose_and_claim(
    machine: Machine,
    choose: Callable[[Mapping[int, str]], tuple[T, Collection[int]]],
    held: contextlib.ExitStack | None,
    command: str,
) -> T:
    """Choose GPUs that no other process has claimed, claim them until `held` closes, and return the choice.

    `choose`: gets the GPUs of other processes with the holders; returns the choice and its GPUs. If another
    process is faster, it chooses again. `held` None: nothing is claimed. Raises GputopoError.
    """
    folder = claims_folder(os.environ)
    for _ in range(MAX_ATTEMPTS):
        choice, indices = choose(claimed_by_others(machine, folder))
        gpus = [gpu for gpu in machine.gpus if gpu.index in indices]
        with contextlib.suppress(ClaimedError):
            if held is not None:
                held.enter_context(claimed(gpus, folder, command))
            return choice
    raise never_free()


def claim_free(
    machine: Machine, named: tuple[int, ...] | None, held: contextlib.ExitStack
) -> Mapping[int, str]:
    """Claim the named GPUs, or all free GPUs of the machine, for a measurement until `held` closes.

    Return the skipped GPUs with their holders. Raises HardwareError if another process has claimed a named
    GPU, or other processes have claimed all GPUs.
    """
    hidden = hidden_gpus(os.environ, machine)

    def free(others: Mapping[int, str]) -> tuple[Mapping[int, str], list[int]]:
        require_unclaimed(named or (), others, machine)
        wanted = [gpu.index for gpu in machine.gpus if not gpu.lost and (named is None or gpu.index in named)]
        gpus = [index for index in wanted if index not in {*others, *hidden}]
        if not gpus and others:
            raise HardwareError(
                f"no GPU is free: GPU {min(others)} is {others[min(others)]}", "wait until these have ended"
            )
        return others if named is None else {}, gpus

    return choose_and_claim(machine, free, held, "gputopo bandwidth")


def never_free() -> HardwareError:
    """Return the error for GPUs that other processes claimed first at each attempt."""
    return HardwareError("other processes claimed the chosen GPUs at each attempt", "start it again")


def _claim(file: Path, command: str, held: contextlib.ExitStack) -> None:
    """Lock the file of a GPU until `held` closes, and write its holder. Raises ClaimedError and OSError."""
    handle = _opened(file)
    held.callback(os.close, handle)
    if not try_lock(handle):
        if _read(handle).pid in _ancestors():
            return
        raise ClaimedError
    with contextlib.suppress(OSError):  # of another user, or the disk is full: only the lock matters
        os.ftruncate(handle, 0)
        os.write(handle, msgspec.json.encode(GpuClaim(os.getpid(), command, time.time())))


def _opened(file: Path) -> int:
    """Open the file of a GPU, created if needed, which all users may write. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        handle = os.open(file, _FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(handle, 0o666)  # regardless of the umask
        return handle
    try:
        handle = os.open(file, _FLAGS | os.O_RDWR)
    except PermissionError:
        return os.open(file, _FLAGS | os.O_RDONLY)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # gputopo has not created it
        os.close(handle)
        raise OSError(0, "not a file of a claim", str(file))
    return handle


def _make(folder: Path) -> None:
    """Create the folder if needed; a folder in a shared place is for all users. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_shared = bool(folder.parent.stat().st_mode & stat.S_IWOTH)
    if is_shared and folder.is_symlink():
        raise OSError(0, "it is a link", str(folder))
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        if is_shared:
            folder.chmod(0o1777)  # nobody can remove the files of others


def _read(handle: int) -> GpuClaim:
    """Return the holder of a lock from its file, as far as the file is readable."""
    try:
        return msgspec.json.decode(os.pread(handle, _MAX_BYTES, 0), type=GpuClaim)
    except (OSError, ValueError):  # just being written
        return GpuClaim()


def _file_name(gpu: Gpu) -> str | None:
    known = gpu.uuid or gpu.pci_address
    return None if known is None else re.sub(r"[^\w.-]", "_", known, flags=re.ASCII)[:100] + ".lock"


def _ancestors() -> set[int]:
    """Return the ids of this process and its ancestors, whose claims it may use."""
    ancestors = {os.getpid()}
    pid = os.getppid()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return ancestors
