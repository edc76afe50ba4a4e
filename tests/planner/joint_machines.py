"""Machines with network cards, from a matrix of hops."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import msgspec

from gputopo.values.machine import Gpu, Hop, Link, Machine, Nic, NicPort, Pcie

V100 = "Tesla V100-SXM2-16GB"


def box(
    pairs: Mapping[tuple[int, int], Hop] | Hop,
    nics: Sequence[Mapping[int, Hop]] = (),
    *,
    gpus: int,
    gbit_per_s: float | None = None,
    name: str = V100,
) -> Machine:
    """Return a machine; each nic by its hops to GPUs. Nics are mlx5_0 with eth0, ..., and up."""
    return Machine(
        source="live",
        gpus=tuple(
            Gpu(index=index, name=name, pcie=Pcie(gen_max=3, width_max=16, width_now=16))
            for index in range(gpus)
        ),
        links=tuple(
            Link(a=a, b=b, hop=pairs if isinstance(pairs, Hop) else pairs[a, b], nvlinks=0)
            for a, b in combinations(range(gpus), 2)
        ),
        nics=tuple(
            Nic(
                index=number,
                hops={f"gpu:{gpu}": hop for gpu, hop in hops.items()},
                ports=(
                    NicPort(
                        index=1,
                        rdma_device=f"mlx5_{number}",
                        interface=f"eth{number}",
                        operstate="up",
                        rate_gbit_per_s=gbit_per_s,
                    ),
                ),
            )
            for number, hops in enumerate(nics)
        ),
    )


def two_switches(**more: object) -> Machine:
    """Return eight GPUs on two switches, a card on the second: GPUs 4-7 are near to it."""
    pairs = {(a, b): Hop.PIX if a // 4 == b // 4 else Hop.SYS for a, b in combinations(range(8), 2)}
    card = {gpu: Hop.PIX if gpu > 3 else Hop.SYS for gpu in range(8)}
    found = box(pairs, [card], gpus=8, gbit_per_s=25.0)
    return msgspec.structs.replace(found, **more)
