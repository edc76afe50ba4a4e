"""The report of a run for people: the table of the devices, the figures of the whole run, the verdict."""

from collections.abc import Iterable

from gputopo.report import units
from gputopo.report.layout import Line, Span, body_width, labelled, line, paragraph, printable
from gputopo.report.runs.devices import device_tables
from gputopo.report.runs.facts import ANOMALY_STYLE, run_facts
from gputopo.runs.anomaly import THRESHOLD_PERCENT, AnomalyCheck
from gputopo.runs.repeats import Repeats
from gputopo.values.run.result import Result

_OTHER_TASKS = {"forward": "forward passes", "eval": "evaluation", "input": "the input alone"}


def run_report(result: Result, width: int = 80) -> list[Line]:
    """Return the report of a run, complete or not, in lines of at most `width` columns.

    The title, the run's messages, the tables, the figures, the slow devices, the failure. What was not
    measured is stated in words.
    """
    lines = [*_folded([(title(result), "bold"), *((text, "") for text in result.says)], width), line()]
    if result.devices:
        for table in device_tables(result, width):
            lines += [*table, line()]
    facts = list(run_facts(result))
    space = body_width((fact.name for fact in facts), width)
    lines += labelled(((fact.name, paragraph(fact.text, space, fact.style)) for fact in facts), width)
    lines += [line(), *_folded(verdict_lines(result), width)]
    if result.failure is not None:
        lines += [line(), *_folded(((text, "") for text in failure_lines(result)), width)]
    return printable(lines)


def _folded(texts: Iterable[Span], width: int) -> list[Line]:
    return [
        one for text, style in texts for part in text.split("\n") for one in paragraph(part, width, style)
    ]


def title(result: Result, *, ended: bool = True) -> str:
    """Return what ran, on what and, unless not wanted, how it ended, in one line."""
    spec = result.spec
    kind = {"cpu": "CPU device", "gpu": "GPU"}.get(result.backend, "device")
    parts = [f"{spec.get('model', 'a model')} on {units.counted(len(result.devices), kind)}"]
    if does := _OTHER_TASKS.get(str(spec.get("task"))):
        parts.append(does)
    elif spec.get("strategy"):
        parts.append(f"strategy {spec['strategy']}")
    elif mode := spec.get("variable_update"):
        parts.append(f"{mode}, variables on {spec['ps_device']}" if spec.get("ps_device") else str(mode))
    if result.rehearsal_of:
        parts.append(f"rehearsal of {result.rehearsal_of}")
    if ended and result.status != "complete":
        parts.append(f"{result.status} after {units.counted(result.steps, 'step')}")
    return ", ".join(parts)


def verdict_lines(result: Result) -> list[Span]:
    """Return which devices are slow, or that none is, or that and why this could not be checked."""
    lines = [(f"! {anomaly.says}", ANOMALY_STYLE) for anomaly in result.anomalies]
    check = AnomalyCheck.from_verdict(result.anomaly_check)
    if check.made and not lines:
        lines.append((f"No device is more than {THRESHOLD_PERCENT:g} % under its peers.", ""))
    if not check.made or check.left_out:
        lines.append((f"Slow devices: the check was {check.verdict}.", "yellow"))
    return lines


def failure_lines(result: Result) -> list[str]:
    """Return why a run did not complete, what to do, and the last lines of the worker; empty if it did."""
    failure = result.failure
    if failure is None:
        return []
    ended = "Interrupted" if result.status == "interrupted" else "Failed"
    lines = [f"{ended}: {failure.cause}", f"What to do: {failure.remedy}"]
    if failure.last_lines:
        lines += ["The last lines of the worker:", *(f"  {one.expandtabs()}" for one in failure.last_lines)]
    return lines


def repeats_report(repeats: Repeats) -> list[Line]:
    """Return the report of repeated runs: what ran, each repeat with how it ended, mean and spread."""
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
