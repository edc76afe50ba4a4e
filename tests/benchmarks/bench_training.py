"""Training throughput of the core beside its peers, in turn on the same machine.

    python -m tests.benchmarks.bench_training --peer FOLDER/scripts/tf_cnn_benchmarks

FOLDER is a checkout of github.com/tensorflow/benchmarks; it needs `pip install tf-keras`. Each cell (model x
mode x devices) runs every program in turn, `--rounds` times, with the same model, batch, devices and steps on
CPU devices, without weight decay. Peers: tf_cnn_benchmarks in every mode; in `replicated` also a custom loop
and Keras `fit` under MirroredStrategy (`tests.benchmarks.mirrored_peer`). Printed: the medians of
`total images/sec` (counted images over the wall time of the counted steps), the median and range by round
of the ratios of ours to the best peer, and the peak host memory of ours and of tf_cnn_benchmarks (the
largest process, medians in MiB). `--save FILE` keeps every figure as JSON.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MODES = {
    "ps-cpu": ("parameter_server", "--ps cpu"),
    "replicated": ("replicated", ""),
    "independent": ("independent", ""),
}
# Batch per device and counted steps, so that a run takes some ten seconds on two cores.
MODELS = {"alexnet": (16, 10), "resnet50": (8, 4), "resnet20": (64, 30)}
CIFAR10 = ("resnet20",)


class Figures(NamedTuple):
    """What one run of a program gave: total images per second; the peak memory of its largest process."""

    rate: float
    peak_mib: float


Program = Callable[[str, str, int, argparse.Namespace], Figures]


def ours(model: str, mode: str, devices: int, arguments: argparse.Namespace) -> Figures:
    """Run the core."""
    update, options = MODES[mode]
    batch, steps = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        said, peak = _run(
            f"-m gputopo run --model {model} --json --num-gpus {devices}"
            f" --variable-update {update} {options} --batch-size {batch} --num-batches {steps}"
            f" --num-warmup-batches {arguments.num_warmup_batches} --output {folder}/run",
            Path.cwd(),
            {},
        )
    return Figures(json.loads(said)["throughput"]["total"], peak)


def tf_cnn(model: str, mode: str, devices: int, arguments: argparse.Namespace) -> Figures:
    """Run tf_cnn_benchmarks."""
    batch, steps = MODELS[model]
    data = "cifar10" if model in CIFAR10 else "imagenet"
    return _figure(
        f"tf_cnn_benchmarks.py --device=cpu --data_format=NHWC --num_gpus={devices} --data_name={data}"
        f" --local_parameter_device=cpu --variable_update={MODES[mode][0]} --model={model}"
        f" --batch_size={batch} --weight_decay=0 --num_batches={steps} --display_every=1000"
        f" --num_warmup_batches={arguments.num_warmup_batches}",
        arguments.peer,
        {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def mirrored(how: str) -> Program:
    """Give the peer that runs under MirroredStrategy, by a `loop` of its own or by Keras `fit`."""

    def run(model: str, mode: str, devices: int, arguments: argparse.Namespace) -> Figures:
        batch, steps = MODELS[model]
        return _figure(
            f"-m tests.benchmarks.mirrored_peer --how {how} --model {model} --devices {devices}"
            f" --batch-size {batch} --num-batches {steps}"
            f" --num-warmup-batches {arguments.num_warmup_batches}",
            Path.cwd(),
            {},
        )

    return run


def programs(mode: str) -> dict[str, Program]:
    """Give the programs to compare in a mode, ours first."""
    more = {"loop": mirrored("loop"), "fit": mirrored("fit")} if mode == "replicated" else {}
    return {"ours": ours, "tf_cnn": tf_cnn, **more}


def _figure(command: str, folder: Path, environment: dict[str, str]) -> Figures:
    said, peak = _run(command, folder, environment)
    found = re.search(r"total images/sec: ([0-9.]+)", said)
    if found is None:
        sys.exit(f"{command} gave no figure")
    return Figures(float(found.group(1)), peak)


def _run(command: str, folder: Path, environment: dict[str, str]) -> tuple[str, float]:
    """Run a Python command; give what it wrote, and the peak of the largest process of its family in MiB."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=said,
            stderr=told,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        told.seek(0)
        if process.returncode:
            sys.exit(f"{command} failed:\n{told.read()[-2000:]}")
        return said.read(), used.ru_maxrss / 1024  # Linux: KiB


def main() -> None:
    """Print one row per cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--num-warmup-batches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="which program begins the first round")
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    kept = []
    print(f"{'model':<10}{'mode':<12}{'devices':>8}   median images/sec; ratio to the best peer (range)")
    for model in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            for devices in map(int, arguments.devices.split(",")):
                rounds = [
                    _one_round(number, model, mode, devices, arguments) for number in range(arguments.rounds)
                ]
                figures = [{name: of._asdict() for name, of in one.items()} for one in rounds]
                kept.append({"model": model, "mode": mode, "devices": devices, "rounds": figures})
                _print(model, mode, devices, rounds)
    if arguments.save:
        arguments.save.write_text(json.dumps(kept, indent=1))


def _one_round(
    number: int, model: str, mode: str, devices: int, arguments: argparse.Namespace
) -> dict[str, Figures]:
    """Run every program once, each round beginning with another: the first finds the machine rested."""
    those = list(programs(mode).items())
    turn = (number + arguments.first) % len(those)
    figures = {name: run(model, mode, devices, arguments) for name, run in those[turn:] + those[:turn]}
    return {name: figures[name] for name, _ in those}


def _print(model: str, mode: str, devices: int, rounds: list[dict[str, Figures]]) -> None:
    medians = {name: statistics.median(one[name].rate for one in rounds) for name in rounds[0]}
    peaks = [statistics.median(one[name].peak_mib for one in rounds) for name in ("ours", "tf_cnn")]
    ratios = sorted(
        one["ours"].rate / max(of.rate for name, of in one.items() if name != "ours") for one in rounds
    )
    figures = "  ".join(f"{name} {value:.2f}" for name, value in medians.items())
    print(
        f"{model:<10}{mode:<12}{devices:>8}   {figures};  {statistics.median(ratios):.2f}"
        f" ({ratios[0]:.2f} to {ratios[-1]:.2f});  {peaks[0]:.0f} against {peaks[1]:.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
