"""What only a GPU can show: `python -m tests.gpu [--keep FOLDER] [--gpus 0,1] [--nvbandwidth PROGRAM]`.

Needs a machine with an NVIDIA GPU, and less than an hour; elsewhere it is skipped, with the reason. It ends
with a table of what agreed and what did not; FOLDER then has recordings without serials and UUIDs, to be sent
in. With `--double SCENARIO` it runs on the doubles of `tests.kit`, which try the checks and no GPU.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gputopo.probes.cuda.door import NoCudaError, open_cuda
from tests.gpu.checks import CHECKS, Box, Row


def doubled(folder: Path, name: str) -> Box:
    """Return a machine of the kit."""
    from tests.kit.cuda.derive import from_scenario
    from tests.kit.cuda.layouts import named
    from tests.kit.cuda.session import environment

    given = environment(from_scenario(named(name))) | {"GPUTOPO_DOUBLE": name}
    gputopo = (sys.executable, "-m", "tests.kit.command", name, "--cuda", "", "--")
    return Box(folder, gputopo, environment=given, is_double=True)


def rows(box: Box) -> Iterator[Row]:
    """Yield the rows of all checks; of one that fails why."""
    for check in CHECKS:
        try:
            yield from check(box)
        except (RuntimeError, OSError, LookupError) as error:
            yield (check.__doc__ or "").rstrip("."), f"{type(error).__name__}: {error}", False


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
    verdicts = {True: "agreed", False: "NOT", None: "not tried"}
    wrong = 0
    with (folder / "table.txt").open("w") as file:
        for what, words, verdict in rows(box):
            wrong += verdict is False
            for out in (file, sys.stdout):
                print(f"{verdicts[verdict]:9}  {what}: {words}", file=out, flush=True)
    print(f"{wrong} not agreed; kept in {folder}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
