"""Parsers of what other tools print: text in, values out. One module a format, listed in `detect.formats`."""

from gputopo.captures.detect import load

__all__ = ["load"]
