"""Programs that measure the network, nccl-tests by mpirun and ib_write_bw: what they print, or why not."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gputopo.captures.bandwidth import nccl_tests, network
from gputopo.copies.nccl_hosts import GRACE_S, Rate
from gputopo.copies.network import RDMA, Ended
from gputopo.probes.processes import has_ended, in_session
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import InputError

_LOOK_S = 0.01  # between two looks at whether a process has ended
_MAX_OUTPUT = 4 * 2**20  # bytes
_MAX_WORDS = 200

# From a command to one that ends when this process does.
Wrap = Callable[[list[str]], list[str]]


_CHUNK = 65536
_PATHS = (
    "NET/",
    "GDRDMA",
    "card ",
    "SHM",
    "P2P",
)  # of the reader's facts, those of the path


def run_all(
    commands: Sequence[list[str]], environment: Mapping[str, str], limit_s: float, wrap: Wrap
) -> list[Ended]:
    """Run commands at the same time, each until it ends and for `limit_s` seconds at most.

    mpirun starts a process of its own on each host, by ssh; at SIGTERM it ends all that it started. What is
    in its session on this host has ended when this returns, or raises. Raises OSError where a process cannot
    be started.
    """
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(in_session(wrap(command), environment, GRACE_S)) for command in commands
        ]
        for one in processes:  # all at once, before the first is waited for
            stack.callback(os.kill, one.pid, signal.SIGTERM)
        outputs = _outputs(processes, limit_s)
    return [
        Ended(text, None, why) if why else Ended(text, process.returncode)
        for process, (text, why) in zip(processes, outputs, strict=True)
    ]


def _outputs(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> list[tuple[str, str | None]]:
    """Return what each prints until its end, and why it is ended before: too late, or too much output."""
    deadline_s = time.monotonic() + limit_s
    late = f"did not end within {limit_s:g} s"
    texts = [bytearray() for _ in processes]
    whys: list[str | None] = [late for _ in processes]
    with selectors.DefaultSelector() as selector:
        for number, process in enumerate(processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, number)
        while selector.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                number = key.data
                part = os.read(key.fd, _CHUNK)
                texts[number] += part
                if not part:
                    whys[number] = None
                elif len(texts[number]) > _MAX_OUTPUT:
                    whys[number] = f"printed more than {_MAX_OUTPUT >> 20} MiB"
                else:
                    continue
                selector.unregister(key.fileobj)
    for number, process in enumerate(processes):
        while whys[number] is None and not has_ended(process.pid):
            if time.monotonic() >= deadline_s:
                whys[number] = late
                break
            time.sleep(_LOOK_S)
    return [(text.decode(errors="replace"), why) for text, why in zip(texts, whys, strict=True)]


def rate_of(ended: Ended) -> Rate | str:
    """Return the rate between two hosts that a run of sendrecv_perf printed, or why there is none."""
    found = _measured(ended, "sendrecv_perf", ranks=2, hosts=2)
    if isinstance(found, str):
        return found
    if found.failures:
        return found.failures[0].says
    one = found.samples[0]
    assert one.median_gb_per_s is not None
    return Rate(one.median_gb_per_s, tuple(fact for fact in one.nccl if fact.startswith(_PATHS)))


def rdma_rate_of(ended: Ended) -> float | str:
    """Return the GB/s that a run of ib_write_bw printed, or why there is none."""
    if ended.why is not None:
        return f"{RDMA} {ended.why}"
    try:
        found = network.read_perftest(ended.text, origin=RDMA).machine.bandwidth
    except InputError:
        found = None
    if found is not None and found.failures:
        return found.failures[0].says
    rate = found.samples[-1].median_gb_per_s if found is not None and found.samples else None
    if ended.code != 0 or not rate:
        last = "".join(filter(str.isprintable, (ended.text.strip().splitlines() or [""])[-1]))[:_MAX_WORDS]
        how = f"{RDMA} printed no result" if ended.code == 0 else f"{RDMA} ended with exit code {ended.code}"
        return f"{how}: {last}" if last else how
    return rate


def all_reduce_of(ended: Ended, *, ranks: int, hosts: int) -> Bandwidth | str:
    """Return what a run of all_reduce_perf over all GPUs measured, or why there is nothing."""
    found = _measured(ended, "all_reduce_perf", ranks=ranks, hosts=hosts)
    if isinstance(found, str):
        return found
    # Wrong data is a finding; anything else that failed is a reason to have measured nothing.
    return next((one.says for one in found.failures if one.reason != "WRONG_DATA"), found)


def _measured(ended: Ended, program: str, *, ranks: int, hosts: int) -> Bandwidth | str:
    """Return the numbers of a run, out of place before in place, or why there are none.

    It counts only if all ranks took part: a program that was built without MPI runs alone on each.
    """
    if ended.why is not None:
        return f"mpirun {ended.why}"
    try:
        read = nccl_tests.read(ended.text, origin=program)
    except InputError as error:
        return error.what
    bandwidth = read.machine.bandwidth
    assert bandwidth is not None, "a reader of bandwidths"
    samples = sorted(
        (one for one in bandwidth.samples if one.bus_gb_per_s is not None), key=lambda one: bool(one.in_place)
    )
    if any(one.ranks == 1 for one in samples):
        return f"{program} ran as {ranks} single processes: it was built without MPI=1"
    if bandwidth.failures:
        return bandwidth
    if ended.code != 0 or not samples or not samples[0].median_gb_per_s:
        return _no_result(ended, program, read.understood)
    first = samples[0]
    if (first.ranks, first.hosts) != (ranks, hosts):
        return f"{program} ran {first.ranks} ranks on {first.hosts or '?'} hosts, not {ranks} on {hosts}"
    return msgspec.structs.replace(bandwidth, samples=tuple(samples))


def _no_result(ended: Ended, program: str, understood: frozenset[int]) -> str:
    """Return why a run gave no result: the first line that is not of the program, nor of NCCL's log."""
    lines = enumerate(ended.text.splitlines(), 1)
    others = (line.strip() for number, line in lines if number not in understood)
    words = next((one for one in others if one.strip("-=*") and not one.startswith(("#", "Warning:"))), "")
    words = "".join(filter(str.isprintable, words))[:_MAX_WORDS]
    how = f"{program} printed no result" if ended.code == 0 else f"mpirun ended with exit code {ended.code}"
    return f"{how}: {words}" if words else how
