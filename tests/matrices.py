"""Machines from hand-written matrices: a row for each GPU, a word for each pair."""

from itertools import combinations

import msgspec

from gputopo.values.machine import Gpu, Hop, Link, Machine

SEVEN = """
X   PIX PIX PHB PHB PHB PHB
PIX X   PIX PHB PHB PHB PHB
PIX PIX X   PHB PHB PHB PHB
PHB PHB PHB X   PIX PIX PIX
PHB PHB PHB PIX X   PIX PIX
PHB PHB PHB PIX PIX X   PIX
PHB PHB PHB PIX PIX PIX X
"""

DGX1_P100 = """
X   NV1 NV1 NV1 NV1 SYS SYS SYS
NV1 X   NV1 NV1 SYS NV1 SYS SYS
NV1 NV1 X   NV1 SYS SYS NV1 SYS
NV1 NV1 NV1 X   SYS SYS SYS NV1
NV1 SYS SYS SYS X   NV1 NV1 NV1
SYS NV1 SYS SYS NV1 X   NV1 NV1
SYS SYS NV1 SYS NV1 NV1 X   NV1
SYS SYS SYS NV1 NV1 NV1 NV1 X
"""

DGX1_V100 = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1
NV2 SYS SYS SYS X   NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X   NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X   NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""

FOUR_AND_FOUR = "\n".join(
    " ".join(
        "X" if a == b else "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS"
        for b in range(8)
    )
    for a in range(8)
)
"""Two sockets with four GPUs each, in pairs behind a switch."""


def machine_of(matrix: str, source: str = "a test") -> Machine:
    """Return the machine of a matrix. `?` is a pair of which nothing is known."""
    rows = [line.split() for line in matrix.strip().splitlines()]
    links = (link_of(a, b, rows[a][b]) for a, b in combinations(range(len(rows)), 2))
    return Machine(
        source=source,
        gpus=tuple(Gpu(index=index) for index in range(len(rows))),
        links=tuple(link for link in links if link is not None),
    )


def link_of(a: int, b: int, word: str) -> Link | None:
    """Return the link that a cell of the matrix stands for."""
    if word == "?":
        return None
    if word.startswith("NV"):
        return Link(a=a, b=b, nvlinks=int(word[2:]))
    return Link(a=a, b=b, hop=Hop(word), nvlinks=0)


def changed(machine: Machine, index: int, **fields: object) -> Machine:
    """Return the machine with other facts of one GPU."""
    gpus = tuple(
        msgspec.structs.replace(gpu, **fields) if gpu.index == index else gpu for gpu in machine.gpus
    )
    return msgspec.structs.replace(machine, gpus=gpus)
