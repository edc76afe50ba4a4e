"""The report of repeated runs for people: a line for each, then mean and spread."""

from gputopo.report import units
from gputopo.report.layout import Line
from gputopo.report.runs.facts import ANOMALY_STYLE
from gputopo.report.runs.report import title
from gputopo.runs.repeats import Repeats
from gputopo.values.result import Result


def repeats_report(repeats: Repeats) -> list[Line]:
    """Give the report as lines: what ran, each repeat, then all together. A failed one is told as failed."""
    lines: list[Line] = []
    if repeats.runs:
        lines += [((title(repeats.runs[0], ended=False), "bold"),)]
        lines += [((said, ""),) for said in repeats.runs[0].says]
        lines.append(())
    lines += [_repeat(number, run) for number, run in enumerate(repeats.runs, 1)]
    lines += [(), ((_together(repeats), "bold"),)]
    return lines


def _repeat(number: int, run: Result) -> Line:
    if run.status != "complete":
        why = "" if run.failure is None else f": {run.failure.cause}"
        return ((f"repeat {number}  {run.status}{why}", ANOMALY_STYLE),)
    speed = run.throughput
    if speed is None:
        return ((f"repeat {number}  not measured: no step after the warm-up", ""),)
    text = (
        f"repeat {number}  {units.images_per_sec(speed.mean)} images/sec "
        f"± {units.images_per_sec(speed.uncertainty)}, median {units.images_per_sec(speed.median)}"
    )
    marked = f"  ! {'; '.join(anomaly.says for anomaly in run.anomalies)}" if run.anomalies else ""
    return ((text, ""), (marked, ANOMALY_STYLE)) if marked else ((text, ""),)


def _together(repeats: Repeats) -> str:
    found = repeats.images_per_sec
    if found is None:
        return f"No repeat of {repeats.asked} gave a speed."
    spread = "" if found.deviation is None else f" ± {units.images_per_sec(found.deviation)}"
    return (
        f"{units.images_per_sec(found.mean)} images/sec{spread} over {found.of} of {repeats.asked} repeats, "
        f"from {units.images_per_sec(found.lowest)} to {units.images_per_sec(found.highest)}"
    )
