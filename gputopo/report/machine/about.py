"""The host, the driver and the ports of network cards as rows of a label and words."""

from collections.abc import Iterator, Sequence

from gputopo.report.layout import plain
from gputopo.report.units import counted, gib
from gputopo.values.machine import Driver, Host, LineCounts, Machine, Nic, NicPort, NumaNode

_DRIVER_WORDS = {
    "no_device": "no NVIDIA device on this machine",
    "not_loaded": "not loaded",
    "library_missing": "libnvidia-ml.so.1 not found",
    "version_mismatch": "library and kernel module of different versions",
    "no_permission": "no permission to open /dev/nvidia*",
    "other_driver": "the device is bound to another kernel driver",
    "hung": "a call into the driver did not return",
    "crashed": "a call into the driver crashed",
    "failed": "not working",
}


def about_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return the facts of the host and the driver, and the source, as rows of a label and words."""
    rows = [*_host_rows(machine.host), *_driver_rows(machine.driver), ("Source", plain(machine.source))]
    return [*rows, *_lines_rows(machine.lines), *_sample_rows(machine)]


def _lines_rows(lines: Sequence[LineCounts]) -> Iterator[tuple[str, str]]:
    """Count the lines of all captures, and those of each where some were not understood."""
    if not lines:
        return
    yield "Lines", _lines_words(lines)
    if len(lines) > 1 and any(one.not_understood for one in lines):
        for one in lines:
            yield "", f"{plain(one.source)}: {_lines_words([one])}"


def _lines_words(lines: Sequence[LineCounts]) -> str:
    read, known = sum(one.read for one in lines), sum(one.known for one in lines)
    missed = sum(one.not_understood for one in lines)
    return f"{counted(read + known + missed, 'line')}: {read} read, {known} known, {missed} not understood"


def _sample_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    samples = machine.samples
    count = max((history.samples for history in machine.series), default=len(samples))
    if len(samples) > 1:
        times = [sample.time for sample in samples if sample.time is not None]
        when = f", {plain(times[0])} to {plain(times[-1])}" if len(times) > 1 else ""
        shown = "last" if times else "first"
        yield "Samples", f"{count}{when}; values that change are of the {shown} one, findings of all"


def _host_rows(host: Host) -> Iterator[tuple[str, str]]:
    if host.cpu_model is not None:
        yield "CPU", plain(host.cpu_model)
    counts = [
        None if host.sockets is None else counted(host.sockets, "socket"),
        None if host.physical_cores is None else counted(host.physical_cores, "core"),
        None if host.logical_cpus is None else counted(host.logical_cpus, "logical CPU"),
        None if host.memory_mib is None else f"{gib(host.memory_mib)} memory",
    ]
    known = [count for count in counts if count is not None]
    if known:
        yield "", ", ".join(known)
    for node in host.numa_nodes or ():
        yield f"NUMA {node.index}", _numa_words(node)
    if host.kernel is not None:
        yield "Kernel", plain(host.kernel)
    yield from _surroundings(host)


def _surroundings(host: Host) -> Iterator[tuple[str, str]]:
    words = []
    if host.virtual_machine is not None:
        words.append(
            "bare metal" if host.virtual_machine == "none" else f"{host.virtual_machine} virtual machine"
        )
    if host.container is not None:
        words.append("no container" if host.container == "none" else f"in a container ({host.container})")
    if words:
        yield "Runs on", plain(", ".join(words))
    switches = [f"IOMMU {host.iommu}" if host.iommu else "", f"ACS {host.acs}" if host.acs else ""]
    if any(switches):
        yield "PCIe", plain(", ".join(word for word in switches if word))


def _driver_rows(driver: Driver) -> Iterator[tuple[str, str]]:
    versions = [
        ("", driver.version),
        ("CUDA ", driver.cuda_version),
        ("NVML ", driver.nvml_version),
        ("kernel module ", _unless_same(driver.kernel_module_version, driver.version)),
    ]
    words = [f"{name}{version}" for name, version in versions if version is not None]
    if driver.status in _DRIVER_WORDS:
        words.insert(0, _DRIVER_WORDS[driver.status])
    if words:
        yield "Driver", plain(", ".join(words))


def _unless_same(version: str | None, other: str | None) -> str | None:
    return None if version == other else version


def _numa_words(node: NumaNode) -> str:
    cpus = "CPUs unknown" if node.cpus is None else "no CPUs"
    words = [f"CPUs {plain(node.cpus)}" if node.cpus else cpus]
    if node.memory_mib is not None:
        words.append(gib(node.memory_mib))
    if node.distances is not None and len(node.distances) > 1:
        words.append(f"distances {' '.join(map(str, node.distances))}")
    return ", ".join(words)


def port_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return (`mlx5_0`, words) of each port of a card without a node in the PCI tree."""
    nodes = {node.address for node in machine.pci}
    return [
        (plain(port.name), plain(", ".join(_port_words(nic, port))))
        for nic in machine.nics
        if nic.pci_address not in nodes
        for port in nic.ports or ()
    ]


def _port_words(nic: Nic, port: NicPort) -> Iterator[str]:
    states = (port.state, port.phys_state) if port.state else (port.operstate,)
    if words := " ".join(word for word in (port.link_layer, *states) if word):
        yield words
    if port.rate_gbit_per_s is not None:
        lanes = f" on {port.lanes} lane{'s' if port.lanes > 1 else ''}" if port.lanes else ""
        yield f"{port.rate_gbit_per_s:g} Gbit/s{lanes}"
    if port.interface is not None:
        yield f"interface {port.interface}"
    for what, value in (("", nic.hca_type), ("PSID ", nic.psid), ("firmware ", nic.firmware_version)):
        if value is not None:
            yield f"{what}{value}"
