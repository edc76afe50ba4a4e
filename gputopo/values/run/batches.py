"""Examples per device and step: one number for all, one for each, or shares by speed."""

import re
from collections.abc import Sequence
from math import floor
from typing import Any, Final, Literal

from gputopo.values.errors import UsageError
from gputopo.values.option import MAX_INT, shown

AUTO: Final = "auto"
BatchSize = int | tuple[int, ...]
"""Examples per step: one number for every device, or one for each in tower order."""
AskedBatch = BatchSize | Literal["auto"]
"""The requested batch: `auto` is proportional to the devices' speeds."""


def read_batch_size(flag: str, text: str) -> AskedBatch:
    """Read `64`, `64,64,80` (one number for each device) or `auto`. Raises UsageError."""
    if is_auto(text):
        return AUTO
    numbers = []
    for part in text.split(","):
        if re.fullmatch(r"[+-]?[0-9]+", part.strip()) is None:
            raise UsageError(
                f"{flag} cannot be {shown(text)}: it is not an integer",
                f"give {flag} N, one number for each device such as 64,64,80, or auto",
            )
        digits = part.strip()
        number = int(digits[:20])
        if number < 1:
            raise UsageError(f"{flag} cannot be {shown(digits)[1:-1]}", "give 1 or more")
        if number > MAX_INT:
            raise UsageError(f"{flag} cannot be {shown(digits)[1:-1]}", f"give {MAX_INT} at most")
        numbers.append(number)
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def is_auto(typed: object) -> bool:
    """Return whether what was typed for --batch-size is auto."""
    return isinstance(typed, str) and typed.strip().lower() == AUTO


def batches_of(batch: BatchSize, devices: int) -> tuple[int, ...]:
    """Return the examples of each device."""
    return batch if isinstance(batch, tuple) else (batch,) * devices


def stored_batches(batch: Any, devices: int) -> tuple[int, ...]:
    """Return the examples of each device from a stored spec, which is free-form JSON; () if unknown."""
    if isinstance(batch, int):
        return batches_of(batch, devices)
    known = isinstance(batch, list | tuple) and len(batch) == devices
    return tuple(batch) if known and all(isinstance(share, int) for share in batch) else ()


def plain(batches: Sequence[int]) -> BatchSize:
    """Return one number where all devices have the same, else one for each."""
    return batches[0] if len(set(batches)) == 1 else tuple(batches)


def require_one_each(batch: AskedBatch, devices: int, noun: str = "device") -> None:
    """Raise UsageError if a list does not have one number for each device."""
    if isinstance(batch, tuple) and len(batch) != devices:
        there = f"{devices} {noun}{'' if devices == 1 else 's'}"
        raise UsageError(
            f"--batch-size has {len(batch)} numbers for {there}",
            f"give one number for all, or {devices}; --num-gpus {len(batch)} uses as many devices",
        )


def batch_words(batch: BatchSize) -> str:
    """Return `64 per device`, or `64,64,80 by device`."""
    return f"{as_typed(batch)} {'by' if isinstance(batch, tuple) else 'per'} device"


def as_typed(batch: BatchSize) -> str:
    """Return a batch in the form of --batch-size."""
    return ",".join(map(str, batch)) if isinstance(batch, tuple) else str(batch)


def shares(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return whole examples for each device that add up to `total`, proportional to speeds above 0.

    By largest remainders: each device gets its proportional share rounded down or up, and a faster device
    gets at least as many as a slower one. Of equal remainders the first is rounded up. A device whose share
    is below 1 gets 1, and the others share the rest. `total` is at least the number of devices.
    """
    counts = dict.fromkeys(range(len(speeds)), 1)
    rest, left = list(counts), total
    while True:
        whole = sum(speeds[device] for device in rest)
        exact = {device: left * (speeds[device] / whole) for device in rest}
        above = [device for device in rest if exact[device] >= 1]
        if len(above) == len(rest):
            break
        left -= len(rest) - len(above)
        rest = above
    counts |= {device: floor(share) for device, share in exact.items()}
    for device in sorted(rest, key=lambda device: (counts[device] - exact[device], device))[
        : total - sum(counts.values())
    ]:
        counts[device] += 1
    return tuple(counts.values())
