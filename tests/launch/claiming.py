"""A process that has claimed GPUs of `tests.launch.specs.machine`."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OTHER = """
import sys
from pathlib import Path
from gputopo.launch.jobs.claims import claimed
from tests.launch.specs import machine
gpus = [machine().gpus[int(index)] for index in sys.argv[2:]]
with claimed(gpus, Path(sys.argv[1]), "gputopo run", on_problem=print):
    print("claimed", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def other(folder: Path, *gpus: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed GPUs; it ends with the context."""
    command = [sys.executable, "-c", OTHER, str(folder), *map(str, gpus)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.communicate()
