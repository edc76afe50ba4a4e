"""Known error messages of drivers, CUDA, NVML, frameworks, NCCL and containers, in any line of any text.

They are the rows of `program_errors.csv`; the first row that matches a line is used. A `status` is a driver
status; "lost": a GPU does not answer; "else": used if no other row matches. NVML's texts are from
nvmlErrorString, CUDA's texts from cudaGetErrorString, CUDA's numbers from cudaError_t.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.captures import ledger
from gputopo.captures.smi.machine import Unanswered, parse_unanswered, with_lost
from gputopo.values.fields import rows_of
from gputopo.values.machine import Driver, DriverStatus, KernelEvent, LineCounts, Machine

SOURCE = "error text"
READS = "error messages of the driver, NVML, CUDA, frameworks, NCCL, containers, gpu_burn and `dcgmi diag`"
FACTS = "state of the driver, GPUs that do not answer, errors of programs. Other text may surround them"

_LONGEST = 1000
_MAX_CHARACTERS = 300  # of a shown text. Not measured; chosen because four lines of a terminal have as many.
_MORE = " ..."
_MAX_EVENTS = 64
_AHEAD = 16  # lines of one message: a dcgmi table, a NCCL RAS list
_MESSAGES = [
    (row["status"], row["program"], row["says"], re.compile(row["pattern"], re.IGNORECASE | re.MULTILINE))
    for row in rows_of(__file__, "program_errors.csv")
]
# The cause is before its effects.
_ORDER: tuple[DriverStatus, ...] = (
    "version_mismatch",
    "too_old",
    "not_ready",
    "not_loaded",
    "library_missing",
    "no_permission",
    "failed",
)
# Each line with a message has one of these words: a long log is searched for them first.
_WORDS = [
    "rror",
    "ERR",
    "ail",
    "FAIL",
    "Pass",
    "FAULTY",
    "DIED",
    "annot",
    "not ",
    "no ",
    "No ",
    "Unable",
    "ismatch",
    "insuff",
    "Insuff",
    "ondition: cuda",
    "returned",
    "lost",
    "imeout",
    "TIMEOUT",
    "DEAD",
    "INCOMPLETE",
    "MISMATCH",
    "#",
    "out of memory",
    "Out of memory",
    "oom",
    "OOM",
    "xited",
    "killed",
    "Skipping",
    "PTX",
    "CUDNN",
    "CuDNN",
    "merge_call",
    "access",
    "Unlicensed",
    "nvlddmkm",
    "unresolvable",
    "unavailable",
    "in use by",
    "being used",
    "lower than",
    "configure the",
    "runtime name",
    "unknown error",
]
_GPU = re.compile(r"\bGPU ?#?(\d{1,3})\b(?!:\d\d:)", re.IGNORECASE)
_VERSIONS = (  # versions of NVML, the kernel module, CUDA's library
    re.compile(r"NVML library version: (\d{3}(?:\.\d{1,3}){1,2})"),
    # TensorFlow: "kernel version 470.57.2 does not match DSO version 470.63.1"
    re.compile(r"kernel (?:reported )?version (?:is: )?(\d{3}(?:\.\d{1,3}){1,2})"),
    re.compile(r"(?:DSO version|libcuda reported version is:) (\d{3}(?:\.\d{1,3}){1,2})"),
)
_PROCESS = re.compile(r"(?: managed by process \d+)? on node \S+")


class Message(NamedTuple):
    """One message: its line number, the status, program and text of its row, and the match."""

    line: int
    status: str
    program: str
    says: str
    match: re.Match[str]


def read_messages(text: str) -> list[Machine]:
    """Return the known messages in a program's output as a machine; empty without a known message."""
    return add((), text)


def add(machines: Sequence[Machine], text: str) -> list[Machine]:
    """Return the machines of a text, and another one with its known messages if there are any.

    The messages' lines are no longer listed as not understood.
    """
    messages = _messages(text)
    if not messages:
        return list(machines)
    own = {
        message.line + n for message in messages for n in range(message.match[0].strip("\n").count("\n") + 1)
    }
    known = ledger.filled(text).keys() - own if not machines else ()
    counts = LineCounts(source=SOURCE, read=len(own), known=len(known), not_understood=0)
    machine = replace(_machine(messages, text, machines), lines=() if machines else (counts,))
    return [*(ledger.without(machine, own) for machine in machines), machine]


