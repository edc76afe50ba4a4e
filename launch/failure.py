"""Causes of a worker's end: functions that turn what was observed into the `RankFailed` event.

| observed                                        | kind          | exit code     |
|-------------------------------------------------|---------------|---------------|
| Ctrl-C (SIGINT) reached the launcher            | interrupted   | 130           |
| SIGTERM, SIGHUP or SIGQUIT reached the launcher | terminated    | 143, 129, 131 |
| the worker was ended by signal n                | killed        | 128 + n       |
| the kernel killed it for lack of memory         | out_of_memory | 3             |
| it crashed on CPUs with much of the memory used | out_of_memory | 3             |
| its last lines report a failed allocation       | out_of_memory | 3             |
| the run folder cannot be written any more       | disk_full     | 3             |
| its last lines report a limit of the process    | error         | 3             |
| it was silent for far longer than a step        | hung          | 3             |
| it ended with an error, or broke the protocol   | error         | 3             |
"""

import re
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gputopo.values.errors import ExitCode
from gputopo.values.install import install_tensorflow
from gputopo.values.run.batches import batch_words
from gputopo.values.run.events import EXCHANGE, NCCL_TEST, Device, RankFailed, Sample
from gputopo.values.run.spec import RunSpec

UNREACHABLE = "unreachable"  # another host of the run was lost
OUT_OF_MEMORY = "out_of_memory"  # the kind of failure after which smaller batches are tried
# oneDNN's kernels continue after a failed allocation, and crash (TensorFlow 2.21). A worker that crashed
# while it used this share of the host's memory probably ran out of memory: a tensor is seldom larger than all
# earlier ones together. Not measured.
LARGE_SHARE = 0.25
# Messages of TensorFlow, XLA, the CUDA driver, C++ and Python after a failed allocation.
_OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|ResourceExhaustedError|OOM when allocating|CUDA_ERROR_OUT_OF_MEMORY|"
    r"std::bad_alloc|^MemoryError|[Oo]ut of memory"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
# Messages of the loader, TensorFlow and Python if a limit of the process prevents an action.
_NO_SPACE = re.compile(r"[^\s\]][^\]]*: failed to map segment from shared object")
_NO_THREAD = re.compile(r"[^\]]*pthread_create\(\) failed|.*can't start new thread")
_NO_TENSORFLOW = re.compile(r"No module named '(tensorflow|keras)[\w.]*'")
_SEE_LOG = "see worker.log in the run folder"
MORE_SPACE = "not enough address space for its libraries: check ulimit -v and the free memory"
_MORE_THREADS = "raise the limit on threads (ulimit -u; of a container: pids) or on address space (ulimit -v)"

_SIGNAL_HINTS = {
    "SIGILL": "this CPU does not support instructions that this TensorFlow needs: install another build",
    "SIGBUS": "a file in memory could not be read: look at the free space in /dev/shm and on the disk",
    "SIGSEGV": "TensorFlow or the driver crashed: see worker.log, and try another version of either",
    "SIGABRT": "TensorFlow or the driver aborted: worker.log has the failed check",
}

_TRIED_COLLECTIVES = (
    "it used collectives between the hosts: use --all-reduce copy, or hierarchical with several GPUs per "
    "host; worker.log has the crash"
)

# Shared and locked memory, IOMMU and ACS: NVIDIA's NCCL guide, troubleshooting.
NCCL_REMEDY = (
    "use --all-reduce copy; for the reason set NCCL_DEBUG=INFO and see worker.log: a container needs "
    "--shm-size=1g --ulimit memlock=-1, and an IOMMU or ACS can stop copies between GPUs (gputopo bandwidth)"
)


def asked_to_end(signum: int, spec: RunSpec, *, time_s: float) -> RankFailed:
    """Failure of a run that a signal to the launcher ended. The worker's output does not matter."""
    name = signal_name(signum)
    by_hand = signum == signal.SIGINT
    saves = spec.task == "train" and spec.lifecycle.checkpoints is not None
    return RankFailed(
        time_s=time_s,
        kind="interrupted" if by_hand else "terminated",
        cause="stopped by Ctrl-C (SIGINT)" if by_hand else f"stopped by {name}",
        remedy="start it again with --resume: it continues from the latest checkpoint, if there is one"
        if saves
        else "start it again; fewer --num-batches make a shorter run",
        exit_code=128 + signum,
        signal=name,
    )


def launcher_stopped(host: str, seconds: float, *, time_s: float) -> RankFailed:
    """Failure of a run of several hosts if the launcher of rank 0 was stopped for this many seconds."""
    return RankFailed(
        time_s=time_s,
        kind=UNREACHABLE,
        cause=f"host {host} (rank 0) was silent: its gputopo was stopped for {seconds:.0f} s, and the other "
        "hosts ended without it",
        remedy="start it again; find out what stopped it: kill -STOP, Ctrl-Z, a debugger, a frozen container",
        exit_code=ExitCode.HARDWARE,
    )


