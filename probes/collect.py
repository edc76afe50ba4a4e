"""Reads this machine, or a copied /sys: NVML's GPUs, the PCI tree and the host, as one Machine."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec

from gputopo.probes.driver import decide, module_version, read_facts
from gputopo.probes.facts import FactReader, MissingFacts, absent_facts
from gputopo.probes.gpus.gpu import miss_all, read_gpu
from gputopo.probes.gpus.pairs import join_tree, nvlinks_between, read_pairs, tree_hop
from gputopo.probes.host import read_host
from gputopo.probes.nvml.door import NotReadError, open_nvml
from gputopo.probes.pci.errors import host_acs
from gputopo.probes.pci.nodes import interface_name, read_pci
from gputopo.probes.pci.slots import NOT_IN_TREE, with_addresses, with_slot
from gputopo.values.fact_path import at_gpu, at_link, at_nic, at_pci, within
from gputopo.values.machine import Driver, Gpu, Host, Link, Machine, Nic, PciNode

_NOT_IN_SYS = "NOT_IN_PROC_OR_SYS"
_TREE_SOURCE = "sysfs"
_NOT_IN_COPY = "NOT_IN_A_COPIED_SYS"


class NvmlAnswers(NamedTuple):
    """All that NVML answered; `error` is the reason of nvmlInit or of the count, None where both worked."""

    error: str | None
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()


def read_machine(root: Path = Path("/")) -> Machine:
    """Read this machine. `root` holds `sys`, `proc` and `dev`; NVML is that of this process.

    NVML's GPUs are the machine's GPUs, even where /sys shows none (containers, WSL). Where NVML cannot be
    used, they are the NVIDIA GPUs on the PCI bus, with what /sys shows of them, and `driver.status` is the
    reason. Without either there are none. Never raises for hardware or a driver that does not answer.
    """
    missing = MissingFacts()
    return _read(root, _ask_nvml(missing), missing)


def read_tree(root: Path) -> Machine:
    """Read a copy of another machine's /sys (and /proc, where it was copied too) under `root`.

    No NVML is asked, no device is opened: the GPUs are the NVIDIA GPUs on its PCI bus, and `driver.status`
    is not_read. Never raises for what a copy lacks.
    """
    machine = _read(root, NvmlAnswers(error=_NOT_IN_COPY), MissingFacts())
    driver = Driver(status="not_read", kernel_module_version=machine.driver.kernel_module_version)
    return msgspec.structs.replace(machine, source=_TREE_SOURCE, driver=driver)


def _read(root: Path, nvml: NvmlAnswers, missing: MissingFacts) -> Machine:
    """Read the rest of the machine, from /sys and /proc; `missing` follows."""
    nodes = read_pci(root)
    on_bus = [node for node in nodes if node.kind == "gpu"]
    acs, no_acs = host_acs(nodes, root)
    if acs is None:
        missing.note(no_acs, "host.acs")
    host = msgspec.structs.replace(read_host(root, [node.address for node in on_bus]), acs=acs)
    status, detail = decide(read_facts(root, nodes, nvml.error, len(nvml.gpus)))
    driver = msgspec.structs.replace(
        nvml.driver, status=status, detail=detail, kernel_module_version=module_version(root)
    )
    gpus, links = nvml.gpus, nvml.links
    if status != "ok":
        gpus, links = _gpus_of_bus(on_bus, nvml.error or "NO_GPU_IN_NVML", missing)
    gpus = with_addresses(gpus, on_bus, missing)
    gpus = tuple(with_slot(gpu, nodes, missing) for gpu in gpus)
    gpus = _numbered_for_cuda(gpus, missing)
    links, contradictions = join_tree(links, gpus, nodes, host)
    links = tuple(_with_nvlinks(link, gpus, missing) for link in links)
    nics = _nics(root, nodes, gpus, host)
    _explain(missing, gpus, links, nics, host, driver, on_bus, nvml.error)
    return Machine(
        source="live",
        host=host,
        driver=driver,
        gpus=_with_users(gpus, host) if root == Path("/") else gpus,
        links=links,
        nics=nics,
        pci=nodes,
        missing=missing.reasons,
        contradictions=contradictions,
    )


def _ask_nvml(missing: MissingFacts) -> NvmlAnswers:
    """Ask NVML everything. Never raises: what it refuses is noted in `missing`, or is the `error`."""
    noted = MissingFacts()
    try:
        with open_nvml() as nvml:
            facts = FactReader(nvml, noted, "driver")
            driver = Driver(
                version=facts.read("version", nvml.driver_version),
                cuda_version=facts.read("cuda_version", nvml.cuda_version),
                nvml_version=facts.read("nvml_version", nvml.nvml_version),
            )
            read = [read_gpu(nvml, index, noted) for index in range(nvml.device_count())]
            links = read_pairs(nvml, [handle for _, handle in read], noted)
    except NotReadError as error:
        return NvmlAnswers(error=error.reason)
    missing.reasons |= noted.reasons
    return NvmlAnswers(error=None, driver=driver, gpus=tuple(gpu for gpu, _ in read), links=links)


def _gpus_of_bus(
    on_bus: Sequence[PciNode], reason: str, missing: MissingFacts
) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Return the GPUs that only the PCI bus shows, in its order, and their pairs, with nothing known."""
    gpus = tuple(Gpu(index=index, pci_address=node.address) for index, node in enumerate(on_bus))
    for gpu in gpus:
        miss_all(gpu, reason, missing)
    return gpus, tuple(Link(a=a, b=b) for a, b in combinations(range(len(gpus)), 2))


