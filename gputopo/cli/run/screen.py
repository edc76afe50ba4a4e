"""`gputopo screen`: each GPU alone, then all at once: which is slow, and what of that its clock explains."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from gputopo.cli.placement import parse_gpu_list, parse_model
from gputopo.cli.printing import show_report, to_stderr
from gputopo.cli.run.options import OutputOptions
from gputopo.cli.run.prepare import AskedJob, PlannedOn, prepare, runnable, warn, warn_of_tensorflow
from gputopo.cli.source import planned_machine
from gputopo.launch.jobs.run import worker_command
from gputopo.launch.spec.readers import read_folder
from gputopo.values.errors import ExitCode, GputopoError, HardwareError
from gputopo.values.option import Given, OptionsOf

if TYPE_CHECKING:
    from gputopo.launch.jobs.screen import ScreenCell
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target
    from gputopo.values.run.several_runs import Kind, Screen, ScreenRun


MakeCell = Callable[["Kind", Sequence[int], str], "ScreenCell"]
FailOn = Literal["warning", "error"]


class ScreenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to screen, how long, and how it is shown."""

    model: Annotated[str, parse_model]
    gpus: Annotated[tuple[int, ...] | None, parse_gpu_list] = None
    exclude: Annotated[tuple[int, ...], parse_gpu_list] = ()
    batch_size: int | None = None
    quick: bool = False
    pairs: bool = False
    cpu: bool = False
    num_batches: int | None = None
    seconds: float | None = None
    output: Annotated[str | None, read_folder] = None
    shape: Literal["table", "json"] = "table"
    fail_on: FailOn | None = None


def screen(options: Annotated[ScreenOptions, OptionsOf(ScreenOptions)]) -> int:
    """Train on each GPU alone, then on all at once; show which are slow, and what their clocks explain.

    Without an NVIDIA device, or with --cpu, logical CPU devices are screened, which every output shows. The
    runs are stored: plan predicts from them, and the next screen is compared with this one.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input; 3 the hardware or the driver cannot do
    it; 130, 143 ended by Ctrl-C, SIGTERM.
    """
    from gputopo.launch.supervise import run_folder as runs
    from gputopo.report.runs.screen import screen_document

    _require_new(options.output)
    with contextlib.ExitStack() as claims:
        chosen, cells, cell = _cells(options, claims)
        home = runs.runs_home(os.environ)
        new = options.output is None
        folder = runs.new_folder(home, datetime.now(), options.model) if new else Path(str(options.output))
        found, code = _screened(chosen, cells, cell, folder, home, quick=options.quick)
    to_stderr(f"Run folder: {folder}\n")
    show_report(found, lambda: screen_document(found), options.shape)
    if code:
        return code
    if all(row.alone is None for row in found.devices):
        cause = next((row.failure for row in found.devices if row.failure), "nothing was measured")
        raise HardwareError(f"no device could be run: {cause}", f"see the logs of the runs in {folder}")
    return _exit_code(found, options.fail_on)


def _require_new(output: str | None) -> None:
    """Raise InputError where the folder holds a run or a screen."""
    from gputopo.launch.jobs.screen import FILE
    from gputopo.launch.supervise import run_folder as runs
    from gputopo.values.errors import InputError
    from gputopo.values.run.several_runs import SCREEN_RUNS

    if output is None:
        return
    runs.check_output(Path(output))
    if (Path(output) / FILE).exists() or (Path(output) / SCREEN_RUNS).exists():
        raise InputError(f"{output} holds another screen", "name a new folder with --output")


def _cells(
    options: ScreenOptions, claims: contextlib.ExitStack
) -> "tuple[Target, list[ScreenCell], MakeCell]":
    """Return the target of all devices, whose GPUs are claimed, the runs, and what makes another one."""
    from gputopo.launch.jobs.before import known_of, past_of
    from gputopo.launch.jobs.screen import QUICK_COUNTED_S, ScreenCell
    from gputopo.launch.jobs.trials import COUNTED_S, trial, trial_of

    on = PlannedOn(planned_machine(()), cpu=options.cpu, keep=1, trains=True)
    batch = {} if options.batch_size is None else {"batch_size": options.batch_size}
    placement = Given({"gpus": options.gpus, "exclude": options.exclude})
    job = AskedJob(options.model, placement, Given(batch, batch))
    counted_s = options.seconds or (QUICK_COUNTED_S if options.quick else COUNTED_S)
    request = on.with_costs(job.request)
    chosen = prepare(job, on, claims, request)
    warn(chosen.plan)
    warn_of_tensorflow(chosen)
    past = past_of(chosen)
    count = len(chosen.plan.choice.gpus) or chosen.cpu_devices
    numbers = chosen.plan.choice.gpus or tuple(range(count))
    on_gpu = chosen.backend == "gpu"

    def cell(kind: "Kind", some: Sequence[int], update: str = "auto") -> ScreenCell:
        wanted = msgspec.structs.replace(
            request,
            gpus=tuple(some) if on_gpu else None,
            num_gpus=None if on_gpu else len(some),
            exclude=(),
            variable_update=update,
        )
        one = on.target(wanted)
        spec = runnable(job, one, OutputOptions())
        short = trial_of(spec, counted_s=counted_s, num_batches=options.num_batches)
        order = one.plan.choice.gpus or tuple(some)
        return ScreenCell(kind, order, trial(one, short, os.environ, known_of(one, short, past)))

    cells = [cell("alone", (number,)) for number in numbers]
    if count > 1:
        cells += [cell("independent", numbers, "independent"), cell("together", numbers)]
    if options.pairs and count > 2:
        cells += [cell("pair", pair) for pair in combinations(sorted(numbers), 2)]
    return chosen, cells, cell


