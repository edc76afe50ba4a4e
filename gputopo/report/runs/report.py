"""The report of a run for people: the table of the devices, the figures of the whole run, the verdict."""

import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gputopo.report import units
from gputopo.report.layout import Line
from gputopo.report.runs.devices import device_tables
from gputopo.report.runs.facts import ANOMALY_STYLE, Fact, run_facts
from gputopo.runs.anomaly import MADE, THRESHOLD_PERCENT
from gputopo.runs.repeats import Repeats
from gputopo.values.result import Result

_OTHER_TASKS = {"forward": "forward passes", "eval": "evaluation", "input": "the input alone"}


def run_report(result: Result, width: int = 80) -> list[Line]:
    """Give the report of a run as lines for a screen of `width` columns; see `run_renderable`."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    lines = console.render_lines(run_renderable(result, width), pad=False)
    return [tuple((piece.text, str(piece.style or "")) for piece in pieces) for pieces in lines]


def run_renderable(result: Result, width: int = 80) -> RenderableType:
    """Give the report of a run, complete or not: what must be said, the table, the figures, the verdict.

    It fits `width` columns, and says in words what was not measured.
    """
    parts: list[RenderableType] = [Text(title(result), style="bold")]
    parts += [Text(line) for line in result.says]
    parts.append(Text())
    if result.devices:
        for table in device_tables(result, width):
            parts += [table, Text()]
    parts.append(_grid(list(run_facts(result))))
    parts.append(Text())
    parts += verdict_lines(result)
    if result.failure is not None:
        parts += [Text(), *(Text(line) for line in failure_lines(result))]
    return Group(*parts)


def title(result: Result, *, ended: bool = True) -> str:
    """Give what ran, on what and, unless not wanted, how it ended: one line, with the word "rehearsal"."""
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


def verdict_lines(result: Result) -> list[Text]:
    """Say which devices are slow, or that none is, or that and why this could not be looked at."""
    lines = [Text(f"! {anomaly.says}", style=ANOMALY_STYLE) for anomaly in result.anomalies]
    check = result.anomaly_check
    if not check.startswith(MADE):
        lines.append(Text(f"Slow devices: the check was {check}.", style="yellow"))
        return lines
    left_out = check.removeprefix(MADE)
    if not lines:
        lines.append(Text(f"No device is more than {THRESHOLD_PERCENT:g} % under its peers."))
    if left_out:
        lines.append(Text(f"Slow devices: the check was made{left_out}.", style="yellow"))
    return lines


def failure_lines(result: Result) -> list[str]:
    """Say why a run did not complete, what to do, and the last lines of the worker; empty if it completed."""
    failure = result.failure
    if failure is None:
        return []
    ended = "Interrupted" if result.status == "interrupted" else "Failed"
    lines = [f"{ended}: {failure.cause}", f"What to do: {failure.remedy}"]
    if failure.last_lines:
        lines += ["The last lines of the worker:", *(f"  {line}" for line in failure.last_lines)]
    return lines


def _grid(facts: Sequence[Fact]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")  # a path is shown whole
    for name, value in facts:
        grid.add_row(name, value if isinstance(value, Text) else Text(value))
    return grid


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
