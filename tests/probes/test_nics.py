import ctypes
import fcntl
import struct
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes import max_rate, read_network, read_tree
from gputopo.values.machine import NicPort
from tests.kit.specs import NicSpec, PortSpec
from tests.kit.sysfs import write_files, write_network

ADDRESS = "0000:41:00.0"


def card(root: Path, *ports: PortSpec, name: str = "mlx5_0", rdma: bool = True) -> Path:
    folder = root / "sys/bus/pci/devices" / ADDRESS
    folder.mkdir(parents=True, exist_ok=True)
    write_network(folder, NicSpec(ADDRESS, None, "pci0000:40", name, infiniband=rdma, ports=ports))
    return folder


def ports_of(root: Path, rate: float | str = "NOT_ASKED") -> tuple[NicPort, ...]:
    ports: tuple[NicPort, ...] = read_network(root, ADDRESS, lambda _: rate).facts["ports"]
    return ports


def test_a_port_is_joined_with_its_interface(tmp_path: Path) -> None:
    card(tmp_path, PortSpec("ib0", errors={"symbol_error": 4, "rx_crc_errors": 2}))
    (port,) = ports_of(tmp_path)
    assert (port.name, port.rdma_port, port.interface, port.link_layer) == ("mlx5_0", 1, "ib0", "InfiniBand")
    assert (port.state, port.phys_state, port.operstate, port.carrier) == ("ACTIVE", "LinkUp", "up", True)
    assert (port.rate_gbit_per_s, port.lanes, port.mtu_bytes, port.duplex) == (100.0, 4, 4092, "full")
    assert port.errors is not None
    assert (port.errors["symbol_error"], port.errors["rx_crc_errors"]) == (4, 2)
    assert "port_rcv_data" not in port.errors
    about = read_network(tmp_path, ADDRESS).facts
    assert (about["firmware_version"], about["psid"]) == ("12.28.2006", "MT_2180110032")


def test_the_interfaces_of_a_card_with_two_ports_are_told_apart(tmp_path: Path) -> None:
    card(
        tmp_path,
        PortSpec("ens1"),
        PortSpec("ens1d1", phys_state="2: Polling", state="1: DOWN"),
        name="mlx4_0",
    )
    first, second = ports_of(tmp_path)
    assert (first.name, first.interface, first.up) == ("mlx4_0", "ens1", True)
    assert (second.name, second.interface, second.up) == ("mlx4_0/2", "ens1d1", False)


