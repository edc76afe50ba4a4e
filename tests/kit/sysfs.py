"""Writes a scenario as /sys, /proc and /dev under a folder, with relative links like the kernel's."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.kit.specs import LinkSpec, NicSpec, PortSpec, Scenario

_BRIDGE_CLASS = "060400"


def write_tree(scenario: Scenario, root: Path, *, driver: bool | None = None) -> Path:
    """Write the tree; return `root`. `driver` False: no kernel module is loaded, and /dev is missing."""
    driver = scenario.driver_loaded if driver is None else driver
    if scenario.pci_shown:
        _write_pci(scenario, root, driver)
    _write_host(scenario, root)
    if driver:
        _write_driver(scenario, root)
    return root


def _write_pci(scenario: Scenario, root: Path, driver: bool) -> None:
    for bridge in scenario.bridges:
        folder = write_function(
            root,
            _place(scenario, bridge.address),
            "10b5",
            "8747",
            _BRIDGE_CLASS,
            bridge.link,
            kernel="pcieport",
        )
        write_aer(folder, bridge.aer)
        config = config_space(bridge.acs)
        (folder / "config").write_bytes(config if scenario.privileged else config[:64])
    for gpu in scenario.gpus:
        folder = write_function(
            root,
            _place(scenario, gpu.address),
            "10de",
            gpu.device_id,
            gpu.class_code,
            gpu.link,
            numa_node=gpu.numa_node,
            kernel=gpu.kernel_driver if driver or gpu.kernel_driver != "nvidia" else None,
        )
        write_aer(folder, gpu.aer)
        if scenario.iommu:
            write_files(folder / "iommu_group", {"type": scenario.iommu})
    for nic in scenario.nics:
        class_code = "020700" if nic.infiniband else "020000"
        folder = write_function(
            root, _place(scenario, nic.address), "15b3", "1013", class_code, numa_node=nic.numa_node
        )
        write_network(folder, nic)
    for address, _, _, vendor, class_code in scenario.extra_pci:
        write_function(root, _place(scenario, address), vendor, "10f0", class_code)


def write_function(
    root: Path,
    place: str,
    vendor: str,
    device: str,
    class_code: str,
    link: LinkSpec | None = None,
    *,
    numa_node: int = -1,
    kernel: str | None = None,
) -> Path:
    """Write one PCI function at `place` (below sys/devices) with its link under bus/pci/devices."""
    folder = root / "sys/devices" / place
    folder.mkdir(parents=True, exist_ok=True)
    write_files(
        folder,
        {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": f"0x{class_code}",
            "numa_node": numa_node,
        },
    )
    if link is not None:
        write_files(
            folder,
            {
                "current_link_speed": f"{link.speed} GT/s PCIe",
                "current_link_width": link.width,
                "max_link_speed": f"{link.max_speed} GT/s PCIe",
                "max_link_width": link.max_width,
            },
        )
    _link(root / "sys/bus/pci/devices" / folder.name, folder)
    if kernel is not None:
        (root / "sys/bus/pci/drivers" / kernel).mkdir(parents=True, exist_ok=True)
        _link(folder / "driver", root / "sys/bus/pci/drivers" / kernel)
    return folder


def write_network(folder: Path, nic: NicSpec) -> None:
    """Write a card's RDMA device and interfaces below its PCI function."""
    if nic.infiniband:
        about = {"fw_ver": nic.firmware, "board_id": nic.psid, "hca_type": nic.hca_type}
        write_files(folder / "infiniband" / nic.name, about)
    for number, port in enumerate(nic.ports):
        if nic.infiniband and port.state is not None:
            counts = dict.fromkeys(("symbol_error", "link_downed", "port_rcv_errors", "port_rcv_data"), 0)
            files: dict[str, object] = {
                "state": port.state,
                "phys_state": port.phys_state,
                "rate": port.rate,
                "link_layer": port.link_layer,
                **{f"counters/{name}": counts[name] for name in counts},
                "hw_counters/out_of_sequence": 0,
            }
            files |= {
                f"{'counters' if f'counters/{name}' in files else 'hw_counters'}/{name}": count
                for name, count in port.errors.items()
                if name[:3] not in ("rx_", "tx_")
            }
            write_files(folder / "infiniband" / nic.name / "ports" / str(number + 1), files)
        interface = port.interface if nic.infiniband else port.interface or nic.name
        if interface is not None:
            _write_interface(folder / "net" / interface, number, port)


def _write_interface(folder: Path, number: int, port: PortSpec) -> None:
    files: dict[str, object] = {
        "dev_port": number,
        "flags": "0x1003" if port.enabled else "0x1002",
        "operstate": "up" if port.up else "down",
        "mtu": port.mtu,
        "type": 32 if port.link_layer == "InfiniBand" else 1,
        "address": "52:54:00:ab:cd:ef",
        "phys_port_name": f"p{number}",
        "statistics/rx_errors": 0,
        "statistics/rx_bytes": 123_456,
    }
    if port.enabled:  # the kernel refuses the rest if the port is disabled
        speed = int(float(port.rate.split()[0]) * 1000) if port.up else -1
        files |= {"carrier": int(port.up), "speed": speed, "duplex": "full" if port.up else "unknown"}
    files |= {
        f"statistics/{name}": count for name, count in port.errors.items() if name[:3] in ("rx_", "tx_")
    }
    write_files(folder, files)


