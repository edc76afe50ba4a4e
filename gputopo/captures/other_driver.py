"""Captures of the PCI bus count every GPU, NVIDIA's driver only those bound to it: the latter counts.

So a GPU that bound to vfio-pci or nouveau beside others has no number, as on a machine that is read live, and
those behind it have nvidia-smi's. It stays in the PCI tree. Where no GPU is bound to NVIDIA's driver, all
keep a number.
"""

from collections.abc import Collection, Sequence

import msgspec

from gputopo.captures.matching import aligned
from gputopo.topology.kernel import gpus_of_other_drivers
from gputopo.values.machine import Machine


def without_gpus_of_other_drivers(machines: Sequence[Machine]) -> list[Machine]:
    """Return the captures of one machine without the GPUs that any of them shows bound to another driver."""
    bound = gpus_of_other_drivers(machines)
    return [_without(machine, bound) for machine in machines]


def _without(machine: Machine, bound: Collection[str]) -> Machine:
    numbered = [gpu for gpu in machine.gpus if gpu.name is not None or gpu.pci_address not in bound]
    if not numbered or len(numbered) == len(machine.gpus) or machine.driver.status != "not_read":
        return machine
    renumbered = (msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(numbered))
    fewer, _ = aligned(Machine(source=machine.source, gpus=tuple(renumbered)), machine)
    return fewer
