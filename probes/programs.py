"""Transfers by other programs: iperf3, ib_write_bw and ib_write_lat of perftest; nccl-tests by mpirun.

The host that receives starts a program's server when the sender asks for it at its listener (module `tcp`),
at a free port, and answers with that port once the server listens; then the sender starts the client. A
server is ended with that connection, or when its time is over.

iperf3's server listens at the address at which the hosts meet. Perftest's has no option for that and listens
at all addresses of its host. Both end after one client.
"""

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from gputopo.captures.bandwidth import nccl_tests, network
from gputopo.copies.nccl_hosts import GRACE_S, Rate
from gputopo.copies.network import Program, Rdma, Timing, whole_seconds
from gputopo.probes.processes import has_ended, in_session
from gputopo.probes.tcp import connected
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import InputError

_LOOK_S = 0.01  # between two looks at whether a server listens
# Beyond its slot, before a program is killed: a lost SYN costs 1 s. Its host is then late for the next slot,
# by less than what leaves that out (launch/jobs/hosts/network.py). Ours.
_SPARE_S = 0.9
_MAX_OUTPUT = 4 * 2**20  # bytes: a minute of iperf3's intervals is below 1 MiB
_MAX_REPLY = 4096
_MAX_WORDS = 200
_MESSAGE = 64 * 1024  # bytes of an RDMA write: the default of ib_write_bw
_SMALL = 8  # bytes of a round trip, as of the TCP probe
_ROUND_TRIPS = 1000
_LISTENS = "0A"  # linux: include/net/tcp_states.h, TCP_LISTEN

# From a command to one that ends when this process does.
Wrap = Callable[[list[str]], list[str]]


class ProgramError(OSError):
    """A program failed, hung or printed something else; the other host was reached."""


@dataclass(frozen=True)
class Programs:
    """How a host runs the programs of a measurement. `rdma`: its own port."""

    timing: Timing
    streams: int
    rdma: Rdma | None
    wrap: Wrap

    def serve(self, connection: socket.socket, name: str, family: socket.AddressFamily, address: str) -> None:
        """Run the server of a program for a host that asks for it, until that closes the connection.

        Raises OSError, ValueError for another name.
        """
        program = next((one for one in get_args(Program) if one == name), None)
        if program is None:
            raise ValueError(name)
        deadline_s = time.monotonic() + self._seconds(program)
        port = _free_port(family, address)
        with in_session(self.wrap(self.server(program, port, address))) as process:
            why = _until_listening(process, program, port, deadline_s)
            reply = {"port": port} if why is None else {"error": why}
            connection.sendall(json.dumps(reply).encode() + b"\n")
            connection.settimeout(max(_LOOK_S, deadline_s + 1.0 - time.monotonic()))  # after its client
            connection.recv(1)  # returns when it is closed

    def transfer(self, program: Program, address: str, port: int, token: str) -> tuple[float, ...]:
        """Send to a host whose listener is at a port; return GB/s of each window, or microseconds.

        Raises ProgramError, or another OSError where the host cannot be reached.
        """
        seconds = self._seconds(program)
        deadline_s = time.monotonic() + seconds
        with connected(address, port, token, program, self.timing) as connection:
            at = _port_of(connection, program, deadline_s)
            with in_session(self.wrap(self.client(program, at, address))) as process:
                text = _output(process, program, seconds, deadline_s)
                return _values(program, text, process.returncode, self.timing)

    def server(self, program: Program, port: int, address: str) -> list[str]:
        """Return the command of a server."""
        if program == "iperf3":
            return [*self._iperf3(port), "-s", "-1", "-B", address]
        return self._perftest(program, port)

    def client(self, program: Program, port: int, address: str) -> list[str]:
        """Return the command that sends to the server at an address."""
        if program == "iperf3":
            words = ["-P", str(self.streams), "-t", str(self._whole_s), "--get-server-output"]
            return [*self._iperf3(port), "-c", address, *words]
        return [*self._perftest(program, port), address]

    def _iperf3(self, port: int) -> list[str]:
        return ["iperf3", "-J", "-p", str(port), "-i", f"{self.timing.window_s:g}"]

    def _perftest(self, program: Program, port: int) -> list[str]:
        """Return the command of server and client alike: both need the same test.

        -F: clocks of the CPU that differ are no reason to fail. -f 0: the whole duration is measured.
        """
        assert self.rdma is not None, "a host without an RDMA port is not measured by it"
        words = [program, "-F", "-p", str(port), "-d", self.rdma.device, "-i", str(self.rdma.port)]
        if self.rdma.gid_index is not None:
            words += ["-x", str(self.rdma.gid_index)]
        if program == "ib_write_lat":
            return [*words, "-s", str(_SMALL), "-n", str(_ROUND_TRIPS)]
        words += ["-s", str(_MESSAGE), "-q", str(self.streams), "--report_gbits"]
        return [*words, "-D", str(self._whole_s), "-f", "0"]

    @property
    def _whole_s(self) -> int:
        return whole_seconds(self.timing.transfer_s)

    def _seconds(self, program: Program) -> float:
        """Return the seconds that a program has, its start and end included."""
        timing = self.timing
        slot_s = timing.latency_s if program == "ib_write_lat" else timing.transfer_s + timing.start_s
        return slot_s + _SPARE_S


