"""Compares the report on a run with a drill's requirements. Returns complaints; empty: all are met."""

from collections.abc import Iterator

from gputopo.runs import judge_input
from gputopo.values.run.result import DeviceResult, Result
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW
from tests.kit.drills.going import went
from tests.kit.drills.table import Drill

# A change must be dated to within this many steps, or a fifth of the steps before it.
STEPS_OFF = 45


def complaints(drill: Drill, seed: int) -> list[str]:
    """Run a drill and return what is wrong with the report on it."""
    return complaints_on(drill, *went(drill.box, seed))


def complaints_on(drill: Drill, result: Result, words: str) -> list[str]:
    """Return what is wrong with a result and its report."""
    return [
        *_of_devices(drill, result),
        *_of_the_run(drill, result),
        *_of_hosts(drill, result),
        *([f"the report lacks {drill.says!r}"] if drill.says not in words else []),
    ]


def hosts_called_slow(result: Result) -> set[str]:
    """Names of the hosts that are called slow as a whole."""
    says = [anomaly.says for anomaly in result.anomalies]
    return {one.removeprefix("host ").split(":")[0] for one in says if one.startswith("host ")}


def _of_hosts(drill: Drill, result: Result) -> Iterator[str]:
    found = hosts_called_slow(result)
    if found != ({drill.host} if drill.host else set()):
        yield f"hosts that are called slow: {', '.join(sorted(found)) or 'none'}, not {drill.host or 'none'}"


def accused(result: Result) -> set[int]:
    """Towers that are called slow."""
    return {row.device.tower for row in result.devices if row.verdict and row.verdict.word == SLOW}


def first_cause(row: DeviceResult) -> str:
    """The id of the largest cause; empty: not explained."""
    causes = row.verdict.causes if row.verdict else None
    return causes.found[0].id if causes and causes.found else ""


def cause_of_run(result: Result) -> str:
    """The id of the largest cause by which all devices together are slow; "not explained"."""
    causes = result.run_verdict.causes if result.run_verdict else None
    return causes.found[0].id if causes and causes.found else "not explained"


def _of_devices(drill: Drill, result: Result) -> Iterator[str]:
    for row in result.devices:
        tower, found = row.device.tower, row.verdict
        assert found is not None
        if found.word == SLOW and tower not in drill.slow:
            yield f"tower {tower} is accused: {found.says}"
        if tower in drill.slow:
            yield from _of_slow(drill, row)
        if tower in drill.even and found.word != EVEN:
            yield f"tower {tower} is not called even: {found.says}"
        if tower in drill.untold and (found.word != CANNOT_TELL or drill.why not in (found.why or "")):
            yield f"tower {tower}: {found.says}"


def _of_slow(drill: Drill, row: DeviceResult) -> Iterator[str]:
    tower, found, cause = row.device.tower, row.verdict, drill.slow[row.device.tower]
    assert found is not None
    if found.word != SLOW:
        yield f"tower {tower} is not found: {found.says}"
        return
    if cause is not None and first_cause(row) != cause:
        yield f"tower {tower}: cause {first_cause(row) or 'not explained'}, not {cause or 'unexplained'}"
    if drill.since is not None and found.share_of_steps is None:
        begins = found.from_step or 0
        if abs(begins - drill.since) > max(STEPS_OFF, drill.since / 5):
            yield f"tower {tower}: since {found.from_step}, not {drill.since}"


def _of_the_run(drill: Drill, result: Result) -> Iterator[str]:
    found = result.run_verdict
    is_slow = found is not None and found.word == SLOW
    if is_slow != (drill.run is not None):
        yield f"the run: {found.says if found is not None else 'not called slower'}"
    elif is_slow and found is not None:
        cause = cause_of_run(result)
        if cause != drill.run:
            yield f"the run: {cause}, not {drill.run}"
    if drill.input is not None:
        judged = judge_input(result, ())
        if judged is None or judged.verdict != drill.input:
            yield f"the input: {judged}"
