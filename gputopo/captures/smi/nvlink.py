"""`nvidia-smi nvlink -s` (and `-R`, `-e`), and lists of GPUs: text in, Machine out.

The GB/s of `nvlink -s` are for one direction. If NVML refuses, its message is the reason in `missing`. GPU
lines without lines about links are a list of GPUs, as in `nvidia-smi -L` and the environment reports of
PyTorch, vLLM and SGLang.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gputopo.captures.ledger import Format, read_lines
from gputopo.captures.smi.machine import parse_unanswered, read_unanswered, with_lost
from gputopo.reference import expected_gpu
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu, item
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Driver, Gap, Gpu, Machine, Mig, NvLink

SOURCE = "nvidia-smi nvlink"
LIST = "list of GPUs"

_HINT = "copy the whole output of `nvidia-smi nvlink -s` again"
_GPU_LINE = re.compile(
    r"^\W{0,40}(?:GPU models and configuration *: )?GPU (\d{1,3}(?:,\d{1,3}){0,63}): (\S.{0,120}?)"
    r"(?: \(UUID: ([^)\s]{1,60})\).*|\s*)$"
)
_INSTANCE = re.compile(r"^\W{0,40}MIG \S.{0,60}Device +\d{1,3}: \(UUID: MIG-")
_VERSION = re.compile(r"^\W{0,40}(?:Nvidia|CUDA) driver version *: (\d{3}(?:\.\d{1,3}){1,2})\s*$", re.I)
_LINK = re.compile(r"^\W{0,40}Link (\d{1,2})\s*[:,]\s*(.+?)\s*$")
_SPEED = re.compile(r"(\d{1,4}(?:\.\d{1,4})?) GB/s")
_REMOTE = re.compile(r"Remote Device ([0-9a-fA-F:.]{7,20}): Link \d{1,2}")
_COUNTERS = {  # `nvlink -e`: names up to NVLink 4, then names of NVLink 5
    "Replay Errors": "replay",
    "Recovery Errors": "recovery",
    "CRC Errors": "crc",
    "Local link integrity Errors": "integrity",
    "Link recovery failed events": "recovery_failed",
    "Effective Errors": "effective",
}
_ERRORS = re.compile(rf"({'|'.join(_COUNTERS)}): (\d{{1,18}})")
_COUNTED = re.compile(r"[A-Z][\w -]{2,40}: [\d.eE+-]{1,30}|\w[\w /]{2,50} supported: (?:true|false)")
_REFUSED = re.compile(
    r"^\W{0,40}(?:NVML: )?((?=.{0,160}(?:NVML|link|GPU))"
    r"(?:Unable|Failed|Error|Not supported|GPU is lost).{1,160})$",
    re.IGNORECASE,
)
_ALL_DOWN = re.compile(r"\ball links are inactive\b", re.IGNORECASE)
_MASKED = re.compile(r"(?:GPU|MIG)-[0Xx-]+")


@dataclass(slots=True)
class _ReportedGpu:
    name: str
    uuid: str | None
    links: dict[int, NvLink] = field(default_factory=dict)
    refused: str | None = None
    is_cut: bool = False
    instances: int | None = None


def detect(text: str) -> bool:
    """Return whether the text has a line about a GPU."""
    return "GPU " in text and any(map(_gpu_line, text.splitlines()))


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is about a GPU."""
    return _gpu_line(lines[0]) is not None


def _gpu_line(line: str) -> re.Match[str] | None:
    """Match a line about one GPU, or several equal ones: with a UUID, or with the name of a known model."""
    match = _GPU_LINE.match(line) if "GPU " in line else None
    return match if match and (match[3] or expected_gpu(match[2])) else None


