"""Child processes that do not outlive this one: programs and forks.

- `tethered`: the command for a program that the kernel signals when this process dies for any reason. The
  setting (PR_SET_PDEATHSIG, prctl(2)) outlives exec, so this file runs first in the child, by its path
  (`python processes.py SIGNAL PARENT PROGRAM ARGS...`), and becomes the program. It imports no other module
  of gputopo, and starts in milliseconds. It unblocks signals that the launcher blocked. It uses the CPUs and
  the NUMA node that its environment specifies (`gputopo.launch.spec.env`), as far as it is allowed to. It
  keeps earlier limits on its CPUs, and a memory policy that was set before (numactl).
- `forked`: a fork that runs a function, prints nothing and keeps no other files open.

The signal of PR_SET_PDEATHSIG comes when the *thread* that started the child ends: use the main one.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc take as long to import as all the rest
    from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CANNOT_RUN, _NOT_FOUND = 126, 127  # the exit codes of a shell
_CPUS, _MEMORY_NODE = "GPUTOPO_CPUS", "GPUTOPO_MEMORY_NODE"
# Numbers of get_mempolicy(2) and set_mempolicy(2), which libc has no functions for; linux/mempolicy.h.
_SYSCALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
_MPOL_DEFAULT, _MPOL_PREFERRED = 0, 1
_BITS = 64  # of a word of a node mask


def end_with_parent(parent: int, signum: int = signal.SIGKILL) -> bool:
    """Let the kernel send this process a signal when its parent dies; return False if it has died already."""
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))
    return os.getppid() == parent


def tethered(program: list[str], signum: int = signal.SIGKILL) -> list[str]:
    """Return the command that runs a program and signals it when this process dies."""
    me = os.path.abspath(__file__)
    return [sys.executable, "-I", "-S", me, str(int(signum)), str(os.getpid()), *program]


def kill_group(pid: int) -> None:
    """Kill all processes in the group that a process leads. The group may be empty."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def reaped(pid: int, wait_s: float) -> int | None:
    """Wait for a child that was killed or ends by itself, and return its status; None if it does not end."""
    until_s = time.monotonic() + wait_s
    with contextlib.suppress(ChildProcessError):  # if SIGCHLD is ignored, the kernel reaps it
        while time.monotonic() < until_s:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.0005)
        return None
    return 0


def ended_by(status: int) -> str:
    """Return how a process with this status ended: `SIGSEGV`, `exit code 3`."""
    code = os.waitstatus_to_exitcode(status)
    return next((known.name for known in signal.Signals if known == -code), f"exit code {code}")


def forked(
    work: "Callable[[], None]",
    raised: "Callable[[str], None]",
    files: "Iterable[int]",
    data_bytes: int | None = None,
) -> int:
    """Fork a child that runs `work` and ends, and return its process id. Raises OSError.

    The child ends with its parent, prints nothing and dumps no core. Signals to the process group (Ctrl-C)
    reach only the parent. `raised` gets the traceback of an exception. `files`: the files that the child
    keeps open. `data_bytes`: the memory that it may allocate, None for no limit. It flushes no buffer of the
    parent.
    """
    import gc
    import warnings

    parent = os.getpid()
    gc.freeze()  # otherwise a collection in either process would copy all shared memory
    with warnings.catch_warnings():
        # Python 3.12 warns about locks of other threads: a child that waits for one hangs, and is killed.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    try:
        _set_apart(files, parent, data_bytes)
        work()
    except BaseException:  # noqa: BLE001 (raised again by the parent)
        import traceback

        raised(traceback.format_exc())
    finally:
        os._exit(0)


def _set_apart(files: "Iterable[int]", parent: int, data_bytes: int | None) -> None:
    import resource

    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    if not end_with_parent(parent):
        os._exit(0)
    if "faulthandler" in sys.modules:
        sys.modules["faulthandler"].disable()  # it writes to a file number that soon belongs to another file
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    try:
        numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        numbers = set(range(256))
    for number in numbers - {0, 1, 2, *files}:
        with contextlib.suppress(OSError):
            os.close(number)
    with contextlib.suppress(OSError, ValueError):
        # core(5): 1 also prevents a core that is piped to a program; 0 does not
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if data_bytes is None:
        return
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", "rb") as sizes:
        now = int(sizes.read().split()[5]) * resource.getpagesize()
        # limits data, not address space: a library may reserve much more than it uses, as Go's runtime does
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (now + data_bytes, hard))


def main(arguments: list[str]) -> int:
    """Set the signal and become the program. Returns only if that fails, with an exit code."""
    signum, parent, program = int(arguments[0]), int(arguments[1]), arguments[2:]
    if not end_with_parent(parent, signum):
        return 128 + signum
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):  # the program runs on other CPUs as well
        _take_cpus(os.environ.get(_CPUS, ""))
    with contextlib.suppress(ValueError):
        _prefer_memory(ctypes.CDLL(None), int(os.environ.get(_MEMORY_NODE, "")))
    try:
        os.execvp(program[0], program)
    except OSError as error:
        with contextlib.suppress(OSError):  # stderr is full or closed; a stream would try again
            os.write(2, os.fsencode(f"cannot run {program[0]}: {error.strerror}\n"))
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN


def _take_cpus(listed: str) -> None:
    """Run on the CPUs of a list such as `0-9,20-29`, as far as this process may use them."""
    cpus: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    allowed = cpus & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)


def _prefer_memory(libc: ctypes.CDLL, node: int) -> None:
    """Prefer a NUMA node's memory. If a container forbids it, memory comes from the CPUs' node."""
    if os.uname().machine not in _SYSCALLS:
        return
    asks, sets = _SYSCALLS[os.uname().machine]
    mode = ctypes.c_int(-1)
    libc.syscall(asks, ctypes.byref(mode), None, 0, None, 0)
    if mode.value != _MPOL_DEFAULT:
        return
    mask = (ctypes.c_ulong * (node // _BITS + 1))()
    mask[node // _BITS] = 1 << node % _BITS
    libc.syscall(sets, _MPOL_PREFERRED, mask, len(mask) * _BITS + 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
