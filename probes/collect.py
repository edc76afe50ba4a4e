"""Reads this machine, or a copied /sys: NVML's GPUs, the PCI tree and the host, as one Machine."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

from msgspec.structs import replace

from gputopo.probes.aer_acs import host_acs
from gputopo.probes.child import Poll
from gputopo.probes.driver import decide, is_open_module, listed_gpus, module_version, read_facts
from gputopo.probes.ethtool import max_rate
from gputopo.probes.host import read_host
from gputopo.probes.nics import not_asked, peer_memory_module, read_network
from gputopo.probes.nvml.gpu import MissingFacts, absent_facts, miss_all
from gputopo.probes.nvml.reading import NvmlAnswers, NvmlReading
from gputopo.probes.pci import interface_name, read_pci
from gputopo.probes.process_tree import user_of
from gputopo.probes.tensorflow_install import read_tensorflow
from gputopo.probes.tree import NOT_IN_TREE, join_tree, nvlinks_between, tree_hop, with_addresses, with_slot
from gputopo.reference import address_order
from gputopo.topology import UNCOUNTED
from gputopo.values.facts import at_gpu, at_link, at_nic, at_pci, within
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Contradiction, Gpu, Host, Link, Machine, Nic, PciNode

_NOT_IN_SYS = "NOT_IN_PROC_OR_SYS"
_TREE_SOURCE = "sysfs"
_NOT_IN_COPY = "NOT_IN_A_COPIED_SYS"


@contextlib.contextmanager
def begin_reading(
    root: Path = Path("/"), on_wait: Callable[[str], None] = lambda text: None, poll: Poll | None = None
) -> Iterator[Callable[[], Machine]]:
    """Start to read this machine. The value of the `with` block is a function that returns it.

    `root` contains `sys`, `proc` and `dev`; NVML is the one that this process can load. NVML's GPUs are the
    machine's GPUs, even if /sys shows none (containers, WSL). If NVML cannot be used, they are the NVIDIA
    GPUs on the PCI bus, with what /sys shows about them, and `driver.status` is the reason. Never raises for
    hardware or a driver that does not answer: a child process asks NVML while this process reads the rest.
    `on_wait` is called with a sentence about a slow driver (NvmlReading). `poll`: see DriverChild.
    """
    with NvmlReading(on_wait, poll) as reading:
        yield lambda: read_with(root, reading.answers)


def read_tree(root: Path) -> Machine:
    """Read a copy of another machine's /sys (and /proc, if it was copied too) under `root`.

    Asks no NVML and opens no device. The GPUs are the NVIDIA GPUs on the PCI bus and the GPUs that the kernel
    module lists, and `driver.status` is not_read. Never raises for a file that the copy does not have.
    """
    machine = read_with(root, lambda: NvmlAnswers(error=_NOT_IN_COPY))
    driver = replace(machine.driver, status="not_read", detail=None)
    return replace(machine, source=_TREE_SOURCE, driver=driver)


def read_with(root: Path, ask: Callable[[], NvmlAnswers]) -> Machine:
    """Read the rest of the machine, from /sys and /proc; `ask` returns what NVML answered."""
    nodes = read_pci(root)
    on_bus = [node for node in nodes if node.kind == "gpu"]
    acs, no_acs = host_acs(nodes, root)
    host = replace(read_host(root, [node.address for node in on_bus]), acs=acs)
    nvml = ask()
    missing = MissingFacts(nvml.missing)
    if acs is None:
        missing.note(no_acs, "host.acs")
    status, detail = decide(read_facts(root, nodes, nvml))
    driver = replace(
        nvml.driver,
        status=status,
        detail=detail,
        kernel_module_version=module_version(root),
        open_kernel_module=is_open_module(root),
        peer_memory_module=peer_memory_module(root),
    )
    gpus, links = nvml.gpus, nvml.links
    if not gpus:
        addresses = {node.address for node in on_bus}
        if nvml.error == _NOT_IN_COPY:  # a copied bus may have no vendors, or may be missing
            addresses |= {name for listed in listed_gpus(root) if (name := kernel_address(listed))}
        reason = nvml.error or "NO_GPU_IN_NVML"
        gpus, links = _gpus_of_bus(sorted(addresses, key=address_order), reason, missing)
    gpus = with_addresses(gpus, on_bus, missing)
    gpus = tuple(with_slot(gpu, nodes, missing) for gpu in gpus)
    gpus = _numbered_for_cuda(gpus, missing)
    links, contradictions = join_tree(links, gpus, nodes, host)
    contradictions += _miscounted(nvml)
    links = tuple(_with_nvlinks(link, gpus, missing) for link in links)
    machine = Machine(
        source="live",
        host=host,
        driver=driver,
        gpus=_with_users(gpus, host) if root == Path("/") else gpus,
        links=links,
        nics=_nics(root, nodes, gpus, host, missing),
        pci=nodes,
        contradictions=contradictions,
        tensorflow=read_tensorflow() if gpus and nvml.error != _NOT_IN_COPY else None,
    )
    _explain(missing, machine, listed_gpus(root), nvml.error)
    return replace(machine, missing=missing.reasons)


def _miscounted(nvml: NvmlAnswers) -> tuple[Contradiction, ...]:
    """Return a contradiction if the driver's numbers of GPUs, handles, UUIDs and addresses differ."""
    counts = {"handles": len(nvml.gpus), "nvmlDeviceGetCount": nvml.counted}
    for source, values in (
        ("UUIDs", [gpu.uuid for gpu in nvml.gpus if gpu.uuid is not None]),
        ("PCI addresses", [gpu.pci_address for gpu in nvml.gpus if gpu.pci_address is not None]),
    ):
        counts[source] = len(nvml.gpus) - len(values) + len(set(values))
    said = {source: str(count) for source, count in counts.items() if count != len(nvml.gpus)}
    return (Contradiction(fact="gpus", said={"handles": str(len(nvml.gpus)), **said}),) if said else ()


