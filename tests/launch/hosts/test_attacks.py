"""What a stranger, who reaches the ports and has no secret, can do to a run: nothing."""

import hmac
import os
import re
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from gputopo.launch.hosts import HostStart, RendezvousClient, RunEnd
from gputopo.launch.spec import allowed_variables
from gputopo.values import schema
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.events import Noticed
from tests.kit import commands
from tests.launch.hosts.meetings import (
    LOOPBACK,
    MAGIC,
    PATIENT,
    PROMPT,
    UNUSED,
    Later,
    guest,
    joining,
    lead,
    meeting,
    signed,
    started,
    stranger_at_rank_0,
)
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
    schema.encode(joining(1)),
)
EVIL = HostStart(spec=schema.encode(joining(1)), place=1, environment={"PYTHONPATH": "/evil"})  # type: ignore[arg-type]


def twisted(key: bytes, *, leads: bool) -> Iterator[bytes]:
    """Yield what only who has the secret, or stands between two that have it, can send."""
    own = partial(signed, key, leads=leads)
    good = schema.encode(EVIL if leads else joining(1, "evil"))
    yield b"\xff" * 36  # a length of 4 GiB
    yield own(good)[:-1]  # cut off
    yield own(good)[:4] + own(good + b" ")[4:]
    yield own(good, 1)  # before another one
    yield own(b"") + own(good)  # as the first again
    yield signed(key, good, leads=not leads)  # sent back
    yield signed(bytes(32), good, leads=leads)  # of another connection
    for text in (b"{", b'{"schema":"\xff"}', b"x" * 10**6):
        yield own(text)
    kind = b'{"schema":"gputopo.' + (b"start" if leads else b"joining") + b'/1"'
    yield own(kind + b',"a":' + b"[" * 10**5)
    yield own(kind + b',"rank":1e999,"name":7,"version":null}')
    if not leads:  # with the rank of one that has joined
        yield own(schema.encode(joining(1, "n9\x1b[2J\n" + "x" * 1000)))


def attacks(*, leads: bool) -> list[Callable[[bytes], bytes]]:
    """Return each of them, by the key of a connection."""

    def one(number: int, key: bytes) -> bytes:
        return next(islice(twisted(key, leads=leads), number, None))

    return [partial(one, number) for number, _ in enumerate(twisted(b"", leads=leads))]


def connect(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), timeout=10)


def as_host(stream: socket.socket, says: Callable[[bytes], bytes]) -> bytes:
    """Speak as a host does that has the secret; `says`: what follows the proof, by the key. Return all."""
    hello = MAGIC + bytes(32)
    stream.sendall(hello)
    theirs = stream.recv(len(MAGIC) + 64, socket.MSG_WAITALL)[len(MAGIC) : len(MAGIC) + 32]
    key = hmac.digest(TRUE, bytes(32) + theirs, "sha256")
    rest = hmac.digest(key, b"host", "sha256") + says(key)
    stream.sendall(rest)
    return hello + rest


def test_a_run_goes_on_whatever_strangers_and_one_with_the_secret_send(
    capfd: pytest.CaptureFixture[str],
) -> None:
    notes: list[str] = []
    with meeting("n1", note=notes.append, patience=PATIENT) as one, ExitStack() as held:
        (its,) = started(one, 1, patience=PATIENT)
        for data in STRANGE:
            stranger = held.enter_context(connect(one.port))
            with suppress(ConnectionError):
                stranger.sendall(data)
        for attack in attacks(leads=False):
            with connect(one.port) as sly, suppress(ConnectionError):
                as_host(sly, attack)
                sly.shutdown(socket.SHUT_WR)
                while sly.recv(65536):  # until rank 0 has ended it
                    pass
        its.put(Noticed(time_s=0.0, says="well"))
        assert select.select([one.events.ready], [], [], 10)[0]
        assert [getattr(event, "says", event) for event in one.events.take()] == ["well"]
        assert list(one.wait(0)) == [1]
        one.end(RunEnd(exit_code=0))
    (noted,) = (note for note in notes if "n9" in note)
    assert noted.startswith("a host at 127.0.0.1 was refused: n9")
    assert capfd.readouterr() == ("", "")


def test_a_stranger_who_is_first_gets_no_rank_and_hears_nothing_of_the_run() -> None:
    with meeting("n1") as one:
        with pytest.raises(UsageError, match="has a different secret") as refused:
            guest(one, OTHER).join(joining(1), 5)
        assert "GPUTOPO_SECRET" in refused.value.hint
        with connect(one.port) as stranger:  # goes on without the proof, as a host whose messages count
            stranger.sendall(MAGIC + bytes(32) + bytes(32) + schema.encode(joining(1)))
            came = b"".join(iter(lambda: stranger.recv(4096), b""))
            assert len(came) <= len(MAGIC) + 64  # a nonce and a proof
        with pytest.raises(UsageError, match=r"; a host at 127\.0\.0\.1 was refused: it does not have"):
            one.wait(0.1)
        later = Later(lambda: guest(one).join(joining(1)))
        one.wait(5)
        one.answer({1: UNUSED})
        assert later.result() == UNUSED


