"""What a stranger, who reaches the ports and has no secret, can do to a run: nothing."""

import hmac
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gputopo.launch.hosts.messages import HostStart, Reply, RunEnd
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.launch.hosts.secret import MAGIC
from gputopo.launch.remote_agent import SECRET
from gputopo.launch.spec.env import allowed
from gputopo.values import schema
from gputopo.values.errors import UsageError
from gputopo.values.run.events import Noticed
from tests.launch.hosts.meetings import LOOPBACK, PROMPT, UNUSED, Later, guest, joining, meeting, started
from tests.launch.hosts.meetings import SECRET as TRUE

OTHER = b"what the stranger has"
STRANGE = (
    b"",
    b"\x00" * 1000,
    MAGIC,
    MAGIC + bytes(64),
    MAGIC + bytes(64) + b"\xff" * 100,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # gRPC
    schema.encode(joining(1)),
)
EVIL = HostStart(spec=schema.encode(joining(1)), environment={"PYTHONPATH": "/evil"})  # type: ignore[arg-type]


def connect(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), timeout=10)


def goes_on(one: RendezvousServer, its: RendezvousClient) -> None:
    """Check that a host's report comes to rank 0, and nothing else has."""
    its.put(Noticed(time_s=0.0, says="well"))
    assert select.select([one.events.ready], [], [], 10)[0]
    assert [getattr(event, "says", event) for event in one.events.take()] == ["well"]
    assert list(one._members.joined) == [1]


def test_a_run_goes_on_whatever_strangers_send_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with meeting("n1") as one, ExitStack() as held:
        (its,) = started(one, 1)
        for data in STRANGE:
            stranger = held.enter_context(connect(one.port))
            with suppress(ConnectionError):
                stranger.sendall(data)
        goes_on(one, its)
        one.end(RunEnd(exit_code=0))
    assert capfd.readouterr() == ("", "")


def test_a_stranger_who_is_first_gets_no_rank_and_hears_nothing_of_the_run() -> None:
    with meeting("n1") as one:
        with pytest.raises(UsageError, match="it has another secret") as refused:
            guest(one, OTHER).join(joining(1), 5)
        assert "GPUTOPO_SECRET" in refused.value.hint
        with connect(one.port) as stranger:  # goes on without the proof, as a host whose messages count
            stranger.sendall(MAGIC + bytes(32) + bytes(32) + schema.encode(joining(1)))
            came = b"".join(iter(lambda: stranger.recv(4096), b""))
            assert len(came) <= len(MAGIC) + 64  # a nonce and a proof
        with pytest.raises(UsageError, match=r"refused besides: 127\.0\.0\.1 without the secret of this"):
            one.wait(0.1)
        later = Later(lambda: guest(one).join(joining(1)))
        one.wait(5)
        one.answer({1: UNUSED})
        assert later.result() == UNUSED