def test_a_port_without_a_link_has_no_rate_and_the_reason_is_known(tmp_path: Path) -> None:
    card(tmp_path, PortSpec("ib0", state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)"))
    (port,) = ports_of(tmp_path)
    assert (port.rate_gbit_per_s, port.lanes, port.up) == (None, None, False)
    missing = read_network(tmp_path, ADDRESS).missing
    assert missing["ports[0].rate_gbit_per_s"] == missing["ports[0].lanes"] == "LINK_DOWN"
    assert missing["ports[0].max_rate_gbit_per_s"] == "NOT_REPORTED_FOR_INFINIBAND"


def test_an_ethernet_interface_without_rdma_is_a_port(tmp_path: Path) -> None:
    card(tmp_path, PortSpec("eno1", "Ethernet", None, rate="25 Gb/sec"), rdma=False)
    (port,) = ports_of(tmp_path, 100.0)
    assert (port.rate_gbit_per_s, port.max_rate_gbit_per_s, port.link_layer) == (25.0, 100.0, "Ethernet")
    assert read_network(tmp_path, ADDRESS).missing["ports[0].state"] == "NO_RDMA_DEVICE"


def test_a_disabled_interface_is_down_and_its_link_is_not_known(tmp_path: Path) -> None:
    card(tmp_path, PortSpec("eno1", "Ethernet", None, enabled=False), rdma=False)
    (port,) = ports_of(tmp_path)
    assert (port.enabled, port.carrier, port.up) == (False, None, False)
    assert read_network(tmp_path, ADDRESS).missing["ports[0].carrier"] == "INTERFACE_DISABLED"


def test_interfaces_of_virtual_functions_and_children_are_left_out(tmp_path: Path) -> None:
    folder = card(tmp_path, PortSpec("ens1np0", "Ethernet"))
    write_files(folder / "net/eth7", {"phys_port_name": "pf0vf3", "dev_port": 0})
    write_files(folder / "net/ib0.8001", {"parent": "ib0", "dev_port": 0})
    assert [port.interface for port in ports_of(tmp_path)] == ["ens1np0"]


def test_no_address_of_hardware_is_read(tmp_path: Path) -> None:
    folder = card(tmp_path, PortSpec("ib0"))
    write_files(folder / "infiniband/mlx5_0", {"node_guid": "0c42:a103:0000:abcd", "node_desc": "n3 HCA-1"})
    text = repr(read_network(tmp_path, ADDRESS))
    assert not any(word in text for word in ("0c42", "52:54", "HCA-1"))


@pytest.mark.parametrize(
    ("module", "found"), [("nvidia_peermem", True), ("nv_peer_mem", True), ("ib_core", False)]
)
def test_the_module_of_gpudirect_rdma_is_one_of_two(module: str, found: bool, tmp_path: Path) -> None:
    assert read_tree(tmp_path).driver.peer_memory_module is None
    write_files(tmp_path / "sys/module" / module, {"refcnt": 1})
    assert read_tree(tmp_path).driver.peer_memory_module == (module if found else "none")


@given(st.text(max_size=30))
def test_any_text_in_the_files_gives_facts_or_reasons(text: str) -> None:
    """The reading of a port is total: whatever a driver writes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        place = card(root, PortSpec("ib0"))
        for name in ("ports/1/rate", "ports/1/state", "ports/1/counters/symbol_error"):
            (place / "infiniband/mlx5_0" / name).write_text(text)
        for name in ("speed", "mtu", "carrier", "flags", "dev_port"):
            (place / "net/ib0" / name).write_text(text)
        for port in ports_of(root):
            assert port.mtu_bytes is None or port.mtu_bytes >= 0
            assert port.rate_gbit_per_s is None or port.rate_gbit_per_s >= 0


@pytest.mark.parametrize(
    ("bits", "rate"),
    [
        ((6, 10, 12, 13, 38), 100.0),
        ((5, 7), 1.0),
        ((6, 49, 89), 400.0),
        ((6, 7, 13), "NO_LINK_MODES"),
        ((), "NO_LINK_MODES"),
        ((38, 130), "UNKNOWN_LINK_MODE"),
    ],
)
def test_the_rate_is_that_of_the_fastest_mode_and_unknown_where_a_mode_is(
    bits: tuple[int, ...], rate: float | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As linux/ethtool.h has it: first the kernel answers how many words of a mask it has, negative."""
    asked: list[int] = []

    def ioctl(_socket: object, number: int, request: bytes) -> None:
        assert (number, request[:4]) == (0x8946, b"eth0")
        (address,) = struct.unpack_from("P", request, 16)
        words = ctypes.c_byte.from_address(address + 15)
        asked.append(words.value)
        words.value = -words.value or -5
        if len(asked) == 2:
            mask = sum(1 << bit for bit in bits).to_bytes(20, sys.byteorder)
            ctypes.memmove(address + 48, mask, len(mask))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert (max_rate("eth0"), asked) == (rate, [0, 5])


@pytest.mark.parametrize(("speed", "rate"), [(0, None), (65_535, None), (2**32 - 1, None)])
def test_the_numbers_by_which_drivers_state_that_a_speed_is_unknown_are_no_rate(
    speed: int, rate: float | None, tmp_path: Path
) -> None:
    folder = card(tmp_path, PortSpec("eth0", "Ethernet", state=None), rdma=False)
    (folder / "net/eth0/speed").write_text(f"{speed}\n")
    (port,) = ports_of(tmp_path)
    assert port.rate_gbit_per_s == rate