def _screened(
    chosen: "Target",
    cells: "Sequence[ScreenCell]",
    make: "MakeCell",
    folder: Path,
    home: Path,
    *,
    quick: bool,
) -> "tuple[Screen, int]":
    """Run the cells, store what they show, and return it with the code of a signal."""
    from gputopo.cli.run.showing import cell_display
    from gputopo.launch.jobs import screen as job
    from gputopo.launch.supervise import signals
    from gputopo.probes.run_watch import RunWatch
    from gputopo.report.runs.screen import run_line
    from gputopo.runs.screen import device_rows
    from gputopo.topology.identities import without_identities
    from gputopo.values import schema

    began, names = time.monotonic(), _names(chosen, cells)
    blank = _blank(chosen, cells[0].trial.spec, len(names), quick=quick)
    path, last = _last(home, folder, blank)
    noun = "GPU" if chosen.backend == "gpu" else "CPU device"

    def store(measured: "tuple[ScreenRun, ...]", complete: bool) -> "Screen":
        """Store what there is: a screen that is killed leaves the runs until then."""
        found = msgspec.structs.replace(
            blank,
            devices=device_rows(names, measured, last, noun=noun),
            runs=measured,
            seconds=round(time.monotonic() - began, 3),
            complete=complete,
            last=path,
        )
        with signals.deferred():
            folder.mkdir(parents=True, exist_ok=True)
            if chosen.box is not None:
                schema.write(folder / "machine.json", without_identities(chosen.box))
            schema.write(folder / job.FILE, found)
        return found

    def on_run(run: "ScreenRun", measured: "tuple[ScreenRun, ...]") -> None:
        to_stderr(f"{run_line(run, noun)}\n")
        store(measured, False)

    def without(cell: "ScreenCell", numbers: Sequence[int]) -> "ScreenCell | None":
        """Return a run of several devices with some of them; None where there is no plan for these."""
        with contextlib.suppress(GputopoError):
            return make(cell.kind, numbers, "independent" if cell.kind == "independent" else "auto")
        return None

    measured, code, complete = job.measure(
        cells,
        folder,
        machine=chosen.machine,
        open_sampler=RunWatch,
        budget_s=job.QUICK_S if quick else None,
        without=without,
        on_run=on_run,
        display=cell_display,
        command=worker_command,
    )
    return store(measured, complete), code


def _names(chosen: "Target", cells: "Sequence[ScreenCell]") -> dict[int, str | None]:
    """Return the models of the devices, by number."""
    known = {} if chosen.machine is None else {gpu.index: gpu.name for gpu in chosen.machine.gpus}
    return {one.numbers[0]: known.get(one.numbers[0]) for one in cells if one.kind == "alone"}


def _blank(chosen: "Target", spec: "RunSpec", count: int, *, quick: bool) -> "Screen":
    """Return a screen of so many devices before its first run."""
    from gputopo.topology.same_machine import fingerprint
    from gputopo.values.run.several_runs import Screen

    on_cpu = (
        f"{chosen.why_cpu}: {count} logical CPU devices, which share all cores, are screened one at a time; "
        "a slow one shows the noise of repetitions, not a fault.",
    )
    return Screen(
        model=spec.model,
        batch_size=spec.batch_size,
        backend=spec.backend,
        says=() if chosen.why_cpu is None else on_cpu,
        devices=(),
        runs=(),
        seconds=0.0,
        quick=quick,
        complete=False,
        fingerprint=None if chosen.machine is None else fingerprint(chosen.machine),
    )


def _last(home: Path, folder: Path, now: "Screen") -> "tuple[str | None, Screen | None]":
    """Return folder and contents of the last screen of this job on this machine."""
    from gputopo.launch.supervise.run_folder import latest_screens

    def job(one: "Screen") -> object:
        return one.model, one.batch_size, one.backend, one.fingerprint

    if now.fingerprint is None:
        return None, None
    for path, then in latest_screens(home):
        if path != folder and job(then) == job(now):
            return str(path), then
    return None, None


def _exit_code(found: "Screen", fail_on: FailOn | None) -> int:
    failed = any(run.failure is not None for run in found.runs)
    if fail_on is not None and failed:
        return ExitCode.FINDINGS
    is_slow = fail_on == "warning" and any(row.is_outlier for row in found.devices)
    return ExitCode.FINDINGS if is_slow else ExitCode.OK
