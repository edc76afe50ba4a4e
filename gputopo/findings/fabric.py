"""GPUs that have not joined the NVSwitches of their board (their fabric), or are not well since.

What the words mean: nvml.h (nvmlGpuFabricState_t, NVML_GPU_FABRIC_HEALTH_*) and NVIDIA's Fabric Manager User
Guide. Until a GPU has joined, CUDA does not start on it (CUDA_ERROR_SYSTEM_NOT_READY, 802); one that was
refused works alone, without copies over NVLink. The same: `nvidia-smi -q`, section Fabric.
"""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import Finding
from gputopo.values.machine import Fabric, Gpu, Machine

JOINED = "completed"
SUCCESS = "success"
_MANAGER = (
    "see that nvidia-fabricmanager runs and is of the driver's version (sudo systemctl restart "
    "nvidia-fabricmanager, then journalctl -u nvidia-fabricmanager)"
)
_JOIN = (
    f"{_MANAGER}; a virtual machine with a part of a board: the host gives it a partition, or the driver is "
    "loaded without NVLink (NVreg_NvLinkDisable=1)"
)
_HEAL = f"{_MANAGER}; if it stays, end all programs and reset the GPUs together: sudo nvidia-smi -r"
# What a sound fabric says of itself; of an assigned partition either may be so.
SOUND = {
    "summary": "healthy",
    "bandwidth": "full",
    "route_recovery_in_progress": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "none",
}
# These leave GPUs out of reach; with the others copies are slow, or wait.
_GRAVE = {("summary", "unhealthy"), ("route_unhealthy", "true")}


def not_joined(machine: Machine) -> Iterator[Finding]:
    """Find GPUs that have not joined, or were refused. Under MIG a card uses no NVLink and needs none."""
    faults = [
        Fault(gpu, says, _evidence(gpu), "error")
        for gpu in present(machine)
        if not gpu.mig.mode and (says := _standing(gpu.fabric))
    ]
    yield from findings_of("nvlink.fabric_not_ready", faults, _JOIN, machine)


def unwell(machine: Machine) -> Iterator[Finding]:
    """Find GPUs that have joined and whose driver tells of trouble since."""
    faults = []
    for gpu in present(machine):
        wrong = _wrong(gpu.fabric) if gpu.fabric.state == JOINED and not gpu.mig.mode else {}
        if wrong:
            says = "of its NVSwitch fabric the driver says: " + ", ".join(
                f"{name.replace('_', ' ')} {word}" for name, word in wrong.items()
            )
            grave = "incorrect_configuration" in wrong or not _GRAVE.isdisjoint(wrong.items())
            faults.append(Fault(gpu, says, _evidence(gpu), "error" if grave else "warning"))
    yield from findings_of("nvlink.fabric_unhealthy", faults, _HEAL, machine)


def _standing(fabric: Fabric) -> str | None:
    if fabric.joining:
        return (
            f"it has not joined its NVSwitches (fabric state: {fabric.state}), so CUDA does not start on it"
        )
    if fabric.state == JOINED and fabric.status not in (None, SUCCESS):
        return f"its NVSwitches refused it ({fabric.status}), so it works without copies over NVLink"
    return None


def _wrong(fabric: Fabric) -> dict[str, str]:
    return {name: word for name, word in (fabric.health or {}).items() if SOUND.get(name, word) != word}


def _evidence(gpu: Gpu) -> dict[str, object]:
    fabric = gpu.fabric
    return {"state": fabric.state, "status": fabric.status, "health": fabric.health}
