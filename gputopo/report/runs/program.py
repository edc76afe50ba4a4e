"""The short report of a program of the user: what its run measured, in lines."""

from collections.abc import Iterator

from gputopo.report import units
from gputopo.report.runs.report import run_verdict_line, verdict_lines
from gputopo.values.run.result import Result


def program_lines(result: Result) -> Iterator[str]:
    """Return the speed of the steps that it reported, if it did, and what is slow."""
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
