"""GPUs of which the driver says that they must be reset, or the machine rebooted, before work goes on.

What each action means: NVIDIA, GPU Memory Error Management, "Error Recovery and Response Flags"
(docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt), and nvmlDeviceGpuRecoveryAction_t in nvml.h. After "Drain
and Reset" what runs may end, so that is a warning; after every other action the GPU is of no use as it is.
The same: `nvidia-smi --query-gpu=gpu_recovery_action`.
"""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import Finding
from gputopo.values.machine import Gpu, Machine

_DRAIN = "drain and reset"
_CAUSE = "sudo dmesg | grep -i xid tells the cause; if it comes again, have the card examined"
_RESET = "sudo nvidia-smi --gpu-reset -i GPU (cards that NVLink joins: all at once), or reboot"
_OTHER = f"do what the driver asks for, or reboot; {_CAUSE}"
# What an action says of a GPU, and how it is done.
_WORDS = {
    "reset": ("it cannot be used before it is reset", f"end all programs on it, then {_RESET}; {_CAUSE}"),
    "reboot": ("it cannot be used before the machine is rebooted", f"reboot; {_CAUSE}"),
    "drain p2p": (
        "a fault asks that all copies between GPUs end before it can be healed",
        "end all programs that copy between GPUs, then look again: nvidia-smi "
        f"--query-gpu=gpu_recovery_action --format=csv says what comes next; {_CAUSE}",
    ),
}


def actions(machine: Machine) -> Iterator[Finding]:
    """Find GPUs that the driver wants recovered; "none" is no fault, and what is not told is no finding."""
    asked = [gpu for gpu in present(machine) if gpu.recovery_action not in (None, "none")]
    for action in dict.fromkeys(gpu.recovery_action for gpu in asked):
        gpus = [gpu for gpu in asked if gpu.recovery_action == action]
        if action == _DRAIN:
            says = "it works with a part of what it has until it is reset, and is to get no new work"
            faults = [Fault(gpu, says, _evidence(gpu), "warning") for gpu in gpus]
            remedy = f"let its programs end and start no other, then {_RESET}; {_CAUSE}"
            yield from findings_of("gpu.reset_recommended", faults, remedy, machine)
        else:
            says, remedy = _WORDS.get(action or "", (f"the driver asks for a recovery: {action}", _OTHER))
            faults = [Fault(gpu, says, _evidence(gpu), "error") for gpu in gpus]
            yield from findings_of("gpu.reset_required", faults, remedy, machine)


def _evidence(gpu: Gpu) -> dict[str, object]:
    return {"pci_address": gpu.pci_address, "recovery_action": gpu.recovery_action}
