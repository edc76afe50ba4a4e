"""Readers of option values that need more than a type: folders, steps, schedules, and words.

Each receives the flag of the option and the typed text, and raises UsageError or InputError.
"""

import math
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import nearest, require_choice, shown
from gputopo.values.run.batches import AUTO, read_batch_size

MAX_TRACED = 100  # not measured; chosen because a profile of more steps does not fit into memory
FP16_LOSS_SCALE = 128.0  # the default of tf_cnn_benchmarks' models for --fp16_loss_scale
MODEL_SCHEDULE = "model"  # resolved when the model and its batch are known
_UNPACK = "give the folder with the records; unpack an archive first"
_SCHEDULES = {
    "constant": "constant",
    "cosine": "cosine:5000",
    "exponential": "exponential:1000:0.5",
    "piecewise": "piecewise:3000=0.1,6000=0.01",
    MODEL_SCHEDULE: MODEL_SCHEDULE,
}
SCHEDULE_GRAMMAR = (
    "piecewise:STEP=FACTOR,... or exponential:STEPS:DECAY or cosine:STEPS, or model (the schedule of the "
    "model's authors)"
)
_STEPS = r"[1-9][0-9]{0,8}"


def read_folder(flag: str, text: str, hint: str = "give a folder, or a place for a new one") -> str:
    """Return the absolute path of a folder that exists or can be created: the worker runs elsewhere.

    Raises UsageError for an empty name. Raises InputError if something else has the name (`hint`: what to do
    then), or if the name cannot be written in UTF-8, as a run needs it.
    """
    if not text.strip():
        raise UsageError(f"{flag} needs a folder name", "give a folder; . is this one")
    try:
        path = Path(text).expanduser().absolute()
        taken = path.exists() and not path.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder without permission, ~nobody
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{flag} {shown(text)} cannot be accessed: {why}", "use another folder") from error
    if taken:
        raise InputError(f"{flag} {text} is not a folder", hint)
    if not is_utf8(str(path)):
        lies = "lies in a folder whose name is" if is_utf8(text) else "is"
        raise InputError(
            f"{flag} {shown(text)} {lies} not UTF-8, as the files of a run are",
            "rename the folder, or use a symbolic link with a UTF-8 name",
        )
    return str(path)


def read_data_place(flag: str, text: str) -> str:
    """Return the absolute path of a folder of records. Each of several hosts checks its own later."""
    return read_folder(flag, text, _UNPACK)


def read_data_folder(flag: str, text: str) -> str:
    """Return the absolute path of a folder of records, which must exist."""
    path = read_data_place(flag, text)
    if not Path(path).is_dir():
        raise InputError(f"{flag} {shown(text)} is not a folder", _UNPACK)
    return path


def is_utf8(text: str) -> bool:
    """Return whether text can be written as UTF-8: a path on the command line may contain other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_steps(flag: str, text: str) -> tuple[int, ...]:
    """Read `5`, `5-7` or `5-7,20` as numbers of counted steps, in order."""
    steps: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
        if not 1 <= first <= last:
            raise UsageError(f"{flag} cannot be {shown(text)}", "give steps from 1 on, such as 5 or 5-7,20")
        if last - first >= MAX_TRACED or len(steps) + last - first + 1 > MAX_TRACED:
            raise UsageError(f"{flag} {shown(text)} asks for too much", f"give {MAX_TRACED} steps at most")
        steps.update(range(first, last + 1))
    return tuple(sorted(steps))


def read_schedule(flag: str, text: str) -> dict[str, Any]:
    """Read `constant`, `piecewise:30=0.1,60=0.01`, `exponential:1000:0.5`, `cosine:5000` or `model`.

    Returns fields of a Schedule, or none for the model's schedule. A piecewise schedule starts with factor 1.
    """
    name, _, rest = text.partition(":")
    if name not in _SCHEDULES:
        near = nearest(name, _SCHEDULES)
        hint = f"did you mean {_SCHEDULES[near[0]]}?" if near else f"give {SCHEDULE_GRAMMAR}"
        raise UsageError(f"{flag} cannot be {shown(text)}", hint)
    fields = _READ[name](rest)
    if fields is None:
        raise UsageError(f"{flag} cannot be {shown(text)}", f"write it as {_SCHEDULES[name]}")
    return fields


def _plain(name: str) -> Callable[[str], dict[str, Any] | None]:
    fields = {} if name == MODEL_SCHEDULE else {"kind": name}
    return lambda rest: None if rest else fields


def _exponential(rest: str) -> dict[str, Any] | None:
    steps, _, decay = rest.partition(":")
    factor = _factor(decay) if decay else None
    if not re.fullmatch(_STEPS, steps) or (decay and factor is None):
        return None
    return {"kind": "exponential", "decay_steps": int(steps)} | ({} if factor is None else {"decay": factor})


def _piecewise(rest: str) -> dict[str, Any] | None:
    boundaries: list[int] = []
    factors = [1.0]
    for part in rest.split(","):
        step, _, text = part.partition("=")
        factor = _factor(text)
        if not re.fullmatch(_STEPS, step) or factor is None or (boundaries and int(step) <= boundaries[-1]):
            return None
        boundaries.append(int(step))
        factors.append(factor)
    return {"kind": "piecewise", "boundaries": tuple(boundaries), "factors": tuple(factors)}


def _factor(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


_READ: dict[str, Callable[[str], dict[str, Any] | None]] = {
    "constant": _plain("constant"),
    MODEL_SCHEDULE: _plain(MODEL_SCHEDULE),
    "cosine": lambda rest: (
        {"kind": "cosine", "decay_steps": int(rest)} if re.fullmatch(_STEPS, rest) else None
    ),
    "exponential": _exponential,
    "piecewise": _piecewise,
}


def read_consistency(flag: str, text: str) -> bool:
    """Return whether consistency is relaxed. Raises UsageError."""
    return require_choice(flag, text, ("strong", "relaxed")) == "relaxed"


def read_resume(flag: str, text: str) -> dict[str, Any]:
    """Return the fields for `--resume` without a value or with auto. Raises UsageError."""
    if text and text.lower() != AUTO:
        raise UsageError(f"{flag} cannot be {shown(text)}", f"write only {flag}, or {flag} {AUTO}")
    return {"resume_or_start" if text else "resume": True}


def read_batch(flag: str, text: str) -> dict[str, Any]:
    """Return the batch; nothing for auto, which the plan resolves and `RunSpec.asked` has."""
    asked = read_batch_size(flag, text)
    return {} if asked == AUTO else {"batch_size": asked}


def read_alarm(flag: str, text: str) -> str:
    """Read a command. Raises UsageError."""
    if text.lower().startswith(("http://", "https://")):
        post = f"curl -sf -H Content-Type:application/json -d @- {shlex.quote(text)}"
        raise UsageError(
            f"{flag} runs a command, and {shown(text)} is a web address",
            f"use {flag} {shlex.quote(post)}",
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} {shown(text)}: {error}", "quote it as for a shell") from error
    if not words:
        raise UsageError(f"{flag} needs a command", "give a command")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"{flag}: there is no program {shown(words[0])}",
            "use a command on PATH, or give its path; it runs without a shell",
        )
    return text
