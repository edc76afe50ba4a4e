"""Reads this machine: NVML's GPUs, the PCI tree and the host, put together into one Machine."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec

from gputopo.probes.driver import decide, module_version, read_facts
from gputopo.probes.gpus.gpu import read_gpu
from gputopo.probes.gpus.notes import Notes, absent_facts, missing_everywhere
from gputopo.probes.gpus.pairs import join_tree, nvlinks_between, pair_path, read_pairs, tree_hop
from gputopo.probes.host import read_host
from gputopo.probes.nvml.door import NotReadError, open_nvml
from gputopo.probes.pci.errors import host_acs
from gputopo.probes.pci.nodes import interface_name, read_pci
from gputopo.probes.pci.slots import NOT_IN_TREE, with_addresses, with_slot
from gputopo.values.machine import Driver, Gpu, Host, Link, Machine, Nic, PciNode

_NOT_IN_SYS = "NOT_IN_PROC_OR_SYS"
_TREE_SOURCE = "sysfs"
_NOT_IN_COPY = "NOT_IN_A_COPIED_SYS"


class NvmlSays(NamedTuple):
    """All that NVML said; `error` is the reason of nvmlInit or of the count, None where both worked."""

    error: str | None
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    missing: dict[str, str] = {}  # noqa: RUF012 (never written to)


def read_machine(root: Path = Path("/"), *, says: NvmlSays | None = None) -> Machine:
    """Read this machine. `root` holds `sys`, `proc` and `dev`; NVML is that of this process, or `says`
    stands in for its answers.

    `says` stands in for asking NVML (a tree copied from another machine). NVML's GPUs are the machine's GPUs,
    even where /sys shows none (containers, WSL). Where NVML cannot be used, they are the NVIDIA GPUs on the
    PCI bus, with what /sys tells of them, and `driver.status` says what is wrong. Without either there are
    none. Never raises for hardware or a driver that does not answer.
    """
    nodes = read_pci(root)
    on_bus = [node for node in nodes if node.kind == "gpu"]
    acs, no_acs = host_acs(nodes, root)
    host = msgspec.structs.replace(read_host(root, [node.address for node in on_bus]), acs=acs)
    says = ask_nvml() if says is None else says
    status, detail = decide(read_facts(root, nodes, says.error, len(says.gpus)))
    driver = msgspec.structs.replace(
        says.driver, status=status, detail=detail, kernel_module_version=module_version(root)
    )
    missing = dict(says.missing)
    if acs is None:
        missing["host.acs"] = no_acs
    gpus, links = says.gpus, says.links
    if status != "ok":
        reason = says.error or "NO_GPU_IN_NVML"
        gpus, links = _gpus_of_bus(on_bus, reason, missing)
    gpus = with_addresses(gpus, on_bus, missing)
    gpus = tuple(with_slot(gpu, nodes, missing) for gpu in gpus)
    gpus = _numbered_for_cuda(gpus, missing)
    links, contradictions = join_tree(links, gpus, nodes, host)
    links = tuple(_with_nvlinks(link, gpus, missing) for link in links)
    nics = _nics(root, nodes, gpus, host)
    _explain(gpus, links, nics, host, driver, on_bus, says.error, missing)
    return Machine(
        source="live",
        host=host,
        driver=driver,
        gpus=_with_users(gpus, host) if root == Path("/") else gpus,
        links=links,
        nics=nics,
        pci=nodes,
        missing=missing,
        contradictions=contradictions,
    )


def read_tree(root: Path) -> Machine:
    """Give the machine whose `sys` (and `proc`, where it was copied too) lies under `root`.

    The GPUs are the NVIDIA GPUs on its PCI bus. Whether its driver works cannot be seen from a copy:
    `driver.status` is not_read. Never raises for what a copy lacks.
    """
    machine = read_machine(root, says=NvmlSays(error=_NOT_IN_COPY))
    driver = Driver(status="not_read", kernel_module_version=machine.driver.kernel_module_version)
    return msgspec.structs.replace(machine, source=_TREE_SOURCE, driver=driver)


def ask_nvml() -> NvmlSays:
    """Ask NVML everything. Never raises: what it refuses is noted in `missing`, or is the `error`."""
    notes = Notes()
    try:
        with open_nvml() as nvml:
            driver = Driver(
                version=notes.take("driver.version", nvml.driver_version),
                cuda_version=notes.take("driver.cuda_version", nvml.cuda_version),
                nvml_version=notes.take("driver.nvml_version", nvml.nvml_version),
            )
            read = [read_gpu(nvml, index) for index in range(nvml.device_count())]
            links, missing_of_links = read_pairs(nvml, [handle for _, handle, _ in read])
    except NotReadError as error:
        return NvmlSays(error=error.reason)
    for _, _, missing in read:
        notes.missing |= missing
    return NvmlSays(
        error=None,
        driver=driver,
        gpus=tuple(gpu for gpu, _, _ in read),
        links=links,
        missing=notes.missing | missing_of_links,
    )


def _gpus_of_bus(
    on_bus: Sequence[PciNode], reason: str, missing: dict[str, str]
) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Give the GPUs that only the PCI bus shows, in its order, and their pairs, with nothing known."""
    gpus = tuple(Gpu(index=index, pci_address=node.address) for index, node in enumerate(on_bus))
    for gpu in gpus:
        missing |= missing_everywhere(gpu, reason)
    return gpus, tuple(Link(a=a, b=b) for a, b in combinations(range(len(gpus)), 2))


