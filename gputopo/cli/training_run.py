"""The built-in core from the command line: make the run's folder, supervise, show, keep the result."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gputopo.errors import ExitCode
from gputopo.launch import env, runs
from gputopo.launch.prepare import RunOptions, spec_of
from gputopo.launch.supervisor import Outcome, supervise, worker_command

if TYPE_CHECKING:
    from gputopo.events import Event
    from gputopo.launch.sampling import Sampler
    from gputopo.launch.spec import RunSpec
    from gputopo.launch.target import Target
    from gputopo.result import Result

_SPEC_OF_A_RUN_TO_COME = Path("RUN_FOLDER/spec.json")
_EVENTS_FD_TO_COME = 3


def train(
    target: "Target", options: RunOptions, output: Path | None, printed: str, *, fail_on_anomaly: bool
) -> int:
    """Train to the end, print the result as `printed` (table, json, tf-cnn-log), and give the exit code."""
    spec = spec_of(target.plan, target.machine, options)
    folder = runs.create(
        output,
        home=runs.runs_home(os.environ),
        now=datetime.now(),
        spec=spec,
        plan=target.plan,
        machine=target.machine,
    )
    if sys.stderr.isatty():  # the live display goes away at the end; piped, the progress begins with it
        print(*spec.says, sep="\n", file=sys.stderr, flush=True)
    outcome = _supervised(target, spec, folder, printed)
    from gputopo.summary import summarise

    result = runs.save_result(folder, summarise(outcome.events), time_s=time.time())
    _print(result, printed)
    print(f"Run folder: {folder.path}", file=sys.stderr)
    if result.exit_code == 0 and fail_on_anomaly and result.anomalies:
        return ExitCode.FINDINGS
    return result.exit_code


def show_only(target: "Target", options: RunOptions, output: Path | None, printed: str) -> int:
    """Print what `train` would do, and do nothing."""
    from gputopo.cli.dry_run import show_dry_run

    spec = spec_of(target.plan, target.machine, options)
    environment = env.worker_env(os.environ, spec, target.plan.environment)
    place = _SPEC_OF_A_RUN_TO_COME if output is None else runs.RunFolder(output).spec
    command = worker_command(place, _EVENTS_FD_TO_COME)
    show_dry_run(target.plan, spec, env.changes(os.environ, environment), command, printed)
    return ExitCode.OK


def _supervised(target: "Target", spec: "RunSpec", folder: runs.RunFolder, printed: str) -> Outcome:
    from gputopo.report.progress import Progress
    from gputopo.report.tf_cnn_log import TfCnnLog

    log = TfCnnLog() if printed == "tf-cnn-log" else None
    environment = env.worker_env(os.environ, spec, target.plan.environment)
    with _monitor(spec) as sampler, Progress() as progress:

        def on_event(event: "Event") -> None:
            progress.event(event)
            for line in log.lines(event) if log is not None else ():
                print(line, flush=True)

        return supervise(
            spec, folder, on_event, environment=environment, command=worker_command, sampler=sampler
        )


@contextlib.contextmanager
def _monitor(spec: "RunSpec") -> "Iterator[Sampler | None]":
    """NVML's samples on the GPU backend. Where NVML refuses, the run goes on without, and it is said."""
    if spec.backend == "cpu":
        yield None
        return
    from gputopo.probes.monitor import Monitor
    from gputopo.probes.nvml import NotReadError

    try:
        monitor = Monitor([device.gpu for device in spec.devices if device.gpu is not None])
    except NotReadError as error:
        print(f"The GPUs' clocks cannot be sampled: {error}", file=sys.stderr)
        yield None
        return
    with monitor:
        yield monitor


def _print(result: "Result", printed: str) -> None:
    """Print the result. The log lines were printed as they came; a failure is told beside them."""
    from gputopo.cli.printing import emit, show

    if printed == "json":
        from gputopo import schema

        emit(schema.encode_pretty(result))
        return
    from gputopo.report.run import failure_lines, run_report

    if printed == "tf-cnn-log":
        sys.stderr.writelines(f"{line}\n" for line in failure_lines(result))
        return
    show(lambda width: run_report(result, width))
