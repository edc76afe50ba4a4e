"""Training throughput of gputopo and its peers, alternating on the same machine.

    python -m tests.benchmarks.bench_training --peer FOLDER/scripts/tf_cnn_benchmarks

FOLDER is a checkout of github.com/tensorflow/benchmarks; it needs `pip install tf-keras`. Each cell (model
x mode x devices) starts every program, with the same model, batch and devices, on CPU devices with oneDNN,
without weight decay, and runs them in slices of some seconds, one after another, `--rounds` times (see
`alternating`). Peers: tf_cnn_benchmarks in every mode; in `replicated` also Keras `fit` under
MirroredStrategy (`tests.benchmarks.mirrored_peer`).

Printed for each cell: images/sec of gputopo and of the peer with the highest median; lowest and median
ratio of the two, slice by slice; the median ratio by processor time, which other programs on the machine
disturb least; the peak host memory of gputopo and of tf_cnn_benchmarks (the largest process, in MiB). At the
end the summary: lowest median, median of the medians, largest ratio of the peaks. `--options TEXT` adds
options to gputopo, to compare them. `--save FILE` saves every figure as JSON.
"""

import argparse
import json
import shlex
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.alternating import Program, Slice, rates

MODES = {
    "ps-cpu": ("parameter_server", "--ps cpu"),
    "replicated": ("replicated", ""),
    "independent": ("independent", ""),
}
BATCHES = {  # per device
    "googlenet": 16,
    "vgg11": 8,
    "inception3": 8,
    "overfeat": 8,
    "alexnet": 16,
    "resnet50": 8,
    "resnet20": 64,
}
CIFAR10 = ("resnet20",)
WARMUP = 3  # steps
ENDLESS = 1_000_000  # steps: programs are killed after the measurement
SLICE_S = 2.5
BEHIND = 0.8  # a program below this share of the fastest rate is not measured further
# TensorFlow enables oneDNN by default only on CPUs with AVX-512 or AMX; gputopo enables it for CPU devices.
ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "1"}


def ours(model: str, mode: str, devices: int) -> Program:
    """Return the program of gputopo."""
    update, options = MODES[mode]
    return Program(
        f"-m gputopo run --model {model} --num-gpus {devices} --variable-update {update} {options}"
        f" --batch-size {BATCHES[model]} --num-batches {ENDLESS} --num-warmup-batches {WARMUP}"
        " --output {folder}/run".split(),
        mark=b'"event":"step"',
        images=devices * BATCHES[model],
        progress="run/events.jsonl",
    )


def tf_cnn(model: str, mode: str, devices: int, peer: Path) -> Program:
    """Return the program of tf_cnn_benchmarks."""
    data = "cifar10" if model in CIFAR10 else "imagenet"
    return Program(
        f"tf_cnn_benchmarks.py --device=cpu --data_format=NHWC --num_gpus={devices} --data_name={data}"
        f" --local_parameter_device=cpu --variable_update={MODES[mode][0]} --model={model}"
        f" --batch_size={BATCHES[model]} --weight_decay=0 --num_batches={ENDLESS} --display_every=1"
        f" --num_warmup_batches={WARMUP}".split(),
        mark=b"images/sec: ",
        images=devices * BATCHES[model],
        cwd=peer,
        environment={"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **ONEDNN},
    )


def mirrored(model: str, devices: int) -> Program:
    """Return the peer with MirroredStrategy and Keras `fit`."""
    return Program(
        f"-m tests.benchmarks.mirrored_peer --model {model} --devices {devices}"
        f" --batch-size {BATCHES[model]} --num-batches {ENDLESS} --num-warmup-batches {WARMUP}".split(),
        mark=b"step",
        images=devices * BATCHES[model],
        environment=ONEDNN,
    )


def programs(model: str, mode: str, devices: int, peer: Path) -> dict[str, Program]:
    """Return the programs to compare in a cell, gputopo first."""
    found = {"ours": ours(model, mode, devices), "tf_cnn": tf_cnn(model, mode, devices, peer)}
    if mode == "replicated":
        found["fit"] = mirrored(model, devices)
    return found


def parser_of_cells(description: str | None) -> argparse.ArgumentParser:
    """Return a parser for the options that select the cells."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--devices", default="2")
    parser.add_argument("--modes", default="ps-cpu,replicated")
    parser.add_argument("--save", type=Path)
    return parser


def cells(arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield model, mode and devices of each cell."""
    for model in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            for devices in map(int, arguments.devices.split(",")):
                yield model, mode, devices


def main() -> None:
    """Print one row per cell, and the summary."""
    parser = parser_of_cells(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--options", type=shlex.split, default=[])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # also kills stopped programs
    results, bars = [], []
    print(
        f"{'model':<12}{'mode':<12}{'devices':>7}{'ours':>9}{'peer':>9} {'':<8}"
        f"{'min':>6}{'median':>8}{'cpu':>6}{'peak MiB':>12}"
    )
    for model, mode, devices in cells(arguments):
        those = programs(model, mode, devices, arguments.peer)
        mine = those["ours"]
        those["ours"] = mine._replace(arguments=[*mine.arguments, *arguments.options])
        with tempfile.TemporaryDirectory() as folder:
            rounds, peaks = rates(
                those, Path(folder), rounds=arguments.rounds, slice_s=SLICE_S, behind=BEHIND
            )
        results.append(
            {"model": model, "mode": mode, "devices": devices, "rounds": rounds, "peaks_mib": peaks}
        )
        row, *bar = _row(f"{model:<12}{mode:<12}{devices:>7}", rounds, peaks)
        bars.append(bar)
        print(row, flush=True)
    medians, of_peaks = zip(*bars, strict=True)
    print(
        f"lowest median {min(medians):.2f} (goal 0.98), median {statistics.median(medians):.2f} (goal 1.04), "
        f"largest ratio of peaks {max(of_peaks):.2f} (goal 1.05)"
    )
    if arguments.save:
        arguments.save.write_text(json.dumps(results, indent=1))


def _row(cell: str, rounds: Sequence[dict[str, Slice]], peaks: dict[str, float]) -> tuple[str, float, float]:
    """Return a cell's row, its median ratio, and the ratio of its peaks."""
    medians = {name: statistics.median(one[name].rate for one in rounds if name in one) for name in peaks}
    best = max((name for name in medians if name != "ours"), key=medians.__getitem__)
    both = [(one["ours"], one[best]) for one in rounds if best in one]
    ratios = [mine.rate / peer.rate for mine, peer in both]
    by_cpu = statistics.median(mine.by_cpu / peer.by_cpu for mine, peer in both)
    row = (
        f"{cell}{medians['ours']:>9.2f}{medians[best]:>9.2f} {best:<8}{min(ratios):>6.2f}"
        f"{statistics.median(ratios):>8.2f}{by_cpu:>6.2f}{peaks['ours']:>7.0f}/{peaks['tf_cnn']:.0f}"
    )
    return row, statistics.median(ratios), peaks["ours"] / peaks["tf_cnn"]


if __name__ == "__main__":
    main()
