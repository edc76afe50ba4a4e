"""Network cards: links, rates, MTU and errors beside like cards, and how near each GPU is to a card."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gputopo.findings.compare import majority
from gputopo.findings.rule import Fault, Rule, Threshold, check, present
from gputopo.findings.tensorflow import version_of
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped, medians_of_others
from gputopo.values.machine import RETRIES, Gpu, Hop, Machine, Nic, NicPort
from gputopo.values.subject import DRIVER, MACHINE, Subject

PHYSICAL_ERRORS = Threshold(
    "errors of a port's link",
    10,
    "errors of one counter",
    "infiniband-diags: 10 symbol errors and 10 link recoveries in the example of ibqueryerrors' thresholds",
)
DROPPED = Threshold(
    "packets that a port dropped",
    100,
    "packets",
    "infiniband-diags: 100 dropped packets of VL15 in the example of ibqueryerrors' thresholds",
)
MANY_TIMES = Threshold("more errors than similar ports", 10, "times their median")
MANY = Threshold("more errors than similar ports, at least", 1000, "errors of one counter")
NARROW_LANES = Threshold(
    "lanes of an InfiniBand link",
    1,
    "lanes",
    "Links have four lanes, two where a port is split by its cable (HDR100, NDR200)",
)

LINK_DOWN = Rule(
    "nic.link_down",
    "network port without a link",
    remedy=(
        "Check cable, transceiver and switch port (ibstat, ip link); sudo dmesg shows what the driver "
        "reports. An interface that is disabled: sudo ip link set INTERFACE up."
    ),
    severities=("warning", "info"),
)
LINK_SLOW = Rule(
    "nic.link_slow",
    "network link slower than the port supports or than similar ports",
    remedy=(
        "Reseat or replace cable and transceiver, and compare the settings of the switch port (speed, "
        "autonegotiation, forward error correction)."
    ),
    severities=("warning", "info"),
    thresholds=(NARROW_LANES,),
)
MTU_DIFFERS = Rule(
    "nic.mtu_differs",
    "MTU of a network interface differs from similar cards",
    remedy=(
        "Set one MTU on all interfaces of a network and on its switches: sudo ip link set INTERFACE mtu "
        "BYTES."
    ),
)
ERRORS = Rule(
    "nic.errors",
    "errors counted by a network port",
    remedy=(
        "See whether they grow (gputopo inspect --watch). If so, clean or replace cable and transceiver, "
        "and try another switch port."
    ),
    severities=("info", "warning"),
    thresholds=(PHYSICAL_ERRORS, DROPPED, MANY_TIMES, MANY),
)
ERRORS_RISING = Rule(
    "nic.errors_rising",
    "errors counted by a network port while it was watched",
    remedy=(
        "The fault still occurs: clean or replace cable and transceiver, and try another switch port. "
        "Repeated packets without errors of the link point to congestion."
    ),
    severities=("warning", "info"),
)
GPU_FAR = Rule(
    "nic.gpu_far",
    "GPU without a near RDMA card, although other GPUs have one",
    remedy=(
        "Prefer the other GPUs for jobs over several hosts, or move a card below the same PCIe switch: "
        "through the CPU, GPUDirect RDMA is slow or off (NCCL_NET_GDR_LEVEL)."
    ),
    severities=("info",),
)
NO_PEER_MEMORY = Rule(
    "nic.gpudirect_off",
    "RDMA cards without a kernel module for GPUDirect RDMA",
    remedy=(
        "Run sudo modprobe nvidia-peermem. With the open kernel modules and Linux 5.12 or later NCCL can "
        "use DMA-BUF instead."
    ),
    severities=("info",),
)
NCCL_SLOW = Rule(
    "nccl.network",
    "NCCL does not use RDMA from GPU memory between hosts",
    remedy=(
        "NET/Socket: install the RDMA libraries (libibverbs) in the image, and see NCCL_IB_DISABLE and "
        "NCCL_IB_HCA. NET/IB without GDRDMA: sudo modprobe nvidia-peermem, and a card near each GPU."
    ),
    severities=("warning", "info"),
)
NCCL_WARNING = Rule(
    "nccl.warning",
    "warning in NCCL's log",
    remedy="See the lines above it in the log, and the logs of the other ranks. The first warning is the "
    "cause.",
)

_NEAR = Hop.PXB  # no host bridge between: what NCCL calls local (NCCL_NET_GDR_LEVEL's default)
_DMA_BUF = (5, 12)  # Linux; NCCL 2.13 and later use it with the open kernel modules
# RDMA devices by the kernel's names; captures of a topology show no ports.
_RDMA_NAME = re.compile(r"(mlx[45]|bnxt_re|irdma|hfi1|opa|efa|qedr|hns|rdmap|roce|ibp)[_\w]*")
_DROPPED = ("VL15_dropped", "port_xmit_discards", "rx_missed_errors", "port_rcv_switch_relay_errors")


class _Port(NamedTuple):
    """A port with its card. `kind`: what like ports have in common: the board's type and the link layer."""

    nic: Nic
    port: NicPort
    kind: tuple[str | None, ...]

    @property
    def name(self) -> str:
        return self.port.name

    @property
    def card(self) -> str:
        """The card that all its functions are on."""
        return (self.nic.pci_address or str(self.nic.index)).rpartition(".")[0] or str(self.nic.index)


