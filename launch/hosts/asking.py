"""Asks several hosts what each knows about itself (`answer`): by ssh, or a Slurm job by one step.

No host needs another one. A host that cannot be reached, fails or hangs does not affect the others. Its error
has the message of ssh, srun or Python.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

import gputopo
from gputopo.launch.hosts.allocation import Allocation, FoundHosts
from gputopo.launch.hosts.host_process import (
    MAX_BYTES,
    HostCommand,
    HostProcess,
    host_command,
    not_started,
    passed_on,
    step_command,
)
from gputopo.launch.hosts.hostlists import HostAddress, address
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.hosts.options import HostOptions
from gputopo.report import note
from gputopo.values import schema
from gputopo.values.errors import GputopoError, HardwareError, UsageError

K = TypeVar("K")
T = TypeVar("T")

Answer = Joining | GputopoError
# Processes at the same time. Each opens three of the 1,024 files that a process may open. 512 hosts took 12 s
# with a name server that loses every second query.
_AT_ONCE = 256
# Limits of an answer: four times the GPUs of the largest machine, and the devices next to them. Not measured.
_MOST = {"gpus": 64, "links": 64 * 63 // 2, "nics": 256, "pci": 4096}
_MARK = b'{"schema":"gputopo.joining/'
_OF_TASK = re.compile(rb" *([0-9]+): (.*)")
_CONTROL = re.compile(rb"\\u00(?:0[0-8bcef]|1[0-9a-f]|7f)")  # in JSON, except tabs, newlines and returns
_LAST_LINES = 20
_PEERS = 5  # hosts whose routes give a host its own address on their network; not measured
_MAX_NAME = 64  # characters of a host's name (HOST_NAME_MAX of linux/limits)
_ANSWER = ("-P", "-m", "gputopo.launch.hosts.answer")


def ask(hosts: FoundHosts, options: HostOptions, what: str, *more: str) -> dict[HostAddress, Answer]:
    """Return each host's answer, or why it has none; nothing if rank 0 asks this host.

    `what`, `more`: see `answer`. Raises GputopoError if no host answers, or the names of the hosts are not
    known.
    """
    if isinstance(hosts, Allocation):
        if hosts.rank:
            note(f"{hosts.source}: rank 0 asks this host")
            return {}
        if any(host.name is None for host in hosts.hosts):
            raise UsageError(
                f"{hosts.source} does not list the other hosts, which are asked through ssh",
                "list them: --hosts LIST; or compare files: gputopo inspect --record on each, then "
                "--from FILES",
            )
        hosts = hosts.hosts
    python = options.remote_python or sys.executable
    names = [str(host.name) for host in hosts]
    words = (*_ANSWER, what, ",".join(names[:_PEERS]), *more)
    variables, within_s = passed_on(os.environ), options.join_timeout
    in_step: Mapping[str, Answer] = {}
    if "SLURM_STEP_ID" in os.environ:
        in_step = _ask_step(step_command(names, words, python=python), names, variables, within_s)

    def ask_rank(rank: int) -> Answer:
        name = names[rank]
        start = host_command(rank, name, words, python=python, environ=os.environ)
        try:
            answer = in_step.get(name) or _ask_host(start, variables, within_s, python)
            if isinstance(answer, GputopoError):
                raise answer
            _require_same_version(answer, name)
        except GputopoError as error:
            return error
        is_named = len(answer.name) <= _MAX_NAME and address(answer.name) is not None
        shown = answer.name if hosts[rank].is_ip and is_named else name
        note(f"{shown} has answered")
        return msgspec.structs.replace(answer, rank=rank, name=shown)

    answers = at_once(ask_rank, range(len(hosts)))
    errors = [answer for answer in answers if isinstance(answer, GputopoError)]
    if len(errors) == len(hosts):
        for error in errors[1:]:
            note(error.what)
        raise errors[0]
    for error in errors:
        note(error.what)
    return dict(zip(hosts, answers, strict=True))


def _require_same_version(answer: Joining, host: str) -> None:
    """Raise UsageError for an answer of another version, and the host's own error if it sent one."""
    if answer.version != gputopo.__version__:
        raise UsageError(
            f"gputopo is {answer.version} on {host}, {gputopo.__version__} here",
            "install the same version on all hosts",
        )
    if answer.unable is not None:
        raise msgspec.structs.replace(answer.unable, cause=f"{host}: {answer.unable.cause}").error


