"""The machines of the kit: one table from which both the NVML double and the generated /sys are made.

All are healthy and idle unless their docstrings say otherwise; `tests.kit.faults` adds single faults.
"""

from collections.abc import Sequence
from dataclasses import replace

from tests.kit.cards import geforce, limits, tesla
from tests.kit.specs import (
    CONSUMER,
    NOT_SUPPORTED,
    Bridge,
    GpuSpec,
    LinkSpec,
    NicSpec,
    NvLinkSpec,
    PortSpec,
    ProcessSpec,
    Scenario,
    changed,
)

__all__ = [
    "CONSUMER",
    "NOT_SUPPORTED",
    "SCENARIOS",
    "Bridge",
    "GpuSpec",
    "LinkSpec",
    "NicSpec",
    "NvLinkSpec",
    "PortSpec",
    "ProcessSpec",
    "Scenario",
    "changed",
]


def _switch(root: str, port: str, up: str, downs: Sequence[str], above: str | None = None) -> list[Bridge]:
    """Return a root port (unless the switch is at `above`), a switch's upstream bridge and its ports."""
    bridges = [] if above else [Bridge(port, root)]
    bridges.append(Bridge(up, root, above or port))
    return bridges + [Bridge(down, root, up) for down in downs]


def _uuid(machine: int, gpu: int) -> str:
    return f"GPU-{machine:08x}-0000-4000-8000-{gpu:012x}"


def _7gforce() -> Scenario:
    """Six GTX 1070 and a GTX 1080 behind two switches: PIX within {0,1,2} and {3,4,5,6}, PHB across.

    Not healthy: six slots are risers with one lane, and their links have one lane too. Three cards have the
    reference boost clock, the others are overclocked.
    """
    root = "pci0000:00"
    ports = ("0000:04:08.0", "0000:04:10.0", "0000:04:11.0")
    more = ("0000:09:08.0", "0000:09:09.0", "0000:09:10.0", "0000:09:11.0")
    bridges = _switch(root, "0000:00:02.0", "0000:03:00.0", ports)
    bridges += _switch(root, "0000:00:03.0", "0000:08:00.0", more)
    lanes = (1, 1, 1, 1, 1, 1, 8)
    slot = dict(zip((*ports, *more), lanes, strict=True))
    bridges = [
        replace(bridge, link=LinkSpec(8.0, slot[bridge.address], 8.0, slot[bridge.address]))
        if bridge.address in slot
        else bridge
        for bridge in bridges
    ]
    gpus = []
    for index, (bus, parent) in enumerate(
        zip(("05", "06", "07", "0a", "0b", "0c", "0d"), (*ports, *more), strict=True)
    ):
        last = index == 6
        top = 1733 if last else 1683 if index in (1, 2, 3) else 1771
        memory = 5005 if last else 4004
        gpus.append(
            GpuSpec(
                address=f"0000:{bus}:00.0",
                parent=parent,
                root=root,
                name="GeForce GTX 1080" if last else "GeForce GTX 1070",
                uuid=_uuid(7, index),
                device_id="1b80" if last else "1b81",
                class_code="030000",
                numa_node=0,
                link=LinkSpec(8.0, lanes[index], 8.0, 16),
                clocks=(139, 139, 405, 544),
                max_clocks=(top, top, memory, top - 150),
                **limits(180 if last else 151, 90, 217 if last else 170),
                **geforce(architecture=4, power_mw=8_600, slowdown=99 if last else 92),
                memory_bytes=(8_508_145_664, 0, 8_508_145_664),
                refuses=CONSUMER | {"nvmlDeviceGetNvLinkState": NOT_SUPPORTED},
            )
        )
    return Scenario("7gforce", tuple(gpus), tuple(bridges), cpus=(range(20),))