@check(LINK_DOWN)
def links_down(machine: Machine) -> Iterator[Fault]:
    """Find ports without a link: a fault where like ports of other cards have one.

    Plain Ethernet ports are often spare: they are reported only beside like cards that are in use.
    """
    for group in _alike(machine):
        for port in group:
            if port.port.up is not False:
                continue
            beside = [other.name for other in group if other.port.up and other.card != port.card]
            rdma = port.port.rdma_device is not None
            if not beside and not rdma:
                continue
            severity: Severity = "warning" if beside and rdma else "info"
            why = "the interface is disabled" if port.port.enabled is False else _why_down(port.port)
            says = f"{port.name}: link down{f' ({why})' if why else ''}"
            if beside:
                says += f"; up on {len(beside)} similar port{'s' if len(beside) > 1 else ''}"
            state = {
                name: getattr(port.port, name) for name in ("state", "phys_state", "operstate", "enabled")
            }
            yield LINK_DOWN.fault(_subject(port), says, state | {"up": beside}, severity)
    yield from _without_ports(machine)


@check(LINK_SLOW)
def rates(machine: Machine) -> Iterator[Fault]:
    """Find links slower than those of most like ports, than the port supports, and of one lane."""
    for group in _alike(machine):
        known = {
            place: member.port.rate_gbit_per_s
            for place, member in enumerate(group)
            if member.port.up and member.port.rate_gbit_per_s
        }
        compared = majority(known)
        for place, rate in known.items():
            port, top = group[place].port, group[place].port.max_rate_gbit_per_s
            others = max((other for at, other in known.items() if at != place), default=0.0)
            evidence = {"rate_gbit_per_s": rate, "max_rate_gbit_per_s": top, "lanes": port.lanes}
            severity: Severity
            if (
                compared is not None
                and compared.common is not None
                and rate < compared.common
                and place in compared.odd
            ):
                words, severity = f"{_gbit(compared.common)} on {compared.others} similar ports", "warning"
                evidence["peers_gbit_per_s"] = compared.common
            elif port.lanes is not None and port.lanes <= NARROW_LANES.value:
                words, severity = f"on {port.lanes} lane", "warning"
            elif compared is not None and compared.common is None and rate < others:
                words, severity = f"{_gbit(others)} on a similar port", "info"
                evidence["peers_gbit_per_s"] = others
            elif top is not None and rate < top:
                words, severity = f"the port supports {_gbit(top)}", "info"
            else:
                continue
            says = f"{group[place].name}: {_gbit(rate)}, {words}"
            yield LINK_SLOW.fault(_subject(group[place]), says, evidence, severity)


@check(MTU_DIFFERS)
def mtus(machine: Machine) -> Iterator[Fault]:
    """Find interfaces whose MTU is not that of most like ports; without a majority all are named."""
    for group in _alike(machine):
        sizes = {
            place: port.port.mtu_bytes
            for place, port in enumerate(group)
            if port.port.mtu_bytes and port.port.up is not False
        }
        compared = majority(sizes)
        if compared is None:
            continue
        evidence = {"mtu_bytes": {group[place].name: size for place, size in sizes.items()}}
        if compared.common is None:
            words = ", ".join(f"{group[place].name} {size}" for place, size in sizes.items())
            subject = Subject.of_nics(group[place].nic.index for place in sizes)
            yield MTU_DIFFERS.fault(subject, f"MTU of similar ports: {words} bytes", evidence)
            continue
        for place, size in compared.odd.items():
            says = (
                f"{group[place].name}: MTU {size} bytes, {compared.common} on {compared.others} similar ports"
            )
            yield MTU_DIFFERS.fault(_subject(group[place]), says, evidence)


