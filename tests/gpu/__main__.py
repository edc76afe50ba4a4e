"""What only a GPU can show: `python -m tests.gpu [--keep FOLDER] [--gpus 0,1] [--nvbandwidth PROGRAM]`.

Needs a machine with an NVIDIA GPU, and less than an hour; elsewhere it is skipped, with the reason. It ends
with a table of what agreed and what did not; FOLDER then has recordings without serials and UUIDs, to be sent
in. With `--double SCENARIO` it runs on the doubles of `tests.kit`, which try the checks and no GPU.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from gputopo.probes.cuda.door import NoCudaError, open_cuda
from tests.gpu.checks import CHECKS, Box, Row


def doubled(folder: Path, name: str, words: str = "") -> Box:
    """Return a machine of the kit, with faults of CUDA."""
    from tests.kit.cuda.derive import from_scenario
    from tests.kit.cuda.layouts import named
    from tests.kit.cuda.session import environment
    from tests.kit.cuda.words import spoilt

    spec = spoilt(from_scenario(named(name)), filter(None, words.split("+")))
    gputopo = (sys.executable, "-m", "tests.kit.command", name, "--cuda", words, "--")
    return Box(folder, gputopo, environment=environment(spec) | {"GPUTOPO_DOUBLE": name}, is_double=True)


def rows(box: Box) -> Iterator[Row]:
    """Yield the rows of all checks; of one that fails why."""
    for check in CHECKS:
        try:
            yield from check(box)
        except (RuntimeError, OSError, LookupError) as error:
            yield Row((check.__doc__ or "").rstrip("."), f"{type(error).__name__}: {error}", "", "NOT")


def table(found: Iterable[Row]) -> str:
    """Return the rows as text."""
    words = ((one, f" ({one.reference})" if one.reference else "") for one in found)
    return "\n".join(f"{one.verdict:9}  {one.what}: {one.measured}{beside}" for one, beside in words)


def main() -> int:
    """Run all checks and print the table. Exit code 1 where something did not agree."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    for name in ("--keep", "--gpus", "--nvbandwidth", "--double"):
        parser.add_argument(name)
    given = parser.parse_args()
    if given.double is None:
        try:
            with open_cuda():
                pass
        except NoCudaError as error:
            print(f"skipped: {error.says}")
            return 0
    folder = Path(given.keep or tempfile.mkdtemp(prefix="gputopo-gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    box = Box(folder) if given.double is None else doubled(folder, given.double)
    box.nvbandwidth = given.nvbandwidth
    box.limit = ("--gpus", given.gpus) if given.gpus else ()
    found = []
    for one in rows(box):
        found.append(one)
        print(table([one]), flush=True)
    (folder / "table.txt").write_text(table(found) + "\n")
    wrong = sum(one.verdict == "NOT" for one in found)
    print(f"{len(found)} compared, {wrong} not agreed; kept in {folder}{os.sep}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
