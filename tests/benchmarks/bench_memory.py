"""Peak host memory of the core and of tf_cnn_benchmarks, several starts each.

    python -m tests.benchmarks.bench_memory --peer FOLDER/scripts/tf_cnn_benchmarks

The programs are those of `bench_training`, one after another; `--starts` times each, since the peak of one
program differs between starts by some percent (the order of allocations differs). Each trains `STEPS`
steps. Printed: the median and the range of the peak of its largest process, in MiB, and the ratio of the
medians. `--save FILE` keeps every figure as JSON.
"""

import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.alternating import Program, Running
from tests.benchmarks.bench_training import cells, ours, parser_of_cells, tf_cnn

STEPS = 15  # ours reaches its peak within 10


def peak_mib(program: Program) -> float:
    """Train with a program and return the peak of its largest process, in MiB."""
    with tempfile.TemporaryDirectory() as folder, Running(program, Path(folder) / "program") as running:
        running.go_on_until(STEPS)
        return running.peak_mib()


def main() -> None:
    """Print one row per cell."""
    parser = parser_of_cells(__doc__)
    parser.add_argument("--starts", type=int, default=5)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    results = []
    print(f"{'model':<10}{'mode':<12}{'devices':>8}   median peak in MiB (range)")
    for model, mode, devices in cells(arguments):
        both = ours(model, mode, devices), tf_cnn(model, mode, devices, arguments.peer)
        starts = [tuple(map(peak_mib, both)) for _ in range(arguments.starts)]
        peaks = dict(zip(("ours", "tf_cnn"), zip(*starts, strict=True), strict=True))
        results.append({"model": model, "mode": mode, "devices": devices, "peaks_mib": peaks})
        print(_row(model, mode, devices, peaks["ours"], peaks["tf_cnn"]), flush=True)
    if arguments.save:
        arguments.save.write_text(json.dumps(results, indent=1))


def _row(model: str, mode: str, devices: int, mine: Sequence[float], peers: Sequence[float]) -> str:
    ratio = statistics.median(mine) / statistics.median(peers)
    return f"{model:<10}{mode:<12}{devices:>8}   ours {_spread(mine)};  tf_cnn {_spread(peers)};  {ratio:.3f}"


def _spread(peaks: Sequence[float]) -> str:
    return f"{statistics.median(peaks):.0f} ({min(peaks):.0f} to {max(peaks):.0f})"


if __name__ == "__main__":
    main()
