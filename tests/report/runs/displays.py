"""The display of a run as a terminal shows it."""

import io
import re
import time
from collections.abc import Callable, Iterable

from rich.console import Console

from gputopo.report import Progress
from gputopo.values.run.events import Event


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def terminal(width: int = 100) -> Console:
    return Console(file=Terminal(), force_terminal=True, width=width, color_system=None)


def text_of(console: Console) -> str:
    """All that was written to a console."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(
    events: Iterable[Event], width: int = 100, clock: Callable[[], float] = time.monotonic
) -> list[str]:
    """The lines on a terminal of this width after these events, while the run goes on."""
    console = terminal(width)
    with Progress(console, clock=clock) as progress:
        for event in events:
            progress.event(event)
        progress.draw()
        return on_the_screen(text_of(console))


def on_the_screen(written: str) -> list[str]:
    """The lines of a terminal after these were written to it; of control sequences those that Rich uses."""
    lines, row, column = [""], 0, 0
    for found in re.finditer(r"\x1b\[\??([\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]", written):
        text, count, control = found.group(), found.group(1), found.group(2)
        if control == "A":
            row -= int(count or 1)
        elif control == "K":
            lines[row] = "" if count == "2" else lines[row][:column]
        elif text == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text == "\r":
            column = 0
        elif not control:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]
