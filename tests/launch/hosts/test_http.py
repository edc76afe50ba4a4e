"""Rank 0's server against clients that are slow, large, lost or no gputopo at all."""

import http.client
import socket
import string
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputopo.launch.hosts.messages import BEARER, JOIN_PATH, MAX_BODY_BYTES, Refused, Unused, path_of
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.values import schema
from tests.launch.hosts.meetings import LOOPBACK, PROMPT, Later, guest, joining, meeting


@pytest.fixture(scope="module")
def open_meeting() -> Iterator[RendezvousServer]:
    with meeting("n1") as one:
        yield one


def post(port: int, target: str, body: bytes, token: str = "t", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("POST", target, body, {"Authorization": BEARER + token, **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def raw(port: int, data: bytes) -> bytes:
    """Send bytes and return what comes back; nothing where the server closes before it has read them."""
    connection = socket.create_connection((LOOPBACK, port), timeout=5)
    with connection, suppress(ConnectionError):
        connection.sendall(data)
        with suppress(OSError):  # the server has closed it already
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


def is_well(one: RendezvousServer) -> bool:
    """Whether the server still answers, and has noticed nothing of its own."""
    return post(one.port, "/", b"")[0] == 404 and not list(one.events.take())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_answered_by_400(open_meeting: RendezvousServer, body: bytes) -> None:
    assert post(open_meeting.port, JOIN_PATH, body)[0] == 400
    assert is_well(open_meeting)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=3,
)


@given(st.sampled_from(["rank", "name", "version", "job", "machine", "port", "asked", "schema"]), anything)
def test_a_message_with_one_odd_field_costs_nothing(
    open_meeting: RendezvousServer, field: str, value: object
) -> None:
    message = {**msgspec.to_builtins(joining(5)), field: value}
    body = msgspec.json.encode(message)
    assert post(open_meeting.port, JOIN_PATH, body)[0] in (400, 403)
    assert is_well(open_meeting)


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc", "Zs"]), max_size=60))
def test_an_unknown_path_or_query_is_refused(open_meeting: RendezvousServer, text: str) -> None:
    assert post(open_meeting.port, f"/{text}", b"")[0] == 404
    assert post(open_meeting.port, f"/ranks/1/events?{text}", b"")[0] == 400
    assert is_well(open_meeting)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # gRPC
        b"POST /join HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /join HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /join HTTP/1.1\r\nContent-Length: 10\r\n\r\nshort",
        b"POST /join HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"POST /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_what_is_no_request_of_ours_is_refused_or_dropped(
    open_meeting: RendezvousServer, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = raw(open_meeting.port, data)
    assert answer == b"" or answer.split(b" ")[1][:1] in b"45" or b"Error code" in answer
    assert is_well(open_meeting)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), "9" * 5000])
def test_a_body_that_is_too_large_is_not_read(open_meeting: RendezvousServer, length: str) -> None:
    head = f"POST {JOIN_PATH} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
    assert b" 413 " in raw(open_meeting.port, head.encode())
    assert is_well(open_meeting)


def test_who_has_not_joined_cannot_report_for_a_rank() -> None:
    event = b'{"event":"noticed","time_s":0.0,"says":"a"}\n'
    target = f"{path_of(1, 'events')}?first=0&sent=0&serves=0"
    with meeting("n1") as one:
        assert post(one.port, target, event)[0] == 403
        later = Later(lambda: post(one.port, JOIN_PATH, schema.encode(joining(1)), token="its"))
        one.wait(5)
        status, answer = post(one.port, target, event, token="another")
        assert status == 403
        assert msgspec.json.decode(answer, type=Refused).what == "rank 0 does not know this host"
        assert list(one.events.take()) == []
        assert post(one.port, target, event, token="its")[0] == 200
        assert len(list(one.events.take())) == 1
        later.result()


@pytest.fixture(scope="module")
def joined() -> Iterator[RendezvousServer]:
    """A meeting that the host of rank 1 has joined, with the token t."""
    with meeting("n1") as one:
        assert post(one.port, JOIN_PATH, schema.encode(joining(1)))[0] == 200
        yield one


@example(b"", 2**64, 0.0)
@given(st.binary(max_size=200), st.integers(), st.floats() | st.text(string.printable))
def test_a_host_that_reports_nonsense_costs_nothing(
    joined: RendezvousServer, body: bytes, first: int, sent: object
) -> None:
    query = urllib.parse.urlencode({"first": first, "sent": sent, "serves": 0})
    status, _ = post(joined.port, f"{path_of(1, 'events')}?{query}", body)
    assert status == 400 or (status == 200 and not body.strip())
    assert is_well(joined)


@pytest.mark.parametrize(
    "lines",
    [
        b"{}",
        b'{"event":"warmup_done","time_s":0.0,"steps":1,"seconds":1.0}',
        b'{"event":"step"',
    ],
)
def test_lines_that_are_no_events_of_a_host_are_not_taken(lines: bytes) -> None:
    with meeting("n1") as one:
        later = Later(lambda: post(one.port, JOIN_PATH, schema.encode(joining(1))))
        one.wait(5)
        good = b'{"event":"noticed","time_s":0.0,"says":"a"}\n'
        assert post(one.port, f"{path_of(1, 'events')}?first=0&sent=0&serves=0", good + lines)[0] == 400
        assert list(one.events.take()) == []
        later.result()


def test_clients_that_send_nothing_block_nobody_and_are_cut_off() -> None:
    impatient = replace(PROMPT, connection_s=0.2)
    with meeting("n1", patience=impatient) as one, ExitStack() as open_ones:
        slow = [
            open_ones.enter_context(socket.create_connection((LOOPBACK, one.port), timeout=5))
            for _ in range(60)
        ]
        for connection in slow:
            connection.sendall(b"POST /join HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        later = Later(lambda: guest(one, 1).join(joining(1)))
        one.wait(5)
        one.answer({1: Unused(why="")})
        later.result()
        assert [connection.recv(100) for connection in slow] == [b""] * 60
