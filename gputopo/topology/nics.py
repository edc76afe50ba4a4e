"""Which network cards are near GPUs."""

from collections.abc import Sequence

from gputopo.values.machine import Hop, Machine, NicPort


def near_rdma_ports(machine: Machine, gpus: Sequence[int]) -> list[tuple[NicPort, Hop]]:
    """Return the active RDMA ports of the cards nearest to each GPU, and their distance."""
    active = {
        nic.index: ports
        for nic in machine.nics
        if (ports := [port for port in nic.ports or () if port.is_active_rdma])
    }
    near: dict[int, Hop] = {}
    for gpu in gpus:
        hops = {
            nic.index: hop
            for nic in machine.nics
            if nic.index in active and (hop := nic.hops.get(f"gpu:{gpu}"))
        }
        nearest = min(hops.values(), default=None)
        for index, hop in hops.items():
            if hop is nearest:
                near[index] = min(hop, near.get(index, hop))
    return [(port, near[index]) for index, ports in active.items() if index in near for port in ports]
