"""Which numbers of a Machine its capture does not have."""

import re
from collections.abc import Iterator

import msgspec

from gputopo.values.machine import Machine


def numbers_in(text: str) -> set[float]:
    return {float(found) for found in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", text)} | {
        float(found) for found in re.findall(r"\d+(?:\.\d+)?", text)
    }


def numbers_of(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a value with its path."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from numbers_of(part, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers_of(part, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def made_up(machine: Machine, text: str) -> list[tuple[str, float]]:
    """Numbers of the GPUs that the text does not have; counted, summed or converted ones apart."""
    there = numbers_in(text)
    found = []
    for gpu in machine.gpus:
        built = msgspec.to_builtins(gpu)
        for path, value in numbers_of(built):
            if path in (".index", ".mig.instances", ".throttle.mask") or "threshold_exceeded" in path:
                continue
            if path.startswith(".violation_ns."):
                value /= 1000
            if value in there:
                continue
            counts = (gpu.ecc.counts or {}) if path.startswith(".ecc.") else {}
            since = path.rpartition("_")[2]
            kind = "uncorrectable" if "uncorrected" in path else "_correctable"
            parts = [n for name, n in counts.items() if name.startswith(since) and kind in name]
            if value != sum(parts):
                found.append((path, value))
    return found