def _numbered_for_cuda(gpus: Sequence[Gpu], missing: MissingFacts) -> tuple[Gpu, ...]:
    """Add CUDA's default numbers where they are certain: CUDA puts the fastest GPU first, then PCI order.

    So they are NVML's numbers where no GPU is faster than another: the same model, memory and highest clock.
    A lost GPU or one that is split into instances changes CUDA's numbers.
    """
    kinds = {(gpu.name, gpu.memory_mib.total, gpu.clocks_mhz.graphics.max) for gpu in gpus}
    known = all(gpu.name is not None for gpu in gpus)
    whole = not any(gpu.lost or gpu.mig.mode for gpu in gpus)
    if known and whole and (len(gpus) == 1 or len(kinds) == 1):
        for gpu in gpus:
            missing.found(at_gpu(gpu.index, "cuda_index"))
        return tuple(msgspec.structs.replace(gpu, cuda_index=gpu.index) for gpu in gpus)
    missing.note("CUDA_ORDER_NOT_CERTAIN", *(at_gpu(gpu.index, "cuda_index") for gpu in gpus))
    return tuple(gpus)


def _with_nvlinks(link: Link, gpus: Sequence[Gpu], missing: MissingFacts) -> Link:
    count = nvlinks_between(gpus[link.a], gpus[link.b])
    if count is None:
        reasons = (missing.reason(at_gpu(index, "nvlinks")) for index in (link.a, link.b))
        reason = next((reason for reason in reasons if reason), "REMOTE_END_NOT_KNOWN")
        missing.note(reason, at_link(link.a, link.b, "nvlinks"))
    return msgspec.structs.replace(link, nvlinks=count)


def _nics(root: Path, nodes: Sequence[PciNode], gpus: Sequence[Gpu], host: Host) -> tuple[Nic, ...]:
    """Return the NICs in PCI order with their hops to all GPUs and to one another."""
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
    missing: MissingFacts,
    gpus: Sequence[Gpu],
    links: Sequence[Link],
    nics: Sequence[Nic],
    host: Host,
    driver: Driver,
    on_bus: Iterable[PciNode],
    nvml_error: str | None,
) -> None:
    """Note a reason for every fact still without one, and remove those of facts found elsewhere."""
    for link in links:
        no_handle = (missing.reason(at_gpu(gpu, "name")) for gpu in (link.a, link.b))
        reason = next((reason for reason in no_handle if reason), NOT_IN_TREE)
        for name in ("hop", "p2p_read", "p2p_write"):
            path = at_link(link.a, link.b, name)
            if getattr(link, name) is not None:
                missing.found(path)
            else:
                missing.note_if_none(reason, path)
    for nic in nics:
        missing.note(_NOT_IN_SYS, *(at_nic(nic.index, name) for name in absent_facts(nic)))
    missing.note_if_none(_NOT_IN_SYS, *(within("host", name) for name in absent_facts(host)))
    for name in ("version", "cuda_version", "nvml_version"):
        if getattr(driver, name) is None:
            missing.note_if_none(nvml_error or "UNKNOWN", within("driver", name))
    if driver.kernel_module_version is None:
        missing.note(_NOT_IN_SYS, "driver.kernel_module_version")
    addresses = {gpu.pci_address for gpu in gpus}
    for node in on_bus:
        if node.address not in addresses:
            reason = f"NOT_COUNTED_BY_NVML (kernel driver {node.driver or 'none'})"
            missing.note(reason, at_pci(node.address, "gpu"))


def _with_users(gpus: Sequence[Gpu], host: Host) -> tuple[Gpu, ...]:
    """Add the user of each process. Not in a container: NVML reports process IDs of the host."""
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