@contextmanager
def stranger_at_rank_0(secret: bytes) -> Iterator[int]:
    """A stranger who listens first, speaks as rank 0 does, and starts whoever comes; yields the port."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                own, theirs = bytes(32), connection.recv(65536)[len(MAGIC) :]
                key = hmac.digest(secret, theirs + own, "sha256")
                connection.sendall(MAGIC + own + hmac.digest(key, b"rank 0", "sha256"))
                for number, message in enumerate((EVIL, RunEnd(exit_code=0, cause="whatever I say"))):
                    body = schema.encode(message)
                    mac = hmac.digest(key, b"\1" + number.to_bytes(8) + body, "sha256")
                    connection.sendall(len(body).to_bytes(4) + mac + body)
                connection.recv(65536)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    serve(listening.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


def test_a_stranger_at_the_port_of_rank_0_starts_nothing(tmp_path: Path) -> None:
    with stranger_at_rank_0(TRUE) as port:  # who had the secret would start it
        assert isinstance(guest(port).join(joining(1), 60), HostStart)
    with stranger_at_rank_0(OTHER) as port:
        with pytest.raises(UsageError, match="it has another secret"):
            guest(port).join(joining(1), 60)
        words = ("run", "--cpu", "--model", "trivial", "--hosts", f"{LOOPBACK}:{port},localhost")
        done = subprocess.run(
            [sys.executable, "-m", "gputopo", *words, "--node-rank", "1"],
            env={**os.environ, SECRET: "the secret of the job", "GPUTOPO_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2, done.stderr
    assert "it has another secret" in done.stderr
    assert "whatever I say" not in done.stderr
    assert "the secret of the job" not in done.stderr
    assert list(tmp_path.rglob("*")) == []


def test_who_leads_sets_the_variables_of_the_plan_and_no_other() -> None:
    names = ("PATH", "PYTHONPATH", "LD_PRELOAD", "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN", "XLA_FLAGS")
    assert allowed({**dict.fromkeys(names, "/evil"), "CUDA_VISIBLE_DEVICES": "0"}) == {
        "CUDA_VISIBLE_DEVICES": "0"
    }


@contextmanager
def recorded(port: int, into: bytearray) -> Iterator[int]:
    """A stranger between a host and rank 0, who keeps what the host sends; yields its port."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def pump(one: socket.socket, other: socket.socket, kept: bytearray | None) -> None:
            with suppress(OSError):
                while data := one.recv(65536):
                    if kept is not None:
                        kept += data
                    other.sendall(data)
            with suppress(OSError):
                other.shutdown(socket.SHUT_WR)

        def relay() -> None:
            with listening.accept()[0] as host, connect(port) as leader:
                back = threading.Thread(target=pump, args=(leader, host, None))
                back.start()
                pump(host, leader, into)
                back.join()

        threading.Thread(target=relay, daemon=True).start()
        yield int(listening.getsockname()[1])


def test_what_a_host_has_sent_counts_for_nothing_when_it_is_sent_again() -> None:
    kept = bytearray()
    with meeting("n1") as one, recorded(one.port, kept) as port:
        later = Later(lambda: guest(port).join(joining(1)))
        one.wait(5)
        one.answer({1: UNUSED})
        assert later.result() == UNUSED
    assert b"gputopo.joining/1" in kept
    with meeting("n1", "n2") as another:
        with connect(another.port) as stranger:
            stranger.sendall(kept)
            with suppress(ConnectionError):
                assert len(b"".join(iter(lambda: stranger.recv(4096), b""))) <= len(MAGIC) + 64
        assert not another._members.joined
        with pytest.raises(UsageError, match="2 of 3 hosts did not join"):
            another.wait(0.1)


_MANY = """
import socket, sys
held = []
for number in range(1000):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    if number % 2:
        try:
            held[-1].sendall(b"g")
        except OSError:
            pass
print("there", flush=True)
sys.stdin.read()
"""


def test_a_thousand_connections_that_stay_open_or_are_slow_keep_no_host_out() -> None:
    patience = replace(PROMPT, silent_s=10.0)  # the flood takes the CPU, too
    with meeting("n1", "n2", patience=patience) as one:

        def join(rank: int) -> Reply:
            return RendezvousClient(LOOPBACK, one.port, TRUE, patience=patience).join(joining(rank))

        first = Later(partial(join, 1))
        strangers = [sys.executable, "-IS", "-c", _MANY, str(one.port)]
        with subprocess.Popen(strangers, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as many:
            assert many.stdout is not None
            assert many.stdout.readline() == b"there\n"
            second = Later(partial(join, 2))
            assert list(one.wait(30)) == [1, 2]
            one.answer(dict.fromkeys((1, 2), UNUSED))
            assert first.result() == second.result() == UNUSED
            assert len(one._strangers) <= 256
            many.communicate(timeout=10)


def test_a_connection_that_does_not_prove_the_secret_is_ended() -> None:
    with meeting("n1", patience=replace(PROMPT, greeting_s=0.1)) as one, connect(one.port) as slow:
        slow.sendall(MAGIC)
        assert slow.recv(1) == b""
