"""Identifies a machine by a hash over facts that change only with its hardware, without identities."""

import hashlib

import msgspec

from gputopo.values.machine import Gpu, Host, Machine

# Host facts that do not change with the GPUs. Memory is compared with a tolerance: the kernel's share
# differs.
_SAME_HOST = ("cpu_model", "sockets", "physical_cores", "virtual_machine")
_SAME_MEMORY = 0.05


def fingerprint(machine: Machine) -> str | None:
    """Return the hash (SHA-256, hex) that identifies a machine, or None if too little is known about it.

    The hash is over the CPU model and the PCI address and name of each GPU. A moved or replaced GPU makes
    another machine; a driver that adds "NVIDIA" to names (from 465 on) does not. Serial numbers, UUIDs and
    host names are not used. None: a GPU's PCI address is unknown, or there are neither GPUs nor a CPU model.
    """
    if any(gpu.pci_address is None for gpu in machine.gpus):
        return None
    if not machine.gpus and machine.host.cpu_model is None:
        return None
    gpus = sorted([gpu.pci_address or "", _model(gpu)] for gpu in machine.gpus)
    facts = msgspec.json.encode([machine.host.cpu_model or "", gpus])
    return hashlib.sha256(facts).hexdigest()


def is_same_but_gpus(now: Machine, then: Machine) -> bool:
    """Return whether two machines, by the facts known about both, are one that lost or got GPUs.

    The host is the same, GPUs in the same slots have the same model, and only one of the two has additional
    GPUs. A GPU that does not answer counts as absent. If some GPUs are gone and others are new, it is another
    machine.
    """
    if now.host.cpu_model is None or not _same_host(now.host, then.host):
        return False
    models_now, models_then = (
        {gpu.pci_address: _model(gpu) for gpu in answering_gpus(machine)} for machine in (now, then)
    )
    shared = models_now.keys() & models_then.keys()
    return (
        bool(shared)
        and len(shared) in (len(models_now), len(models_then))
        and all(models_now[address] == models_then[address] for address in shared)
    )


def answering_gpus(machine: Machine) -> list[Gpu]:
    """Return the GPUs that respond and whose slot is known: the GPUs that can be measured again."""
    return [gpu for gpu in machine.gpus if not gpu.lost and gpu.pci_address is not None]


def _model(gpu: Gpu) -> str:
    return (gpu.name or "").removeprefix("NVIDIA ")


def _same_host(now: Host, then: Host) -> bool:
    facts = [(getattr(now, name), getattr(then, name)) for name in _SAME_HOST]
    memory = (now.memory_mib or 0, then.memory_mib or 0)
    return all(None in both or both[0] == both[1] for both in facts) and (
        0 in memory or abs(memory[0] - memory[1]) <= _SAME_MEMORY * max(memory)
    )
