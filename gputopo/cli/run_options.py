"""The options of `gputopo run` that a plan does not have, and the values that come of them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gputopo.cli.choices import require_choice, shown
from gputopo.errors import UsageError

if TYPE_CHECKING:
    from gputopo.launch.prepare import RunOptions
    from gputopo.launch.target import Target

FORMATS = ("table", "json")
DATA_FORMATS = ("NHWC", "NCHW")
GRAD_REDUCES = ("mean", "sum")
FAIL_ON = ("warning", "error")  # an anomaly is a warning

ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model to train, for example alexnet.")
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option("--batch-size", metavar="N", help="Images per device and step. Default: by the model."),
]
NumBatchesOption = Annotated[
    int | None,
    typer.Option(
        "--num-batches", metavar="N", help="Counted steps. Default: 100; on CPU devices by the clock."
    ),
]
NumWarmupBatchesOption = Annotated[
    int | None,
    typer.Option("--num-warmup-batches", metavar="N", help="Steps before. Default: 10; on CPU devices 3."),
]
DataFormatOption = Annotated[
    str | None,
    typer.Option(
        "--data-format", metavar="|".join(DATA_FORMATS), help="Default: NCHW on GPUs, NHWC on the CPU."
    ),
]
GradReduceOption = Annotated[
    str,
    typer.Option("--grad-reduce", metavar="|".join(GRAD_REDUCES), help="How gradients become one."),
]
LearningRateOption = Annotated[
    float | None, typer.Option("--learning-rate", metavar="X", help="Of the plain gradient descent.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", help="Of the weights and the images.")]
RequireGpuOption = Annotated[
    bool, typer.Option("--require-gpu", help="Without a GPU end with exit code 3; do not train on the CPU.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="The run's folder. Default: a new one of gputopo's."),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="How the result is printed.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
TfCnnLogOption = Annotated[
    bool,
    typer.Option("--tf-cnn-log", help="Print the log lines of tf_cnn_benchmarks in place of the table."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show plan, environment and command; start nothing.")
]
AddWorkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--add-work",
        metavar="TOWER:PASSES",
        help="Slow a tower down by that many forward passes a step, to try the anomaly report. Repeatable.",
    ),
]
FailOnOption = Annotated[
    str | None,
    typer.Option(
        "--fail-on", metavar="|".join(FAIL_ON), help="Exit with 1 on an anomaly; each is a warning."
    ),
]
ProgramArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- PROGRAM ARGS...]", help="Run this on the planned GPUs, not the core."),
]


def shape_of(output: str, *, json: bool, tf_cnn_log: bool) -> str:
    """Give how the result is printed: table, json or tf-cnn-log. Raises UsageError for two at once."""
    shape = "json" if json else require_choice("--format", output, FORMATS)
    if tf_cnn_log and shape == "json":
        raise UsageError("--tf-cnn-log and JSON both want the standard output", "leave one of them out")
    return "tf-cnn-log" if tf_cnn_log else shape


def fail_on_of(fail_on: str | None) -> str | None:
    """Check `--fail-on`. Raises UsageError."""
    return None if fail_on is None else require_choice("--fail-on", fail_on, FAIL_ON)


def parse_add_work(words: Sequence[str]) -> dict[int, int]:
    """Read `1:2` as two passes more for tower 1. Raises UsageError, also for a tower that is named twice."""
    added: dict[int, int] = {}
    for word in words:
        found = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", word.strip())
        if found is None or int(found[2]) == 0:
            raise UsageError(
                f"--add-work cannot be {shown(word)}", "give a tower and a count of passes, such as 1:2"
            )
        tower = int(found[1])
        if tower in added:
            raise UsageError(f"--add-work names tower {tower} twice", "name every tower once")
        added[tower] = int(found[2])
    return added


def training_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the training options as typed, and give the fields of RunOptions. Raises UsageError."""
    data_format = given["data_format"]
    return {
        "batch_size": _at_least(1, "--batch-size", given["batch_size"]),
        "num_batches": _at_least(1, "--num-batches", given["num_batches"]),
        "num_warmup_batches": _at_least(0, "--num-warmup-batches", given["num_warmup_batches"]),
        "data_format": None
        if data_format is None
        else require_choice("--data-format", data_format.upper(), DATA_FORMATS),
        "grad_reduce": require_choice("--grad-reduce", given["grad_reduce"], GRAD_REDUCES),
        "learning_rate": _learning_rate(given["learning_rate"]),
        "seed": _at_least(0, "--seed", given["seed"]),
        "add_work": parse_add_work(given["add_work"] or ()),
    }


def options_of(
    training: Mapping[str, Any], target: "Target", *, model: str, num_gpus: int | None
) -> "RunOptions":
    """Give what was asked of the run on this target."""
    from gputopo.launch.prepare import CPU_DEVICES, RunOptions

    return RunOptions(
        model=model,
        backend=target.backend,
        cpu_devices=CPU_DEVICES if num_gpus is None else num_gpus,
        rehearsal_of=target.rehearsal_of,
        why_cpu=target.why_cpu or "",
        **training,
    )


def _at_least(lowest: int, option: str, value: int | None) -> int | None:
    if value is not None and value < lowest:
        raise UsageError(f"{option} cannot be {value}", f"give {lowest} or more")
    return value


def _learning_rate(value: float | None) -> float | None:
    if value is not None and not 0 <= value < float("inf"):
        raise UsageError(f"--learning-rate cannot be {value}", "give a number such as 0.01")
    return value
