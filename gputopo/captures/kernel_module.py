"""Files of the NVIDIA kernel module in /proc/driver/nvidia: text in, Machine out.

`version`, and `gpus/*/information` for each GPU bound to the module, even if NVML does not answer:

    NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023

    Model:           NVIDIA GeForce RTX 3090
    Bus Location:    0000:01:00.0
"""

import re
from collections.abc import Sequence
from typing import Any

from gputopo.captures.ledger import Format, read_lines
from gputopo.captures.smi import values
from gputopo.reference import address_order
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Driver, Gpu, Machine

SOURCE = "/proc/driver/nvidia"

_HINT = "use head -50 /proc/driver/nvidia/version /proc/driver/nvidia/gpus/*/information > FILE"
_VERSION = re.compile(r"NVRM version: +NVIDIA .{1,80}?  ?(\d{2,4}\.\d{1,4}(?:\.\d{1,4})?)(?: .*)?")
_COMPILER = re.compile(r"GCC version:.*|==> \S+ <==|\*\*\* .*")
_PAIR = re.compile(
    r"(Model|IRQ|GPU UUID|Video BIOS|Bus Type|DMA Size|DMA Mask|Bus Location|Device Minor"
    r"|GPU Firmware|GPU Excluded|Blacklisted|Card Type)\s*:\s*(.*?)\s*"
)
_BEGIN = re.compile(r"Model: ?\t")
_FACTS = {
    "Model": "name",
    "GPU UUID": "uuid",
    "Video BIOS": "vbios_version",
    "GPU Firmware": "gsp_firmware_version",
}


def detect(text: str) -> bool:
    """Return whether the text has a version of the module, or a GPU with its address."""
    if "NVRM version:" not in text and "Bus Location:" not in text:
        return False
    lines = (line.strip() for line in text.splitlines())
    return any(_VERSION.fullmatch(line) or line.startswith("Bus Location:") for line in lines)


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the version, or the first line of a GPU's file."""
    return _VERSION.fullmatch(lines[0].strip()) is not None or _BEGIN.match(lines[0]) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the files. Raises InputError if there is neither a version nor a GPU with its address."""
    blocks: list[dict[str, str]] = []
    versions: list[str] = []

    def take(number: int, line: str) -> bool:
        if found := _VERSION.fullmatch(line):
            versions.append(found[1])
        elif found := _PAIR.fullmatch(line):
            if not blocks or found[1] in blocks[-1]:
                blocks.append({})
            blocks[-1][found[1]] = found[2]
        else:
            return _COMPILER.fullmatch(line) is not None
        return True

    lines = read_lines(text, take)
    version = next(iter(versions), None)
    gpus = {where: block for block in blocks if (where := kernel_address(block.get("Bus Location", "")))}
    if version is None and not gpus:
        raise InputError(f"{origin} has no version or GPU of the NVIDIA kernel module in it", _HINT)
    missing = {at_gpu(EVERY, fact): f"not reported by {SOURCE}" for fact in ("clocks_mhz", "pcie", "power_w")}
    return Machine(
        source=SOURCE,
        driver=Driver(kernel_module_version=version),
        gpus=tuple(
            _gpu(index, where, gpus[where]) for index, where in enumerate(sorted(gpus, key=address_order))
        ),
        missing=missing if gpus else {"gpus": f"not reported by {SOURCE}/version"},
        unread=lines.unread(SOURCE),
    )


def _gpu(index: int, where: str, block: dict[str, str]) -> Gpu:
    facts: dict[str, Any] = {}
    for name, fact in _FACTS.items():
        kind = "uuid" if fact == "uuid" else "words"
        value = values.parse(kind, block.get(name, "")).value
        if value is not None and "?" not in value and value != "Unknown":
            facts[fact] = value.upper() if fact == "vbios_version" else value  # as nvidia-smi writes it
    return Gpu(index=index, pci_address=where, **facts)


FORMAT = Format(
    "files of `/proc/driver/nvidia`",
    "version of the kernel module, GPUs that are bound to it",
    detect,
    parse,
    begins=begins,
)