def _dual_socket() -> Scenario:
    """Two sockets with two root complexes each, a switch with two RTX 2080 Ti on each: PIX, NODE, SYS.

    The NVLinks are down, as on cards without an NVLink bridge. The chipset refuses P2P across sockets.
    """
    gpus: list[GpuSpec] = []
    bridges: list[Bridge] = []
    for number, bus in enumerate((0x17, 0x3A, 0x85, 0xAE)):
        root = f"pci0000:{bus:02x}"
        port, up = f"0000:{bus:02x}:00.0", f"0000:{bus + 1:02x}:00.0"
        downs = [f"0000:{bus + 2:02x}:08.0", f"0000:{bus + 2:02x}:10.0"]
        bridges += _switch(root, port, up, downs)
        gpus += [
            GpuSpec(
                address=f"0000:{bus + 3 + place:02x}:00.0",
                parent=down,
                root=root,
                name="NVIDIA GeForce RTX 2080 Ti",
                uuid=_uuid(44, len(gpus) + place),
                device_id="1e07",
                class_code="030000",
                numa_node=number // 2,
                clocks=(300, 300, 405, 540),
                max_clocks=(2100, 2100, 7000, 1950),
                **limits(250, 100, 280),
                **geforce(architecture=6, power_mw=14_200, slowdown=91),
                memory_bytes=(11_554_717_696, 0, 11_554_717_696),
                refuses=CONSUMER,
                nvlinks=(NvLinkSpec(None), NvLinkSpec(None)),
            )
            for place, down in enumerate(downs)
        ]
    return Scenario(
        "dual_socket_4_4",
        tuple(gpus),
        tuple(bridges),
        sockets=2,
        cpus=((*range(18), *range(36, 54)), (*range(18, 36), *range(54, 72))),
        p2p={(a, b): 1 for a in range(8) for b in range(a + 1, 8) if a // 4 != b // 4},
    )


_CUBE_MESH = (
    *((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3)),
    *((2, 6), (3, 7), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)),
)


def _dgx1() -> Scenario:
    """Eight P100 in a hybrid cube mesh of NVLinks; pairs of GPUs and a NIC on each of four switches."""
    gpus: list[GpuSpec] = []
    bridges: list[Bridge] = []
    nics: list[NicSpec] = []
    for number, (root, bus) in enumerate((("00", 0x02), ("00", 0x08), ("80", 0x82), ("80", 0x88))):
        port = f"0000:{root}:0{2 + number % 2}.0"
        up = f"0000:{bus:02x}:00.0"
        downs = [f"0000:{bus + 1:02x}:{device:02x}.0" for device in (4, 8, 12)]
        bridges += _switch(f"pci0000:{root}", port, up, downs)
        node = number // 2
        nics.append(
            NicSpec(
                f"0000:{bus + 2:02x}:00.0",
                downs[0],
                f"pci0000:{root}",
                f"mlx5_{number}",
                numa_node=node,
                ports=(PortSpec(interface=f"ib{number}"),),
            )
        )
        for place in (1, 2):
            index = 2 * number + place - 1
            remotes = [b if a == index else a for a, b in _CUBE_MESH if index in (a, b)]
            gpus.append(
                GpuSpec(
                    address=f"0000:{bus + 2 + place:02x}:00.0",
                    parent=downs[place],
                    root=f"pci0000:{root}",
                    name="Tesla P100-SXM2-16GB",
                    uuid=_uuid(1, index),
                    device_id="15f9",
                    numa_node=node,
                    clocks=(405, 405, 715, 835),
                    max_clocks=(1480, 1480, 715, 1328),
                    application_clocks=(1328, 1328, 715, 1189),
                    boost_clocks=(1480, 1480, 715, 1328),
                    **limits(300, 150, 300),
                    **tesla(architecture=4, power_mw=31_700, slowdown=82),
                    nvlinks=tuple(NvLinkSpec(remote, version=1, mb_per_s=19_375) for remote in remotes),
                    memory_bytes=(17_071_734_784, 0, 17_071_734_784),
                    ecc_at=dict.fromkeys((1, 2, 3, 4, 5), (0, 0, 0, 0)),
                )
            )
    return Scenario(
        "dgx1",
        tuple(gpus),
        tuple(bridges),
        nics=tuple(nics),
        sockets=2,
        cpus=((*range(20), *range(40, 60)), (*range(20, 40), *range(60, 80))),
    )


_ONBOARD = PortSpec("eno1", link_layer="Ethernet", state=None, rate="1 Gb/sec", mtu=1500)


