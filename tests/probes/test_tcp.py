"""Transfers over loopback: what arrives is counted, a stranger is refused, a dead end is an error."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from gputopo.copies.network import Timing
from gputopo.probes.equipment import interface_of
from gputopo.probes.tcp import Listener, latency, send

SHORT = Timing(warm_s=0.01, window_s=0.01, windows=4, latency_s=0.02)
HERE = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(HERE) as found:
        found.token = "secret"
        yield found


@pytest.mark.parametrize("streams", [1, 3])
def test_the_rate_of_each_window_is_what_arrived(listener: Listener, streams: int) -> None:
    rates = send(HERE, listener.port, "secret", SHORT, streams)
    assert len(rates) == SHORT.windows
    assert max(rates) > 0.01
    assert all(0 <= rate < 1000 for rate in rates)


def test_a_round_trip_takes_microseconds(listener: Listener) -> None:
    times = latency(HERE, listener.port, "secret", SHORT)
    assert 1 <= len(times) <= 10
    assert all(0 < one < 1e6 for one in times)


def test_who_does_not_know_the_token_is_refused(listener: Listener) -> None:
    with pytest.raises(ConnectionError):
        send(HERE, listener.port, "guess", SHORT, 2)
    with pytest.raises(ConnectionError):
        latency(HERE, listener.port, "guess", SHORT)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 1000,
        b"gputopo-network/1 secret sink nan inf 3\n",
        b"gputopo-network/1 secret sink 0 0.1 1000000000\n",
        b"gputopo-network/1 secret sink\n",
        b"gputopo-network/1 secret other\n",
        b"\xff\xfe\n",
        b"\n",
    ],
)
def test_anything_else_is_closed_and_the_next_transfer_works(listener: Listener, head: bytes) -> None:
    stranger = socket.create_connection((HERE, listener.port), timeout=5)
    with stranger, contextlib.suppress(OSError):
        stranger.sendall(head)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    assert latency(HERE, listener.port, "secret", SHORT)


def test_nobody_listens_after_the_end() -> None:
    with Listener(HERE) as one:
        port = one.port
    with pytest.raises(ConnectionRefusedError):
        latency(HERE, port, "secret", SHORT)


def test_the_interface_of_an_address_has_its_mtu() -> None:
    found = interface_of(HERE)
    assert found is not None
    assert found.rate_gbit_per_s is None  # loopback is no Ethernet
    assert found.mtu_bytes is not None
    assert found.mtu_bytes >= 1280
    assert interface_of("192.0.2.1") is None
