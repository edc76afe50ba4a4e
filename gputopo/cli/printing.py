"""How a command prints: to stdout, in colour only on a terminal, never wider than the screen."""

import sys
from collections.abc import Callable

from rich.console import Console, RenderableType


def show(view: Callable[[int], RenderableType]) -> None:
    """Print what `view` gives for the width of the screen. `NO_COLOR` and a pipe turn colour off."""
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as printed:
        console.print(view(console.width))
    # rich fills every line up with spaces; in a file or a mail they are only in the way.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().rstrip().splitlines())
