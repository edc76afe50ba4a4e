"""Messages of TensorFlow's op errors, reduced to one line with a remedy. Works only on their text."""

import re

from gputopo.launch.device_names import JOB, rank_of
from gputopo.launch.failure import NCCL_REMEDY
from gputopo.launch.train.user_lines import line_in

_LONGEST = 300  # characters of a cause; TensorFlow's messages can contain a whole graph
# Lines before the line with the cause: headings, and the Python lines that made the node.
_HEADING = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces unavailable>|\d+ root error\(s\) found\."
    r"|Node: .*|Stack trace for op definition:.*|File \".*|"
)
_NUMBERED = re.compile(r"\s*\(\d+\) ")
_UNSUPPORTED = re.compile(
    r"Detected unsupported operations when trying to compile graph .* on XLA_\w+: (\w+)"
)
_NOT_DETERMINISTIC = re.compile(r"[Dd]eterminis[mt]\w* (?:is not yet supported|GPU implementation)")
# Names of graph nodes at the beginning of a message, which mean nothing to a user.
_PLACE = re.compile(r"^(\{\{[^{}]*\}\}\s*)+")
_OP = re.compile(r"\s*\[Op:\w+\]$")
# Text that gRPC adds to errors of calls to another host's process, and TensorFlow to errors that it forwards.
_OF_THE_NETWORK = {"UnavailableError", "AbortedError", "DeadlineExceededError"}
_REMOTE = re.compile(rf"(?:remote target|Error reported from) (/job:{JOB}\S*)")
SEE_LOG = "see worker.log in the run folder"
# How TensorFlow's nccl_manager.cc reports NCCL's errors.
_OF_NCCL = re.compile(r"\bNCCL: ")
_DNN = re.compile(r"DNN|No algorithm worked")


def cause_and_remedy(text: str, kind: str) -> tuple[str, str]:
    """Return the line with the cause, with the user's line if it caused the error, and a remedy.

    `kind`: class of the error, used if the text is empty.
    """
    unsupported = _UNSUPPORTED.search(text)
    if unsupported:
        return f"XLA has no kernel for the op {unsupported[1]} of this model", "remove --xla"
    cause = first_line(text) or kind
    if _NOT_DETERMINISTIC.search(text):
        return cause, "remove --deterministic"
    if _OF_NCCL.search(cause):
        return cause, NCCL_REMEDY
    line = line_in(text)
    return (cause, SEE_LOG) if line is None else (f"{cause} ({line})", f"look at that line, or {SEE_LOG}")


def gpu_remedy(reason: str) -> str:
    """Return the remedy for a GPU on which a first step fails. `reason`: a line of TensorFlow's error."""
    if _DNN.search(reason):
        return (
            "cuDNN does not start or does not fit: look for other programs on the GPU (nvidia-smi) and for "
            f"another cuDNN in LD_LIBRARY_PATH; {SEE_LOG}"
        )
    return (
        "this TensorFlow has no kernels for this GPU with this driver: gputopo explain install lists builds "
        f"that have; {SEE_LOG}"
    )


def unreachable_rank(text: str, kind: str) -> int | None:
    """Return the rank of the host whose process failed or did not answer, or None for another error.

    `kind`: class of the error.
    """
    remote = _REMOTE.search(text) if kind in _OF_THE_NETWORK else None
    return None if remote is None else rank_of(remote[1])


def disk_reason(error: Exception) -> str:
    """Return why a file could not be written: the system message, without TensorFlow's node names."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return _OP.sub("", first_line(str(error))).rpartition("; ")[2]


def first_line(text: str) -> str:
    """Return the first line that is not a heading or a line of a stack, shortened for the terminal."""
    lines = _PLACE.sub("", text.strip(), count=1).strip().splitlines()
    for line in lines:
        numbered = _NUMBERED.match(line)
        if numbered:
            return line[numbered.end() :].strip()[:_LONGEST]
        if not line.startswith((" ", "\t")) and not _HEADING.fullmatch(line):
            return line.strip()[:_LONGEST]
    return lines[0][:_LONGEST] if lines else ""
