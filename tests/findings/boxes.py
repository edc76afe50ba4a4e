"""Sound machines as values, and changes that break one thing in them."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec

from gputopo import findings
from gputopo.values.finding import Finding
from gputopo.values.machine import (
    Bar1Mib,
    ClockMhz,
    ClocksMhz,
    Driver,
    Ecc,
    Gpu,
    Hop,
    Host,
    Link,
    Machine,
    MemoryMib,
    Mig,
    NumaNode,
    NvLink,
    Pcie,
    PciNode,
    PowerW,
    RemappedRows,
    RetiredPages,
    Sample,
    TemperatureC,
    Throttle,
    UtilizationPercent,
)

IDS = {rule.id for rule in findings.rules()}

Change = Callable[[Machine], Machine]

ROOT = "pci0000:00"
PORT, UP = "0000:00:02.0", "0000:03:00.0"


def find(machine: Machine) -> tuple[Finding, ...]:
    """Return all findings but use without a process: the GPUs of these machines are under load."""
    return tuple(
        one
        for one in findings.find(machine)
        if one.id != "gpu.busy"
        or not any(words in one.says for words in ("no process", "not reported", "shows no program"))
    )


def address(index: int) -> str:
    return f"0000:{5 + index:02x}:00.0"


def down(index: int) -> str:
    return f"0000:04:{index:02x}.0"


def sound(count: int = 4, name: str = "Tesla V100-SXM2-16GB") -> Machine:
    """GPUs of one model under load on one switch of one socket, all facts known, nothing wrong."""
    return Machine(
        source="a test",
        host=Host(
            sockets=1,
            numa_nodes=(NumaNode(index=0, cpus="0-19", memory_mib=64_000),),
            iommu="off",
            acs="off",
            virtual_machine="none",
        ),
        driver=Driver(status="ok", version="550.163.01", kernel_module_version="550.163.01"),
        gpus=tuple(_gpu(index, name) for index in range(count)),
        links=tuple(
            Link(a=a, b=b, hop=Hop.PIX, nvlinks=0, p2p_read="OK", p2p_write="OK")
            for a, b in combinations(range(count), 2)
        ),
        pci=_tree(count),
    )


def _gpu(index: int, name: str) -> Gpu:
    return Gpu(
        index=index,
        cuda_index=index,
        name=name,
        pci_address=address(index),
        pci_device_id="1db1",
        pci_subsystem_id="121210de",
        board_part_number="900-2G503-0010-000",
        inforom_version="G503.0201.00.03",
        vbios_version="88.00.80.00.01",
        numa_node=0,
        cpu_affinity="0-19",
        clocks_mhz=ClocksMhz(
            graphics=ClockMhz(now=1530, max=1530, application=1530, default_application=1530),
            sm=ClockMhz(now=1530, max=1530, application=1530, default_application=1530),
            memory=ClockMhz(now=877, max=877, application=877, default_application=877),
        ),
        pstate="P0",
        throttle=Throttle(mask=0, reasons=()),
        power_w=PowerW(
            draw=250.0, limit=300.0, default_limit=300.0, enforced_limit=300.0, min=150.0, max=300.0
        ),
        temperature_c=TemperatureC(gpu=60, memory=62, slowdown=87, shutdown=90, memory_max_operating=85),
        pcie=Pcie(
            gen_now=3,
            gen_max=3,
            gen_max_device=3,
            gen_max_host=3,
            width_now=16,
            width_max=16,
            replay_counter=0,
            aer={"correctable": 0, "nonfatal": 0, "fatal": 0},
        ),
        memory_mib=MemoryMib(total=16_160, used=9_000, free=7_160),
        bar1_mib=Bar1Mib(total=16_384, used=2, free=16_382),
        utilization_percent=UtilizationPercent(gpu=97, memory=40),
        ecc=Ecc(
            mode=True,
            mode_pending=True,
            corrected_volatile=0,
            uncorrected_volatile=0,
            corrected_aggregate=0,
            uncorrected_aggregate=0,
        ),
        remapped_rows=RemappedRows(correctable=0, uncorrectable=0, pending=False, failure=False),
        retired_pages=RetiredPages(single_bit=0, double_bit=0, pending=False),
        mig=Mig(mode=False, mode_pending=False),
        compute_mode="default",
        persistence_mode=True,
        processes=(),
        nvlinks=tuple(NvLink(link=number, active=True, errors={"replay": 0}) for number in range(6)),
    )


def _tree(count: int) -> tuple[PciNode, ...]:
    def bridge(address: str, parent: str | None) -> PciNode:
        return PciNode(
            address=address,
            root=ROOT,
            parent=parent,
            kind="bridge",
            vendor_id="10b5",
            max_speed_gt_per_s=16.0 if count > 4 and address in (PORT, UP) else 8.0,
            max_width=16,
            acs=False,
        )

    nodes = [bridge(PORT, None), bridge(UP, PORT)]
    for index in range(count):
        nodes.append(bridge(down(index), UP))
        nodes.append(
            PciNode(
                address=address(index),
                root=ROOT,
                parent=down(index),
                kind="gpu",
                vendor_id="10de",
                max_speed_gt_per_s=8.0,
                max_width=16,
            )
        )
    return tuple(nodes)


TIMES = [f"2026-11-23T10:{minute:02}:00" for minute in range(60)]


def at_times(*counted: dict[str, Any], times: list[str] | None = None) -> Machine:
    """A sound machine at several times, at which GPU 1 had counted these errors."""
    samples = tuple(
        Sample(source="a test", time=time, gpus=({"index": 0}, {"index": 1, **facts}))
        for time, facts in zip(TIMES if times is None else times, counted, strict=False)
    )
    return msgspec.structs.replace(sound(2), samples=samples)


def gpu(index: int, **parts: Any) -> Change:
    """A change of one GPU. A dict changes fields within a part: `pcie={"width_now": 1}`."""

    def change(machine: Machine) -> Machine:
        return msgspec.structs.replace(
            machine, gpus=tuple(_with(one, parts) if one.index == index else one for one in machine.gpus)
        )

    return change


def every_gpu(**parts: Any) -> Change:
    def change(machine: Machine) -> Machine:
        return msgspec.structs.replace(machine, gpus=tuple(_with(one, parts) for one in machine.gpus))

    return change


def node(place: str, **fields: Any) -> Change:
    """A change of one function of the PCI tree."""

    def change(machine: Machine) -> Machine:
        pci = tuple(
            msgspec.structs.replace(one, **fields) if one.address == place else one for one in machine.pci
        )
        return msgspec.structs.replace(machine, pci=pci)

    return change


def pair(a: int, b: int, **fields: Any) -> Change:
    def change(machine: Machine) -> Machine:
        links = tuple(
            msgspec.structs.replace(link, **fields) if (link.a, link.b) == (a, b) else link
            for link in machine.links
        )
        return msgspec.structs.replace(machine, links=links)

    return change


def host(**fields: Any) -> Change:
    return lambda machine: msgspec.structs.replace(
        machine, host=msgspec.structs.replace(machine.host, **fields)
    )


def driver(**fields: Any) -> Change:
    return lambda machine: msgspec.structs.replace(
        machine, driver=msgspec.structs.replace(machine.driver, **fields)
    )


def all_of(*changes: Change) -> Change:
    def change(machine: Machine) -> Machine:
        for one in changes:
            machine = one(machine)
        return machine

    return change


def _with(value: Any, parts: dict[str, Any]) -> Any:
    fields = {
        name: _with(getattr(value, name), part)
        if isinstance(part, dict) and isinstance(getattr(value, name), msgspec.Struct)
        else part
        for name, part in parts.items()
    }
    return msgspec.structs.replace(value, **fields)
