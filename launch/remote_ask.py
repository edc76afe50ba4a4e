"""Queries hosts: each host by a separate ssh process, or all hosts of a Slurm job by one step.

A host that cannot be reached, fails or hangs does not affect the others. Its error has the message of ssh,
srun or Python.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gputopo.launch.hosts.messages import Joining
from gputopo.launch.remote_process import MAX_BYTES, HostCommand, HostProcess, not_started
from gputopo.values import schema
from gputopo.values.errors import GputopoError, HardwareError

K = TypeVar("K")
T = TypeVar("T")

# Processes at the same time. Each opens three of the 1,024 files that a process may open. 512 hosts took 12 s
# with a name server that loses every second query.
AT_ONCE = 256
# Limits of an answer: four times the GPUs of the largest machine, and the devices next to them. Not measured.
MOST = {"gpus": 64, "links": 64 * 63 // 2, "nics": 256, "pci": 4096}
_MARK = b'{"schema":"gputopo.joining/'
_OF_TASK = re.compile(rb" *([0-9]+): (.*)")
_CONTROL = re.compile(rb"\\u00(?:0[0-8bcef]|1[0-9a-f]|7f)")  # in JSON, except tabs, newlines and returns
_LAST_LINES = 20


def ask_host(start: HostCommand, variables: Mapping[str, str], within_s: float, python: str) -> Joining:
    """Return what a host answers within `within_s` seconds. `python`: of that host, for messages.

    Output of its shell before the answer is skipped. Raises HardwareError if there is no valid answer.
    """

    def is_whole(text: bytes) -> bool:
        return b"\n" in text.partition(_MARK)[2]

    with HostProcess(start, variables) as process:
        found = process.output(within_s, is_whole)
        if is_whole(found):
            return _decoded(found, start.host)
        if len(found) > MAX_BYTES:
            what = f"{start.host} answered with more than {MAX_BYTES >> 20} MiB"
            raise HardwareError(what, "see what its shell prints")
        if not process.is_done:
            raise _late(start.host, within_s)
        lines = [*found.decode(errors="replace").splitlines(), *process.said.splitlines()]
        code = process.wait() if process.ended is None else process.ended
        raise not_started(start, code, lines[-_LAST_LINES:], python)


def ask_step(
    start: HostCommand, hosts: Sequence[str], variables: Mapping[str, str], within_s: float
) -> dict[str, Joining | GputopoError]:
    """Return the answer of each host of a Slurm step, or its error. Answers are matched by host name."""
    with HostProcess(start, variables) as process:
        text = process.output(within_s, most=len(hosts) * MAX_BYTES)
        said = process.said.strip().splitlines()[-1:]
        is_late = not process.is_done
    found: dict[str, Joining | GputopoError] = {}
    for printed in by_task(text).values():
        try:
            one = _decoded(printed, "a task")
        except HardwareError:
            continue
        found |= {host: one for host in hosts if host.partition(".")[0] == one.name.partition(".")[0]}
    why = f"srun: {said[0]}" if said else "its task printed no answer"
    return {
        host: found.get(host)
        or (_late(host, within_s) if is_late else HardwareError(f"{host} did not answer: {why}", "see sinfo"))
        for host in hosts
    }


def by_task(text: bytes) -> dict[bytes, bytes]:
    """Return what each task of `srun --label` printed, joined to one line, because srun breaks long lines."""
    found: dict[bytes, bytes] = {}
    for line in text.splitlines():
        if (match := _OF_TASK.fullmatch(line)) is not None:
            found[match[1]] = found.get(match[1], b"") + match[2]
    return found


def _decoded(text: bytes, host: str) -> Joining:
    """Return the answer in a text. Raises HardwareError if it is invalid or exceeds the limits."""
    begin = text.find(_MARK)
    line = text[begin:].partition(b"\n")[0] if begin >= 0 else b""
    try:
        found = schema.decode(line, Joining, origin="the answer")
    except GputopoError as error:
        what = f"{host} gave an invalid answer: {error.what}"
        raise HardwareError(what, "see what its shell prints") from error
    for name, most in MOST.items():
        count = len(getattr(found.machine, name, ()))
        if count > most:
            why = f"{count} {name}, more than the limit of {most}"
            raise HardwareError(f"{host} answered with {why}", "see gputopo inspect there")
    if _CONTROL.search(line) is not None:
        raise HardwareError(f"{host} answered with control characters", "see gputopo inspect there")
    return found


def _late(host: str, within_s: float) -> HardwareError:
    return HardwareError(
        f"{host} did not answer within {within_s:g} s",
        f"find out what hangs there: ssh {host}; --join-timeout waits longer",
    )


def at_once(do: Callable[[K], T], of: Sequence[K]) -> list[T]:
    """Return the results of a function for each item, in order; the calls run concurrently."""
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(of)))) as pool:
        return list(pool.map(do, of))
