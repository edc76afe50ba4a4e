"""Options of runs other than the plan and the training: output, and what a screen or a sweep covers."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import Option, shown
from gputopo.values.run.placement import EXCLUDE, GPUS, MODEL, parse_gpu_list
from gputopo.values.run.readers import read_alarm, read_data_folder, read_folder


def read_written_file(flag: str, text: str) -> str:
    """Return the absolute path of a file that may be replaced. Raises UsageError, InputError."""
    if not text.strip():
        raise UsageError(f"{flag} needs a file name", "name a file")
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        raise InputError(f"{flag} {shown(text)} is a folder", "give a file in it")
    return str(path)


def _read_sbatch(flag: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options of a batch script. Raises UsageError for an invalid one."""
    for text in texts:
        if re.fullmatch(r"[a-z][a-z-]*(=[^\s\x00-\x1f]+)?", text) is None:
            raise UsageError(
                f"{flag} cannot be {shown(text)}", "write it as in sbatch(1), such as partition=gpu"
            )
    return texts


Shape = Literal["table", "json", "tf-cnn-log", "env", "sbatch", "docker", "hostfile"]


FORMAT = Option("--format", "Output format")
AUTOTUNE = Option(
    "--autotune",
    "Measure the best placements and use the fastest",
    detail="K: number of placements (default: 3)",
    value="[K]",
    min=2,
    max=10,
    words={"": {"autotune": 3}},
)


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run other than the training. `output`: its folder, absolute; None: a new one."""

    THEME: ClassVar[str] = "Output"

    repeats: Annotated[int, Option("--repeats", "Number of runs", min=1)] = 1
    autotune: Annotated[int | None, AUTOTUNE] = None
    require_gpu: Annotated[bool, Option("--require-gpu", "Fail with exit code 3 if there is no GPU")] = False
    cpu: Annotated[bool, Option("--cpu", "Use CPU devices, even if there are GPUs")] = False
    no_affinity: Annotated[
        bool,
        Option(
            "--no-affinity",
            "Do not bind the run to the CPUs and the memory near the GPUs",
            more=True,
        ),
    ] = False
    output: Annotated[
        str | None, read_folder, Option("--output", "Folder of the run", value="DIR", default="a new one")
    ] = None
    shape: Annotated[
        Shape,
        Option(
            "--format",
            "Output format",
            detail=(
                "tf-cnn-log: log lines of tf_cnn_benchmarks. With --dry-run: env (environment "
                "variables), sbatch (a Slurm script), docker (a docker run command); for several hosts "
                "also hostfile (for mpirun)"
            ),
        ),
    ] = "table"
    sbatch_options: Annotated[
        tuple[str, ...],
        _read_sbatch,
        Option(
            "--sbatch-option",
            "Option of sbatch for --format sbatch, such as partition=gpu or array=1-4; may be repeated",
            value="NAME[=VALUE]",
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
            "Show the first counted step and then every Nth step",
            value="N",
            default="one every 5 s; 10 with --format tf-cnn-log",
            min=1,
            more=True,
        ),
    ] = None
    restart: Annotated[
        int,
        Option(
            "--restart",
            "Number of restarts after a failure of the training process, each from the latest checkpoint",
            value="N",
            min=0,
            more=True,
        ),
    ] = 0
    stall_timeout: Annotated[
        float | Literal["auto"] | None,
        Option(
            "--stall-timeout",
            "End a run that completes no step for this time",
            detail="Also shows stacks and the state of the GPUs. The time includes import, compilation "
            "and the start of NCCL. auto: 50 steps, at least 120 s; before the first step 1 h. For a "
            "program after --, the time starts with its first reported step; auto: at least 30 min",
            value="TIME|auto",
            default="auto; off for a program",
            unit="s",
            above=0,
            words={"auto": {"stall_timeout": "auto"}},
        ),
    ] = None
    prometheus: Annotated[
        str | None,
        read_written_file,
        Option(
            "--prometheus",
            "Rewrite this file every 5 s in Prometheus' text format: steps, devices, GPUs, host",
            value="FILE",
            more=True,
        ),
    ] = None
    on_anomaly: Annotated[
        str | None,
        read_alarm,
        Option(
            "--on-anomaly",
            "Command to run (without a shell) for each anomaly during the run; stdin is the event as JSON",
            value="COMMAND",
            more=True,
        ),
    ] = None
    fail_on: Annotated[
        Literal["warning", "error"] | None,
        Option(
            "--fail-on",
            "Exit with code 1 if there is an anomaly or a NaN loss",
            detail=(
                "An anomaly is a warning, a NaN loss an error. For a program after --: also hardware "
                "faults, and use of GPUs outside the plan (a warning)"
            ),
        ),
    ] = None
    dry_run: Annotated[bool, Option("--dry-run", "Show the plan and the command; start nothing")] = False


class ScreenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to screen, how long, and how to show it. `model`: as typed."""

    model: Annotated[str, MODEL]
    gpus: Annotated[tuple[int, ...] | None, parse_gpu_list, GPUS] = None
    exclude: Annotated[tuple[int, ...], parse_gpu_list, EXCLUDE] = ()
    batch_size: Annotated[
        int | None, Option("--batch-size", "Examples per device and step", default="by model", min=1)
    ] = None
    quick: Annotated[
        bool, Option("--quick", "Shorter runs, and only as many rounds as fit into two minutes")
    ] = False
    pairs: Annotated[
        bool, Option("--pairs", "Also run each pair of GPUs, with the placement that plan chooses for it")
    ] = False
    cpu: Annotated[bool, Option("--cpu", "Use CPU devices and ignore all GPUs")] = False
    num_batches: Annotated[
        int | None, Option("--num-batches", "Counted steps of each run", default="by time", min=1)
    ] = None
    seconds: Annotated[
        float | None,
        Option(
            "--seconds",
            "Counted time of each run",
            value="TIME",
            default="5; 2 with --quick",
            unit="s",
            above=0,
            max=3600,
        ),
    ] = None
    output: Annotated[
        str | None, read_folder, Option("--output", "Folder of the screen", value="DIR", default="a new one")
    ] = None
    shape: Annotated[Literal["table", "json"], FORMAT] = "table"
    fail_on: Annotated[
        Literal["warning", "error"] | None,
        Option(
            "--fail-on",
            "Exit with code 1 if a GPU is slow or became slower since the last screen (warning), or if a "
            "run failed (error)",
        ),
    ] = None


