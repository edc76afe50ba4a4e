"""Why a training program failed, from the end of its log: the first cause that is known, in a line."""

import re
from collections.abc import Sequence

_MAX_LINES = 4000  # from the end that are looked at
_MAX_WORDS = 160  # of the reason

# In order: a program that runs out of memory also raises an error, and a killed one may have a traceback.
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"OOM when allocating tensor with shape\s?(\[[\d,]{1,60}\])?"), "out of memory"),
    (
        re.compile(r"ResourceExhaustedError|CUDA_ERROR_OUT_OF_MEMORY|ran out of memory trying"),
        "out of memory",
    ),
    (re.compile(r"Segmentation fault"), "segmentation fault"),
    (re.compile(r"CUDA_ERROR_ILLEGAL_ADDRESS|an illegal memory access"), "illegal memory access on a GPU"),
    (re.compile(r"NCCL (?:error|WARN|failure)|unhandled (?:cuda|system) error"), "NCCL failed"),
    (re.compile(r"CUDNN_STATUS_\w{1,40}"), "cuDNN failed"),
    (re.compile(r"GPU is lost|fallen off the bus|CUDA_ERROR_NO_DEVICE"), "a GPU was lost or not found"),
    (re.compile(r"unknown command line flag|Unknown command line flag"), "an unknown flag"),
    (re.compile(r"KeyboardInterrupt"), "interrupted"),
    (re.compile(r"^(?:Killed|.{0,200}: line \d+: +\d+ Killed)"), "killed"),
    (re.compile(r"Aborted \(core dumped\)"), "aborted"),
)
_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Timeout)(?:: .*)?)$")


def failure_in(lines: Sequence[str]) -> str | None:
    """Return the reason in words, with the words of the log; None where no cause is recognised."""
    end = lines[-_MAX_LINES:]
    for pattern, words in _CAUSES:
        for line in end:
            if (found := pattern.search(line)) is not None:
                text = found[0].strip()
                return _short(words if text.lower() == words else f"{words}: {text}")
    errors = [found[1] for line in end if (found := _ERROR.match(line.strip()))]
    return _short(errors[-1]) if errors else None


def _short(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else text[: _MAX_WORDS - 1] + "…"
