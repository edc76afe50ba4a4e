"""Error counters that grow over a soak, and rates that fall."""

from collections.abc import Iterator, Mapping

from gputopo.findings.rising import LOST, REPLAYS, REPLAYS_A_MINUTE, growth, minutes
from gputopo.findings.rule import Fault, Rule, Threshold, check, copies_of, present
from gputopo.values.bandwidth import MIN_INTERVALS, Kind
from gputopo.values.fields import path_in_words
from gputopo.values.finding import Severity
from gputopo.values.machine import Gpu, Machine
from gputopo.values.samples import seconds
from gputopo.values.subject import MACHINE

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
        "soak; if the counters still rise, try the card in another slot. Replace the card or the slot's "
        "hardware, depending on where the errors appear."
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
