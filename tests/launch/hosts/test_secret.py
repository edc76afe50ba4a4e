import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.hosts.secret import INSECURE, MAGIC, Channel, ChannelError, take_secret
from gputopo.launch.remote_agent import SECRET
from gputopo.values.errors import HardwareError, UsageError

A, B = b"the secret of a job", b"the secret of another"


def test_the_variable_is_the_secret_and_no_child_gets_it(tmp_path: Path) -> None:
    environ = {SECRET: "0123456789abcdef", "PATH": "/bin"}
    assert take_secret(environ, tmp_path) == b"0123456789abcdef"
    assert environ == {"PATH": "/bin"}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="has 15 characters"):
        take_secret({SECRET: "0123456789abcde"}, tmp_path)


def test_without_it_a_file_of_the_user_is_made_once_whoever_is_first(tmp_path: Path) -> None:
    home, found = tmp_path / "home", set[bytes]()
    threads = [threading.Thread(target=lambda: found.add(take_secret({}, home))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    (secret,) = found
    assert len(secret) == 64
    assert [path.name for path in home.iterdir()] == ["secret"]
    assert (home / "secret").stat().st_mode & 0o777 == 0o600
    assert secret != take_secret({}, tmp_path / "another")


@pytest.mark.parametrize(("mode", "text"), [(0o640, "x" * 64), (0o604, "x" * 64), (0o600, "short")])
def test_a_file_that_others_can_read_or_that_is_short_is_no_secret(
    tmp_path: Path, mode: int, text: str
) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(UsageError, match="is no secret"):
        take_secret({}, tmp_path)


def test_where_there_can_be_none_it_says_what_to_do_and_insecure_is_asked_for_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HardwareError) as refused:
        take_secret({}, tmp_path / "file")
    assert "GPUTOPO_SECRET" in refused.value.hint
    assert "--insecure" in refused.value.hint
    environ = {SECRET: "0123456789abcdef"}
    assert take_secret(environ, tmp_path / "file", insecure=True) == INSECURE
    assert environ == {}


def moved(one: Channel, other: Channel) -> tuple[list[bytes], bytes]:
    """Move what one has sent to the other; return the messages there, and the bytes."""
    data = bytes(one.out)
    one.out.clear()
    return list(other.take(data)), data


def opened(secret: bytes = A) -> tuple[Channel, Channel]:
    leader, host = Channel(secret, leads=True), Channel(secret, leads=False)
    assert moved(host, leader)[0] == moved(leader, host)[0] == moved(host, leader)[0] == []
    assert leader.is_open
    assert host.is_open
    return leader, host


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 60))
def test_messages_arrive_in_both_directions_however_they_are_cut(messages: list[bytes], size: int) -> None:
    for sender, taker in (opened(), opened()[::-1]):
        for one in messages:
            sender.put(one)
        data = bytes(sender.out)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert [one for piece in pieces for one in taker.take(piece)] == messages


def test_who_has_another_secret_is_found_out_by_both_and_sends_no_message() -> None:
    leader, host = Channel(A, leads=True), Channel(B, leads=False)
    moved(host, leader)
    with pytest.raises(ChannelError, match="another secret"):
        moved(leader, host)
    assert (host.is_open, bytes(host.out)) == (False, b"")
    with pytest.raises(ChannelError, match="another secret"):
        list(leader.take(bytes(32)))
    assert not leader.is_open


@given(st.binary(max_size=200))
def test_bytes_of_anything_else_open_no_channel(data: bytes) -> None:
    for start in (b"", MAGIC):
        for leads in (True, False):
            channel = Channel(A, leads=leads)
            with suppress(ChannelError):
                assert list(channel.take(start + data)) == []
            assert not channel.is_open


def test_a_message_counts_once_in_its_order_its_direction_and_its_connection() -> None:
    def sent() -> tuple[Channel, Channel, bytes, bytes]:
        leader, host = opened()
        host.put(b"one")
        one = bytes(host.out)
        host.put(b"two")
        return leader, host, one, bytes(host.out[len(one) :])

    leader, host, one, two = sent()
    assert list(leader.take(one)) == [b"one"]
    for wrong in (one, two[:-1] + bytes((two[-1] ^ 1,))):  # again; changed
        with pytest.raises(ChannelError, match="was changed"):
            list(leader.take(wrong))
        leader, host, one, two = sent()
        list(leader.take(one))
    leader, host, one, two = sent()
    with pytest.raises(ChannelError, match="was changed"):  # out of order
        list(leader.take(two))
    with pytest.raises(ChannelError, match="was changed"):  # sent back
        list(host.take(one))
    with pytest.raises(ChannelError, match="was changed"):  # on another connection with the same secret
        list(opened()[0].take(one))


def test_a_length_that_no_message_has_is_not_waited_for() -> None:
    leader, _ = opened()
    with pytest.raises(ChannelError, match="too long"):
        list(leader.take(b"\xff" * 36))


def test_nonces_of_two_connections_differ() -> None:
    assert len({bytes(Channel(A, leads=False).out) for _ in range(8)}) == 8
