"""Error counters that grow between samples of a log, or while the GPUs are watched."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gputopo.findings.rule import Fault, Rule, Threshold, check, present
from gputopo.values.fields import path_in_words
from gputopo.values.finding import Severity
from gputopo.values.grouping import maxima
from gputopo.values.history import History
from gputopo.values.machine import Gpu, Machine, Sample
from gputopo.values.samples import COUNTERS, seconds

REPLAYS_A_MINUTE = Threshold(
    "packet replays in a minute",
    8,
    "replays",
    "NVIDIA/DCGM's health watch allows 8 replays a minute (generation 3, 16 lanes)",
)

ERRORS_RISING = Rule(
    "errors.rising",
    "errors counted between two samples",
    remedy=(
        "The fault still occurs. See the counters (nvidia-smi -q -d ECC, sudo dmesg | grep -i -e xid -e "
        "aer), and keep long runs off this GPU until they stop."
    ),
    severities=("warning", "info"),
    thresholds=(REPLAYS_A_MINUTE,),
)

REPLAYS = "pcie.replay_counter"
_COUNTED = ("ecc.corrected_volatile", "ecc.uncorrected_volatile", "pcie.aer", REPLAYS)
LOST = ("uncorrected", "fatal")  # in the names of counters of errors that lost data


@check(ERRORS_RISING)
def rising(machine: Machine) -> Iterator[Fault]:
    """Find error counters that rose from one sample to a later one."""
    samples = [sample for sample in machine.samples if seconds(sample.time) is not None]
    if len(samples) < 2:
        return
    for gpu in present(machine):
        rises = growth(samples, gpu.index)
        if rises.get(REPLAYS, 0) <= REPLAYS_A_MINUTE.value * max(minutes(samples), 1.0):
            rises.pop(REPLAYS, None)
        if not rises:
            continue
        words = ", ".join(f"{path_in_words(Gpu, name)} by {count}" for name, count in rises.items())
        lost = any(word in name for name in rises for word in LOST)
        severity: Severity = "warning" if lost or REPLAYS in rises else "info"
        between = {"from": samples[0].time, "to": samples[-1].time}
        yield ERRORS_RISING.fault(gpu, f"rose between samples: {words}", {"rose": rises} | between, severity)


@check(ERRORS_RISING)
def watched(machine: Machine, history: History) -> Iterator[Fault]:
    """Find ECC errors that were counted while the GPUs were watched."""
    for gpu in present(machine):
        seen = history.gpus.get(gpu.index)
        if seen is None or not seen.ecc:
            continue
        rises = {f"ecc.{kind}_volatile": count for kind, count in seen.ecc.items()}
        words = ", ".join(f"{path_in_words(Gpu, name)} by {count}" for name, count in rises.items())
        severity: Severity = "warning" if "uncorrected" in seen.ecc else "info"
        yield ERRORS_RISING.fault(gpu, f"rose while watched: {words}", {"rose": rises}, severity)


def growth(samples: Sequence[Sample], gpu: int, *, nvlinks: bool = False) -> dict[str, int]:
    """Return by how much each counter rose over the samples; one that falls was reset, and starts again.

    `nvlinks`: those of the GPU's NVLinks too, as `nvlink 3 replay`.
    """
    rises: dict[str, int] = {}
    last: dict[str, int] = {}
    for sample in samples:
        facts = next((gpu_facts for gpu_facts in sample.gpus if gpu_facts["index"] == gpu), {})
        for name, count in _counts(facts, nvlinks=nvlinks):
            if count > last.get(name, count):
                rises[name] = rises.get(name, 0) + count - last[name]
            last[name] = count
    return rises


def _counts(facts: Mapping[str, Any], *, nvlinks: bool) -> Iterator[tuple[str, int]]:
    for path in _COUNTED:
        value = facts.get(path)
        if isinstance(value, dict):
            yield from ((f"{path}.{key}", count) for key, count in value.items())
        elif value is not None:
            yield path, value
    for link in (nvlinks and facts.get("nvlinks")) or ():
        yield from ((f"nvlink {link['link']} {name}", count) for name, count in link["errors"].items())


def minutes(samples: Sequence[Sample]) -> float:
    """Return the time from the first sample to the last."""
    first, last = seconds(samples[0].time), seconds(samples[-1].time)
    return 0.0 if first is None or last is None else (last - first) / 60


def max_counters(machine: Machine) -> dict[int, dict[str, Any]]:
    """Return the maximum of each counter over all samples, by GPU."""
    counters: dict[int, dict[str, Any]] = {}
    for sample in machine.samples:
        for facts in sample.gpus:
            of_gpu = counters.setdefault(facts["index"], {})
            for path in COUNTERS & facts.keys():
                before, now = of_gpu.get(path, facts[path]), facts[path]
                is_table = isinstance(now, dict)
                of_gpu[path] = maxima([*before.items(), *now.items()]) if is_table else max(before, now)
    return counters
