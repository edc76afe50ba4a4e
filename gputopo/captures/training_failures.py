"""Why a training failed: the first known cause in its log."""

import re
from collections.abc import Sequence

from gputopo.values.fields import rows_of

_MAX_LINES = 4000  # lines at the end that are searched
_MAX_WORDS = 160  # characters of the reason

# In order: a program that runs out of memory also raises an error, and a killed program may print a
# traceback.
_CAUSES = [(re.compile(row["pattern"]), row["cause"]) for row in rows_of(__file__, "training_causes.csv")]
_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Timeout)(?:: .*)?)$")


def failure_in(lines: Sequence[str]) -> str | None:
    """Return the reason with text from the log, or None if no cause is recognized."""
    end = lines[-_MAX_LINES:]
    for pattern, words in _CAUSES:
        for line in end:
            if (match := pattern.search(line)) is not None:
                text = match[0].strip()
                return _short(words if text.lower() == words else f"{words}: {text}")
    errors = [match[1] for line in end if (match := _ERROR.match(line.strip()))]
    return _short(errors[-1]) if errors else None


def _short(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else text[: _MAX_WORDS - 1] + "…"