def _messages(text: str) -> list[Message]:
    words = [word for word in _WORDS if word in text]
    lines = text.splitlines() if words else []
    shapes: dict[str, tuple[str, str, str, re.Pattern[str]] | None] = {}  # matching row by shape of line
    messages: list[Message] = []
    end = 0
    for number, line in enumerate(lines, 1):
        if number <= end or not any(word in line for word in words):
            continue
        ahead = line = line[:_LONGEST]
        if line[:1] in "|#DIT":
            ahead = "\n".join(line[:_LONGEST] for line in lines[number - 1 : number + _AHEAD])
        shape = re.sub(r"\d+", "0", line)
        if ahead is not line or shape not in shapes:
            fits = (row for row in _MESSAGES if (at := row[3].search(ahead)) and at.start() <= len(line))
            shapes[shape] = next(fits, None)
        row = shapes[shape]
        if row is not None and (match := row[3].search(ahead)):
            messages.append(Message(number, *row[:3], match))
            end = number + match[0].strip("\n").count("\n")
    return messages


def _machine(messages: Sequence[Message], text: str, machines: Sequence[Machine]) -> Machine:
    """Return the machine of the messages. `machines`: the other captures in the text, which list GPUs."""
    said = {message.status: message.match[0] for message in reversed(messages)}
    lost: dict[str | int | None, Unanswered] = {}
    for message in messages:
        if message.status == "lost":
            line = message.match.string[message.match.start() :].partition("\n")[0]
            number = int(gpu[1]) if (gpu := _GPU.search(line)) else None
            silent = parse_unanswered(line) or Unanswered(number, None, "GPU is lost")
            lost[silent.address or silent.number] = silent
    gpus = [gpu for machine in machines for gpu in machine.gpus]
    listed = {gpu.index for gpu in gpus} | {gpu.pci_address for gpu in gpus}
    if any(gpu.lost for gpu in gpus):  # another reader reports lost GPUs
        lost = {}
    if strangers := {key for key in lost if key is None or (gpus and key not in listed)}:
        said.setdefault("failed", said["lost"])
    status = next((known for known in _ORDER if known in said), None)
    versions = [match[1] if (match := form.search(text)) else None for form in _VERSIONS]
    best = [message for message in messages if message.status != "else"] or messages
    words = {(message.program, _shortened(_in_words(message))): None for message in best if message.program}
    machine = Machine(
        source=SOURCE,
        driver=Driver(
            status=status or "not_read",
            nvml_version=versions[0],
            kernel_module_version=versions[1],
            version=versions[2],
            detail=_shortened(said[status]) if status else None,
        ),
        missing={} if lost.keys() - strangers else {"gpus": "the driver reports an error instead"},
        kernel_events=tuple(
            KernelEvent(kind="program", text=text, device_driver=program)
            for program, text in [*words][:_MAX_EVENTS]
        ),
    )
    return with_lost(machine, [silent for key, silent in lost.items() if key not in strangers])


def _shortened(text: str) -> str:
    """Return a text on one line. A long one ends after its last whole word, or within its only word."""
    line = " ".join(text.split())
    if len(line) <= _MAX_CHARACTERS:
        return line
    start = line[: _MAX_CHARACTERS - len(_MORE)]
    return f"{start.rpartition(' ')[0] or start}{_MORE}"


def _in_words(message: Message) -> str:
    parts = message.match.groupdict("")
    # dcgmi breaks its text after 46 characters, even within a word.
    cells = [cell for cell in parts.get("text", message.match[0]).split("|") if cell.strip()]
    words = "".join(cell.removeprefix(" ").removesuffix("  ") for cell in cells)
    words = "; ".join(line.strip() for line in _PROCESS.sub("", words).splitlines())
    each = re.findall(r"GPU ?\d+: Fail", parts.get("each", ""))
    test = " ".join(filter(None, (parts.get("test"), parts.get("fail"), *each))).replace(": ", " ")
    shown = "; ".join(filter(None, (test, " ".join(words.split()))))
    return message.says.format(text=shown) or shown