def parse(text: str, *, origin: str) -> Machine:
    """Read the GPUs and their links. Raises InputError if two lines about one GPU or link differ."""
    reported: dict[int, _ReportedGpu] = {}
    gpu: _ReportedGpu | None = None
    driver = Driver()

    def take(number: int, line: str) -> bool:
        nonlocal gpu, driver
        if head := _gpu_line(line):
            uuid = None if _MASKED.fullmatch(head[3] or "GPU-0") else head[3]
            for index in map(int, head[1].split(",")):
                gpu = reported.setdefault(index, _ReportedGpu(head[2], uuid))
                if (gpu.name, gpu.uuid) != (head[2], uuid):
                    twice = f"{origin} lists GPU {index} twice with different values (line {number})"
                    raise InputError(twice, _HINT)
        elif gpu is not None and _INSTANCE.match(line):
            gpu.instances = (gpu.instances or 0) + 1
        elif version := _VERSION.match(line):
            driver = Driver(version=version[1])
        elif parse_unanswered(line):
            pass
        elif gpu is not None and (refused := _REFUSED.match(line)):
            gpu.refused = refused[1].strip()
        elif gpu is not None and line.strip() in ("...", "…"):
            gpu.is_cut = True
        else:
            return gpu is not None and _add(gpu, line, number, origin)
        return True

    lines = read_lines(text, take)
    source = (
        SOURCE
        if any(report.links or report.refused or report.is_cut for report in reported.values())
        else LIST
    )
    machine = replace(_machine(reported), source=source, driver=driver, unread=lines.unread(source))
    return with_lost(machine, read_unanswered(text.splitlines()))


def _add(gpu: _ReportedGpu, line: str, number: int, origin: str) -> bool:
    """Add the content of a line to a link; False if the line is not known."""
    match = _LINK.match(line)
    if match is None:
        return False
    index, said = int(match[1]), match[2]
    old = gpu.links.get(index, NvLink(link=index))
    if errors := _ERRORS.fullmatch(said):
        counts = old.errors | {_COUNTERS[errors[1]]: int(errors[2])}
        gpu.links[index] = replace(old, errors=counts)
        return True
    if speed := _SPEED.fullmatch(said):
        new = replace(old, active=True, gb_per_s=float(speed[1]))
    elif said.strip("<>").lower() == "inactive":
        new = replace(old, active=False)
    elif (remote := _REMOTE.fullmatch(said)) and (address := kernel_address(remote[1])):
        new = replace(old, remote_pci_address=address)
    else:
        return _COUNTED.fullmatch(said) is not None  # packets, bit error rates
    if old.active is not None and new != old:
        raise InputError(f"{origin} lists link {index} twice with different values (line {number})", _HINT)
    gpu.links[index] = new
    return True


def _machine(reported: dict[int, _ReportedGpu]) -> Machine:
    missing: dict[str, str] = {}
    gpus: list[Gpu] = []
    gaps: list[Gap] = []
    for index, gpu in sorted(reported.items()):
        if gpu.is_cut or sorted(gpu.links) != [*range(len(gpu.links))]:
            gpu.links, gpu.refused = {}, "the text does not show some of its links"
            gaps.append(Gap(source=SOURCE, text=f"some of the links of GPU {index} are missing"))
        if not gpu.links and _ALL_DOWN.search(gpu.refused or ""):
            # The number of links is from another GPU of its model.
            same_model = [other.links for other in reported.values() if other.name == gpu.name]
            gpu.links = {number: NvLink(link=number, active=False) for number in max(same_model, key=len)}
        links = tuple(gpu.links[number] for number in sorted(gpu.links)) or None
        if links is None:
            missing[at_gpu(index, "nvlinks")] = gpu.refused or "no line about its links"
        elif gpu.refused and not _ALL_DOWN.search(gpu.refused):
            missing[at_gpu(index, item("nvlinks", EVERY))] = gpu.refused
        if gpu.uuid is None:
            missing[at_gpu(index, "uuid")] = "masked or missing in the text"
        mig = Mig(mode=True, instances=gpu.instances) if gpu.instances else Mig()
        gpus.append(Gpu(index=index, name=gpu.name, uuid=gpu.uuid, mig=mig, nvlinks=links))
    return Machine(source=SOURCE, gpus=tuple(gpus), missing=missing, gaps=tuple(gaps))


FORMAT = Format(
    "`nvidia-smi nvlink -s` or `nvidia-smi -L` text, environment report of PyTorch, vLLM or SGLang",
    "names, UUIDs, MIG instances; with `nvlink -s` also state and speed of NVLinks",
    detect,
    parse,
    begins=begins,
)