def _gpus_of_bus(
    addresses: Sequence[str], reason: str, missing: MissingFacts
) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Return GPUs for which only the addresses are known, in the order of the addresses, and their pairs."""
    gpus = tuple(Gpu(index=index, pci_address=address) for index, address in enumerate(addresses))
    for gpu in gpus:
        miss_all(gpu, reason, missing)
    return gpus, tuple(Link(a=a, b=b) for a, b in combinations(range(len(gpus)), 2))


def _numbered_for_cuda(gpus: Sequence[Gpu], missing: MissingFacts) -> tuple[Gpu, ...]:
    """Add CUDA's default numbers if they are certain: CUDA puts the fastest GPU first, then uses PCI order.

    So they are NVML's numbers if no GPU is faster than another: same model, memory and highest clock. A lost
    GPU, or a GPU that is split into instances, changes CUDA's numbers.
    """
    kinds = {(gpu.name, gpu.memory_mib.total, gpu.clocks_mhz.graphics.max) for gpu in gpus}
    known = all(gpu.name is not None for gpu in gpus)
    whole = not any(gpu.lost or gpu.mig.mode for gpu in gpus)
    if known and whole and (len(gpus) == 1 or len(kinds) == 1):
        for gpu in gpus:
            missing.clear(at_gpu(gpu.index, "cuda_index"))
        return tuple(replace(gpu, cuda_index=gpu.index) for gpu in gpus)
    missing.note("CUDA_ORDER_NOT_CERTAIN", *(at_gpu(gpu.index, "cuda_index") for gpu in gpus))
    return tuple(gpus)


def _with_nvlinks(link: Link, gpus: Sequence[Gpu], missing: MissingFacts) -> Link:
    count = nvlinks_between(gpus[link.a], gpus[link.b])
    if count is None:
        reasons = (missing.reason(at_gpu(index, "nvlinks")) for index in (link.a, link.b))
        reason = next((reason for reason in reasons if reason), "REMOTE_END_NOT_KNOWN")
        missing.note(reason, at_link(link.a, link.b, "nvlinks"))
    return replace(link, nvlinks=count)


def _nics(
    root: Path, nodes: Sequence[PciNode], gpus: Sequence[Gpu], host: Host, missing: MissingFacts
) -> tuple[Nic, ...]:
    """Return the NICs in PCI order with their ports and their hops to all GPUs and to one another."""
    cards = [node for node in nodes if node.kind == "nic"]
    is_here = root == Path("/")  # otherwise the tree is a copy, and the kernel is not asked
    network = [read_network(root, node.address, max_rate if is_here else not_asked) for node in cards]
    for index, card in enumerate(network):
        for fact, reason in card.missing.items():
            missing.note(reason, at_nic(index, fact))
    devices = {f"gpu:{gpu.index}": gpu.pci_address for gpu in gpus}
    devices |= {f"nic:{index}": node.address for index, node in enumerate(cards)}
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
            **network[index].facts,
        )
        for index, node in enumerate(cards)
    )


def with_ports_now(machine: Machine, root: Path = Path("/")) -> Machine:
    """Return the given machine with the present state of its network cards' ports."""
    nics = tuple(
        replace(nic, ports=read_network(root, nic.pci_address).facts["ports"])
        for nic in machine.nics
        if nic.pci_address is not None
    )
    return replace(machine, nics=nics)


def _explain(missing: MissingFacts, machine: Machine, listed: Iterable[str], nvml_error: str | None) -> None:
    """Note a reason for every missing fact that has none, and remove the reasons of facts found elsewhere."""
    for link in machine.links:
        no_handle = (missing.reason(at_gpu(gpu, "name")) for gpu in (link.a, link.b))
        reason = next((reason for reason in no_handle if reason), NOT_IN_TREE)
        for name in ("hop", "p2p_read", "p2p_write"):
            path = at_link(link.a, link.b, name)
            if getattr(link, name) is not None:
                missing.clear(path)
            else:
                missing.note_if_none(reason, path)
    for nic in machine.nics:
        missing.note_if_none(_NOT_IN_SYS, *(at_nic(nic.index, name) for name in absent_facts(nic)))
    missing.note_if_none(_NOT_IN_SYS, *absent_facts(machine.host, "host"))
    for name in ("version", "cuda_version", "nvml_version"):
        if getattr(machine.driver, name) is None:
            missing.note_if_none(nvml_error or "UNKNOWN", within("driver", name))
    for name in ("kernel_module_version", "open_kernel_module", "peer_memory_module"):
        if getattr(machine.driver, name) is None:
            missing.note(_NOT_IN_SYS, within("driver", name))
    addresses = {gpu.pci_address for gpu in machine.gpus}
    for node in machine.pci:
        if node.kind == "gpu" and node.address not in addresses:
            reason = f"NOT_COUNTED_BY_NVML (kernel driver {node.driver or 'none'})"
            missing.note(reason, at_pci(node.address, "gpu"))
    for address in listed:
        if address not in addresses:
            missing.note_if_none(UNCOUNTED, at_pci(address, "gpu"))


def _with_users(gpus: Sequence[Gpu], host: Host) -> tuple[Gpu, ...]:
    """Add the user of each process, except in a container: NVML reports the host's process IDs."""
    if host.container != "none":
        return tuple(gpus)
    with_users = []
    for gpu in gpus:
        processes = [replace(process, user=user_of(process.pid)) for process in gpu.processes or ()]
        with_users.append(replace(gpu, processes=gpu.processes and tuple(processes)))
    return tuple(with_users)