@check(ERRORS)
def errors(machine: Machine) -> Iterator[Fault]:
    """Find ports with errors of the link, and with far more errors of any kind than like ports."""
    for group in _alike(machine):
        for port in group:
            counts = port.port.errors or {}
            more = {name: count for name, count in counts.items() if _is_more(name, count, port, group)}
            if many := {name: count for name, count in counts.items() if _is_large(name, count)} | more:
                words = ", ".join(f"{name} {count}" for name, count in many.items())
                beside = ", far more than on similar ports" if more else ""
                evidence = {"errors": many, "more_than_peers": sorted(more)}
                severity: Severity = "warning" if more else "info"
                yield ERRORS.fault(_subject(port), f"{port.name}: {words}{beside}", evidence, severity)


@check(ERRORS_RISING)
def rising(machine: Machine, before: Sequence[Nic], minutes: float) -> Iterator[Fault]:
    """Find counters that rose since an earlier reading of the cards of a machine, and by how much."""
    was = {(nic.index, port.index): port.errors or {} for nic in before for port in nic.ports or ()}
    for nic in machine.nics:
        for port in nic.ports or ():
            earlier = was.get((nic.index, port.index), {})
            rose = {
                name: count - earlier[name]
                for name, count in (port.errors or {}).items()
                if count > earlier.get(name, count)
            }
            if rose:
                words = ", ".join(f"{name} by {count}" for name, count in rose.items())
                says = f"{port.name}: rose in {minutes:.1f} min: {words}"
                evidence = {"port": port.name, "rose": rose, "minutes": round(minutes, 2)}
                severity: Severity = "info" if rose.keys() <= set(RETRIES) else "warning"
                yield ERRORS_RISING.fault(Subject.of_nics([nic.index]), says, evidence, severity)


