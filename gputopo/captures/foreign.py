"""Texts of known tools that gputopo does not read: what each is, and what to give instead."""

import re
from typing import NamedTuple

_CAPTURE = "give nvidia-smi -q > FILE; nvidia-smi topo -m >> FILE (one file may hold both)"
_OTHER_MAKER = "gputopo knows machines with NVIDIA GPUs only"


class Foreign(NamedTuple):
    """How a tool's text is known, what to say of it after "FILE is", and what to do."""

    mark: re.Pattern[str]
    says: str
    hint: str


def _of(mark: str, says: str, hint: str = _CAPTURE) -> Foreign:
    return Foreign(re.compile(mark, re.MULTILINE), says, hint)


_KNOWN = (
    # What `nvidia-smi nvlink -c` says below each card, or an older nvlink option.
    _of(
        r"^\s*Link \d+, [\w ]+ supported: (?:true|false)",
        "of nvidia-smi nvlink -c, which tells what links could do and not how they are",
        "give nvidia-smi nvlink -s > FILE",
    ),
    # The table that nvidia-smi prints without options, and the list of -L.
    _of(
        r"^[ \t#>%]*\|\s*NVIDIA-SMI \d|^GPU \d+: .* \(UUID: GPU-",
        "the overview of nvidia-smi, which tells nothing of links, slots and limits",
    ),
    _of(
        r"ROCm System Management Interface|ROCR?-?SMI|\bAMD-SMI\b|^HSA System Attributes",
        "of AMD's tools: these are no NVIDIA GPUs",
        _OTHER_MAKER,
    ),
    _of(
        r"\b(?:npu-smi|xpu-smi|hl-smi|mx-smi|mthreads-gmi|ixsmi|cnmon) v?\d",
        "of another maker's tool: these are no NVIDIA GPUs",
        _OTHER_MAKER,
    ),
    _of(r"CUDA Device Query \(", "of deviceQuery, which tells little of links and nothing of limits"),
    _of(r"^\|? ?GPU ID +\| Device Information|^\d+ GPUs? found\.$", "of dcgmi, which gputopo does not read"),
    _of(
        r"^\[\d+\] .{3,60}\| +\d+(?:'|°)C, +\d+ %",
        "of gpustat, which tells nothing of links, slots and limits",
    ),
    _of(r"^# gpu +\w+ +\w+", "of nvidia-smi dmon or pmon, which tells nothing of links, slots and limits"),
    _of(
        r"^\s*<graphs\b",
        "NCCL's choice of rings and trees (NCCL_GRAPH_DUMP_FILE), and not the machine",
        "give the file that NCCL_TOPO_DUMP_FILE names",
    ),
    _of(
        r"\bNCCL INFO ",
        "a log of NCCL, which gputopo does not read",
        "give the file that NCCL_TOPO_DUMP_FILE names, or nvidia-smi topo -m > FILE",
    ),
)


def told(text: str) -> Foreign | None:
    """Give what is known of a text that no format fits, the surest first."""
    return next((one for one in _KNOWN if one.mark.search(text)), None)
