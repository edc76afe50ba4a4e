"""The devices of a screen as a table, the sentences about each, and the runs of several devices."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gputopo.report.document import Block, Document, Styled, Table, of_sections
from gputopo.report.layout import ANOMALY_STYLE, Column, plain
from gputopo.report.runs.devices import HARDWARE, right_columns, verdict_words
from gputopo.report.runs.state import not_reliable
from gputopo.report.units import UNKNOWN, counted, gpu_name, percent, three_figures
from gputopo.values.run.batches import batch_words
from gputopo.values.run.several_runs import Screen, ScreenDevice, ScreenRun, Under
from gputopo.values.run.verdict import EVEN
from gputopo.values.words import at_most


def screen_document(screen: Screen) -> Document:
    """Return the whole report."""
    noun = "GPU" if screen.backend == "gpu" else "CPU"
    busy = [run.busy for run in screen.runs if run.busy is not None]
    answer = [Styled(not_reliable(busy, len(screen.runs), "run"), ANOMALY_STYLE)] if busy else []
    answer.append(Styled(_headline(screen, noun), "bold"))
    answer += [
        Styled(f"{row.says[0].upper()}{row.says[1:]}.", _style(row))
        for row in screen.devices
        if row.is_outlier or row.word != EVEN
    ]
    answer += [Styled(text, "") for text in screen.says]
    end: list[Block] = [*_since_last(screen, noun)]
    end += [] if screen.complete else ["Incomplete: some runs were skipped."]
    return of_sections([("", answer), ("", [_table(screen, noun)]), ("", _several(screen, noun)), ("", end)])


def _style(row: ScreenDevice) -> str:
    return ANOMALY_STYLE if row.is_outlier else ""


def _headline(screen: Screen, noun: str) -> str:
    """Return which devices are slow, or for which ones this is excluded, and what ran."""
    ran = f"{screen.model}, batch {batch_words(screen.batch_size)}, {counted(len(screen.devices), noun)}"
    if slow := [row.number for row in screen.devices if row.is_outlier]:
        return f"Slow: {_devices_words(slow, noun)} ({ran})."
    undecided = [row.number for row in screen.devices if row.word != EVEN]
    even = [row.number for row in screen.devices if row.word == EVEN]
    if not even and not any(row.under for row in screen.devices):
        early = "" if screen.complete else f"the screen ended after {counted(len(screen.runs), 'run')}, "
        return f"Not decided: {early}no {noun} was compared with another ({ran})."
    if undecided:
        start = "Not"
        if even:
            start = f"{_devices_words(even, noun)} {'is' if len(even) == 1 else 'are'} not slow; not"
        return f"{start} decided for {_devices_words(undecided, noun)} ({ran})."
    highs = [row.under.high for row in screen.devices if row.under is not None and row.under.high is not None]
    excluded = f"; a difference above {at_most(max(*highs, 0.1))}% is ruled out" if highs else ""
    return f"No slow {noun}{excluded} ({ran})."


def _devices_words(numbers: Sequence[int], noun: str) -> str:
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _run_words(run: ScreenRun, noun: str) -> str:
    """Return `GPU 1 alone`, `GPUs 0, 1`."""
    words = _devices_words([device.number for device in run.devices], noun)
    return f"{words} alone" if run.kind == "alone" else words


def screen_run_line(run: ScreenRun, noun: str) -> str:
    """Return the line for a run that ended: `screen round 1: GPU 1 alone, ...: 512 images/sec`."""
    speed = f"{three_figures(run.images_per_sec or 0.0)} images/sec"
    outcome = speed if run.failure is None else f"failed: {plain(run.failure)}"
    return f"screen round {run.round}: {_run_words(run, noun)}, {run.mode}: {outcome}"


def _since_last(screen: Screen, noun: str) -> Iterator[Styled]:
    """Yield what changed since the previous screen of this machine, if there was one."""
    if screen.last is None:
        return
    changed = [row for row in screen.devices if row.changes]
    nothing = "" if changed else f"; no {noun} changed"
    yield Styled(f"Compared with the screen in {screen.last}{nothing}.", "")
    for row in changed:
        yield Styled(f"{noun} {row.number}: {'; '.join(row.changes)}.", "")


def _several(screen: Screen, noun: str) -> list[Block]:
    """Return a row for each run with several devices."""
    rows = [
        (
            _run_words(run, noun),
            run.mode,
            three_figures(run.images_per_sec),
            f"failed: {run.failure}" if run.failure else "",
        )
        for run in screen.runs
        if run.kind != "alone"
    ]
    heads = ("Run", "mode", "images/sec", "")
    return [Table.of(heads, rows, words=("Run", "mode", ""))] if rows else []


_SPEEDS: Mapping[str, Callable[[ScreenDevice], str]] = {
    "alone\nimages/s": lambda row: three_figures(row.alone),
    "% of\nbest": lambda row: percent(row.percent_of_best),
    "at once\nimages/s": lambda row: three_figures(row.at_once),
    "together\nimages/s": lambda row: three_figures(row.together),
}


def _table(screen: Screen, noun: str) -> Table:
    rows = screen.devices
    styles = tuple(map(_style, rows))
    names = tuple(f"{row.number} {gpu_name(row.name)}".strip() for row in rows)
    columns = right_columns(rows, styles, _SPEEDS)
    if screen.backend == "gpu":
        columns += right_columns([row.reading for row in rows], styles, HARDWARE)
    verdicts = []
    for row in rows:
        under = row.under or Under(percent=0.0)
        verdicts.append(verdict_words(row.word, under.percent, under.high) or row.word)
    columns.append(Column("verdict", tuple(verdicts), styles=styles))
    if any(row.explained_percent is not None for row in rows):
        columns += right_columns(rows, styles, {"explained\n%": _explained, "unexplained\n%": _unexplained})
    return Table(Column(noun, names, styles=styles), tuple((column,) for column in columns))


def _explained(row: ScreenDevice) -> str:
    """Return `4.9`, or `0 to 4.9` if only an upper bound on the causes is known."""
    if row.causes is None or row.explained_percent is None:
        return UNKNOWN
    return _range(sum(cause.percent_low for cause in row.causes.found), row.explained_percent)


def _unexplained(row: ScreenDevice) -> str:
    """Return `10`, or `10 to 15` if the causes may explain less."""
    if row.causes is None or row.explained_percent is None or row.unexplained_percent is None:
        return UNKNOWN
    less = row.explained_percent - sum(cause.percent_low for cause in row.causes.found)
    return _range(row.unexplained_percent, row.unexplained_percent + less)


def _range(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2g}" for value in (low, high)))
