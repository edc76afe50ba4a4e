"""Training throughput of the core beside tf_cnn_benchmarks, in turn on the same machine.

    python -m tests.benchmarks.bench_training --peer FOLDER/scripts/tf_cnn_benchmarks

FOLDER is a checkout of github.com/tensorflow/benchmarks; it needs `pip install tf-keras`. Each cell (mode x
devices) runs both programs in turn, `--rounds` times, with the same model, batch, devices and steps on CPU
devices, without weight decay (the core has none). Printed: the medians of `total images/sec` (counted
images / wall time of the counted steps), and the median and range of the ratios ours / theirs by round.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODES = {
    "ps-cpu": ("parameter_server", "--ps cpu"),
    "replicated": ("replicated", ""),
    "independent": ("independent", ""),
}


def ours(mode: str, devices: int, arguments: argparse.Namespace) -> float:
    """Run the core and give its total images per second."""
    update, options = MODES[mode]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            f"{sys.executable} -m gputopo run --model {arguments.model} --json"
            f" --num-gpus {devices} --variable-update {update} {options}"
            f" --batch-size {arguments.batch_size} --num-batches {arguments.num_batches}"
            f" --num-warmup-batches {arguments.num_warmup_batches} --output {folder}/run".split(),
            capture_output=True,
            text=True,
            check=True,
        )
    total: float = json.loads(done.stdout)["throughput"]["total"]
    return total


def theirs(mode: str, devices: int, arguments: argparse.Namespace) -> float:
    """Run tf_cnn_benchmarks and give its total images per second."""
    done = subprocess.run(
        f"{sys.executable} tf_cnn_benchmarks.py --device=cpu --data_format=NHWC"
        f" --num_gpus={devices} --local_parameter_device=cpu --variable_update={MODES[mode][0]}"
        f" --model={arguments.model} --batch_size={arguments.batch_size} --weight_decay=0"
        f" --num_batches={arguments.num_batches} --display_every=1000"
        f" --num_warmup_batches={arguments.num_warmup_batches}".split(),
        cwd=arguments.peer,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"total images/sec: ([0-9.]+)", done.stdout)
    if found is None:
        sys.exit(f"tf_cnn_benchmarks gave no figure:\n{done.stderr[-2000:]}")
    return float(found.group(1))


def main() -> None:
    """Print one row per cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--num-batches", type=int, default=15)
    parser.add_argument("--num-warmup-batches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--modes", default=",".join(MODES))
    arguments = parser.parse_args()
    print(f"{'mode':<12}{'devices':>8}{'ours':>9}{'theirs':>9}{'ratio':>8}   range")
    for mode in arguments.modes.split(","):
        for devices in map(int, arguments.devices.split(",")):
            pairs = [
                (ours(mode, devices, arguments), theirs(mode, devices, arguments))
                for _ in range(arguments.rounds)
            ]
            ratios = sorted(a / b for a, b in pairs)
            print(
                f"{mode:<12}{devices:>8}{statistics.median(a for a, _ in pairs):>9.2f}"
                f"{statistics.median(b for _, b in pairs):>9.2f}{statistics.median(ratios):>8.2f}"
                f"   {ratios[0]:.2f} to {ratios[-1]:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
