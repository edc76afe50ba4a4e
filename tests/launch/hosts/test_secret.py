import os
import socket
import threading
from pathlib import Path

import pytest

from gputopo.launch.hosts import take_secret
from gputopo.values.errors import HardwareError, UsageError
from tests.launch.hosts.meetings import LOOPBACK, MAGIC, meeting

SECRET = "GPUTOPO_SECRET"


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
    file.chmod(0o640)
    refused("has mode 640")
    file.chmod(0o600)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        refused(f"belongs to user {os.getuid()}")
    file.write_text("short")
    refused("has 5 bytes")
    file.rename(tmp_path / "f")
    file.symlink_to("f")
    refused("is a symbolic link")


def test_where_there_can_be_none_it_says_what_to_do_and_insecure_is_asked_for_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HardwareError) as refused:
        take_secret({}, tmp_path / "file")
    assert "GPUTOPO_SECRET" in refused.value.hint
    assert "--insecure" in refused.value.hint
    environ = {SECRET: "0123456789abcdef"}
    assert take_secret(environ, tmp_path / "file", insecure=True) == take_secret({}, tmp_path, insecure=True)
    assert environ == {}


def test_nonces_of_two_connections_differ() -> None:
    nonces = set()
    with meeting("n1") as one:
        for _ in range(4):
            with socket.create_connection((LOOPBACK, one.port), timeout=10) as stranger:
                stranger.sendall(MAGIC + bytes(32))
                nonces.add(stranger.recv(len(MAGIC) + 32, socket.MSG_WAITALL))
    assert len(nonces) == 4