def _values(_flag: str, text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


# Options of a sweep: values for the whole matrix, its axes, and what changes the cells of a new sweep.
_BESIDE = ("repeats", "seconds")
_AXES = ("model", "num_gpus", "batch_size", "variable_update", "precision")
_CELLS = ("compare_pairs", "data_dir", "order", "seed", "cpu")


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to sweep. For the pace, None means as the sweep started, and at first as in the matrix."""

    preset: Annotated[
        str | None,
        Option("[PRESET]", "Bundled sweep, such as quick, scaling, tf-official or tensorpack"),
    ] = None
    matrix: Annotated[
        Path | None, Option("--matrix", "TOML file with your own matrix (gputopo explain sweep)")
    ] = None
    output: Annotated[
        str | None, read_folder, Option("--output", "Folder of the sweep", value="DIR", default="a new one")
    ] = None
    resume: Annotated[
        str | None, read_folder, Option("--resume", "Resume the sweep in this folder", value="DIR")
    ] = None
    retry_failed: Annotated[bool, Option("--retry-failed", "With --resume: run failed cells again")] = False
    model: Annotated[
        tuple[str, ...] | None,
        _values,
        Option("--model", "Models of the cells: alexnet,vgg16", value="LIST", theme="Matrix"),
    ] = None
    num_gpus: Annotated[
        tuple[str, ...] | None,
        _values,
        Option("--num-gpus", "Numbers of GPUs: 1,2,4, or doubling", value="LIST", theme="Matrix"),
    ] = None
    batch_size: Annotated[
        tuple[str, ...] | None,
        _values,
        Option("--batch-size", "Examples per device and step: 32,64", value="LIST", theme="Matrix"),
    ] = None
    variable_update: Annotated[
        tuple[str, ...] | None,
        _values,
        Option(
            "--variable-update", "Placements of variables, such as replicated", value="LIST", theme="Matrix"
        ),
    ] = None
    precision: Annotated[
        tuple[str, ...] | None,
        _values,
        Option("--precision", "Compute types: fp32,fp16", value="LIST", theme="Matrix"),
    ] = None
    repeats: Annotated[int | None, Option("--repeats", "Runs of each cell", min=1, theme="Matrix")] = None
    seconds: Annotated[
        float | None,
        Option("--seconds", "Counted time of each cell", value="TIME", unit="s", above=0, theme="Matrix"),
    ] = None
    compare_pairs: Annotated[
        bool,
        Option(
            "--compare-pairs", "Also run the presets' pairs of GPUs: two of each kind of link", theme="Cells"
        ),
    ] = False
    data_dir: Annotated[
        str | None,
        read_data_folder,
        Option(
            "--data-dir",
            "ImageNet TFRecords for presets with real input",
            value="DIR",
            default="a small folder of generated images, created for the sweep",
            theme="Cells",
        ),
    ] = None
    order: Annotated[
        Literal["listed", "rounds", "random"] | None,
        Option("--order", "Order of the cells; random: by --seed", default="from the matrix", theme="Cells"),
    ] = None
    seed: Annotated[
        int | None, Option("--seed", "Random seed (printed)", default="from the clock", min=0, theme="Cells")
    ] = None
    cpu: Annotated[bool, Option("--cpu", "Use CPU devices and ignore all GPUs", theme="Cells")] = False
    time_budget: Annotated[
        float | None,
        Option(
            "--time-budget",
            "Start no cell that would not end within this time; continue later with --resume",
            value="TIME",
            default="from the matrix, or the rest of it",
            unit="s",
            above=0,
            theme="Pace",
        ),
    ] = None
    cool_down: Annotated[
        float | None,
        Option(
            "--cool-down",
            "Pause before each cell",
            value="TIME",
            default="from the matrix",
            unit="s",
            min=0,
            theme="Pace",
        ),
    ] = None
    cool_below: Annotated[
        float | None,
        Option(
            "--cool-below",
            "Wait before each cell until all GPUs are below this temperature",
            value="CELSIUS",
            default="from the matrix",
            above=0,
            theme="Pace",
        ),
    ] = None
    dry_run: Annotated[bool, Option("--dry-run", "List the cells with their predicted time; run none")] = (
        False
    )
    shape: Annotated[Literal["table", "json"], FORMAT] = "table"
    fail_on: Annotated[Literal["error"] | None, Option("--fail-on", "Exit with code 1 if a cell failed")] = (
        None
    )

    @property
    def typed(self) -> str | None:
        """The matrix on the command line, all combinations of its values, in the TOML form of a file.

        None if no value was given. Raises UsageError.
        """
        fields = self._given(_AXES + _BESIDE)
        if not fields:
            return None
        if self.model is None:
            flag = f"--{next(iter(fields)).replace('_', '-')}"
            raise UsageError(f"{flag} needs --model", "add --model alexnet, or write it into the matrix")
        top = [f"{name} = {fields[name]}" for name in _BESIDE if name in fields]
        values = {
            name: ", ".join(value if value.isdecimal() else json.dumps(value) for value in fields[name])
            for name in _AXES
            if name in fields
        }
        return "\n".join((*top, "[matrix]", *(f"{name} = [{text}]" for name, text in values.items()), ""))

    @property
    def of_cells(self) -> dict[str, Any]:
        """The options that change the cells, by name."""
        return self._given(_CELLS)

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        fields = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in fields if value is not None and value is not False}
