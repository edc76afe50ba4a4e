"""Times the choice of 8 of 16 GPUs on three topologies: `python -m tests.benchmarks.bench_plan [REPEATS]`.

`plan()` is timed in this process, and `gputopo plan --from RECORDING` as a whole process. Medians are
printed.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median

from gputopo.planner import Request, plan
from gputopo.values import schema
from gputopo.values.machine import Gpu, Hop, Link, Machine

GPUS = 16
REQUEST = Request(num_gpus=8, prefer_pix=True, model="alexnet")


def switches(a: int, b: int) -> Link:
    """Two sockets, each with two switches of four GPUs."""
    return Link(a=a, b=b, hop=Hop.PIX if a // 4 == b // 4 else Hop.PHB if a // 8 == b // 8 else Hop.SYS)


def cube_meshes(a: int, b: int) -> Link:
    """Four quads with NVLinks inside, and one NVLink from each GPU to the next quad."""
    joined = a // 4 == b // 4 or (a % 4 == b % 4 and (b // 4 - a // 4) % 4 in (1, 3))
    return Link(a=a, b=b, hop=Hop.PHB if a // 8 == b // 8 else Hop.SYS, nvlinks=int(joined))


def all_different(a: int, b: int) -> Link:
    """No two pairs are alike, so no set can be skipped because an equal one was seen."""
    return Link(a=a, b=b, hop=Hop.SYS, nvlinks=1 + (37 * a + 101 * b) % 127 + 128 * a)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of `work` in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def main(repeats: int = 7) -> None:
    """Print one line for each topology."""
    print(f"{'topology':16} {'plan() ms':>10} {'process ms':>11}   chosen, median of {repeats}")
    for link in (switches, cube_meshes, all_different):
        machine = Machine(
            source="a benchmark",
            gpus=tuple(Gpu(index=index) for index in range(GPUS)),
            links=tuple(link(a, b) for a, b in combinations(range(GPUS), 2)),
        )
        inside = seconds(partial(plan, machine, REQUEST), repeats)
        with tempfile.TemporaryDirectory() as folder:
            recording = Path(folder) / "machine.json"
            schema.write(recording, machine)
            command = [
                sys.executable,
                "-m",
                "gputopo",
                "plan",
                "--from",
                str(recording),
                "--model",
                "alexnet",
            ]
            command += ["--num-gpus", "8", "--prefer-pix", "--json"]
            whole = seconds(partial(subprocess.run, command, check=True, capture_output=True), repeats)
        chosen = ",".join(map(str, plan(machine, REQUEST).choice.gpus))
        print(f"{link.__name__:16} {1000 * inside:10.1f} {1000 * whole:11.0f}   {chosen}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
