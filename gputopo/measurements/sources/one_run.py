"""All that the folder of one run holds, for its pictures: result, machine, plan, and the run over time."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gputopo.measurements.sources.run_folders import document_in, result_in
from gputopo.runs.over_time import OverTime, over_time
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from gputopo.values.run.events import read_events
from gputopo.values.run.measurement import Measurement
from gputopo.values.run.plan import Plan
from gputopo.values.run.result import Result


class OneRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. What its folder does not have, or what cannot be read, is None."""

    name: str
    result: Result
    machine: Machine | None = None
    plan: Plan | None = None
    over_time: OverTime | None = None


def most_telling(runs: Sequence[tuple[Path, Measurement]], limit: int) -> list[Path]:
    """Return at most `limit` folders, oldest first: of runs that failed or were slow, then of the latest."""
    ordered = sorted(runs, key=lambda one: one[1].time_s or 0.0)
    ranked = sorted(
        range(len(ordered)),
        key=lambda place: (ordered[place][1].is_measured and not ordered[place][1].conditions, -place),
    )
    return [ordered[place][0] for place in sorted(ranked[:limit])]


def one_run(folder: Path) -> OneRun | None:
    """Read the folder of a run, also of one that was killed; None where it has neither result nor events."""
    result = result_in(folder)
    if result is None:
        return None
    return OneRun(
        name=folder.name,
        result=result,
        machine=document_in(folder / "machine.json", Machine),
        plan=document_in(folder / "plan.json", Plan),
        over_time=_over_time(folder / "events.jsonl"),
    )


def _over_time(file: Path) -> OverTime | None:
    with contextlib.suppress(OSError, InputError), file.open("rb") as lines:
        return over_time(read_events(lines, origin=str(file)))
    return None
