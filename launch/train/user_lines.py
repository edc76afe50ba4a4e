"""Finds the line of the user's program that an error comes from."""

import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import gputopo

# A frame as Python and TensorFlow print it, and the headings of the stacks in a TensorFlow message: the stack
# of a Python function that an op calls, and the stack of the Python lines that made an op.
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)
_STACK = re.compile(r"(Traceback \(most recent call last\):|Detected at node .*)")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/(?:tensorflow|keras|tf_keras)/|^<|/__autograph_generated")
_OURS = (str(Path(__file__).parents[1]), str(Path(gputopo.__file__).parent))
_MAX_CHARACTERS = 120  # of a source line, to fit in a terminal


def line_of(error: BaseException) -> str | None:
    """Return `FILE, line N: SOURCE` of an error in the user's Python code, or None if it is elsewhere."""
    return _last((frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__))


def line_in(message: str) -> str | None:
    """Return the same from the stacks in a TensorFlow message. A Python function's stack has priority."""
    pieces = _STACK.split(message)
    stacks = sorted(zip(pieces[1::2], pieces[2::2], strict=True), key=lambda pair: pair[0][0] != "T")
    lines = (_last((file, int(line)) for file, line in _FRAME.findall(stack)) for _, stack in stacks)
    return next((line for line in lines if line is not None), None)


def _last(frames: Iterable[tuple[str, int]]) -> str | None:
    standard = f"{sysconfig.get_path('stdlib')}/"
    ours = tuple(f"{folder}/" for folder in _OURS)
    last = None
    for file, line in frames:
        in_standard = file.startswith(standard) and "-packages/" not in file
        if not (_LIBRARY.search(file) or in_standard or file.startswith(ours)):
            last = file, line
    if last is None:
        return None
    file, line = last
    source = linecache.getline(file, line).strip()[:_MAX_CHARACTERS]
    shown = os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    return f"{shown}, line {line}" + (f": {source}" if source else "")
