"""Which cards these are: different models or memory sizes in one machine, and models without numbers."""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, kinds, numbers, present
from gputopo.findings.finding import Finding
from gputopo.reference.expectations import expected_gpu
from gputopo.values.machine import Machine

# Error correction, or a display, takes some of the memory that is reported: up to 1/16 (NVIDIA's ECC note
# for GDDR memory). Different sizes of one model differ by more (RTX 3080: 10 and 12 GB).
MEMORY_SHARE = 0.07


def mixed_models(machine: Machine) -> Iterator[Finding]:
    """Tell that not all GPUs are of one model."""
    groups = kinds(machine)
    if len(groups) > 1:
        models = {group[0].name or "": [gpu.index for gpu in group] for group in groups}
        told = "; ".join(f"{name}: GPU {numbers(gpus)}" for name, gpus in models.items())
        memory = {str(gpu.index): gpu.memory_mib.total for gpu in present(machine)}
        yield Finding(
            id="machine.mixed_models",
            severity="info",
            subject="machine",
            says=f"the GPUs are of {len(groups)} models ({told})",
            evidence={"models": models, "memory_mib": memory},
            remedy="train on cards of one model at a time (gputopo plan does): the slowest sets the pace, "
            "and the smallest memory the batch size",
        )


def mixed_memory(machine: Machine) -> Iterator[Finding]:
    """Find cards of one model with different amounts of memory."""
    faults = []
    for group in kinds(machine):
        totals = [gpu.memory_mib.total for gpu in group if gpu.memory_mib.total]
        most = max(totals, default=0)
        faults += [
            Fault(
                gpu,
                f"it has {gpu.memory_mib.total} MiB of memory, others of its model here have {most}",
                {"memory_mib": gpu.memory_mib.total, "peers_mib": most},
                "warning",
            )
            for gpu in group
            if gpu.memory_mib.total and gpu.memory_mib.total < most * (1 - MEMORY_SHARE)
        ]
    yield from findings_of(
        "machine.mixed_memory",
        faults,
        "choose the batch size by the smallest memory; if the cards should be equal, compare error "
        "correction (nvidia-smi -q -d ECC) and MIG",
        machine,
    )


def no_expectation(machine: Machine) -> Iterator[Finding]:
    """Say of which models no numbers are known: that they were not compared is not that they are fine."""
    unknown = [
        Fault(
            group[0],
            f"no expectation: the tables know no {group[0].name}",
            {"name": group[0].name, "gpus": [gpu.index for gpu in group]},
            "info",
        )
        for group in kinds(machine)
        if expected_gpu(group[0].name, group[0].pci_device_id) is None
    ]
    for fault in unknown:
        gpus = fault.evidence["gpus"]
        yield from findings_of(
            "card.no_expectation",
            [Fault(gpu, fault.says, fault.evidence, "info") for gpu in machine.gpus if gpu.index in gpus],
            "its clocks and links are compared with its equals only; compare them with its data sheet",
            machine,
        )
