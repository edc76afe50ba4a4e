"""The devices of a screen as a table, the sentences about each, and the runs of several devices."""

from collections.abc import Callable, Iterator, Sequence

from gputopo.report import units
from gputopo.report.document import Block, Document, Styled, Table, of_sections
from gputopo.report.layout import ANOMALY_STYLE, Column, Side, plain
from gputopo.report.runs.devices import HARDWARE, right_columns, verdict_words
from gputopo.report.runs.state import not_reliable
from gputopo.values.run.batches import batch_words
from gputopo.values.run.several_runs import Screen, ScreenDevice, ScreenRun, Under
from gputopo.values.run.verdict import EVEN
from gputopo.values.words import at_most


def screen_document(screen: Screen) -> Document:
    """Return the whole report."""
    noun = "GPU" if screen.backend == "gpu" else "CPU"
    named = {row.number for row in screen.devices if row.is_outlier}
    styles = tuple(ANOMALY_STYLE if row.number in named else "" for row in screen.devices)
    names = [f"{row.number} {units.gpu_name(row.name)}".strip() for row in screen.devices]
    heads = Column(noun, tuple(names), styles=styles)
    says = [
        Styled(f"{row.says[0].upper()}{row.says[1:]}.", style)
        for row, style in zip(screen.devices, styles, strict=True)
        if row.number in named or row.word != EVEN
    ]
    last: list[Block] = [] if screen.last is None else [*_since_last(screen, screen.last, noun)]
    incomplete: list[Block] = [] if screen.complete else ["Incomplete: some runs were skipped."]
    return of_sections(
        [
            (
                "",
                [
                    *_busy(screen),
                    Styled(_headline(screen, noun), "bold"),
                    *says,
                    *(Styled(text, "") for text in screen.says),
                ],
            ),
            ("", [Table(heads, tuple((column,) for column in _columns(screen, styles)))]),
            ("", _several(screen, noun)),
            ("", [*last, *incomplete]),
        ]
    )


def _busy(screen: Screen) -> list[Styled]:
    """Return that the speeds are not reliable, if the host was busy in some of the runs."""
    busy = [run.busy for run in screen.runs if run.busy is not None]
    return [Styled(not_reliable(busy, len(screen.runs), "run"), ANOMALY_STYLE)] if busy else []


def _headline(screen: Screen, noun: str) -> str:
    """Return which devices are slow, or for which ones this is excluded, and what ran."""
    ran = (
        f"{screen.model}, batch {batch_words(screen.batch_size)}, {units.counted(len(screen.devices), noun)}"
    )
    if slow := [row for row in screen.devices if row.is_outlier]:
        return f"Slow: {run_words('', [row.number for row in slow], noun)} ({ran})."
    open_ones = [row.number for row in screen.devices if row.word != EVEN]
    even = [row.number for row in screen.devices if row.word == EVEN]
    highs = [row.under.high for row in screen.devices if row.under is not None and row.under.high is not None]
    if not even and not any(row.under for row in screen.devices):
        runs = units.counted(len(screen.runs), "run")
        early = "" if screen.complete else f"the screen ended after {runs}, "
        return f"Not decided: {early}no {noun} was compared with another ({ran})."
    if open_ones:
        are = f"{run_words('', even, noun)} {'is' if len(even) == 1 else 'are'} not slow; " if even else ""
        words = f"{are}not decided for {run_words('', open_ones, noun)} ({ran})."
        return words[0].upper() + words[1:]
    excluded = f"; a difference above {at_most(max(*highs, 0.1))}% is ruled out" if highs else ""
    return f"No slow {noun}{excluded} ({ran})."


def run_words(kind: str, numbers: Sequence[int], noun: str) -> str:
    """Return `GPU 1 alone`, `GPUs 0, 1`."""
    listed = f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    return f"{listed} alone" if kind == "alone" else listed


def screen_run_line(run: ScreenRun, noun: str) -> str:
    """Return the line for a run that ended: `screen round 1: GPU 1 alone, ...: 512 images/sec`."""
    speed = f"{units.images_per_sec(run.images_per_sec or 0.0)} images/sec"
    outcome = speed if run.failure is None else f"failed: {plain(run.failure)}"
    which = run_words(run.kind, [one.number for one in run.devices], noun)
    return f"screen round {run.round}: {which}, {run.mode}: {outcome}"


def _since_last(screen: Screen, folder: str, noun: str) -> Iterator[Styled]:
    changed = [row for row in screen.devices if row.changes]
    nothing = "" if changed else f"; no {noun} changed"
    yield Styled(f"Compared with the screen in {folder}{nothing}.", "")
    for row in changed:
        yield Styled(f"{noun} {row.number}: {'; '.join(row.changes)}.", "")


def _several(screen: Screen, noun: str) -> list[Block]:
    """Return a row for each run with several devices."""
    rows = [
        (
            run_words(run.kind, [device.number for device in run.devices], noun),
            run.mode,
            units.images_per_sec(run.images_per_sec),
            f"failed: {run.failure}" if run.failure else "",
        )
        for run in screen.runs
        if run.kind != "alone"
    ]
    sides: tuple[Side, ...] = ("left", "left", "right", "left")
    return [Table.of(("Run", "mode", "images/sec", ""), rows, sides)] if rows else []


def _columns(screen: Screen, styles: tuple[str, ...]) -> list[Column]:
    rows = screen.devices
    speeds: dict[str, Callable[[ScreenDevice], str]] = {
        "alone\nimages/s": lambda row: units.images_per_sec(row.alone),
        "% of\nbest": lambda row: units.percent(row.percent_of_best),
        "at once\nimages/s": lambda row: units.images_per_sec(row.at_once),
        "together\nimages/s": lambda row: units.images_per_sec(row.together),
    }
    columns = right_columns(rows, styles, speeds)
    if screen.backend == "gpu":
        columns += right_columns([row.reading for row in rows], styles, HARDWARE)
    columns.append(Column("verdict", tuple(map(_verdict, rows)), "left", styles=styles))
    if any(row.explained_percent is not None for row in rows):
        causes = {"explained\n%": _explained, "unexplained\n%": _unexplained}
        columns += right_columns(rows, styles, causes)
    return columns


def _verdict(row: ScreenDevice) -> str:
    """Return `! slow 15%`, `even < 1.2%`, `at most 9.9%`, or, after one round, `cannot tell`."""
    under = row.under or Under(percent=0.0)
    return verdict_words(row.word, under.percent, under.high) or row.word


def _explained(row: ScreenDevice) -> str:
    """Return `4.9`, or `0 to 4.9` if only an upper bound on the causes is known."""
    if row.causes is None or row.explained_percent is None:
        return units.UNKNOWN
    return _range(sum(one.percent_low for one in row.causes.found), row.explained_percent)


def _unexplained(row: ScreenDevice) -> str:
    """Return `10`, or `10 to 15` if the causes may explain less."""
    if row.causes is None or row.explained_percent is None or row.unexplained_percent is None:
        return units.UNKNOWN
    less = row.explained_percent - sum(one.percent_low for one in row.causes.found)
    return _range(row.unexplained_percent, row.unexplained_percent + less)


def _range(low: float, high: float) -> str:
    ends = [f"{value:.2g}" for value in (low, high)]
    return " to ".join(dict.fromkeys(ends))