def _free_port(family: socket.AddressFamily, address: str) -> int:
    with socket.socket(family) as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])


def _until_listening(
    process: subprocess.Popen[bytes], program: Program, port: int, deadline_s: float
) -> str | None:
    """Wait until a server listens; return why it does not."""
    while not _is_listening(port):
        if process.poll() is not None:
            return f"its server: {_reason(program, _printed(process), process.returncode)}"
        if time.monotonic() >= deadline_s:
            return f"its {program} did not listen in time"
        time.sleep(_LOOK_S)
    return None


def _is_listening(port: int) -> bool:
    """Return whether anything on this host listens at a TCP port."""
    end = f":{port:04X}"
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with contextlib.suppress(FileNotFoundError):  # without IPv6
            rows = (line.split() for line in table.read_text().splitlines()[1:])
            if any(row[3] == _LISTENS and row[1].endswith(end) for row in rows):
                return True
    return False


def _port_of(connection: socket.socket, program: Program, deadline_s: float) -> int:
    """Return the port of the other host's server. Raises OSError."""
    reply = b""
    while not reply.endswith(b"\n"):
        connection.settimeout(max(_LOOK_S, deadline_s - time.monotonic()))
        try:
            part = connection.recv(_MAX_REPLY)
        except TimeoutError as error:
            raise ProgramError(f"the other host did not start {program} in time") from error
        if not part or len(reply) > _MAX_REPLY:
            raise ConnectionError("the other host refused the transfer")
        reply += part
    try:
        found = json.loads(reply)
    except ValueError as error:
        raise ConnectionError("the other host answered something else") from error
    port = found.get("port") if isinstance(found, dict) else None
    if type(port) is not int or not 0 < port < 2**16:
        why = found.get("error") if isinstance(found, dict) else None
        raise ProgramError(str(why or "the other host answered something else")[:_MAX_WORDS])
    return port


def _output(process: subprocess.Popen[bytes], program: Program, seconds: float, deadline_s: float) -> str:
    """Return all that a program prints until its end. Raises ProgramError for one that does not end."""
    late = f"{program} did not end within {seconds:.1f} s"
    ((text, why),) = _outputs([process], max(0.0, deadline_s - time.monotonic()), late, program)
    if why is not None:
        raise ProgramError(why)
    process.wait()
    return text


def _printed(process: subprocess.Popen[bytes]) -> str:
    """Return what is in the pipe of a program that has ended."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        return os.read(process.stdout.fileno(), 65536).decode(errors="replace")
    return ""


def _values(program: Program, text: str, code: int, timing: Timing) -> tuple[float, ...]:
    """Return what a client measured. Raises ProgramError."""
    found = _read(program, text)
    if code != 0 or found is None or found.failures or not found.samples:
        raise ProgramError(_reason(program, text, code))
    (*_, last) = found.samples
    value = last.median_us if program == "ib_write_lat" else last.median_gb_per_s
    if value is None:
        raise ProgramError(_reason(program, text, code))
    if program == "iperf3":
        warm = math.ceil(timing.warm_s / timing.window_s - 1e-6)
        return network.arrived(text, origin=program)[warm:] or (value,)
    return (value,)


def _read(program: Program, text: str) -> Bandwidth | None:
    """Return what is in the output of a program, None where that is nothing of it."""
    try:
        if program == "iperf3":
            return network.parse(text, origin=program).bandwidth
        return network.read_perftest(text, origin=program).machine.bandwidth
    except InputError:
        return None


def _reason(program: Program, text: str, code: int) -> str:
    """Return why a program gave no result: its own words, else how it ended."""
    found = _read(program, text)
    if found is not None and found.failures:
        return found.failures[0].says
    if code < 0:
        return f"{program} was ended by signal {-code}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = "".join(filter(str.isprintable, lines[-1]))[:_MAX_WORDS] if lines else ""
    ended = f"{program} printed no result" if code == 0 else f"{program} ended with exit code {code}"
    return f"{ended}: {last}" if last else ended


_CHUNK = 65536
_PATHS = (
    "NET/",
    "GDRDMA",
    "card ",
    "SHM",
    "P2P",
)  # of the reader's facts, those of the path


class Ended(NamedTuple):
    """What a command printed, and its exit code; None where it was ended, `why`."""

    text: str
    code: int | None
    why: str | None = None


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
        outputs = _outputs(processes, limit_s, f"mpirun did not end within {limit_s:g} s", "mpirun")
    return [
        Ended(text, None, why) if why else Ended(text, process.returncode)
        for process, (text, why) in zip(processes, outputs, strict=True)
    ]


def _outputs(
    processes: Sequence[subprocess.Popen[bytes]], limit_s: float, late: str, program: str
) -> list[tuple[str, str | None]]:
    """Return what each prints until its end, and why it is ended before: `late`, or too much output."""
    deadline_s = time.monotonic() + limit_s
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
                    whys[number] = f"{program} printed more than {_MAX_OUTPUT >> 20} MiB"
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
        return ended.why
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
