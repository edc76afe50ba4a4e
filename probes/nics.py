"""Reads network cards: their ports in sysfs, as RDMA devices and as network interfaces."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gputopo.probes.host import list_names, read_number, read_text
from gputopo.values.facts import item, within
from gputopo.values.machine import RETRIES, NicPort

NOT_IN_SYS = "NOT_IN_PROC_OR_SYS"
LINK_DOWN = "LINK_DOWN"
_NO_RDMA = "NO_RDMA_DEVICE"
_NO_INTERFACE = "NO_NETWORK_INTERFACE"
_DISABLED = "INTERFACE_DISABLED"
_NO_LINK_MODES = "NOT_REPORTED_FOR_INFINIBAND"
_NOT_ASKED = "NOT_ASKED"

# linux: Documentation/ABI/stable/sysfs-class-infiniband (a port's counters, its driver's hw_counters) and
# Documentation/ABI/testing/sysfs-class-net-statistics.
_PORT_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "VL15_dropped",
)
_TRANSPORT_ERRORS = (*RETRIES, "rx_icrc_encapsulated")
_INTERFACE_ERRORS = (
    "rx_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_missed_errors",
    "tx_errors",
    "tx_carrier_errors",
    "tx_aborted_errors",
)
# Port names of virtual functions and subfunctions (linux: Documentation/networking/switchdev): `pf0vf3`,
# `c1pf0sf2`. The card's own port is `p0`.
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?")
_INTERFACE_UP = 1  # IFF_UP of linux/if.h
_UNKNOWN_SPEEDS = (0, 65535, 2**32 - 1)  # Mbit/s; newer kernels write -1
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec \((\d+)X")  # "200 Gb/sec (4X HDR)"

# Takes an interface's name; returns the Gbit/s of its fastest link mode, or the reason why it is unknown.
Ask = Callable[[str], float | str]

_OF_RDMA = ("rdma_device", "rdma_port", "link_layer", "state", "phys_state", "lanes")
_OF_INTERFACE = ("interface", "operstate", "enabled", "carrier", "duplex", "mtu_bytes")


class NicFacts(NamedTuple):
    """What sysfs shows about a card besides its address: facts by field, and reasons of missing facts."""

    facts: dict[str, Any]
    missing: dict[str, str]


class _RdmaPort(NamedTuple):
    """A port of an RDMA device, with its number from 1 and its folder in sysfs."""

    device: str
    number: int
    folder: Path


def read_network(root: Path, address: str, max_rate: Ask | None = None) -> NicFacts:
    """Return firmware, PSID and ports of the card at a PCI address. A card without a driver has no ports.

    `max_rate`: None if the link modes cannot be asked for: the tree is a copy, or belongs to another machine.
    """
    folder = root / "sys/bus/pci/devices" / address
    devices = list_names(folder / "infiniband")
    interfaces = _own_interfaces(folder)
    missing: dict[str, str] = {}
    about = {
        "firmware_version": _first(folder / "infiniband" / name / "fw_ver" for name in devices),
        "psid": _first(folder / "infiniband" / name / "board_id" for name in devices),
        "hca_type": _first(folder / "infiniband" / name / "hca_type" for name in devices),
    }
    missing |= {name: NOT_IN_SYS if devices else _NO_RDMA for name, value in about.items() if value is None}
    ports: list[tuple[_RdmaPort | None, tuple[str, Path] | None]] = []
    for device in devices:
        numbered = folder / "infiniband" / device / "ports"
        for number in sorted(int(name) for name in list_names(numbered) if name.isdecimal()):
            # An interface shows its port, counted from 0 (linux: net/core/net-sysfs.c, dev_port).
            shown = (name for name in interfaces if read_number(interfaces[name] / "dev_port") == number - 1)
            name = next(shown, None)
            interface = (name, interfaces.pop(name)) if name else None
            ports.append((_RdmaPort(device, number, numbered / str(number)), interface))
    ports += [(None, interface) for interface in interfaces.items()]
    read = []
    for index, (rdma, interface) in enumerate(ports):
        facts, reasons = _port(rdma, interface, max_rate)
        read.append(NicPort(index=index, **facts))
        missing |= {within(item("ports", index), name): why for name, why in reasons.items()}
    return NicFacts({**about, "ports": tuple(read)}, missing)


def peer_memory_module(root: Path) -> str | None:
    """Return the kernel module that gives RDMA cards access to GPU memory, "none", or None if unknown.

    nvidia_peermem comes with the driver; nv_peer_mem was a separate package.
    """
    modules = root / "sys/module"
    if not modules.is_dir():
        return None
    return next((name for name in ("nvidia_peermem", "nv_peer_mem") if (modules / name).is_dir()), "none")


def _port(
    rdma: _RdmaPort | None, interface: tuple[str, Path] | None, max_rate: Ask | None
) -> tuple[dict[str, Any], dict[str, str]]:
    facts: dict[str, Any] = {}
    reasons = dict.fromkeys(_OF_RDMA, _NO_RDMA) if rdma is None else _rdma(facts, rdma)
    reasons |= (
        dict.fromkeys(_OF_INTERFACE, _NO_INTERFACE) if interface is None else _interface(facts, *interface)
    )
    facts["errors"] = facts.get("errors") or None
    if facts["errors"] is None:
        reasons["errors"] = NOT_IN_SYS
    if facts.get("link_layer") == "InfiniBand":
        reasons["max_rate_gbit_per_s"] = _NO_LINK_MODES
    elif interface is not None:
        rate = _NOT_ASKED if max_rate is None else max_rate(interface[0])
        if isinstance(rate, str):
            reasons["max_rate_gbit_per_s"] = rate
        else:
            facts["max_rate_gbit_per_s"] = rate
    else:
        reasons["max_rate_gbit_per_s"] = _NO_INTERFACE
    if "rate_gbit_per_s" not in facts:
        reasons.setdefault("rate_gbit_per_s", NOT_IN_SYS)
    return facts, {name: why for name, why in reasons.items() if facts.get(name) is None}


def _rdma(facts: dict[str, Any], port: _RdmaPort) -> dict[str, str]:
    folder = port.folder
    state = _word(read_text(folder / "state"))
    rate = _RATE.match(read_text(folder / "rate") or "")
    layer = read_text(folder / "link_layer") or None
    facts |= {
        "rdma_device": port.device,
        "rdma_port": port.number,
        "link_layer": layer,
        "state": state,
        "phys_state": _word(read_text(folder / "phys_state")),
        "errors": _counts(folder / "counters", _PORT_ERRORS)
        | _counts(folder / "hw_counters", _TRANSPORT_ERRORS),
    }
    reasons = dict.fromkeys(_OF_RDMA, NOT_IN_SYS)
    if state != "ACTIVE":  # the kernel then shows the card's lowest rate
        return reasons | dict.fromkeys(("rate_gbit_per_s", "lanes"), LINK_DOWN)
    if rate is not None:
        facts["rate_gbit_per_s"] = float(rate[1])
        if layer == "InfiniBand":
            facts["lanes"] = int(rate[2])
    return reasons | ({"lanes": "NOT_OF_ETHERNET"} if layer == "Ethernet" else {})


def _interface(facts: dict[str, Any], name: str, place: Path) -> dict[str, str]:
    flags = read_text(place / "flags")
    enabled = None if flags is None or not flags.startswith("0x") else bool(int(flags, 16) & _INTERFACE_UP)
    carrier = read_text(place / "carrier")  # unreadable while the interface is disabled
    speed = read_number(place / "speed")
    duplex = read_text(place / "duplex")
    facts |= {
        "interface": name,
        "operstate": read_text(place / "operstate") or None,
        "enabled": enabled,
        "carrier": None if carrier not in ("0", "1") else carrier == "1",
        "duplex": duplex if duplex in ("full", "half") else None,
        "mtu_bytes": read_number(place / "mtu"),
        "errors": facts.get("errors", {}) | _counts(place / "statistics", _INTERFACE_ERRORS),
    }
    if facts.get("link_layer") is None and read_text(place / "type") == "1":  # ARPHRD_ETHER
        facts["link_layer"] = "Ethernet"
    if "rate_gbit_per_s" not in facts and speed is not None and speed not in _UNKNOWN_SPEEDS:
        facts["rate_gbit_per_s"] = speed / 1000
    reasons = dict.fromkeys(_OF_INTERFACE, NOT_IN_SYS)
    if enabled is False:
        reasons |= dict.fromkeys(("carrier", "duplex", "rate_gbit_per_s"), _DISABLED)
    elif carrier == "0":
        reasons |= dict.fromkeys(("duplex", "rate_gbit_per_s"), LINK_DOWN)
    elif carrier == "1":
        reasons |= dict.fromkeys(("duplex", "rate_gbit_per_s"), "NOT_REPORTED_BY_THE_DRIVER")
    return reasons


def _own_interfaces(folder: Path) -> dict[str, Path]:
    """Return the card's own interfaces by name, without virtual functions and child interfaces."""
    interfaces = {}
    for place in (folder / "net", *sorted(folder.glob("virtio*/net"))):
        for name in list_names(place):
            port = read_text(place / name / "phys_port_name") or ""
            if not _REPRESENTOR.fullmatch(port) and not (place / name / "parent").exists():
                interfaces[name] = place / name
    return interfaces


def _counts(folder: Path, names: Iterable[str]) -> dict[str, int]:
    return {name: count for name in names if (count := read_number(folder / name)) is not None}


def _first(paths: Iterable[Path]) -> str | None:
    return next((text for path in paths if (text := read_text(path))), None)


def _word(text: str | None) -> str | None:
    """Return `ACTIVE` from `4: ACTIVE`."""
    return None if not text else text.partition(":")[2].strip() or text
