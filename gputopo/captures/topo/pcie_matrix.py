"""`topo -m` and `topo -mp` of one machine in one text: the second tells the hops that NVLinks hide."""

import msgspec

from gputopo.values.machine import Machine


def differences(machine: Machine, pcie: Machine) -> list[str]:
    """Tell in what a matrix and one of PCIe alone cannot be of the same machine."""
    if [gpu.index for gpu in machine.gpus] != [gpu.index for gpu in pcie.gpus]:
        return ["GPUs"]
    hops = {(link.a, link.b): link.hop for link in pcie.links}
    told = [(link, hops.get((link.a, link.b))) for link in machine.links if link.hop is not None]
    return [f"GPU{link.a}-GPU{link.b}" for link, hop in told if hop is not None and hop is not link.hop]


def completed(machine: Machine, pcie: Machine) -> Machine:
    """Give the machine with the hop of each pair that has NVLinks."""
    hops = {(link.a, link.b): link.hop for link in pcie.links}
    links = tuple(
        link if link.hop is not None else msgspec.structs.replace(link, hop=hops.get((link.a, link.b)))
        for link in machine.links
    )
    missing = dict(machine.missing)
    if all(link.hop is not None for link in links):
        missing.pop("links[*].hop", None)
    return msgspec.structs.replace(machine, links=links, missing=missing)
