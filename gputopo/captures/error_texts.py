"""Error texts of nvidia-smi, NVML, CUDA, PyTorch and TensorFlow that blame the driver, and failures that CUDA
programs, gpu_burn and `dcgmi diag` report: text in, Machine out.

They are found in any line, so a shell's prompt, a traceback or a log may stand around them. NVML's texts are
those of nvmlErrorString, CUDA's those of cudaGetErrorString.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from gputopo.captures.ledger import Claims, Format
from gputopo.captures.smi.machine import unanswered_of, with_lost
from gputopo.values.errors import InputError
from gputopo.values.fields import rows_of
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Driver, DriverStatus, KernelEvent, Machine

SOURCE = "error text"

_HINT = "copy the error of nvidia-smi or of the program with the lines around it"
_LONGEST = 1000
_MAX_DETAIL = 160
_MAX_WORDS = 300
_MAX_REPORTED = 64
# The cause of each text; of several in one text the first of this table counts.
_FORMS: dict[DriverStatus, re.Pattern[str]] = {
    msgspec.convert(status, DriverStatus): re.compile("|".join(row["pattern"] for row in rows), re.IGNORECASE)
    for status, rows in groupby(rows_of(__file__, "error_texts.csv"), key=itemgetter("status"))
}
_ANY = re.compile("|".join(form.pattern for form in _FORMS.values()), re.IGNORECASE)
# Failures that programs report, by the program.
_REPORTED = [
    (row["program"], re.compile(row["pattern"], re.MULTILINE))
    for row in rows_of(__file__, "program_errors.csv")
]
_WORDS_OF_PROGRAMS = ("FAULTY", "GPU test", "(DIED!)", "| Fail", "| Error", "CUDA", "uncorrectable", "nvlink")
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
    if _reports(text):
        return True
    if not any(word in text for word in _WORDS):
        return False
    return _ANY.search(text) is not None or _LOST.search(text) is not None


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is an error of the driver or a program; one of a GPU stands among its outputs."""
    line = lines[0][:_LONGEST]
    if any(word in line for word in _WORDS) and _ANY.search(line) is not None:
        return True
    ahead = "\n".join(one[:_LONGEST] for one in lines)  # a table of dcgmi has the failure below the test
    return any(one.start() <= len(line) for one in _reports(ahead))


def _reports(text: str) -> list[re.Match[str]]:
    forms = _REPORTED if any(word in text for word in _WORDS_OF_PROGRAMS) else ()
    return [found for _, form in forms if (found := form.search(text))]


def claims(text: str) -> Claims:
    """Return the lines with an error; what stands around them is known."""
    numbers = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    read = {number for number, line in enumerate(text.splitlines(), 1) if recognise(line[:_LONGEST])}
    return Claims(frozenset(read), frozenset(numbers - read))


def parse(text: str, *, origin: str) -> Machine:
    """Read the errors. Raises InputError if there is none."""
    lines = [line[:_LONGEST].strip() for line in text.splitlines()]
    found = {
        status: match[0]
        for status, form in _FORMS.items()
        for line in reversed(lines)  # of several the first
        if (match := form.search(line))
    }
    lost = [one for line in lines if (match := _LOST.search(line)) and (one := unanswered_of(match[0]))]
    reported = tuple(_reported(text))
    if not found and not lost and not reported:
        raise InputError(f"{origin} has no error of the NVIDIA driver in it", _HINT)
    status: DriverStatus = next((status for status in _FORMS if status in found), "not_read")
    versions = [match[1] if (match := form.search(text)) else None for form in _VERSIONS]
    machine = Machine(
        source=SOURCE,
        driver=Driver(
            status=status,
            nvml_version=versions[0],
            kernel_module_version=versions[1],
            version=versions[2],
            detail=found[status][:_MAX_DETAIL] if status in found else None,
        ),
        missing={} if lost else {"gpus": "the driver reports an error instead"},
        kernel_events=reported,
    )
    return with_lost(machine, {one.address or one.number: one for one in lost}.values())


def _reported(text: str) -> Iterator[KernelEvent]:
    """Yield the failures that programs report, each once, in their words."""
    seen: dict[tuple[str, str], None] = {}
    for program, form in _REPORTED:
        found = [*form.finditer(text)]
        said = [_in_words(one) for one in found if "faulty" not in form.groupindex]
        if found and not said:
            said = [f"GPUs {index_ranges(int(one['faulty']) for one in found)} FAULTY"]
        seen |= {(program, words[:_MAX_WORDS]): None for words in said}
    for program, words in [*seen][:_MAX_REPORTED]:
        yield KernelEvent(kind="program", text=words, device_driver=program)


def _in_words(found: re.Match[str]) -> str:
    parts = found.groupdict("")
    # dcgmi breaks its text after 46 characters, wherever that is.
    cells = [cell for cell in parts["text"].split("|") if cell.strip()]
    words = "".join(cell.removeprefix(" ").removesuffix("  ") for cell in cells)
    each = re.findall(r"GPU ?\d+: Fail", parts.get("each", ""))
    test = " ".join(filter(None, (parts.get("test"), parts.get("fail"), *each))).replace(": ", " ")
    return "; ".join(filter(None, (test, " ".join(words.split()))))


FORMAT = Format(
    "error texts of nvidia-smi, NVML, CUDA, PyTorch and TensorFlow; failures of gpu_burn and `dcgmi diag`",
    "state of the driver, GPUs that do not answer, errors of programs",
    recognise,
    parse,
    begins=begins,
    claims=claims,
)
