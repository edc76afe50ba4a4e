"""The short report of a program of the user: what its run measured, in lines."""

from collections.abc import Iterator

from gputopo.report import units
from gputopo.report.runs.report import run_verdict_line, verdict_lines
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import OUTSIDE, SOUND, Hardware


def program_lines(result: Result) -> Iterator[str]:
    """Return the speed of the steps that it reported, if it did, what is slow, and what the samples show.

    What is worth no look is left out: a program of some seconds has no verdict.
    """
    speed = result.throughput
    if speed is not None:
        first = units.counted(result.warmup_steps, "step")
        yield (
            f"{units.images_per_sec(speed.mean)} images/sec ± {units.images_per_sec(speed.uncertainty)}, "
            f"median {units.images_per_sec(speed.median)}, over {units.counted(result.steps, 'step')} "
            f"after {first} of warm-up"
        )
    if any(row.images_per_sec is not None for row in result.devices):
        yield from (text for text, _ in verdict_lines(result))
    elif result.run_verdict is not None:
        yield run_verdict_line(result.run_verdict)[0]
    if result.placed is not None and result.placed.word == OUTSIDE:
        yield f"! {result.placed.says}"
    hardware = result.hardware
    if hardware is None:
        return
    for fault in hardware.faults:
        yield fault.says if fault.severity == "info" else f"! {fault.says}"
    if hardware.word == SOUND:
        yield f"hardware: {hardware.says}{_not_checked(hardware)}"


def _not_checked(hardware: Hardware) -> str:
    """Return which checks were not made, with the reasons; a box with one GPU has no peers."""
    whys = "; ".join(f"{name} ({why})" for name, why in hardware.not_checked.items())
    return f"; not checked: {whys}" if whys else ""
