"""The verdict on the hardware of a run from its samples. Pure."""

from collections.abc import Iterable

from gputopo.findings.rule import SEVERITIES, Severity
from gputopo.runs.hardware.checks import CHECKS, loaded
from gputopo.runs.hardware.record import HardwareRecord
from gputopo.values.run.verdict import FAULTY, NOT_JUDGED, SOUND, Hardware, HardwareFault


def judge_hardware(record: HardwareRecord) -> Hardware:
    """Return what the samples so far show, errors first."""
    missing = {check.id: check.missing(record) for check in CHECKS}
    faults = [fault for check in CHECKS if missing[check.id] is None for fault in check.find(record)]
    bad = [fault for fault in faults if fault.severity != "info"]
    under_load = [seen.loaded for seen in loaded(record)]
    word = FAULTY if bad else SOUND if under_load else NOT_JUDGED
    return Hardware(
        word=word,
        says=_says(record, word, min(under_load, default=0)),
        faults=worst_first(faults),
        samples=record.samples,
        loaded=min(under_load, default=0),
        checked=tuple(name for name, why in missing.items() if why is None),
        not_checked={name: why for name, why in missing.items() if why is not None},
    )


def worst_first(faults: Iterable[HardwareFault]) -> tuple[HardwareFault, ...]:
    """Return the faults by severity, errors first."""
    return tuple(sorted(faults, key=lambda fault: -SEVERITIES.index(_severity(fault))))


def _severity(fault: HardwareFault) -> Severity:
    return next(one for one in SEVERITIES if one == fault.severity)


def _says(record: HardwareRecord, word: str, under_load: int) -> str:
    if word == NOT_JUDGED:
        return (
            "not judged: no GPU was under load long enough"
            if record.samples
            else "not judged: no GPU was sampled"
        )
    samples = f"in {record.samples} samples, {under_load} of each GPU under load"
    return f"something is wrong, {samples}" if word == FAULTY else f"nothing wrong found, {samples}"
