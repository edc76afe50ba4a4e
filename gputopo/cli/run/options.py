"""The options of `gputopo run` beside its plan and its training: what is printed and where."""

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gputopo.cli.placement import AUTOTUNE
from gputopo.launch.spec.readers import read_folder
from gputopo.launch.supervise.outlets import read_alarm
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import JSON, Option, number_in, shown
from gputopo.values.run.batches import AUTO


def read_stall(flag: str, text: str) -> float | Literal["auto"]:
    """Read seconds, or auto. Raises UsageError."""
    if text == AUTO:
        return AUTO
    seconds = number_in("s", text)
    if not 0 < seconds < math.inf:
        raise UsageError(f"{flag} cannot be {shown(text)}", "give a time such as 300s or 5m, or auto")
    return seconds


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
        JSON,
        Option("--tf-cnn-log", "Same as --format tf-cnn-log", const="tf-cnn-log", more=True),
    ] = "table"
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
            read=read_stall,
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
