"""Error texts of nvidia-smi, NVML, CUDA, PyTorch and TensorFlow that blame the driver: text in, Machine out.

They are found in any line, so a shell's prompt, a traceback or a log may stand around them. NVML's texts are
those of nvmlErrorString, CUDA's those of cudaGetErrorString.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from gputopo.captures.ledger import Claims, Format
from gputopo.captures.smi.machine import unanswered_of, with_unanswered
from gputopo.captures.smi.names import names
from gputopo.values.errors import InputError
from gputopo.values.fields import rows_of
from gputopo.values.machine import Driver, DriverStatus, Machine
from gputopo.values.subject import at_gpu

SOURCE = "error text"

_HINT = "copy the error of nvidia-smi or of the program with the lines around it"
_LONGEST = 1000
_MAX_DETAIL = 160
# The cause of each text; of several in one text the first of this table counts.
_FORMS: dict[DriverStatus, re.Pattern[str]] = {
    msgspec.convert(status, DriverStatus): re.compile("|".join(row["pattern"] for row in rows), re.IGNORECASE)
    for status, rows in groupby(rows_of(__file__, "error_texts.csv"), key=itemgetter("status"))
}
_ANY = re.compile("|".join(form.pattern for form in _FORMS.values()), re.IGNORECASE)
_WORDS = ("NVML", "NVIDIA", "CUDA", "cuda", "nvidia", "DSO", "driver", "devices", "handle", "initialized")
_LOST = re.compile(r"Unable to determine the device handle for GPU.*", re.IGNORECASE)
_VERSIONS = (  # of NVML, of the kernel module, of CUDA's library
    re.compile(r"NVML library version: (\d{3}(?:\.\d{1,3}){1,2})"),
    # TensorFlow: "kernel version 470.57.2 does not match DSO version 470.63.1"
    re.compile(r"kernel (?:reported )?version (?:is: )?(\d{3}(?:\.\d{1,3}){1,2})"),
    re.compile(r"(?:DSO version|libcuda reported version is:) (\d{3}(?:\.\d{1,3}){1,2})"),
)


def recognise(text: str) -> bool:
    """Return whether the text has such an error."""
    if not any(word in text for word in _WORDS):
        return False
    return _ANY.search(text) is not None or _LOST.search(text) is not None


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is an error of the driver; one of a GPU stands among its outputs."""
    line = lines[0][:_LONGEST]
    return any(word in line for word in _WORDS) and _ANY.search(line) is not None


def claims(text: str) -> Claims:
    """Return the lines with an error; what stands around them is known."""
    numbers = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    read = {number for number, line in enumerate(text.splitlines(), 1) if recognise(line[:_LONGEST])}
    return Claims(frozenset(read), frozenset(numbers - read))


def parse(text: str, *, origin: str) -> Machine:
    """Read the errors. Raises InputError if there is none."""
    lines = [line[:_LONGEST].strip() for line in text.splitlines()]
    found = {
        status: match[0] for status, form in _FORMS.items() for line in lines if (match := form.search(line))
    }
    lost = [one for line in lines if (match := _LOST.search(line)) and (one := unanswered_of(match[0]))]
    if not found and not lost:
        raise InputError(f"{origin} has no error of the NVIDIA driver in it", _HINT)
    status: DriverStatus = next((status for status in _FORMS if status in found), "not_read")
    versions = [match[1] if (match := form.search(text)) else None for form in _VERSIONS]
    of_gpus = [*{one.address or one.number: one for one in lost}.values()]
    numbered = with_unanswered({}, of_gpus, names("csv"), own=True)
    gpus = {index: reported.gpu(index) for index, reported in sorted(numbered.items())}
    reasons = {at_gpu(index, fact): why for index, (_, facts) in gpus.items() for fact, why in facts.items()}
    return Machine(
        source=SOURCE,
        driver=Driver(
            status=status,
            nvml_version=versions[0],
            kernel_module_version=versions[1],
            version=versions[2],
            detail=found[status][:_MAX_DETAIL] if status in found else None,
        ),
        gpus=tuple(gpu for gpu, _ in gpus.values()),
        missing=reasons or {"gpus": "the driver reports an error instead"},
    )


FORMAT = Format(
    "error texts of nvidia-smi, NVML, CUDA, PyTorch and TensorFlow about the driver",
    "state of the driver, GPUs that do not answer",
    recognise,
    parse,
    begins=begins,
    claims=claims,
)
