import errno
import platform
import re
import socket
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gputopo.launch.hosts import RendezvousClient, RendezvousServer, host_command
from gputopo.values.errors import HardwareError, UsageError
from tests.launch.hosts.meetings import LOOPBACK, PROMPT, SECRET, UNUSED, Later, joining, meeting


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses by name, in place of DNS."""
    known: dict[str, list[str]] = {}

    def resolve(name: str, port: Any, family: Any = 0, type: Any = 0, **_: Any) -> list[Any]:
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in known[name]]
        return [
            (family, type, 6, "", (each, port)) for family, each in zip(families, known[name], strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


def tried(name: str, *, allow_public: bool = False) -> list[str]:
    """Return the addresses on which rank 0 tries to listen, where it can on none."""
    addresses: list[str] = []

    def refuse(address: tuple[str, int], **_: Any) -> None:
        addresses.append(address[0])
        raise OSError(errno.EADDRNOTAVAIL, "")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "create_server", refuse)
        with pytest.raises(HardwareError, match="does not have that address"):
            RendezvousServer([name, "n1"], 0, SECRET, allow_public=allow_public)
    return addresses


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("::ffff:8.8.8.8", True),
        ("10.1.2.3", False),
        ("100.64.0.1", False),  # shared by carriers, and by Tailscale
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_an_address_that_everyone_can_reach_is_refused_unless_allowed(
    address: str, public: bool, names: dict[str, list[str]]
) -> None:
    names[address] = [address]
    assert tried(address, allow_public=True) == [address]
    if not public:
        assert tried(address) == [address]
        return
    with pytest.raises(UsageError, match=f"{re.escape(address)} is public"):
        tried(address)


def test_rank_0_listens_on_each_address_of_its_name_only(names: dict[str, list[str]]) -> None:
    names["n0"] = ["fd00::5", "10.0.0.5", "10.0.0.5"]
    assert tried("n0") == ["fd00::5", "10.0.0.5"]
    names["n0"] = ["10.0.0.5", "8.8.8.8"]
    with pytest.raises(UsageError, match=r"8\.8\.8\.8 is public"):
        tried("n0")


def has_addresses(monkeypatch: pytest.MonkeyPatch, *own: str) -> None:
    """Gives this host network cards with these addresses."""
    cards = {f"eth{n}": [SimpleNamespace(family=socket.AF_INET, address=one)] for n, one in enumerate(own)}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: cards)


def test_a_host_is_known_by_its_own_name_and_its_addresses_and_no_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise AssertionError("a name server may take seconds")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(platform, "node", lambda: "n1.site")
    has_addresses(monkeypatch, "127.0.0.1", "10.0.0.5")
    own = ["n1", "N1.site", "localhost", "127.0.0.9", "10.0.0.5"]
    names = [*own, "n2", "n1.other", "10.0.0.6", "alias"]
    commands = [host_command(0, name, ("true",), python="python", environ={}) for name in names]
    assert [command.host for command in commands if not command.remote] == own


def test_a_name_that_is_loopback_here_is_another_address_elsewhere(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["n0"] = ["127.0.1.1"]
    has_addresses(monkeypatch, "127.0.0.1", "10.0.0.5")
    assert set(tried("n0")) <= {"::", "0.0.0.0"}
    has_addresses(monkeypatch, "127.0.0.1", "8.8.8.8")
    with pytest.raises(UsageError, match="public"):
        tried("n0")


@pytest.mark.parametrize("name", ["localhost", "::1"])
def test_loopback_that_was_asked_for_stays_loopback(name: str, names: dict[str, list[str]]) -> None:
    names |= {"localhost": ["127.0.0.1"], "::1": ["::1"]}
    assert tried(name) == names[name]


def test_a_name_of_this_host_that_is_not_known_yet_is_listened_for_on_all_interfaces(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "set-workers-0-0")
    has_addresses(monkeypatch, "127.0.0.1", "10.0.0.5")
    assert set(tried("set-workers-0-0.set")) <= {"::", "0.0.0.0"}
    with pytest.raises(UsageError, match="rank 0 is 'n0', which this host cannot resolve"):
        tried("n0")


def test_a_port_in_use_on_the_first_address_is_not_evaded_on_the_second(names: dict[str, list[str]]) -> None:
    names |= {"localhost": ["127.0.0.1", "127.0.0.2"], LOOPBACK: [LOOPBACK]}
    with meeting("n1") as one, pytest.raises(HardwareError, match="in use"):
        RendezvousServer(["localhost", "n1"], one.port, SECRET)


def test_rank_0_is_found_on_the_second_address_of_its_name(names: dict[str, list[str]]) -> None:
    names[LOOPBACK] = [LOOPBACK]
    with meeting("n1") as one:
        names["n0"] = ["127.0.0.2", "127.0.0.1"]
        its = RendezvousClient("n0", one.port, SECRET, patience=PROMPT)
        later = Later(lambda: its.join(joining(1)))
        one.wait(5)
        one.answer({1: UNUSED})
        assert later.result() == UNUSED
