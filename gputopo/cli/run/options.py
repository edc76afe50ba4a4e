"""The options of `gputopo run` beside its plan and its training: what is printed and where."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gputopo.cli.placement import AUTOTUNE
from gputopo.launch.spec.readers import read_alarm, read_data_folder, read_folder
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import Option, shown


def read_written_file(flag: str, text: str) -> str:
    """Return the absolute path of a file that may be written anew. Raises UsageError, InputError."""
    if not text.strip():
        raise UsageError(f"{flag} names no file: it is empty", "name a file in a folder that is there")
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        raise InputError(f"{flag} {shown(text)} is a folder", "name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{flag} {shown(text)} is in no folder", "make the folder first, or name another")
    return str(path)


def _read_sbatch(flag: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return options of a batch script. Raises UsageError for one that is none."""
    for text in texts:
        if re.fullmatch(r"[a-z][a-z-]*(=[^\s\x00-\x1f]+)?", text) is None:
            raise UsageError(
                f"{flag} cannot be {shown(text)}", "write it as in sbatch(1), such as partition=gpu"
            )
    return texts


Shape = Literal["table", "json", "tf-cnn-log", "env", "sbatch", "docker", "hostfile", "jobset", "trainjob"]


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a run beside its training. `output`: its folder, absolute; None: a new one."""

    THEME = "Output"

    repeats: Annotated[int, Option("--repeats", "Number of runs", min=1)] = 1
    autotune: Annotated[int | None, AUTOTUNE] = None
    require_gpu: Annotated[bool, Option("--require-gpu", "Without a GPU exit with 3")] = False
    cpu: Annotated[bool, Option("--cpu", "Use CPU devices, whatever GPUs there are")] = False
    no_affinity: Annotated[
        bool,
        Option(
            "--no-affinity",
            "Run on all CPUs, with memory and threads as without gputopo; default: those near the GPUs",
            more=True,
        ),
    ] = False
    output: Annotated[
        str | None,
        Option("--output", "Folder of the run", value="DIR", default="a new one", read=read_folder),
    ] = None
    shape: Annotated[
        Shape,
        Option(
            "--format",
            "Output format",
            detail="tf-cnn-log: log lines of tf_cnn_benchmarks. With --dry-run env: its variables, sbatch: a "
            "Slurm script, docker: a command that starts the run; for several hosts also hostfile: of "
            "mpirun, jobset, trainjob: of Kubernetes",
        ),
    ] = "table"
    sbatch_options: Annotated[
        tuple[str, ...],
        Option(
            "--sbatch-option",
            "Option of sbatch for --format sbatch, such as partition=gpu or array=1-4; may be repeated",
            value="NAME[=VALUE]",
            read=_read_sbatch,
            repeated=True,
            more=True,
        ),
    ] = ()
    verbose: Annotated[
        bool, Option("--verbose", "Report all figures: times, memory, placement, versions", letter="-v")
    ] = False
    display_every: Annotated[
        int | None,
        Option(
            "--display-every",
            "Show the first counted step and every N-th",
            value="N",
            min=1,
            default="one every 5 s; 10 with --tf-cnn-log",
            more=True,
        ),
    ] = None
    restart: Annotated[
        int,
        Option(
            "--restart",
            "Restarts after a failure of the worker, each from the latest checkpoint",
            min=0,
            value="N",
            more=True,
        ),
    ] = 0
    min_hosts: Annotated[
        int | None,
        Option(
            "--min-hosts",
            "With --restart: go on without hosts that are lost, while N are left, rank 0 among them",
            value="N",
            default="all",
            min=1,
            more=True,
        ),
    ] = None
    stall_timeout: Annotated[
        float | Literal["auto"] | None,
        Option(
            "--stall-timeout",
            "End a run that takes no step for this long",
            detail="Shows its stacks and the state of the GPUs. A program after -- is ended once it reported "
            "steps. auto: 50 steps, at least 120 s, of a program 30 min",
            value="TIME|auto",
            default="auto; a program is not ended",
            unit="s",
            above=0,
            words=("auto",),
        ),
    ] = None
    prometheus: Annotated[
        str | None,
        Option(
            "--prometheus",
            "File that is written anew every 5 s, in Prometheus' text format: steps, devices, GPUs, host",
            value="FILE",
            read=read_written_file,
            more=True,
        ),
    ] = None
    on_anomaly: Annotated[
        str | None,
        Option(
            "--on-anomaly",
            "Command to run (without a shell) or http(s) address to post to on each anomaly while the run "
            "lasts; gets the event as JSON",
            value="COMMAND|URL",
            read=read_alarm,
            more=True,
        ),
    ] = None
    fail_on: Annotated[
        Literal["warning", "error"] | None,
        Option(
            "--fail-on",
            "Exit with 1 on an anomaly or a NaN loss",
            detail="An anomaly is a warning, a NaN loss an error. With a program after -- also on hardware "
            "faults, and on GPUs outside the plan (a warning)",
        ),
    ] = None
    dry_run: Annotated[bool, Option("--dry-run", "Show plan and command; start nothing")] = False


def _values(_flag: str, text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


class AxisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix on the command line: all combinations of these values run, each of them a cell."""

    THEME = "Matrix"

    model: Annotated[
        tuple[str, ...] | None,
        Option("--model", "Models of the cells: alexnet,vgg16", value="LIST", read=_values),
    ] = None
    num_gpus: Annotated[
        tuple[str, ...] | None,
        Option("--num-gpus", "Numbers of GPUs: 1,2,4, or doubling", value="LIST", read=_values),
    ] = None
    batch_size: Annotated[
        tuple[str, ...] | None,
        Option("--batch-size", "Examples per device and step: 32,64", value="LIST", read=_values),
    ] = None
    variable_update: Annotated[
        tuple[str, ...] | None,
        Option("--variable-update", "Where variables live, such as replicated", value="LIST", read=_values),
    ] = None
    precision: Annotated[
        tuple[str, ...] | None, Option("--precision", "Compute types: fp32,fp16", value="LIST", read=_values)
    ] = None
    repeats: Annotated[int | None, Option("--repeats", "Runs of each cell", min=1)] = None
    seconds: Annotated[
        float | None, Option("--seconds", "Counted time of each cell", value="TIME", unit="s", above=0)
    ] = None

    @property
    def text(self) -> str | None:
        """The matrix as the TOML text of a file; None where no value was given. Raises UsageError."""
        fields = {name: one for name, one in msgspec.structs.asdict(self).items() if one is not None}
        axes = {name: one for name, one in fields.items() if isinstance(one, tuple)}
        if not fields:
            return None
        if self.model is None:
            flag = f"--{next(iter(fields)).replace('_', '-')}"
            raise UsageError(f"{flag} needs --model", "add --model alexnet, or write it into the matrix")
        top = [f"{name} = {one}" for name, one in fields.items() if name not in axes]
        values = {
            name: ", ".join(one if one.isdecimal() else json.dumps(one) for one in of)
            for name, of in axes.items()
        }
        return "\n".join((*top, "[matrix]", *(f"{name} = [{one}]" for name, one in values.items()), ""))


class CellOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What changes the cells of a new sweep, or their order."""

    THEME = "Cells"

    compare_pairs: Annotated[
        bool, Option("--compare-pairs", "Also run the presets' pairs of GPUs: two of each kind of link")
    ] = False
    data_dir: Annotated[
        str | None,
        Option(
            "--data-dir",
            "ImageNet's TFRecords for the cells of presets with real input",
            value="DIR",
            default="a small folder of drawn images, made for the sweep",
            read=read_data_folder,
        ),
    ] = None
    order: Annotated[
        Literal["listed", "rounds", "random"] | None,
        Option("--order", "Order of the cells; random: by --seed", default="that of the matrix"),
    ] = None
    seed: Annotated[
        int | None, Option("--seed", "Random seed (printed)", min=0, default="from the clock")
    ] = None
    cpu: Annotated[bool, Option("--cpu", "Use CPU devices; GPUs and their driver do not matter")] = False

    @property
    def given(self) -> dict[str, Any]:
        """Those that were given, by name."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and value is not False}


class PaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be changed when a sweep goes on; None: as it began, at first as the matrix states."""

    THEME = "Pace"

    time_budget: Annotated[
        float | None,
        Option(
            "--time-budget",
            "Start no cell that would not end within this time; a killed sweep goes on with the rest",
            value="TIME",
            unit="s",
            above=0,
            default="that of the matrix, or what is left of it",
        ),
    ] = None
    cool_down: Annotated[
        float | None,
        Option(
            "--cool-down",
            "Pause before each cell",
            value="TIME",
            unit="s",
            min=0,
            default="that of the matrix",
        ),
    ] = None
    cool_below: Annotated[
        float | None,
        Option(
            "--cool-below",
            "Wait before each cell until all GPUs are below this temperature",
            value="CELSIUS",
            above=0,
            default="that of the matrix",
        ),
    ] = None
