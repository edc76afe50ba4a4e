"""How long `gputopo inspect` takes on eight simulated GPUs, as a whole process, compared with only its
imports.

Run `python -m tests.benchmarks.bench_inspect [ROUNDS]`. The commands alternate, so that other load affects
all of them. `double` is the cost of the test kit itself, which is part of `inspect` here, but not on a
machine with GPUs. Byte code is cached, as for an installed package.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SCENARIO = "dgx1"  # eight GPUs with NVLinks, two sockets, four NICs
GOAL = 1.8

BASE = [sys.executable, "-c", "import pynvml, typer, rich.table"]
DOUBLE = [sys.executable, "-c", "import tests.kit.nvml"]
NOTHING = [sys.executable, "-c", "pass"]


def inspect_command(tree: Path, *options: str) -> list[str]:
    """Return the command that inspects the scenario; its /sys is written on the first call and reused."""
    return [
        sys.executable,
        "-m",
        "tests.kit.command",
        SCENARIO,
        "--tree",
        str(tree),
        "--",
        "inspect",
        *options,
    ]


def with_byte_code(folder: Path) -> dict[str, str]:
    """Return an environment in which byte code is cached in a folder; the first run fills it."""
    own = {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **own}


def seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the wall time of one process. Raises CalledProcessError if it fails."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - started


def measure(
    commands: dict[str, list[str]], rounds: int, environment: Mapping[str, str]
) -> dict[str, list[float]]:
    """Return the times of each command, alternating. A first round, which fills caches, is not counted."""
    for command in commands.values():
        seconds(command, environment)
    measured: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            measured[name].append(seconds(command, environment))
    return measured


def main(rounds: int) -> int:
    """Print medians, spread and the ratio to only the imports; exit code 1 if the goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        commands = {
            "bare imports": BASE,
            "inspect": inspect_command(tree),
            "inspect --json": inspect_command(tree, "--json"),
            "double": DOUBLE,
            "python alone": NOTHING,
        }
        measured = measure(commands, rounds, with_byte_code(Path(folder) / "byte_code"))
    medians = {name: statistics.median(times) for name, times in measured.items()}
    for name, times in measured.items():
        ratio = medians[name] / medians["bare imports"]
        print(
            f"{name:15} median {1000 * medians[name]:6.1f} ms, "
            f"fastest {1000 * min(times):6.1f} ms, {ratio:.2f} x bare imports"
        )
    of_the_double = medians["double"] - medians["python alone"]
    ratio = medians["inspect"] / medians["bare imports"]
    without = (medians["inspect"] - of_the_double) / medians["bare imports"]
    print(f"goal: at most {GOAL} x; inspect {ratio:.2f} x, without the double's own imports {without:.2f} x")
    print(f"{rounds} rounds, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    return 0 if ratio <= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 21))
