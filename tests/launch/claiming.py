"""A process that has claimed GPUs of `tests.launch.specs.machine`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.kit import commands
from tests.kit.forks import Program

OTHER = """
import signal, sys
from pathlib import Path
from gputopo.launch.jobs.claims import claimed
from tests.launch.specs import machine
gpus = [machine().gpus[int(index)] for index in sys.argv[2:]]
with claimed(gpus, Path(sys.argv[1]), "gputopo run"):
    print("claimed", flush=True)
    signal.pause()
"""


@contextlib.contextmanager
def other(folder: Path, *gpus: int) -> Iterator[Program]:
    """Another process that has claimed GPUs; it ends with the context."""
    with commands.started("-c", OTHER, str(folder), *map(str, gpus)) as (program, printed):
        assert printed.readline() == "claimed\n"
        yield program
        program.kill()
        program.wait()
