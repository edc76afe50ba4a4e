"""Transfers by other programs: iperf3, and ib_write_bw and ib_write_lat of perftest.

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
import select
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from gputopo.captures.bandwidth import network
from gputopo.copies.network.schedule import Timing
from gputopo.copies.network.tools import Program, Rdma, whole_seconds
from gputopo.probes.network.tcp import connected
from gputopo.probes.processes import in_session
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
    assert process.stdout is not None
    late = ProgramError(f"{program} did not end within {seconds:.1f} s")
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    text = bytearray()
    while poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
        part = os.read(process.stdout.fileno(), 65536)
        if not part:
            break
        text += part
        if len(text) > _MAX_OUTPUT:
            raise ProgramError(f"{program} printed more than {_MAX_OUTPUT >> 20} MiB")
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise late from error
    return text.decode(errors="replace")


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
