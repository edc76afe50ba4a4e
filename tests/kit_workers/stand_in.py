"""A Python in the place of `sys.executable` that runs something else instead of gputopo's own programs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit_workers import misbehave

PYTHON = sys.executable
WORKER = "gputopo.launch.train.worker"
REDUCTION = "gputopo.launch.jobs.reduction_worker"
# As `python -P -m MODULE ARGUMENTS`. A shell has set PWD.
_SCRIPT = """\
#!/bin/sh
unset PWD
if test "$3" = {module}; then
shift 3
{command}
fi
exec {python} "$@"
"""


def behaves(behaviour: str) -> str:
    """Return the command of a shell that runs a worker with one fault; it gets spec and events as "$@"."""
    return f'exec {PYTHON} -IS {misbehave.__file__} {behaviour} "$@"'


def write_python(folder: Path, module: str, command: str) -> str:
    """Write a program that stands for Python, but runs a command of a shell for `-m MODULE`. Return its path.

    The command gets the arguments of the module as "$@". Any other module runs by `sys.executable`, which may
    be such a program too.
    """
    folder.mkdir(exist_ok=True)
    python = folder / "python"
    python.write_text(_SCRIPT.format(module=module, command=command, python=sys.executable))
    python.chmod(0o755)
    return str(python)


@contextmanager
def in_place_of(module: str, command: str, folder: Path) -> Iterator[None]:
    """Let this process start its programs by `write_python`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", write_python(folder, module, command))
        yield
