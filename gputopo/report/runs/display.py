"""What a terminal shows of a run while it lasts, in lines of any width: none of them wraps."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gputopo.report import units
from gputopo.report.runs.facts import ANOMALY_STYLE
from gputopo.report.runs.state import RunState
from gputopo.runs.devices import label_of

_GAP = "  "


class Display:
    """Phase and speed, the verdict so far, a bar of the steps; of each device a bar and what it reports."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, width = self._state, options.max_width
        now = _joined(units.seconds(state.phase_s), state.speed_words())
        yield _cut(Text.assemble((state.phase, "bold"), now))
        if verdict := state.verdict_words():
            yield _cut(Text(f"verdict: {verdict}", ANOMALY_STYLE if state.is_slow else ""))
        paces = state.paces()
        labels = ["steps", *(label_of(device) for device, _ in paces)]
        bar_width = min(30, max(8, width // 4))
        room = width - max(map(len, labels)) - bar_width - len(_GAP)
        bars = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(3):
            bars.add_column(no_wrap=True, overflow="ellipsis")
        fraction = state.fraction()
        steps = ProgressBar(
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            width=bar_width,
            pulse=fraction is None,
        )
        bars.add_row(Text("steps"), steps, Text(state.steps_words()))
        for device, pace in paces:
            bar = ProgressBar(total=1.0, completed=pace, width=bar_width)
            share = f"{100 * pace:.0f} %" + (" of the best" if width >= 100 else "")
            bars.add_row(Text(label_of(device)), bar, Text(_fitting([share, *state.sensors(device)], room)))
        yield bars


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _joined(*parts: str) -> str:
    return "".join(_GAP + part for part in parts if part)


def _fitting(facts: list[str], room: int) -> str:
    """Return as many of the facts as there is room for, the first ones first."""
    line = facts[0]
    for fact in facts[1:]:
        if len(line) + len(_GAP) + len(fact) > room:
            break
        line += _GAP + fact
    return line
