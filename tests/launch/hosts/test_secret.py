import asyncio
import os
import threading
from pathlib import Path
from typing import cast

import pytest

from gputopo.launch.hosts.agent import SECRET
from gputopo.launch.hosts.channel import MAGIC, MAX_BYTES, Channel, ChannelError
from gputopo.launch.hosts.secret import INSECURE, take_secret
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


def test_a_file_that_others_can_read_or_have_put_there_or_that_is_short_is_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"

    def refused(why: str) -> None:
        with pytest.raises(UsageError, match=f"cannot be the secret of the hosts: it {why}"):
            take_secret({}, tmp_path)

    file.write_text("x" * 64)
    for mode in (0o640, 0o604):
        file.chmod(mode)
        refused(f"has mode {mode:o}")
    file.chmod(0o600)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        refused(f"belongs to user {os.getuid()}")
    file.write_text("short")
    refused("has 5 bytes")
    file.rename(tmp_path / "f")
    file.symlink_to("f")
    refused("is a symbolic link")
    file.unlink()
    os.mkfifo(file, 0o600)
    refused("has 0 bytes")  # it is not waited for


def test_where_there_can_be_none_it_says_what_to_do_and_insecure_is_asked_for_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HardwareError) as refused:
        take_secret({}, tmp_path / "file")
    assert "GPUTOPO_SECRET" in refused.value.hint
    assert "--insecure" in refused.value.hint
    environ = {SECRET: "0123456789abcdef"}
    assert take_secret(environ, tmp_path / "file", insecure=True) == INSECURE
    assert environ == {}


class _Cable:
    """What a channel writes to: the reader of the other end, or nobody yet; `sent` is all of it."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.sent = bytearray()

    def write(self, data: bytes) -> None:
        self.sent += data
        self.reader.feed_data(data)

    def is_closing(self) -> bool:
        return False


async def ends(
    a: bytes = A, b: bytes = A
) -> tuple[Channel, _Cable, Channel, _Cable, tuple[BaseException | None, BaseException | None]]:
    """Return rank 0, a host, what each has sent, and how their openings ended."""
    of_leader, of_host = _Cable(), _Cable()
    leader = Channel(of_host.reader, cast("asyncio.StreamWriter", of_leader), a, leads=True)
    host = Channel(of_leader.reader, cast("asyncio.StreamWriter", of_host), b, leads=False)
    opened = asyncio.gather(leader.open(), host.open(), return_exceptions=True)
    if a != b:
        await asyncio.sleep(0.01)
        of_host.reader.feed_eof()
    return leader, of_leader, host, of_host, await opened


def test_who_has_another_secret_is_found_out_and_sends_no_message() -> None:
    async def check() -> None:
        leader, _, _, of_host, (at_leader, at_host) = await ends(A, B)
        assert (str(at_host), type(at_leader)) == ("has a different secret", asyncio.IncompleteReadError)
        assert leader.has_greeted
        assert len(of_host.sent) == len(MAGIC) + 32
        reader = asyncio.StreamReader()
        reader.feed_data(bytes(of_host.sent) + bytes(32))
        another = Channel(reader, cast("asyncio.StreamWriter", _Cable()), A, leads=True)
        with pytest.raises(ChannelError, match="different secret"):
            await another.open()
        with pytest.raises(AssertionError):
            another.send(b"")

    asyncio.run(check())


def test_a_message_that_is_too_long_is_refused_by_its_head() -> None:
    async def check() -> None:
        leader, _, _, of_host, _ = await ends()
        of_host.write((MAX_BYTES + 1).to_bytes(4) + bytes(32))
        with pytest.raises(ChannelError):
            await asyncio.wait_for(leader.take(), 5)

    asyncio.run(check())


def test_nonces_of_two_connections_differ() -> None:
    async def check() -> None:
        assert len({bytes((await ends())[number].sent[:48]) for number in (1, 3) for _ in range(4)}) == 8  # type: ignore[union-attr]

    asyncio.run(check())