def write_aer(folder: Path, counts: tuple[int, int, int]) -> None:
    """Write the three files of error counters: one line per error, and the sum."""
    kinds = {"correctable": ("RxErr", "COR"), "nonfatal": ("CmpltTO", "NONFATAL"), "fatal": ("DLP", "FATAL")}
    for (name, (error, total)), count in zip(kinds.items(), counts, strict=True):
        write_files(folder, {f"aer_dev_{name}": f"{error} {count}\nOther 0\nTOTAL_ERR_{total} {count}"})


def config_space(acs: int | None, offset: int = 0x148) -> bytes:
    """Return the config space of a bridge: error reporting at 0x100 and, after it, access control."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 2 << 16 | (offset if acs is not None else 0) << 20).to_bytes(4, "little")
    if acs is not None:
        space[offset : offset + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[offset + 4 : offset + 8] = (0x5F | acs << 16).to_bytes(4, "little")
    return bytes(space)


def write_files(folder: Path, texts: Mapping[str, object]) -> None:
    """Write small files, each with a newline at the end as in sysfs."""
    for name, text in texts.items():
        path = os.path.join(folder, name)
        if not os.path.isdir(os.path.dirname(path)):
            os.makedirs(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(f"{text}\n")


def _place(scenario: Scenario, address: str) -> str:
    """Return the path of a function below sys/devices: the root complex, the bridges, the function."""
    parents = {bridge.address: (bridge.parent, bridge.root) for bridge in scenario.bridges}
    parents |= {gpu.address: (gpu.parent, gpu.root) for gpu in scenario.gpus}
    parents |= {nic.address: (nic.parent, nic.root) for nic in scenario.nics}
    parents |= {extra: (parent, root) for extra, parent, root, _, _ in scenario.extra_pci}
    parts = [address]
    parent, root = parents[address]
    while parent is not None:
        parts.append(parent)
        parent, root = parents[parent]
    return "/".join([root, *reversed(parts)])


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(target, link.parent))


def _write_host(scenario: Scenario, root: Path) -> None:
    flags = "flags\t\t: fpu vme msr sse sse2 avx2" + (" hypervisor" if scenario.virtual else "")
    cpu = f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: {scenario.cpu_model}\n{flags}\n"
    write_files(
        root,
        {
            "proc/cpuinfo": cpu,
            "proc/meminfo": f"MemTotal:       {scenario.memory_mib * 1024} kB",
            "proc/sys/kernel/osrelease": "6.1.0-test",
            "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1",
            "proc/1/cgroup": f"0::/{scenario.container}/x" if scenario.container else "0::/init.scope",
            "sys/class/dmi/id/sys_vendor": "Supermicro",
            "sys/class/dmi/id/product_name": "SYS-4028GR-TR",
        },
    )
    (root / "sys/class/iommu" / ("dmar0" if scenario.iommu else "")).mkdir(parents=True)
    system = root / "sys/devices/system"
    for node, cpus in enumerate(scenario.cpus):
        distances = " ".join("10" if other == node else "21" for other in range(len(scenario.cpus)))
        memory_kb = scenario.memory_mib * 1024 // len(scenario.cpus)
        write_files(
            system / f"node/node{node}",
            {
                "cpulist": _ranges(cpus),
                "distance": distances,
                "meminfo": f"Node {node} MemTotal:       {memory_kb} kB",
            },
        )
        half = len(list(cpus)) // 2 or 1
        for place, number in enumerate(cpus):
            siblings = sorted({cpus[place % half], cpus[(place % half) + half]} if half > 1 else {number})
            write_files(
                system / f"cpu/cpu{number}/topology",
                {
                    "physical_package_id": node * scenario.sockets // len(scenario.cpus),
                    "core_id": place % half,
                    "thread_siblings_list": ",".join(map(str, siblings)),
                },
            )


def _ranges(cpus: Iterable[int]) -> str:
    """Write numbers as the kernel's cpulist, with one range for each run of consecutive numbers."""
    text, runs = "", sorted(cpus)
    while runs:
        length = next((n for n in range(1, len(runs)) if runs[n] != runs[0] + n), len(runs))
        text += f",{runs[0]}" if length == 1 else f",{runs[0]}-{runs[length - 1]}"
        runs = runs[length:]
    return text[1:]


def _write_driver(scenario: Scenario, root: Path) -> None:
    version = scenario.driver_version
    write_files(
        root,
        {
            "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  "
            "Tue Apr  8 12:41:17 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)",
            "sys/module/nvidia/version": version,
            "dev/nvidiactl": "",
        },
    )
    if scenario.peer_memory is not None:
        write_files(root / "sys/module" / scenario.peer_memory, {"initstate": "live"})
    write_files(root / "dev", {f"nvidia{index}": "" for index in range(len(scenario.gpus))})
