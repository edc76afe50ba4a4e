"""A screen from its options to its result: runs of each device by itself and of all devices together."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path

import msgspec

from gputopo.launch.checks import runnable
from gputopo.launch.job import Job, parse_model
from gputopo.launch.jobs import screen as screening
from gputopo.launch.jobs.before import known_of, past_of
from gputopo.launch.jobs.screen import FILE, QUICK_COUNTED_S, ScreenCell
from gputopo.launch.jobs.trials import COUNTED_S, Display, trial, trial_of
from gputopo.launch.site import Site, warn
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise import signals
from gputopo.launch.target import Target
from gputopo.runs import device_rows
from gputopo.topology import fingerprint, without_identities
from gputopo.values import schema
from gputopo.values.errors import GputopoError, InputError
from gputopo.values.option import Given
from gputopo.values.run.options import OutputOptions, ScreenOptions
from gputopo.values.run.several_runs import SCREEN_RUNS, Kind, Screen, ScreenRun
from gputopo.values.run.spec import RunSpec

MakeCell = Callable[[Kind, Sequence[int], str], ScreenCell]


def require_new(output: str | None) -> None:
    """Raise InputError if the folder has a run or a screen."""
    if output is None:
        return
    runs.check_output(Path(output))
    if (Path(output) / FILE).exists() or (Path(output) / SCREEN_RUNS).exists():
        raise InputError(f"{output} holds another screen", "use a new folder with --output")


def screen_job(options: ScreenOptions) -> Job:
    """Return the training that is used for the screen. Raises UsageError for an unknown model."""
    batch = {} if options.batch_size is None else {"batch_size": options.batch_size}
    placement = Given({"gpus": options.gpus, "exclude": options.exclude})
    return Job(parse_model("--model", options.model), placement, Given(batch, batch))


def screen(
    job: Job,
    site: Site,
    options: ScreenOptions,
    *,
    on_run: Callable[[ScreenRun, str], None],
    display: Display,
) -> tuple[Screen, Path, int]:
    """Screen the devices of a site, and store the screen; return it, its folder, and a signal's exit code.

    `on_run`: gets each run, and the noun for its devices. Raises GputopoError.
    """
    with contextlib.ExitStack() as claims:
        chosen, cells, make = _cells(job, site, options, claims)
        home = runs.runs_home(os.environ)
        if options.output is None:
            folder = runs.new_folder(home, datetime.now(), options.model)
        else:
            folder = Path(options.output)
        found, code = _screened(
            chosen, cells, make, folder, home, quick=options.quick, on_run=on_run, display=display
        )
    return found, folder, code


def _cells(
    job: Job, site: Site, options: ScreenOptions, claims: contextlib.ExitStack
) -> tuple[Target, list[ScreenCell], MakeCell]:
    """Return the target of all devices, the cells, and a function that makes more cells; claim the GPUs."""
    counted_s = options.seconds or (QUICK_COUNTED_S if options.quick else COUNTED_S)
    request = site.with_costs(job.request)
    chosen = job.planned_on(site, claims, request)
    warn(chosen)
    past = past_of(chosen)
    count = len(chosen.plan.choice.gpus) or chosen.cpu_devices
    numbers = chosen.plan.choice.gpus or tuple(range(count))
    on_gpu = chosen.backend == "gpu"

    def cell(kind: Kind, some: Sequence[int], update: str = "auto") -> ScreenCell:
        wanted = msgspec.structs.replace(
            request,
            gpus=tuple(some) if on_gpu else None,
            num_gpus=None if on_gpu else len(some),
            exclude=(),
            variable_update=update,
        )
        one = site.target(wanted)
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
    chosen: Target,
    cells: Sequence[ScreenCell],
    make: MakeCell,
    folder: Path,
    home: Path,
    *,
    quick: bool,
    on_run: Callable[[ScreenRun, str], None],
    display: Display,
) -> tuple[Screen, int]:
    """Run the cells and store the screen; return it with the exit code of a signal."""
    from gputopo.probes import RunWatch

    began, names = time.monotonic(), _names(chosen, cells)
    blank = _blank(chosen, cells[0].trial.spec, len(names), quick=quick)
    path, last = _last(home, folder, blank)
    noun = "GPU" if chosen.backend == "gpu" else "CPU device"

    def store(measured: tuple[ScreenRun, ...], complete: bool) -> Screen:
        """Store the runs so far, so that a screen that is killed leaves them."""
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
            schema.write(folder / screening.FILE, found)
        return found

    def ran(run: ScreenRun, measured: tuple[ScreenRun, ...]) -> None:
        on_run(run, noun)
        store(measured, False)

    def without(cell: ScreenCell, numbers: Sequence[int]) -> ScreenCell | None:
        """Return a cell with fewer devices, or None if they cannot be planned."""
        with contextlib.suppress(GputopoError):
            return make(cell.kind, numbers, "independent" if cell.kind == "independent" else "auto")
        return None

    measured, code, complete = screening.measure(
        cells,
        folder,
        machine=chosen.machine,
        open_sampler=RunWatch,
        budget_s=screening.QUICK_S if quick else None,
        without=without,
        on_run=ran,
        display=display,
    )
    return store(measured, complete), code


def _names(chosen: Target, cells: Sequence[ScreenCell]) -> dict[int, str | None]:
    """Return the models of the devices, by number."""
    known = {} if chosen.machine is None else {gpu.index: gpu.name for gpu in chosen.machine.gpus}
    return {one.numbers[0]: known.get(one.numbers[0]) for one in cells if one.kind == "alone"}


def _blank(chosen: Target, spec: RunSpec, count: int, *, quick: bool) -> Screen:
    """Return a screen of `count` devices before its first run."""
    on_cpu = (
        f"{chosen.why_cpu}: {count} logical CPU devices that share all cores are screened one at a time; "
        "a slow one is noise between runs, not a fault.",
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


def _last(home: Path, folder: Path, now: Screen) -> tuple[str | None, Screen | None]:
    """Return the folder and contents of the last screen of this job on this machine."""

    def job(one: Screen) -> object:
        return one.model, one.batch_size, one.backend, one.fingerprint

    if now.fingerprint is None:
        return None, None
    for path, then in runs.latest_screens(home):
        if path != folder and job(then) == job(now):
            return str(path), then
    return None, None