def orders(key: bytes) -> bytes:
    """Return what starts a host, and ends it."""
    told = (EVIL, RunEnd(exit_code=0, cause="whatever I say"))
    return b"".join(signed(key, schema.encode(one), number, leads=True) for number, one in enumerate(told))


def test_a_host_is_unharmed_whatever_stands_at_the_port_of_rank_0(capfd: pytest.CaptureFixture[str]) -> None:
    for data in STRANGE:
        with stranger_at_rank_0(lambda to, data=data: to.sendall(data)) as port:  # type: ignore[misc]
            host = RendezvousClient(LOOPBACK, port, TRUE, patience=replace(PROMPT, greeting_s=0.1))
            with pytest.raises(
                (HardwareError, UsageError), match=r"not a gputopo run|different secret|did not answer"
            ):
                host.join(joining(1), 0.05)
    for number, attack in enumerate(attacks(leads=True)):
        with (
            stranger_at_rank_0(partial(lead, secret=TRUE, says=attack)) as port,
            pytest.raises(HardwareError, match=None if number else "a message is too long") as gone,
        ):
            guest(port).join(joining(1), 5)
        assert re.search("sent an invalid message|has not answered", gone.value.what)
    assert capfd.readouterr() == ("", "")


def test_a_stranger_at_the_port_of_rank_0_starts_nothing(tmp_path: Path) -> None:
    with stranger_at_rank_0(partial(lead, secret=TRUE, says=orders)) as port:
        # Who had the secret would start it.
        assert isinstance(guest(port).join(joining(1), 60), HostStart)
    with stranger_at_rank_0(partial(lead, secret=OTHER, says=orders)) as port:
        words = ("run", "--cpu", "--model", "trivial", "--hosts", f"{LOOPBACK}:{port},localhost")
        done = commands.run(
            *("-m", "gputopo", *words, "--node-rank", "1"),
            GPUTOPO_SECRET="the secret of the job",
            GPUTOPO_HOME=str(tmp_path),
        )
    assert done.returncode == 2, done.stderr
    assert "has a different secret" in done.stderr
    assert "whatever I say" not in done.stderr
    assert "the secret of the job" not in done.stderr
    assert list(tmp_path.rglob("*")) == []


def test_who_leads_sets_the_variables_of_the_plan_and_no_other() -> None:
    names = ("PATH", "PYTHONPATH", "LD_PRELOAD", "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN", "XLA_FLAGS")
    lines = {"RANK": "0\nLD_PRELOAD=/evil", "TF_CONFIG": "\0"}
    told = {**dict.fromkeys(names, "/evil"), **lines, "CUDA_VISIBLE_DEVICES": "0"}
    assert allowed_variables(told) == {"CUDA_VISIBLE_DEVICES": "0"}


def test_what_a_host_has_sent_counts_for_nothing_when_it_is_sent_again() -> None:
    with meeting("n1") as one, connect(one.port) as host:
        kept = as_host(host, lambda key: signed(key, schema.encode(joining(1)), leads=False))
        assert list(one.wait(5)) == [1]
    with meeting("n1", "n2") as another:
        with connect(another.port) as stranger:
            stranger.sendall(kept)
            with suppress(ConnectionError):
                assert len(b"".join(iter(lambda: stranger.recv(4096), b""))) <= len(MAGIC) + 64
        with pytest.raises(UsageError, match="2 of 3 hosts did not join"):
            another.wait(0.1)


_MANY = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for number in range(300):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    if number % 2:
        try:
            held[-1].sendall(b"g")
        except OSError:
            pass
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def few_files() -> Iterator[None]:
    """This process may open two hundred files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_hundreds_of_connections_that_stay_open_or_are_slow_keep_no_host_out(
    few_files: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with meeting("n1", "n2", patience=PATIENT) as one:

        def join(rank: int) -> HostStart | RunEnd:
            return RendezvousClient(LOOPBACK, one.port, TRUE, patience=PATIENT).join(joining(rank))

        first = Later(partial(join, 1))
        strangers = [sys.executable, "-IS", "-c", _MANY, str(one.port)]
        with subprocess.Popen(strangers, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as many:
            assert many.stdout is not None
            assert many.stdout.readline() == b"there\n"
            second = Later(partial(join, 2))
            assert list(one.wait(30)) == [1, 2]
            one.answer(dict.fromkeys((1, 2), UNUSED))
            assert first.result() == second.result() == UNUSED
            many.communicate(timeout=10)
    assert capfd.readouterr() == ("", "")


def test_a_connection_that_does_not_prove_the_secret_is_ended() -> None:
    with meeting("n1", patience=replace(PROMPT, greeting_s=0.1)) as one, connect(one.port) as slow:
        slow.sendall(MAGIC)
        assert slow.recv(1) == b""
