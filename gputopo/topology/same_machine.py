"""Which machine one is: a hash over facts that stay while no hardware changes, without identities. Pure."""

import hashlib

import msgspec

from gputopo.values.machine import Gpu, Host, Machine

# Facts of a host that stay when only its GPUs change. Memory: the kernel's share differs.
_SAME_HOST = ("cpu_model", "sockets", "physical_cores", "virtual_machine")
_SAME_MEMORY = 0.05


def fingerprint(machine: Machine) -> str | None:
    """Return the hash (SHA-256, hex) that identifies a machine, None where too little is known of it.

    Over the CPU's model and each GPU's PCI address and name: a GPU that is moved or replaced makes another
    machine, a driver that prefixes the name with "NVIDIA" (from 465 on) does not. No serial numbers,
    UUIDs or host names. None: a GPU whose PCI address is unknown, or neither GPUs nor a CPU model.
    """
    if any(gpu.pci_address is None for gpu in machine.gpus):
        return None
    if not machine.gpus and machine.host.cpu_model is None:
        return None
    gpus = sorted([gpu.pci_address or "", _model(gpu)] for gpu in machine.gpus)
    facts = msgspec.json.encode([machine.host.cpu_model or "", gpus])
    return hashlib.sha256(facts).hexdigest()


def is_same_but_gpus(now: Machine, then: Machine) -> bool:
    """Return whether two machines, by the facts known of both, are one that lost GPUs or got more.

    The host is the same, GPUs in the same slots are of the same model, and only one of the two has others
    beside them. A GPU that does not answer is as one that is not there. With some gone and others new, it is
    taken for another machine.
    """
    if now.host.cpu_model is None or not _same_host(now.host, then.host):
        return False
    here, there = ({gpu.pci_address: _model(gpu) for gpu in answering(one)} for one in (now, then))
    shared = here.keys() & there.keys()
    return (
        bool(shared)
        and len(shared) in (len(here), len(there))
        and all(here[at] == there[at] for at in shared)
    )


def answering(machine: Machine) -> list[Gpu]:
    """Return the GPUs that respond and whose slot is known: those that can be measured again."""
    return [gpu for gpu in machine.gpus if not gpu.lost and gpu.pci_address is not None]


def _model(gpu: Gpu) -> str:
    return (gpu.name or "").removeprefix("NVIDIA ")


def _same_host(now: Host, then: Host) -> bool:
    facts = [(getattr(now, name), getattr(then, name)) for name in _SAME_HOST]
    memory = (now.memory_mib or 0, then.memory_mib or 0)
    return all(None in both or both[0] == both[1] for both in facts) and (
        0 in memory or abs(memory[0] - memory[1]) <= _SAME_MEMORY * max(memory)
    )
