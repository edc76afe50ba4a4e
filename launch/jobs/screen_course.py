"""A screen from its options to its result: runs of each device by itself and of all devices together."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from gputopo.launch.checks import runnable
from gputopo.launch.job import Job, parse_model
from gputopo.launch.jobs import screen as screening
from gputopo.launch.jobs.before import known_of, past_of
from gputopo.launch.jobs.run import Display
from gputopo.launch.jobs.screen import FILE, QUICK_COUNTED_S, ScreenCell
from gputopo.launch.jobs.trials import COUNTED_S, Trial, trial_of
from gputopo.launch.site import Site
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise import signals
from gputopo.launch.target import Target
from gputopo.runs import device_rows
from gputopo.topology import fingerprint, without_identities
from gputopo.values import schema
from gputopo.values.errors import GputopoError, InputError
from gputopo.values.machine import Machine
from gputopo.values.option import Given
from gputopo.values.run.options import OutputOptions, ScreenOptions
from gputopo.values.run.several_runs import SCREEN_RUNS, Kind, Screen, ScreenRun
from gputopo.values.run.spec import RunSpec

MakeCell = Callable[[Kind, Sequence[int], str], ScreenCell]


def screen_devices(
    options: ScreenOptions,
    read_machine: Callable[[], Machine],
    *,
    on_run: Callable[[ScreenRun, str], None],
    display: Display,
) -> tuple[Screen, Path, int]:
    """Screen the devices of a machine, and store the screen.

    Return it, its folder, and a signal's exit code (0: none). `read_machine`: called after the options are
    checked. `on_run`: gets each run, and the noun for its devices. Raises GputopoError.
    """
    batch = {} if options.batch_size is None else {"batch_size": options.batch_size}
    placement = Given({"gpus": options.gpus, "exclude": options.exclude})
    job = Job(parse_model("--model", options.model), placement, Given(batch, batch))
    runs.check_output(options.output)
    if options.output is not None and any(
        (Path(options.output) / name).exists() for name in (FILE, SCREEN_RUNS)
    ):
        raise InputError(f"{options.output} holds another screen", "use a new folder with --output")
    site = Site(read_machine(), cpu=options.cpu, keep=1, trains=True)
    with contextlib.ExitStack() as claims:
        chosen, cells, make = _cells(job, site, options, claims)
        folder = runs.folder_for(options.output, options.model)
        screen, code = _screened(chosen, cells, make, folder, options.quick, on_run, display)
    return screen, folder, code


def _cells(
    job: Job, site: Site, options: ScreenOptions, claims: contextlib.ExitStack
) -> tuple[Target, list[ScreenCell], MakeCell]:
    """Return the target of all devices, the cells, and a function that makes more cells; claim the GPUs."""
    counted_s = options.seconds or (QUICK_COUNTED_S if options.quick else COUNTED_S)
    request = site.with_costs(job.request)
    chosen = job.planned_on(site, claims, request)
    past = past_of(chosen)
    count = chosen.counted
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
        target = site.target(wanted)
        spec = runnable(job, target, OutputOptions())
        short = trial_of(spec, counted_s=counted_s, num_batches=options.num_batches)
        order = target.plan.choice.gpus or tuple(some)
        return ScreenCell(kind, order, Trial(target, short, known_of(target, short, past)))

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
    quick: bool,
    on_run: Callable[[ScreenRun, str], None],
    display: Display,
) -> tuple[Screen, int]:
    """Run the cells and store the screen; return it with the exit code of a signal."""
    began = time.monotonic()
    models = {gpu.index: gpu.name for gpu in chosen.site.machine.gpus} if chosen.machine is not None else {}
    names = {cell.numbers[0]: models.get(cell.numbers[0]) for cell in cells if cell.kind == "alone"}
    blank = _blank(chosen, cells[0].trial.spec, len(names), quick=quick)
    path, last = _last(folder, blank)
    noun = "GPU" if chosen.backend == "gpu" else "CPU device"

    def store(measured: tuple[ScreenRun, ...], complete: bool) -> Screen:
        """Store the runs so far, so that a screen that is killed leaves them."""
        screen = msgspec.structs.replace(
            blank,
            devices=device_rows(names, measured, last, noun=noun),
            runs=measured,
            seconds=round(time.monotonic() - began, 3),
            complete=complete,
            last=path,
        )
        with signals.deferred():
            folder.mkdir(parents=True, exist_ok=True)
            schema.write(folder / "machine.json", without_identities(chosen.site.machine))
            schema.write(folder / screening.FILE, screen)
        return screen

    def ran(run: ScreenRun, measured: tuple[ScreenRun, ...]) -> None:
        on_run(run, noun)
        store(measured, False)

    def without(cell: ScreenCell, numbers: Sequence[int]) -> ScreenCell | None:
        """Return a cell with fewer devices, or None if they cannot be planned."""
        with contextlib.suppress(GputopoError):
            return make(cell.kind, numbers, "independent" if cell.kind == "independent" else "auto")
        return None

    measured, code, complete = screening.measure_cells(
        cells,
        folder,
        budget_s=screening.QUICK_S if quick else None,
        without=without,
        on_run=ran,
        display=display,
    )
    return store(measured, complete), code


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


def _last(folder: Path, now: Screen) -> tuple[str | None, Screen | None]:
    """Return the folder and contents of the last screen of this job on this machine."""

    def job(screen: Screen) -> object:
        return screen.model, screen.batch_size, screen.backend, screen.fingerprint

    if now.fingerprint is None:
        return None, None
    for path, then in runs.latest_screens(runs.runs_home(os.environ)):
        if path != folder and job(then) == job(now):
            return str(path), then
    return None, None