def failure_of_exit(
    returncode: int,
    spec: RunSpec,
    *,
    time_s: float,
    last_lines: Sequence[str] = (),
    oom_kills: int = 0,
    peak_bytes: int = 0,
    memory_bytes: int = 0,
    phase: str | None = None,
) -> RankFailed:
    """Failure of a worker that ended without reporting a failure.

    `returncode`: as in subprocess, -n for signal n. `oom_kills`: the kernel's out-of-memory kills during the
    run. `peak_bytes`: peak memory of the worker. `memory_bytes`: memory of the host, 0 if unknown. `phase`:
    the latest phase that the worker started, if any.
    """
    failed = partial(_failed, time_s, last_lines)
    limit = _limit(last_lines) if returncode not in (0, -signal.SIGKILL) else None
    if limit is not None:
        return failed("error", f"the worker failed: {limit[0]}", limit[1])
    if returncode < 0:
        name = signal_name(-returncode)
        cause = f"the worker was ended by {name}"
        starved = _starved(-returncode, spec, oom_kills, peak_bytes, memory_bytes)
        if starved is not None:
            return failed(OUT_OF_MEMORY, f"{cause}: {starved}", less_memory(spec), signal=name)
        if returncode == -signal.SIGKILL:
            cause += " from outside; the kernel counted no out-of-memory kill"
        hint = _SIGNAL_HINTS.get(name, "find out who sent it: the batch system, an administrator, `dmesg`")
        if name in _SIGNAL_HINTS:
            hint = {EXCHANGE: _TRIED_COLLECTIVES, NCCL_TEST: NCCL_REMEDY}.get(phase or "", hint)
        return failed("killed", cause, hint, 128 - returncode, name)
    if returncode == 0:
        return broken("the worker ended without a counted step", time_s=time_s, last_lines=last_lines)
    last = last_words(last_lines)
    if any(_OUT_OF_MEMORY.search(line) for line in last_lines):
        return failed(OUT_OF_MEMORY, f"the worker ran out of memory: {last}", less_memory(spec))
    cause = f"the worker failed: {last}" if last else f"the worker ended with exit code {returncode}"
    if _NO_TENSORFLOW.search(last):
        return failed("error", cause, install_tensorflow(cuda=spec.backend == "gpu"))
    return failed("error", cause, _SEE_LOG)


def _failed(
    time_s: float,
    last_lines: Sequence[str],
    kind: str,
    cause: str,
    remedy: str,
    exit_code: int = ExitCode.HARDWARE,
    signal: str | None = None,
) -> RankFailed:
    return RankFailed(
        time_s=time_s,
        kind=kind,
        cause=cause,
        remedy=remedy,
        exit_code=int(exit_code),
        signal=signal,
        last_lines=tuple(last_lines),
    )


def broken(cause: str, *, time_s: float, last_lines: Sequence[str] = ()) -> RankFailed:
    """Failure of a worker that broke the protocol between the worker and the launcher."""
    return _failed(time_s, last_lines, "error", cause, _SEE_LOG)


def hung(cause: str, *, time_s: float, last_lines: Sequence[str] = ()) -> RankFailed:
    """Failure of a worker that was silent for too long and was ended."""
    return _failed(
        time_s,
        last_lines,
        "hung",
        cause,
        "worker.log has the stacks of all its threads; with nccl try another --all-reduce, look at the load "
        "of the machine, and give more to --stall-timeout if the start or a step may take that long",
    )


def gpu_words(sample: Sample | None, devices: Sequence[Device] = ()) -> str:
    """Return the state of the GPUs in a sample, or "" without a sample. `devices`: of the run."""
    if sample is None:
        return ""
    names = {(device.rank, device.gpu): device.short_name for device in devices if device.host is not None}
    said = []
    for gpu in sample.gpus:
        words = [names.get((sample.rank, gpu.gpu), f"GPU {gpu.gpu}")]
        words += [f"{value:g}{unit}" for field, unit in _SHOWN if (value := getattr(gpu, field)) is not None]
        said.append(" ".join([*words, gpu.pstate or ""]).rstrip())
    return ", ".join(said)


_SHOWN = (
    ("gpu_utilization_percent", "% busy"),
    ("graphics_mhz", " MHz"),
    ("power_w", " W"),
    ("temperature_c", " \N{DEGREE SIGN}C"),
)


def unwritable(path: Path, error: OSError, *, time_s: float) -> RankFailed:
    """Failure to write a file of the run folder. The measurements stay in memory."""
    cause = f"cannot write {path}: {error.strerror or error}"
    return _failed(time_s, (), "disk_full", cause, "free some space, or use another folder with --output")


def less_memory(spec: RunSpec) -> str:
    """Remedy for a run that needs more memory than there is."""
    if max(spec.batches) > 1:
        return f"use a smaller --batch-size (now {batch_words(spec.batch_size)})"
    return "use fewer devices (--num-gpus) or a smaller model"


def signal_name(signum: int) -> str:
    """Name of a signal: SIGKILL for 9, `signal 40` for a number without a name (a real-time signal)."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _limit(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return the message of a line that reports a limit of the process, and the remedy; None without one."""
    for line in lines:
        for reports, remedy in ((_NO_SPACE, MORE_SPACE), (_NO_THREAD, _MORE_THREADS)):
            match = reports.search(line)
            if match:
                return match[0].strip(), remedy
    return None


def last_words(lines: Sequence[str]) -> str:
    """Line that most probably has the cause: the last exception, else the last line, else ""."""
    printed = [line.strip() for line in lines if line.strip()]
    exceptions = [line.strip() for line in lines if _EXCEPTION.match(line)]
    return (exceptions or printed or [""])[-1]


def _starved(signum: int, spec: RunSpec, oom_kills: int, peak_bytes: int, memory_bytes: int) -> str | None:
    """Evidence that lack of memory caused the signal, or None if there is no evidence."""
    if signum == signal.SIGKILL and oom_kills > 0:
        return "out of memory (the kernel's count of out-of-memory kills rose during the run)"
    crashed = signum == signal.SIGSEGV and spec.backend == "cpu"
    if crashed and 0 < memory_bytes * LARGE_SHARE <= peak_bytes:
        used = f"{peak_bytes / 2**30:.1f} of the host's {memory_bytes / 2**30:.1f} GiB"
        return f"probably out of memory (it used {used}; TensorFlow's CPU kernels crash without memory)"
    return None