@check(GPU_FAR)
def far_gpus(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose every RDMA card is behind a host bridge, where other GPUs have a near one."""
    nearest = _nearest(machine, _rdma_cards(machine))
    if not any(hop <= _NEAR for hop, _ in nearest.values()):
        return
    for gpu in present(machine):
        hop, cards = nearest.get(gpu.index, (_NEAR, []))
        if hop > _NEAR:
            name = _card_name(cards[0])
            evidence = {"hop": hop.value, "nearest": name}
            yield GPU_FAR.fault(gpu, f"nearest RDMA card {name} is at {hop.value}", evidence)


@check(NO_PEER_MEMORY)
def peer_memory(machine: Machine) -> Iterator[Fault]:
    """Report RDMA cards beside GPUs that support GPUDirect RDMA, without a way to use it."""
    driver = machine.driver
    gpus = [gpu for gpu in present(machine) if gpu.name and "GeForce" not in f"{gpu.name} {gpu.brand}"]
    cards = [nic for nic in machine.nics if any(port.rdma_device and port.up for port in nic.ports or ())]
    if driver.peer_memory_module != "none" or driver.status != "ok" or not gpus or not cards:
        return
    if driver.open_kernel_module and (version_of(machine.host.kernel) or (0, 0)) >= _DMA_BUF:
        return
    yield NO_PEER_MEMORY.fault(
        DRIVER,
        f"{len(cards)} RDMA card{'s' if len(cards) > 1 else ''} with a link, but neither nvidia_peermem "
        "nor nv_peer_mem is loaded",
        {"cards": list(map(_card_name, cards)), "open_kernel_module": driver.open_kernel_module},
    )


@check(NCCL_SLOW, NCCL_WARNING)
def of_nccl(machine: Machine) -> Iterator[Fault]:
    """Find what NCCL's log shows of the network between hosts, and its warnings."""
    if machine.nccl is None:
        return
    between, warnings = machine.nccl.between_hosts, machine.nccl.warnings
    evidence = {"between_hosts": list(between), "network": machine.nccl.network}
    rdma = any(port.rdma_device for nic in machine.nics for port in nic.ports or ())
    if "NET/Socket" in between:
        says = f"NCCL uses TCP between hosts (NET/Socket){', although there are RDMA cards' if rdma else ''}"
        yield NCCL_SLOW.fault(MACHINE, says, evidence, "warning" if rdma else "info")
    elif any(via.startswith("NET/IB") for via in between) and not any("GDRDMA" in via for via in between):
        says = "NCCL copies through host memory between hosts (NET/IB without GDRDMA)"
        yield NCCL_SLOW.fault(MACHINE, says, evidence, "info")
    if warnings:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        yield NCCL_WARNING.fault(
            MACHINE, f"warning in NCCL's log: {warnings[0]}{more}", {"warnings": list(warnings)}
        )


def _without_ports(machine: Machine) -> Iterator[Fault]:
    """Find cards without any port beside like cards that have them: no driver, or its start failed."""
    nodes = machine.pci_by_address
    models = grouped(
        ((node.vendor_id, node.device_id), nic)
        for nic in machine.nics
        if (node := nodes.get(nic.pci_address or "")) is not None and nic.ports is not None
    )
    for cards in models.values():
        beside = [_card_name(nic) for nic in cards if nic.ports]
        for nic in cards:
            if not nic.ports and beside:
                driver = nodes[nic.pci_address or ""].driver
                yield LINK_DOWN.fault(
                    Subject.of_nics([nic.index]),
                    f"{nic.pci_address}: no network interface (kernel driver {driver or 'none'}); "
                    f"similar cards have one: {', '.join(beside)}",
                    {"driver": driver, "up": beside},
                )


def _alike(machine: Machine) -> list[list[_Port]]:
    """Return the ports of cards of one type and link layer together. Cards of unknown type have no peers."""
    nodes = machine.pci_by_address
    ports = []
    for nic in machine.nics:
        node = nodes.get(nic.pci_address or "")
        type_ = nic.psid or (node and node.vendor_id and f"{node.vendor_id}:{node.device_id}") or nic.hca_type
        ports += [
            _Port(nic, port, (type_ or f"card {nic.index}", port.link_layer)) for port in nic.ports or ()
        ]
    return list(grouped((member.kind, member) for member in ports).values())


def _why_down(port: NicPort) -> str | None:
    """Return the state that a port without a link is in; one with INIT waits for the subnet manager."""
    waits = port.phys_state == "LinkUp" and port.state is not None
    return f"state {port.state}, waits for the subnet manager" if waits else port.phys_state


def _is_large(name: str, count: int) -> bool:
    if name in RETRIES or name == "port_rcv_remote_physical_errors":
        return False  # of the switch's other ports, or of congestion
    return count >= (DROPPED if name in _DROPPED else PHYSICAL_ERRORS).value


def _is_more(name: str, count: int, port: _Port, group: Iterable[_Port]) -> bool:
    """Return whether a count is far above the median of similar ports; counts are not equal, as facts are."""
    counts = {
        id(other): other.port.errors[name]
        for other in group
        if (other is port or other.port.up) and other.port.errors and name in other.port.errors
    }
    usual = medians_of_others(counts).get(id(port))
    return usual is not None and count >= max(MANY.value, MANY_TIMES.value * max(usual, 1))


def _rdma_cards(machine: Machine) -> list[Nic]:
    """Return the cards with an RDMA port that is not down; where no ports are shown, by name."""
    return [
        nic
        for nic in machine.nics
        if any(port.rdma_device and port.up is not False for port in nic.ports or ())
        or (nic.ports is None and _RDMA_NAME.fullmatch(nic.name or ""))
    ]


def _nearest(machine: Machine, cards: Sequence[Nic]) -> Mapping[int, tuple[Hop, list[Nic]]]:
    """Return the nearest cards of each GPU and how far they are; of GPUs of which it is known."""
    nearest = {}
    for gpu in present(machine):
        hops = [(nic.hops[_key(gpu)], nic) for nic in cards if _key(gpu) in nic.hops]
        if hops and len(hops) == len(cards):
            least = min(hop for hop, _ in hops)
            nearest[gpu.index] = least, [nic for hop, nic in hops if hop == least]
    return nearest


def _key(gpu: Gpu) -> str:
    return f"gpu:{gpu.index}"


def _card_name(nic: Nic) -> str:
    return nic.name or nic.pci_address or f"network card {nic.index}"


def _subject(port: _Port) -> Subject:
    return Subject.of_nics([port.nic.index])


def _gbit(rate: float) -> str:
    return f"{rate:g} Gbit/s"
