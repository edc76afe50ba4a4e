"""Machines with network cards as values: cards of one model, of which one may differ."""

from typing import Any

from msgspec.structs import replace

from gputopo.findings import find, find_after_watch
from gputopo.values.finding import Finding
from gputopo.values.history import History
from gputopo.values.machine import Driver, Gpu, Hop, Machine, Nic, NicPort, PciNode

CARDS = 4


def port(number: int, **facts: Any) -> NicPort:
    usual: dict[str, Any] = {
        "rdma_device": f"mlx5_{number}",
        "rdma_port": 1,
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate_gbit_per_s": 200.0,
        "lanes": 4,
        "mtu_bytes": 4092,
        "errors": {"symbol_error": 0, "out_of_sequence": 0},
    }
    return NicPort(index=0, **{**usual, **facts})


def machine(
    *ports: NicPort | None, gpus: int = CARDS, near: dict[int, int] | None = None, **facts: Any
) -> Machine:
    """Cards of one model with a port each (None: no port); GPU n is near card `near[n]`, else card n."""
    places = {gpu: (near or {}).get(gpu, gpu) for gpu in range(gpus)}
    nics = tuple(
        Nic(
            index=number,
            name=None if one is None else one.name,
            pci_address=f"0000:{number:02x}:00.0",
            ports=() if one is None else (one,),
            hops={f"gpu:{gpu}": Hop.PIX if place == number else Hop.SYS for gpu, place in places.items()},
        )
        for number, one in enumerate(ports)
    )
    nodes = tuple(
        PciNode(address=f"0000:{n:02x}:00.0", root="", kind="nic", vendor_id="15b3", device_id="101b")
        for n in range(len(ports))
    )
    known: dict[str, Any] = {
        "driver": Driver(status="ok", peer_memory_module="nvidia_peermem"),
        "gpus": tuple(Gpu(index=index, name="NVIDIA A100-SXM4-80GB") for index in range(gpus)),
    }
    return Machine(source="a test", nics=nics, pci=nodes, **{**known, **facts})


def alike(count: int = CARDS, **facts: Any) -> list[NicPort]:
    return [port(number, **facts) for number in range(count)]


def odd(number: int = 1, **facts: Any) -> Machine:
    ports = alike()
    ports[number] = replace(ports[number], **facts)
    return machine(*ports)


def rising(later: Machine, before: Machine, minutes: float = 1.0) -> list[Finding]:
    """Return the findings about counters of ports that rose since a reading before."""
    return [*find_after_watch(before, History(), later, minutes)]


def ethernet(number: int, **facts: Any) -> NicPort:
    return NicPort(
        index=0,
        **{
            "interface": f"eth{number}",
            "link_layer": "Ethernet",
            "operstate": "up",
            "carrier": True,
            "rate_gbit_per_s": 25.0,
            "mtu_bytes": 1500,
            **facts,
        },
    )


DOWN: dict[str, Any] = {"state": "DOWN", "phys_state": "Polling", "rate_gbit_per_s": None, "lanes": None}


def with_every_fault() -> list[Finding]:
    """Return findings of each rule about network cards."""
    without_module = Driver(status="ok", peer_memory_module="none")
    machines = [
        odd(**DOWN),
        odd(rate_gbit_per_s=100.0),
        odd(mtu_bytes=2044),
        odd(errors={"symbol_error": 65_535}),
        machine(*alike(2), gpus=3, near={2: 9}),
        machine(*alike(2), gpus=2, near={1: 0}),
        machine(*alike(), driver=without_module),
    ]
    rose = rising(odd(errors={"symbol_error": 3}), machine(*alike()))
    return [*(finding for one in machines for finding in find(one)), *rose]
