"""Parsers of other tools' output: text in, values out. One module per format, listed in `detect.formats`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputopo.values.machine import Machine


def load(sources: Sequence[str], *, read_tree: "Callable[[Path], Machine] | None" = None) -> "Machine":
    """Read one machine from captures, as `gputopo.captures.reading.load` describes.

    The formats are loaded with the first capture: a live reading uses only small parts of this package.
    """
    from gputopo.captures import reading

    return reading.load(sources, read_tree=read_tree)


__all__ = ["load"]