def _numbered_for_cuda(gpus: Sequence[Gpu], missing: dict[str, str]) -> tuple[Gpu, ...]:
    """Add CUDA's default numbers where they are certain: CUDA puts the fastest GPU first, then PCI order.

    So they are NVML's numbers where no GPU is faster than another: the same model, memory and highest clock.
    A lost GPU or one that is split into instances changes CUDA's numbers.
    """
    kinds = {(gpu.name, gpu.memory_mib.total, gpu.clocks_mhz.graphics.max) for gpu in gpus}
    known = all(gpu.name is not None for gpu in gpus)
    whole = not any(gpu.lost or gpu.mig.mode for gpu in gpus)
    if known and whole and (len(gpus) == 1 or len(kinds) == 1):
        for gpu in gpus:
            missing.pop(f"gpus[{gpu.index}].cuda_index", None)
        return tuple(msgspec.structs.replace(gpu, cuda_index=gpu.index) for gpu in gpus)
    for gpu in gpus:
        missing[f"gpus[{gpu.index}].cuda_index"] = "CUDA_ORDER_NOT_CERTAIN"
    return tuple(gpus)


def _with_nvlinks(link: Link, gpus: Sequence[Gpu], missing: dict[str, str]) -> Link:
    count = nvlinks_between(gpus[link.a], gpus[link.b])
    if count is None:
        reasons = (missing.get(f"gpus[{index}].nvlinks") for index in (link.a, link.b))
        reason = next((reason for reason in reasons if reason), "REMOTE_END_NOT_KNOWN")
        missing[f"{pair_path(link.a, link.b)}.nvlinks"] = reason
    return msgspec.structs.replace(link, nvlinks=count)


def _nics(root: Path, nodes: Sequence[PciNode], gpus: Sequence[Gpu], host: Host) -> tuple[Nic, ...]:
    """Give the network cards in PCI order with their hops to all GPUs and to one another."""
    found = [node for node in nodes if node.kind == "nic"]
    devices = {f"gpu:{gpu.index}": gpu.pci_address for gpu in gpus}
    devices |= {f"nic:{index}": node.address for index, node in enumerate(found)}
    return tuple(
        Nic(
            index=index,
            name=interface_name(root, node.address),
            pci_address=node.address,
            numa_node=node.numa_node,
            hops={
                name: hop
                for name, address in devices.items()
                if address != node.address
                and (hop := tree_hop(nodes, host, node.address, address)) is not None
            },
        )
        for index, node in enumerate(found)
    )


def _explain(
    gpus: Sequence[Gpu],
    links: Sequence[Link],
    nics: Sequence[Nic],
    host: Host,
    driver: Driver,
    on_bus: Iterable[PciNode],
    nvml_error: str | None,
    missing: dict[str, str],
) -> None:
    """Note a reason for every fact still without one, and take back those of facts found elsewhere."""
    for link in links:
        path = pair_path(link.a, link.b)
        handleless = next((gpus[i] for i in (link.a, link.b) if f"gpus[{i}].name" in missing), None)
        reason = missing[f"gpus[{handleless.index}].name"] if handleless else NOT_IN_TREE
        for name in ("hop", "p2p_read", "p2p_write"):
            if getattr(link, name) is not None:
                missing.pop(f"{path}.{name}", None)
            else:
                missing.setdefault(f"{path}.{name}", reason)
    for nic in nics:
        missing |= {f"nics[{nic.index}].{name}": _NOT_IN_SYS for name in absent_facts(nic)}
    for name in absent_facts(host):
        missing.setdefault(f"host.{name}", _NOT_IN_SYS)
    for name in ("version", "cuda_version", "nvml_version"):
        if getattr(driver, name) is None:
            missing.setdefault(f"driver.{name}", nvml_error or "UNKNOWN")
    if driver.kernel_module_version is None:
        missing["driver.kernel_module_version"] = _NOT_IN_SYS
    addresses = {gpu.pci_address for gpu in gpus}
    for node in on_bus:
        if node.address not in addresses:
            missing[f"pci[{node.address}].gpu"] = (
                f"NOT_COUNTED_BY_NVML (kernel driver {node.driver or 'none'})"
            )


def _with_users(gpus: Sequence[Gpu], host: Host) -> tuple[Gpu, ...]:
    """Add who runs the processes. Not in a container: NVML tells process numbers of the host outside."""
    if host.container != "none" or not any(gpu.processes for gpu in gpus):
        return tuple(gpus)
    return tuple(
        msgspec.structs.replace(
            gpu,
            processes=tuple(
                msgspec.structs.replace(process, user=_user(process.pid)) for process in gpu.processes
            ),
        )
        if gpu.processes
        else gpu
        for gpu in gpus
    )


def _user(pid: int) -> str | None:
    import pwd

    try:
        number = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None  # it has ended since
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