def _ask_host(start: HostCommand, variables: Mapping[str, str], within_s: float, python: str) -> Joining:
    """Return what a host answers within `within_s` seconds. `python`: of that host, for messages.

    Output of its shell before the answer is skipped. Raises HardwareError if there is no valid answer.
    """

    def is_whole(text: bytes) -> bool:
        return b"\n" in text.partition(_MARK)[2]

    with HostProcess(start, variables) as process:
        printed = process.output(within_s, is_whole)
        if is_whole(printed):
            return _decoded(printed, start.host)
        if len(printed) > MAX_BYTES:
            what = f"{start.host} answered with more than {MAX_BYTES >> 20} MiB"
            raise HardwareError(what, "see what its shell prints")
        if not process.is_done:
            raise _late(start.host, within_s)
        lines = [*printed.decode(errors="replace").splitlines(), *process.said.splitlines()]
        code = process.wait() if process.ended is None else process.ended
        raise not_started(start, code, lines[-_LAST_LINES:], python)


def _ask_step(
    start: HostCommand, hosts: Sequence[str], variables: Mapping[str, str], within_s: float
) -> dict[str, Answer]:
    """Return the answer of each host of a Slurm step, or its error. Answers are matched by host name."""
    with HostProcess(start, variables) as process:
        text = process.output(within_s, most=len(hosts) * MAX_BYTES)
        said = process.said.strip().splitlines()[-1:]
        is_late = not process.is_done
    answers: dict[str, Answer] = {}
    for printed in _by_task(text).values():
        try:
            answer = _decoded(printed, "a task")
        except HardwareError:
            continue
        answers |= {host: answer for host in hosts if host.partition(".")[0] == answer.name.partition(".")[0]}
    why = f"srun: {said[0]}" if said else "its task printed no answer"
    return {
        host: answers.get(host)
        or (_late(host, within_s) if is_late else HardwareError(f"{host} did not answer: {why}", "see sinfo"))
        for host in hosts
    }


def _by_task(text: bytes) -> dict[bytes, bytes]:
    """Return what each task of `srun --label` printed, joined to one line, because srun breaks long lines."""
    printed: dict[bytes, bytes] = {}
    for line in text.splitlines():
        if (match := _OF_TASK.fullmatch(line)) is not None:
            printed[match[1]] = printed.get(match[1], b"") + match[2]
    return printed


def _decoded(text: bytes, host: str) -> Joining:
    """Return the answer in a text. Raises HardwareError if it is invalid or exceeds the limits."""
    begin = text.find(_MARK)
    line = text[begin:].partition(b"\n")[0] if begin >= 0 else b""
    try:
        answer = schema.decode(line, Joining, origin="the answer")
    except GputopoError as error:
        what = f"{host} gave an invalid answer: {error.what}"
        raise HardwareError(what, "see what its shell prints") from error
    for name, most in _MOST.items():
        count = len(getattr(answer.machine, name, ()))
        if count > most:
            why = f"{count} {name}, more than the limit of {most}"
            raise HardwareError(f"{host} answered with {why}", "see gputopo inspect there")
    if _CONTROL.search(line) is not None:
        raise HardwareError(f"{host} answered with control characters", "see gputopo inspect there")
    return answer


def _late(host: str, within_s: float) -> HardwareError:
    return HardwareError(
        f"{host} did not answer within {within_s:g} s",
        f"find out what hangs there: ssh {host}; --join-timeout waits longer",
    )


def at_once(do: Callable[[K], T], items: Sequence[K]) -> list[T]:
    """Return the results of a function for each item, in order; the calls run concurrently."""
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(items)))) as pool:
        return list(pool.map(do, items))
