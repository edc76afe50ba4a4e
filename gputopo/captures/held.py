"""Captures of the PCI bus count every GPU, NVIDIA's driver only those that it holds: the latter counts.

So a GPU that vfio-pci or nouveau holds beside others has no number, as on a machine that is read live, and
those behind it have nvidia-smi's. It stays in the PCI tree. Where every GPU is so held all keep a number.
"""

from collections.abc import Collection, Sequence

import msgspec

from gputopo.reference.kernel_drivers import held_by_others
from gputopo.topology.matching import aligned
from gputopo.values.machine import Machine


def without_held(machines: Sequence[Machine]) -> list[Machine]:
    """Return the captures of one machine without the GPUs that any of them shows held by another driver."""
    held = held_by_others(machines)
    return [_without(machine, held) for machine in machines]


def _without(machine: Machine, held: Collection[str]) -> Machine:
    kept = [gpu for gpu in machine.gpus if gpu.name is not None or gpu.pci_address not in held]
    if not kept or len(kept) == len(machine.gpus) or machine.driver.status != "not_read":
        return machine
    numbered = (msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(kept))
    fewer, _ = aligned(Machine(source=machine.source, gpus=tuple(numbered)), machine)
    return fewer
