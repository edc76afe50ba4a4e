"""Reads the host of the GPUs from /proc and /sys under a root folder.

If the root is not "/", only that folder is read, so a copied or generated tree never shows this machine.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from gputopo.values.index_ranges import parse_cpus
from gputopo.values.machine import Host, NumaNode

# The firmware of virtual machines: DMI's sys_vendor or product_name, in lower case.
_VM_FIRMWARE = {
    "kvm": "kvm",
    "qemu": "kvm",
    "bochs": "kvm",
    "google compute engine": "kvm",
    "openstack": "kvm",
    "amazon ec2": "kvm",
    "alibaba cloud ecs": "kvm",
    "vmware": "vmware",
    "virtualbox": "virtualbox",
    "innotek": "virtualbox",
    "virtual machine": "hyper-v",
    "xen": "xen",
    "hvm domu": "xen",
    "parallels": "parallels",
    "bhyve": "bhyve",
}
# Words in /proc/1/cgroup, the most specific first: a pod's containers run under containerd or docker as well.
_CGROUP_KINDS = {
    "kubepods": "kubernetes",
    "libpod": "podman",
    "docker": "docker",
    "lxc": "lxc",
    "containerd": "containerd",
}
APPLICATION_ID = "e1e0b90720c541209919c50ec84745d6"  # gputopo's, a random number
_CPUINFO_HEAD_BYTES = 16384  # contains the first CPU; the rest of the file repeats it for each CPU


def read_text(path: str | Path) -> str | None:
    """Return the stripped text of a small file (64 KiB at most), or None if it is unreadable.

    Uses one read call, as sysfs requires. A tree has hundreds of such files, and this method is fast.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, 65536).decode(errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(file)


def read_number(path: str | Path) -> int | None:
    """Return the number in a small file, or None if it is unreadable or contains no decimal digits only."""
    text = read_text(path)
    return int(text) if text and text.isascii() and text.isdigit() else None


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder in order; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_host(root: Path = Path("/"), gpu_addresses: Sequence[str] = ()) -> Host:
    """Return what is known about the host. A fact that is not in the tree is None.

    `gpu_addresses` are the GPUs whose IOMMU groups decide between `passthrough` and `translated`.
    """
    cpuinfo = _cpuinfo_head(root)
    sockets, cores, cpus = _cpu_counts(root)
    host = Host(
        name=read_text(root / "proc/sys/kernel/hostname") or None,
        fingerprint=fingerprint(read_text(root / "etc/machine-id")),
        cpu_model=_cpu_model(cpuinfo),
        sockets=sockets,
        physical_cores=cores,
        logical_cpus=cpus,
        memory_mib=_memory_mib(read_text(root / "proc/meminfo")),
        numa_nodes=_numa_nodes(root) or None,
        kernel=read_text(root / "proc/sys/kernel/osrelease") or None,
        iommu=_iommu(root, gpu_addresses),
        container=_container(root),
        virtual_machine=_virtual_machine(root, cpuinfo),
    )
    return _completed(host) if root == Path("/") else host


def fingerprint(machine_id: str | None) -> str | None:
    """Return the application-specific id of a machine id, or None without one, as in many containers.

    The same as `systemd-id128 machine-id --app-specific=e1e0b90720c541209919c50ec84745d6`: the first half of
    an HMAC-SHA256 whose key is the machine id, marked as a random UUID (sd_id128_get_machine_app_specific).
    """
    if machine_id is None or not re.fullmatch(r"[0-9a-f]{32}", machine_id):
        return None
    import hmac  # 4 ms

    digest = bytearray(hmac.digest(bytes.fromhex(machine_id), bytes.fromhex(APPLICATION_ID), "sha256")[:16])
    digest[6] = digest[6] & 0x0F | 0x40
    digest[8] = digest[8] & 0x3F | 0x80
    return digest.hex()


def _completed(host: Host) -> Host:
    """Ask psutil for the counts that this machine's /proc and /sys do not have (gVisor and the like)."""
    if None not in (host.physical_cores, host.logical_cpus, host.memory_mib):
        return host
    import psutil  # 25 ms, and rarely needed

    return replace(
        host,
        physical_cores=host.physical_cores or psutil.cpu_count(logical=False),
        logical_cpus=host.logical_cpus or psutil.cpu_count(),
        memory_mib=host.memory_mib or psutil.virtual_memory().total // 2**20,
    )


def _cpuinfo_head(root: Path) -> dict[str, str]:
    """Return the fields of the first CPU and, after them, of the whole machine (POWER) in /proc/cpuinfo."""
    try:
        with (root / "proc/cpuinfo").open(errors="replace") as stream:
            text = stream.read(_CPUINFO_HEAD_BYTES)
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _cpu_model(cpuinfo: dict[str, str]) -> str | None:
    for name in ("model name", "cpu model", "cpu"):
        if cpuinfo.get(name):
            return re.sub(r"\s+", " ", cpuinfo[name])
    if "CPU part" in cpuinfo:  # ARM has only numbers; 0x41 0xd4f is the Neoverse V2 of Grace
        return f"ARM implementer {cpuinfo.get('CPU implementer', '?')} part {cpuinfo['CPU part']}"
    return None


def _cpu_counts(root: Path) -> tuple[int | None, int | None, int | None]:
    """Return the numbers of online sockets, cores and CPUs, each None if unknown."""
    packages: set[str] = set()
    cores: set[str] = set()
    cpus = 0
    for folder in _numbered(root / "sys/devices/system/cpu", "cpu"):
        package = read_text(f"{folder}/topology/physical_package_id")
        if package is None:  # a CPU that is offline has no topology
            continue
        cpus += 1
        packages.add(package)
        siblings = read_text(f"{folder}/topology/thread_siblings_list")
        cores.add(siblings or f"{package}:{read_text(folder / 'topology/core_id') or folder.name}")
    if cpus:
        return len(packages), len(cores), cpus
    return None, None, len(parse_cpus(read_text(root / "sys/devices/system/cpu/online") or "") or ()) or None


def _memory_mib(meminfo: str | None) -> int | None:
    match = re.search(r"MemTotal:\s+(\d+) kB", meminfo or "")
    return int(match[1]) // 1024 if match else None


def _numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes. `cpus` is empty for a node without CPUs (a GPU's own memory, CXL)."""
    return tuple(
        NumaNode(
            index=int(folder.name.removeprefix("node")),
            cpus=read_text(folder / "cpulist"),
            memory_mib=_memory_mib(read_text(folder / "meminfo")),
            distances=tuple(
                int(word) for word in (read_text(folder / "distance") or "").split() if word.isdigit()
            )
            or None,
        )
        for folder in _numbered(root / "sys/devices/system/node", "node")
    )


def _numbered(folder: Path, prefix: str) -> Iterator[Path]:
    """Return the entries whose name is the prefix and a number, in the order of the numbers."""
    names = [name for name in list_names(folder) if re.fullmatch(rf"{prefix}\d+", name)]
    numbers = sorted(int(name.removeprefix(prefix)) for name in names)
    yield from (folder / f"{prefix}{number}" for number in numbers)


def _iommu(root: Path, gpu_addresses: Sequence[str]) -> str | None:
    """Return whether device addresses are translated: off, passthrough or translated.

    The type of the GPUs' own IOMMU groups decides (kernel 5.11 and later), otherwise the kernel's command
    line.
    """
    if not os.path.isdir(root / "sys/class"):
        return None
    if not list_names(root / "sys/class/iommu"):
        return "off"
    devices = root / "sys/bus/pci/devices"
    types = {read_text(devices / address / "iommu_group/type") for address in gpu_addresses} - {None}
    if types:
        return "passthrough" if types == {"identity"} else "translated"
    words = (read_text(root / "proc/cmdline") or "").split()
    if {"iommu=pt", "iommu.passthrough=1", "iommu.passthrough=on"} & set(words):
        return "passthrough"
    forced = any(re.fullmatch(r"(intel_iommu|iommu)=(on|force|nopt)(,.*)?", word) for word in words)
    return "translated" if forced else None


def _container(root: Path) -> str | None:
    """Return the kind of container this runs in, "none" outside any, or None if nothing can be read."""
    if any(os.path.exists(root / run / "secrets/kubernetes.io") for run in ("run", "var/run")):
        return "kubernetes"
    cgroup = read_text(root / "proc/1/cgroup")
    for word, kind in _CGROUP_KINDS.items():
        if word in (cgroup or ""):
            return kind
    if os.path.exists(root / ".dockerenv"):
        return "docker"
    if os.path.exists(root / "run/.containerenv"):
        return "podman"
    return read_text(root / "run/systemd/container") or (None if cgroup is None else "none")


def _virtual_machine(root: Path, cpuinfo: dict[str, str]) -> str | None:
    """Return the kind of virtual machine: "none" on bare metal, "unknown" if it does not identify itself.

    On x86, the processor's `hypervisor` flag decides: a rented bare-metal server has the same firmware names
    as the provider's virtual machines. On other processors, which have no such flag, the firmware decides.
    """
    if "microsoft" in (read_text(root / "proc/sys/kernel/osrelease") or "").lower():
        return "wsl"
    flags = cpuinfo.get("flags")
    if flags is not None and "hypervisor" not in flags.split():
        return "none"
    dmi = root / "sys/class/dmi/id"
    firmware = " ".join(read_text(dmi / name) or "" for name in ("sys_vendor", "product_name")).lower()
    for word, kind in _VM_FIRMWARE.items():
        if word in firmware:
            return kind
    if flags is not None:
        return read_text(root / "sys/hypervisor/type") or "unknown"
    return "none" if firmware.strip() else None
