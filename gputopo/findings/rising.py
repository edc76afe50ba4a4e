"""Error counters that grow between samples of a log or a soak, and rates that fall over a soak."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gputopo.findings.rule import Fault, Rule, Threshold, check, copies_of, present
from gputopo.values.bandwidth import MIN_INTERVALS, Kind
from gputopo.values.fields import path_in_words
from gputopo.values.finding import Severity
from gputopo.values.history import History
from gputopo.values.machine import Gpu, Machine, Sample
from gputopo.values.samples import seconds
from gputopo.values.subject import MACHINE

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
        "The fault is present, not of the past: see the counters (nvidia-smi -q -d ECC, sudo dmesg | "
        "grep -i -e xid -e aer), and keep long runs off this GPU until they stop."
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
    found: dict[str, int] = {}
    last: dict[str, int] = {}
    for sample in samples:
        facts = next((one for one in sample.gpus if one["index"] == gpu), {})
        for name, count in _counts(facts, nvlinks=nvlinks):
            if count > last.get(name, count):
                found[name] = found.get(name, 0) + count - last[name]
            last[name] = count
    return found


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


FALL_PERCENT = Threshold(
    "fall of a rate over a soak",
    5.0,
    "%",
    (
        "not measured on hardware: repeats of a large copy are within 1 to 2% on an idle machine; twice "
        "that and more"
    ),
)
INTERVALS = Threshold("intervals of a soak before a fall is judged", MIN_INTERVALS, "intervals")

ERRORS_UNDER_LOAD = Rule(
    "soak.errors",
    "error counters rose under load",
    remedy=(
        "Reseat card, riser, cables or NVLink bridge, and check temperature and power supply. Repeat the "
        "soak; if the counters still rise, try the card in another slot, and replace what the errors "
        "follow."
    ),
    severities=("error", "warning", "info"),
    thresholds=(REPLAYS_A_MINUTE,),
    fits="slot",
)
RATE_FELL = Rule(
    "soak.rate_fell",
    "rate fell over the soak",
    remedy=(
        "Check cooling and power: see temperature, clocks and throttle reasons (gputopo inspect --watch) "
        "under the same load."
    ),
    thresholds=(FALL_PERCENT, INTERVALS),
)

_GB = 1e9
# Kind, whether the GPU receives, and the words for it.
_PATHS: tuple[tuple[Kind, bool, str], ...] = (
    ("h2d", True, "from the host"),
    ("d2h", False, "to the host"),
    ("d2d_local", False, "within its memory"),
    ("p2p_direct", False, "to other GPUs"),
    ("p2p_direct", True, "from other GPUs"),
    ("p2p_staged", False, "to other GPUs through the host"),
    ("p2p_staged", True, "from other GPUs through the host"),
)


@check(ERRORS_UNDER_LOAD)
def errors(machine: Machine) -> Iterator[Fault]:
    """Find GPUs and bridges whose error counters grew from the first reading of a soak to its last.

    Errors of a slot are those of the GPU in it: a port counts what it received from the card.
    """
    soak = copies_of(machine).soak
    samples = [sample for sample in machine.samples if seconds(sample.time) is not None]
    if soak is None or len(samples) < 2:
        return
    passed = minutes(samples)
    copied = soak.copied_bytes
    slots = {node.address: node.parent for node in machine.pci}
    ports = {
        address: {f"AER {kind} of {address}": count for kind, count in counts.items()}
        for address, counts in soak.port_errors.items()
    }
    for gpu in present(machine):
        slot = ports.pop(slots.get(gpu.pci_address or "") or "", {})
        rose = growth(samples, gpu.index, nvlinks=True) | slot
        if not rose or gpu.index not in copied:
            continue
        gb = copied.get(gpu.index, 0) / _GB
        words = ", ".join(_in_words(name, count, passed, gb) for name, count in rose.items())
        evidence = {"rose": rose, "minutes": round(passed, 2), "copied_gb": round(gb, 1)}
        says = f"error counters rose under load: {words}"
        yield ERRORS_UNDER_LOAD.fault(gpu, says, evidence, _severity(rose, passed))
    rest = {name: count for counts in ports.values() for name, count in counts.items()}
    if rest:
        words = ", ".join(_in_words(name, count, passed, 0.0) for name, count in rest.items())
        evidence = {"rose": rest, "minutes": round(passed, 2)}
        says = f"error counters of PCI bridges rose under load: {words}"
        yield ERRORS_UNDER_LOAD.fault(MACHINE, says, evidence, _severity(rest, passed))


@check(RATE_FELL)
def falls(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies were slower in the last quarter of a soak than in the first."""
    soak = copies_of(machine).soak
    if soak is None:
        return
    for gpu in present(machine):
        pairs = {words: soak.ends(gpu.index, kind, receives=receives) for kind, receives, words in _PATHS}
        fell = {
            words: pair
            for words, pair in pairs.items()
            if pair is not None and pair[1] < (1 - FALL_PERCENT.value / 100) * pair[0]
        }
        if fell:
            says = ", ".join(
                f"{words} {first:.3g} to {last:.3g} GB/s (-{100 * (1 - last / first):.0f}%)"
                for words, (first, last) in fell.items()
            )
            heat = machine.temperatures(gpu.index)
            warmer = f"; {heat[0]} °C at the first reading, {max(heat)} °C at most" if heat else ""
            rates = {words: list(pair) for words, pair in fell.items()}
            evidence = {"gb_per_s": rates, "temperature_c": heat}
            yield RATE_FELL.fault(gpu, f"rate fell over the soak: {says}{warmer}", evidence)


def _in_words(name: str, count: int, passed: float, gb: float) -> str:
    what = path_in_words(Gpu, name)
    if name.startswith(("nvlink ", "AER ")):
        what = name.replace("nvlink", "NVLink").replace("AER", "PCIe AER errors")
    by_time = f"{_number(count / passed)} a minute" if passed > 0 else ""
    by_bytes = f"{_number(count / gb)} per GB copied" if gb > 0 else ""
    rates = ", ".join(filter(None, (by_time, by_bytes)))
    return f"{what} by {count}" + (f" ({rates})" if rates else "")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _severity(rose: Mapping[str, int], passed: float) -> Severity:
    """An error that lost data, or an NVLink that recovered, is an error; what was only repeated is less."""
    if any(word in name for name in rose for word in (*LOST, "recovery")):
        return "error"
    limit = REPLAYS_A_MINUTE.value * max(passed, 1.0)
    if rose.get(REPLAYS, 0) > limit or any(name.startswith("nvlink ") for name in rose):
        return "warning"
    return "info"
