"""The text of `nvidia-smi nvlink -s` (and of `-R`, which shows the other ends): text in, Machine out.

    GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-...)
         Link 0: 25.781 GB/s
         Link 1: <inactive>

GB/s are those of one direction. Where NVML refuses, its words are the reason in `missing`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from gputopo.captures.ledger import is_noise
from gputopo.captures.pci import pci_tree
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Machine, NvLink, Unread
from gputopo.values.subject import EVERY, at_gpu, item

SOURCE = "nvidia-smi nvlink"
READS = "`nvidia-smi nvlink -s` text"
FACTS = "state and speed of NVLinks"

_HINT = "copy the whole output of `nvidia-smi nvlink -s` again"
_GPU = re.compile(r"^\W{0,40}GPU (\d{1,3}): (.{1,120}?) \(UUID: ([^)\s]{1,60})\)", re.MULTILINE)
_LINK = re.compile(r"^\W{0,40}Link (\d{1,2})\s*:\s*(.+?)\s*$")
_SPEED = re.compile(r"(\d{1,4}(?:\.\d{1,4})?) GB/s")
_REMOTE = re.compile(r"Remote Device ([0-9a-fA-F:.]{7,20}): Link \d{1,2}")
_REFUSED = re.compile(
    r"^\W{0,40}(?:NVML: )?((?:Unable|Failed|Error|Not supported|GPU is lost).{1,160})$", re.IGNORECASE
)
_ALL_DOWN = re.compile(r"\ball links are inactive\b", re.IGNORECASE)
_MASKED = re.compile(r"(?:GPU|MIG)-[0Xx-]+")


@dataclass(slots=True)
class _ReportedGpu:
    name: str
    uuid: str | None
    links: dict[int, NvLink] = field(default_factory=dict)
    refused: str | None = None


def recognise(text: str) -> bool:
    """Return whether the text has a GPU's line and below it a link's, or NVML's words about links."""
    if _GPU.search(text) is None:
        return False
    lines = text.splitlines()
    return any(_LINK.match(line) or (_REFUSED.match(line) and "NVLink" in line) for line in lines)


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is a GPU's with a link's below it."""
    return _GPU.match(lines[0]) is not None and recognise("\n".join(lines[:2]))


def parse(text: str, *, origin: str) -> Machine:
    """Read the links of each GPU. Raises InputError if there is none, or two differ of a GPU."""
    reported: dict[int, _ReportedGpu] = {}
    unread: list[Unread] = []
    gpu: _ReportedGpu | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if head := _GPU.match(line):
            uuid = None if _MASKED.fullmatch(head[3]) else head[3]
            gpu = reported.setdefault(int(head[1]), _ReportedGpu(head[2], uuid))
            if (gpu.name, gpu.uuid) != (head[2], uuid):
                raise InputError(
                    f"{origin} lists GPU {head[1]} twice with different values (line {number})", _HINT
                )
        elif gpu is not None and (refused := _REFUSED.match(line)):
            gpu.refused = refused[1].strip()
        elif gpu is not None and _add(gpu, line, number, origin):
            continue
        elif not is_noise(line):
            unread.append(Unread(source=SOURCE, line=number, text=line.strip()[:200]))
    if not reported:
        raise InputError(f"{origin} has no GPU of `nvidia-smi nvlink -s` in it", _HINT)
    return _machine(reported, unread)


def _add(gpu: _ReportedGpu, line: str, number: int, origin: str) -> bool:
    """Add the content of a line to a link; False if the line is not known."""
    match = _LINK.match(line)
    if match is None:
        return False
    index, said = int(match[1]), match[2]
    old = gpu.links.get(index, NvLink(link=index))
    if speed := _SPEED.fullmatch(said):
        new = msgspec.structs.replace(old, active=True, gb_per_s=float(speed[1]))
    elif said.strip("<>").lower() == "inactive":
        new = msgspec.structs.replace(old, active=False)
    elif (remote := _REMOTE.fullmatch(said)) and (address := pci_tree.address(remote[1])):
        new = msgspec.structs.replace(old, remote_pci_address=address)
    else:
        return False
    if old.active is not None and new != old:
        raise InputError(f"{origin} lists link {index} twice with different values (line {number})", _HINT)
    gpu.links[index] = new
    return True


def _machine(reported: dict[int, _ReportedGpu], unread: list[Unread]) -> Machine:
    missing: dict[str, str] = {}
    gpus: list[Gpu] = []
    for index, gpu in sorted(reported.items()):
        if not gpu.links and _ALL_DOWN.search(gpu.refused or ""):
            gpu.links = _down_like_its_peers(gpu, reported.values())
        links = tuple(gpu.links[number] for number in sorted(gpu.links)) or None
        if links is None:
            missing[at_gpu(index, "nvlinks")] = gpu.refused or "no line about its links follows"
        elif gpu.refused and not _ALL_DOWN.search(gpu.refused):
            missing[at_gpu(index, item("nvlinks", EVERY))] = gpu.refused
        if gpu.uuid is None:
            missing[at_gpu(index, "uuid")] = "masked in the text"
        gpus.append(Gpu(index=index, name=gpu.name, uuid=gpu.uuid, nvlinks=links))
    return Machine(source=SOURCE, gpus=tuple(gpus), missing=missing, unread=tuple(unread))


def _down_like_its_peers(gpu: _ReportedGpu, reported: Iterable[_ReportedGpu]) -> dict[int, NvLink]:
    """Return the links of a GPU that are all down, as many as a GPU of its model here has; else none."""
    same_model = [other.links for other in reported if other.name == gpu.name]
    return {number: NvLink(link=number, active=False) for number in max(same_model, key=len)}
