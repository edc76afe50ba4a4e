"""Why NVML cannot be used although the machine has an NVIDIA device.

`decide` judges facts and reads nothing; `read_facts` collects the facts from /proc, /sys and /dev under a
root.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gputopo.probes.child import DriverStop
from gputopo.probes.host import list_names, read_text
from gputopo.probes.nvml import NvmlAnswers
from gputopo.values.machine import DriverStatus, PciNode

NodeAccess = Literal["ok", "denied", "absent"]

_MODULE = "nvidia"
_WITHOUT_DEVICE = ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED")


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was read about the driver.

    `bound`: the kernel driver of each NVIDIA GPU on the bus, None for a GPU without a driver.
    """

    nvml_error: str | None = None  # nvmlInit's reason, or None if it succeeded
    nvml_gpus: int = 0  # how many GPUs it counted
    stops: tuple[DriverStop, ...] = ()  # the calls that hung or crashed
    bound: tuple[str | None, ...] = ()
    module_loaded: bool = False
    module_version: str | None = None  # of the loaded kernel module
    control_node: NodeAccess = "absent"  # /dev/nvidiactl
    gpu_node: NodeAccess = "absent"  # the best of /dev/nvidia0, /dev/nvidia1, ...
    other_signs: bool = False  # the kernel module itself lists GPUs (if no PCI bus is visible)


def decide(facts: DriverFacts) -> tuple[DriverStatus, str | None]:
    """Return the state of the driver and, if it is not ok, a sentence that says what was read."""
    if facts.stops:
        return facts.stops[0].kind, "; ".join(stop.text for stop in facts.stops)
    if facts.nvml_error is None and facts.nvml_gpus > 0:
        return "ok", None
    if not _implies_device(facts):
        return "no_device", None
    status = _status(facts)
    return status, "; ".join(_seen(facts))


def _implies_device(facts: DriverFacts) -> bool:
    """Return whether a machine whose driver cannot be used has an NVIDIA device.

    Micro-VMs, gVisor and WSL2 show no PCI bus. There, a device is implied by the kernel module (it does not
    load without a device), by its device files, and by any NVML error except the two of a machine without a
    device.
    """
    if facts.bound or facts.other_signs:
        return True
    if facts.nvml_error is None:
        return False  # NVML works, and counts no GPU
    nodes = {facts.control_node, facts.gpu_node}
    return facts.module_loaded or nodes != {"absent"} or facts.nvml_error not in _WITHOUT_DEVICE


def _status(facts: DriverFacts) -> DriverStatus:
    """Return the state of a driver that cannot be used, the most certain cause first."""
    if facts.nvml_error == "LIB_RM_VERSION_MISMATCH":
        return "version_mismatch"
    others = [driver for driver in facts.bound if driver not in (None, _MODULE)]
    if others and _MODULE not in facts.bound:
        return "other_driver"
    if facts.nvml_error == "LIBRARY_NOT_FOUND":
        return "library_missing"
    if facts.nvml_error == "NO_PERMISSION":
        return "no_permission"
    nodes = (facts.control_node, facts.gpu_node)
    if "denied" in nodes:
        return "no_permission"
    if not facts.module_loaded:
        return "not_loaded" if facts.nvml_error == "DRIVER_NOT_LOADED" else "failed"
    # If the module is loaded and a device file is missing, NVML reports DRIVER_NOT_LOADED or counts no GPU.
    return "no_permission" if "absent" in nodes else "failed"


def _seen(facts: DriverFacts) -> list[str]:
    version = f" {facts.module_version}" if facts.module_version else ""
    seen = [
        f"NVML: {facts.nvml_error}" if facts.nvml_error else "NVML is available and counts no GPU",
        f"kernel module nvidia{version} is {'loaded' if facts.module_loaded else 'not loaded'}",
    ]
    others = sorted({driver for driver in facts.bound if driver not in (None, _MODULE)} - {None}, key=str)
    if others:
        seen.append(f"the kernel driver {' and '.join(str(name) for name in others)} is bound to the device")
    for name, access in (("/dev/nvidiactl", facts.control_node), ("/dev/nvidia0", facts.gpu_node)):
        if access != "ok":
            seen.append(f"{name} {'is not there' if access == 'absent' else 'may not be opened'}")
    return seen


def read_facts(root: Path, nodes: Sequence[PciNode], nvml: NvmlAnswers) -> DriverFacts:
    """Collect the facts under `root`. Reads a few small files and opens no device."""
    version = module_version(root)
    gpu_nodes = set(map(_access, (root / "dev").glob("nvidia[0-9]*")))
    return DriverFacts(
        nvml_error=nvml.error,
        nvml_gpus=len(nvml.gpus),
        stops=nvml.stops,
        bound=tuple(node.driver for node in nodes if node.kind == "gpu"),
        module_loaded=version is not None or os.path.isdir(root / "sys/module/nvidia"),
        module_version=version,
        control_node=_access(root / "dev/nvidiactl"),
        gpu_node=next((access for access in ("ok", "denied") if access in gpu_nodes), "absent"),
        other_signs=bool(listed_gpus(root)),
    )


def module_version(root: Path) -> str | None:
    """Return the version of the loaded kernel module, open or proprietary, or None if none is loaded."""
    text = read_text(root / "proc/driver/nvidia/version") or ""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", text + "\n", re.MULTILINE)
    return match[1] if match else read_text(root / "sys/module/nvidia/version") or None


def is_open_module(root: Path) -> bool | None:
    """Return whether the loaded kernel module is the open one, which calls itself so; None without any."""
    text = read_text(root / "proc/driver/nvidia/version") or ""
    first = next((line for line in text.splitlines() if line.startswith("NVRM version:")), None)
    return None if first is None else "Open Kernel Module" in first


def _access(path: Path) -> NodeAccess:
    if not os.path.exists(path):
        return "absent"
    return "ok" if os.access(path, os.R_OK | os.W_OK) else "denied"


def listed_gpus(root: Path) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs that the kernel module lists, even if no PCI bus is visible."""
    return tuple(list_names(root / "proc/driver/nvidia/gpus"))