def _desktop() -> Scenario:
    """One RTX 3080 with a screen and an audio function: a generation 4 card in a generation 3 slot."""
    gpu = GpuSpec(
        address="0000:01:00.0",
        parent="0000:00:01.0",
        root="pci0000:00",
        name="NVIDIA GeForce RTX 3080",
        uuid=_uuid(3, 0),
        device_id="2206",
        class_code="030000",
        link=LinkSpec(8.0, 16, 16.0, 16),
        clocks=(210, 210, 405, 555),
        max_clocks=(2100, 2100, 9501, 1950),
        **limits(320, 100, 336),
        **geforce(architecture=7, power_mw=28_400, slowdown=95),
        display=1,
        processes=(ProcessSpec(1234, "graphics", 300 << 20, "/usr/lib/xorg/Xorg"),),
        memory_bytes=(10_737_418_240, 536_870_912, 10_200_547_328),
        refuses=CONSUMER | {"nvmlDeviceGetNvLinkState": NOT_SUPPORTED},
    )
    return Scenario(
        "desktop",
        (gpu,),
        (Bridge("0000:00:01.0", "pci0000:00", None, LinkSpec(8.0, 16, 8.0, 16)),),
        nics=(NicSpec("0000:00:1f.6", None, "pci0000:00", "eno1", infiniband=False, ports=(_ONBOARD,)),),
        cpu_model="Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz",
        cpus=(range(8),),
        extra_pci=(("0000:01:00.1", "0000:00:01.0", "pci0000:00", "10de", "040300"),),
    )


def _four(name: str) -> Scenario:
    """Four data-centre cards on one switch, two of them joined by NVLinks; every call is answered."""
    root = "pci0000:40"
    downs = [f"0000:43:{device:02x}.0" for device in (0, 4, 8, 12)]
    bridges = _switch(root, "0000:40:01.0", "0000:42:00.0", downs)
    gpus = tuple(
        GpuSpec(
            address=f"0000:{0x44 + index:02x}:00.0",
            parent=down,
            root=root,
            uuid=_uuid(4, index),
            numa_node=0,
            nvlinks=(NvLinkSpec(1 - index, 4), NvLinkSpec(1 - index, 4)) if index < 2 else (),
        )
        for index, down in enumerate(downs)
    )
    return Scenario(name, gpus, tuple(bridges), cpus=(range(64),))


def _sixteen() -> Scenario:
    """Sixteen GPUs: each of two sockets has a switch with two switches with four GPUs: PIX, PXB, SYS."""
    gpus: list[GpuSpec] = []
    bridges: list[Bridge] = []
    for node, root_bus in enumerate((0x00, 0x80)):
        root = f"pci0000:{root_bus:02x}"
        middle = [f"0000:{root_bus + 3:02x}:{device:02x}.0" for device in (0, 8)]
        bridges += _switch(root, f"0000:{root_bus:02x}:02.0", f"0000:{root_bus + 2:02x}:00.0", middle)
        for half, above in enumerate(middle):
            up_bus = root_bus + 0x10 + 0x10 * half
            downs = [f"0000:{up_bus + 1:02x}:{device:02x}.0" for device in (0, 4, 8, 12)]
            bridges += _switch(root, "", f"0000:{up_bus:02x}:00.0", downs, above=above)
            gpus += [
                GpuSpec(
                    address=f"0000:{up_bus + 2 + place:02x}:00.0",
                    parent=down,
                    root=root,
                    name="Tesla V100-PCIE-16GB",
                    uuid=_uuid(16, len(gpus) + place),
                    device_id="1db4",
                    numa_node=node,
                    clocks=(135, 135, 877, 555),
                    max_clocks=(1380, 1380, 877, 1237),
                    application_clocks=(1380, 1380, 877, 1237),
                    boost_clocks=(1380, 1380, 877, 1237),
                    **limits(250, 100, 250),
                    **tesla(architecture=5, power_mw=48_900, slowdown=87),
                    memory_bytes=(16_945_512_448, 0, 16_945_512_448),
                    ecc_at=dict.fromkeys((1, 2, 3, 4, 6), (0, 0, 0, 0)),
                )
                for place, down in enumerate(downs)
            ]
    return Scenario(
        "sixteen", tuple(gpus), tuple(bridges), sockets=2, cpus=(tuple(range(24)), tuple(range(24, 48)))
    )


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _7gforce(),
        _dual_socket(),
        _dgx1(),
        _desktop(),
        _four("four"),
        changed(_four("lost_gpu"), gpus={2: {"lost": "calls"}}),
        changed(_four("lost_handle"), gpus={2: {"lost": "handle"}}),
        _sixteen(),
    )
}
