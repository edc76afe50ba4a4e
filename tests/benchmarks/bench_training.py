"""Training throughput of the core and its peers, alternating on the same machine.

    python -m tests.benchmarks.bench_training --peer FOLDER/scripts/tf_cnn_benchmarks

FOLDER is a checkout of github.com/tensorflow/benchmarks; it needs `pip install tf-keras`. Each cell (model
x mode x devices) starts every program, with the same model, batch and devices, on CPU devices with oneDNN,
without weight decay, and runs them in slices of some seconds, one after another, `--rounds` times (see
`alternating`). Peers: tf_cnn_benchmarks in every mode; in `replicated` also a custom loop and Keras `fit`
under MirroredStrategy (`tests.benchmarks.mirrored_peer`). Printed: the medians of images/sec; the median
and the range of the ratios of ours to the peer with the highest median, slice by slice; the peak host
memory of ours and of tf_cnn_benchmarks (the largest process, in MiB). `--save FILE` keeps every figure as
JSON.
"""

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.alternating import Program, rates

MODES = {
    "ps-cpu": ("parameter_server", "--ps cpu"),
    "replicated": ("replicated", ""),
    "independent": ("independent", ""),
}
BATCHES = {"alexnet": 16, "resnet50": 8, "resnet20": 64}  # per device
CIFAR10 = ("resnet20",)
WARMUP = 3  # steps
ENDLESS = 1_000_000  # steps: programs are killed after the measurement
SLICE_S = 2.5
BEHIND = 0.8  # a program below this share of the fastest rate is not measured further
# TensorFlow turns oneDNN on by itself only for CPUs with AVX-512 or AMX; gputopo turns it on for CPU devices.
ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "1"}


def ours(model: str, mode: str, devices: int) -> Program:
    """Return the program of the core."""
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


def mirrored(how: str, model: str, devices: int) -> Program:
    """Return the peer under MirroredStrategy, by a custom `loop` or by Keras `fit`."""
    return Program(
        f"-m tests.benchmarks.mirrored_peer --how {how} --model {model} --devices {devices}"
        f" --batch-size {BATCHES[model]} --num-batches {ENDLESS} --num-warmup-batches {WARMUP}".split(),
        mark=b"step",
        images=devices * BATCHES[model],
        environment=ONEDNN,
    )


def programs(model: str, mode: str, devices: int, peer: Path) -> dict[str, Program]:
    """Return the programs to compare in a cell, ours first."""
    found = {"ours": ours(model, mode, devices), "tf_cnn": tf_cnn(model, mode, devices, peer)}
    if mode == "replicated":
        found |= {how: mirrored(how, model, devices) for how in ("loop", "fit")}
    return found


def parser_of_cells(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that select the cells."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--save", type=Path)
    return parser


def cells(arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield model, mode and devices of each cell."""
    for model in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            for devices in map(int, arguments.devices.split(",")):
                yield model, mode, devices


def main() -> None:
    """Print one row per cell."""
    parser = parser_of_cells(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # also kills stopped programs
    results = []
    print(
        f"{'model':<10}{'mode':<12}{'devices':>8}   median images/sec; ratio to the best peer (range); peaks"
    )
    for model, mode, devices in cells(arguments):
        those = programs(model, mode, devices, arguments.peer)
        with tempfile.TemporaryDirectory() as folder:
            rounds, peaks = rates(
                those, Path(folder), rounds=arguments.rounds, slice_s=SLICE_S, behind=BEHIND
            )
        results.append(
            {"model": model, "mode": mode, "devices": devices, "rounds": rounds, "peaks_mib": peaks}
        )
        print(_row(model, mode, devices, rounds, peaks), flush=True)
    if arguments.save:
        arguments.save.write_text(json.dumps(results, indent=1))


def _row(
    model: str, mode: str, devices: int, rounds: Sequence[dict[str, float]], peaks: dict[str, float]
) -> str:
    medians = {name: statistics.median(one[name] for one in rounds if name in one) for name in peaks}
    best = max((name for name in medians if name != "ours"), key=medians.__getitem__)
    ratios = sorted(one["ours"] / one[best] for one in rounds if best in one)
    figures = "  ".join(f"{name} {value:.2f}" for name, value in medians.items())
    return (
        f"{model:<10}{mode:<12}{devices:>8}   {figures};  {statistics.median(ratios):.2f}"
        f" ({ratios[0]:.2f} to {ratios[-1]:.2f});  {peaks['ours']:.0f} against {peaks['tf_cnn']:.0f} MiB"
    )


if __name__ == "__main__":
    main()
