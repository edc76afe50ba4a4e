"""The cells of a sweep as runs on this machine; their options are parsed as in `gputopo run`."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gputopo import __version__
from gputopo.launch.checks import require_runnable
from gputopo.launch.job import Job, parse_model
from gputopo.launch.jobs.before import known_of, past_of
from gputopo.launch.jobs.sweep import DATA, FILE
from gputopo.launch.jobs.sweep_seconds import predicted_s
from gputopo.launch.jobs.trials import Trial, trial_of
from gputopo.launch.site import Site
from gputopo.launch.target import Target
from gputopo.planner import hidden_gpus
from gputopo.report import note
from gputopo.sweeps import (
    IMAGENET,
    MADE,
    PRESETS,
    CellBox,
    Matrix,
    expand_matrix,
    matrix_source,
    parse_matrix,
)
from gputopo.values import schema
from gputopo.values.errors import GputopoError, InputError, UsageError
from gputopo.values.option import Declared, Given, Option, given_of, listed, options_of
from gputopo.values.run.options import OutputOptions, SweepOptions
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.plan import mode_words
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import BY_TIME, Sweep, SweepCell
from gputopo.values.run.spec import Data, RunSpec

_ALL_WRITE = "all cells would write to it"
_ONE_RUN = "it is for one run"
UNFIT: Mapping[str, str] = {
    **dict.fromkeys(("checkpoints", "export", "tensorboard"), _ALL_WRITE),
    **dict.fromkeys(("checkpoint_steps", "keep_checkpoints", "resume", "trace"), _ONE_RUN),
    "cpu": "give --cpu to gputopo sweep",
    "repeats": "write repeats = N instead, at the top or in a table of the matrix",
}
"""Options of `gputopo run` that a cell cannot have, and why."""
_MODEL = Declared(
    Option("--model", "Model to train, such as alexnet", value="NAME", read=parse_model), "model", str, None
)


@cache
def known_options() -> Mapping[str, Declared]:
    """Return the options of a cell by name."""
    declared = (*options_of(PlanOptions), *options_of(RunSpec))
    options = {option.name.rstrip("_"): option for option in declared}
    return {"model": _MODEL, **{name: option for name, option in options.items() if name not in UNFIT}}


def cell_box(site: Site, *, asked: frozenset[str], taken: Mapping[int, str] = {}) -> CellBox:
    """Return the properties of this machine that cells depend on. Raises HardwareError for a broken driver.

    `taken`: GPUs that cells cannot use.
    """
    if site.why_cpu is not None:
        return CellBox(backend="cpu", why_cpu=site.why_cpu, asked=asked)
    machine, hidden = site.machine, hidden_gpus(os.environ, site.machine)
    gpus = [gpu.index for gpu in machine.gpus if not gpu.lost and gpu.index not in {*hidden, *taken}]
    links = {}
    for link in machine.links:
        hop = "unknown" if link.hop is None else link.hop.value
        links[link.a, link.b] = f"NV{link.nvlinks}" if link.nvlinks else hop
    return CellBox(backend="gpu", gpus=tuple(gpus), links=links, default_devices=len(gpus), asked=asked)


class Planned(NamedTuple):
    """The cells with their plans, and the runs of the cells that can run, by cell number."""

    cells: tuple[SweepCell, ...]
    trials: dict[int, Trial]


class Cells:
    """Makes runs from cells. `folder`: of the sweep. `claimed`: GPUs of other processes, with the holder.

    `imagenet`: folder of records; if None, images are generated later.
    """

    def __init__(
        self, site: Site, folder: Path, *, claimed: Mapping[int, str], imagenet: str | None = None
    ) -> None:
        self._site = site
        self._folder = folder
        self._claimed = claimed
        self._imagenet = imagenet
        self._targets: dict[str, Target] = {}
        self._warnings: set[str] = set()

    def planned(self, cells: Sequence[SweepCell], *, dry: bool = False) -> Planned:
        """Return the cells with their plans, or with the reason of a refusal. `dry`: makes no runs."""
        past: list[Result] | None = None
        cells_planned: list[SweepCell] = []
        trials: dict[int, Trial] = {}
        for cell in cells:
            if cell.state not in ("pending", "running"):
                cells_planned.append(cell)
                continue
            try:
                target, spec = self._run_of(cell)
            except GputopoError as error:
                reason = f"{error.what}; {error.hint}"
                cells_planned.append(msgspec.structs.replace(cell, state="refused", reason=reason))
                continue
            for warning in target.plan.warnings:
                if warning not in self._warnings:
                    self._warnings.add(warning)
                    note(warning)
            if not dry:
                past = past_of(target) if past is None else past
                trials[cell.number] = Trial(target, spec, known_of(target, spec, past))
            cells_planned.append(_with_plan(cell, target, spec))
        return Planned(tuple(cells_planned), trials)

    def _run_of(self, cell: SweepCell) -> tuple[Target, RunSpec]:
        """Plan for a cell. Raises GputopoError if its options do not go together, or do not work here."""
        texts: dict[str, Any] = {}
        for name, value in cell.options.items():
            declared = known_options()[name]
            is_list = declared.option.repeated and value is not True
            texts[declared.name] = str(value).split(",") if is_list else value
        model = texts.pop("model", None)
        if model is None:
            raise UsageError("the cell has no model", 'add model = "alexnet" to the matrix')
        made = texts.pop("data_dir") if texts.get("data_dir") in MADE else None
        placement, training = given_of(PlanOptions, texts), given_of(RunSpec, texts)
        fields, typed = dict(training.fields), dict(training.typed)
        if made is not None:
            name = str(made).removeprefix("made:")
            folder = self._imagenet if made == IMAGENET and self._imagenet else self._made_folder(name)
            data = msgspec.structs.replace(fields.get("data", Data()), folder=folder, name=name)
            fields["data"], typed = data, {**typed, "data_dir": folder, "data_name": name}
        job = Job(str(model), placement, Given(fields, typed))
        request = self._site.with_costs(job.request)
        key = repr(request)  # many cells have the same request
        if key not in self._targets:
            self._targets[key] = self._site.target(request, self._claimed)
        chosen = job.placed(self._targets[key])
        spec = job.spec_of(chosen)
        as_made = spec
        if made is not None and not (made == IMAGENET and self._imagenet):  # its folder is created later
            data = msgspec.structs.replace(spec.data, folder=None)
            as_made = msgspec.structs.replace(spec, data=data)
        require_runnable(chosen, as_made, OutputOptions())
        return chosen, spec if cell.counted_s is None else trial_of(spec, counted_s=cell.counted_s)

    def _made_folder(self, name: str) -> str:
        return str((self._folder / DATA / name).absolute())


def made_data(sweep: Sweep) -> tuple[str, ...]:
    """Return the names of the data sets that have to be generated for pending cells."""
    wanted = {cell.options.get("data_dir") for cell in sweep.cells if cell.state in ("pending", "running")}
    if "data_dir" in sweep.asked:
        wanted.discard(IMAGENET)
    return tuple(data.removeprefix("made:") for data in MADE if data in wanted)


def _with_plan(cell: SweepCell, target: Target, spec: RunSpec) -> SweepCell:
    choice = target.plan.choice
    return msgspec.structs.replace(
        cell,
        mode=mode_words(choice) if spec.method is None and spec.strategy is None else None,
        gpus=choice.gpus,
        devices=len(spec.devices),
        predicted_s=predicted_s(
            images_per_sec=choice.images_per_sec,
            joint_batch=spec.joint_batch,
            warmup=spec.num_warmup_batches,
            counted=spec.batch_limit,
            counted_s=spec.time_budget_s,
        ),
    )


def new_sweep(options: SweepOptions) -> tuple[Sweep, Matrix]:
    """Return the manifest of a new sweep, without cells, and its matrix. Raises GputopoError."""
    sources = [source for source in (options.preset, options.matrix, options.typed) if source is not None]
    if len(sources) != 1:
        what = "a preset, --matrix and --model cannot be combined" if sources else "nothing to sweep"
        raise UsageError(
            what, f"give a preset ({listed(PRESETS)}), a file with --matrix, or models: --model alexnet"
        )
    origin, text = matrix_source(options)
    asked = options.of_cells
    seed = asked.pop("seed", None)
    matrix = _matrix(text, origin, asked)
    if matrix.order != "random" and seed is not None:
        raise UsageError("--seed is for a random order", "add --order random, or remove --seed")
    if matrix.order == "random":
        seed = next(chosen for chosen in (seed, matrix.seed, int(time.time())) if chosen is not None)
    blank = Sweep(
        title=matrix.title,
        origin=origin,
        matrix=text,
        backend="cpu",
        cells=(),
        asked=asked,
        # Defaults of options by which runs are compared, and which do not depend on a model or machine.
        defaults={name: known_options()[name].default for name in ("precision", "data_source", "xla")},
        seed=seed,
        began_at=time.time(),
        cool_down_s=matrix.cool_down_s,
        cool_down_c=matrix.cool_down_c,
        time_budget_s=matrix.time_budget_s,
        version=__version__,
    )
    return blank, matrix


def stored_sweep(folder: Path, options: SweepOptions) -> tuple[Sweep, Matrix]:
    """Return the manifest of the sweep in a folder, and its matrix. Raises GputopoError.

    A preset or file that is also given must be the sweep's own, unchanged. Refused cells are tried again,
    because memory may be free now, or a missing folder may exist.
    """
    path = folder / FILE
    try:
        sweep = schema.decode(path.read_bytes(), Sweep, origin=str(path))
    except OSError as error:
        raise InputError(
            f"{folder} holds no sweep: {path.name}: {error.strerror}", "give the folder of a sweep"
        ) from error
    if options.preset is not None or options.matrix is not None or options.typed is not None:
        origin, text = matrix_source(options)
        if _matrix(text, origin, {}) != _matrix(sweep.matrix, sweep.origin, {}):
            raise InputError(
                f"{origin} is no longer the matrix of the sweep in {folder}",
                f"remove it to continue with the stored matrix ({FILE} has it), or start a new sweep",
            )
    asked = {name: value for name, value in options.of_cells.items() if name != "seed"}
    if options.resume is None and (asked != sweep.asked or options.seed not in (None, sweep.seed)):
        raise InputError(
            f"{folder} holds a sweep with other options",
            f"continue it unchanged with --resume {folder}, or use a new folder with --output",
        )
    again = ("refused", "failed") if options.retry_failed else ("refused",)
    blank: dict[str, Any] = {"state": "pending", "reason": None, "began_at": None, "seconds": None}
    cells = (msgspec.structs.replace(cell, **blank) if cell.state in again else cell for cell in sweep.cells)
    sweep = msgspec.structs.replace(sweep, cells=tuple(cells))
    return sweep, _matrix(sweep.matrix, sweep.origin, sweep.asked)


def with_pauses(blank: Sweep, pace: SweepOptions) -> Sweep:
    """Return the manifest with the given pauses and time budget; options that are not given do not change.

    The time budget continues with its remaining seconds. If it ended the sweep, it starts again.
    """
    given = {"cool_down_s": pace.cool_down, "cool_down_c": pace.cool_below, "time_budget_s": pace.time_budget}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "time_budget_s" in changed or blank.ended_by == BY_TIME:
        changed["budget_from_s"] = blank.seconds
    return msgspec.structs.replace(blank, **changed)


def with_cells(blank: Sweep, matrix: Matrix, box: CellBox, machine: str | None) -> Sweep:
    """Return the manifest with the cells of this machine; a resumed sweep keeps the state of its cells.

    `machine`: its fingerprint. Raises InputError if the cells of a resumed sweep are no longer the same.
    """
    expanded = expand_matrix(matrix, box)
    if not blank.cells:
        return msgspec.structs.replace(
            blank,
            cells=expanded.cells,
            excluded=expanded.excluded,
            duplicates=expanded.duplicates,
            backend=box.backend,
            fingerprint=machine,
            says=_says(blank, box, expanded.cells),
        )
    if blank.fingerprint != machine or blank.backend != box.backend:
        raise InputError(
            "the sweep began on another machine", "start a new sweep: speeds of two machines cannot be mixed"
        )
    new, gone = expanded.differences(blank.cells)
    if new or gone:
        raise InputError(
            f"the cells differ from those of the sweep: {new} are new, {gone} are gone",
            "check that all GPUs are free, or start a new sweep",
        )
    return msgspec.structs.replace(blank, complete=False, ended_by=None)


def _says(blank: Sweep, box: CellBox, cells: Sequence[SweepCell]) -> tuple[str, ...]:
    says = []
    if box.backend == "cpu":
        says.append(f"{box.why_cpu}: cells run on logical CPU devices, which share all cores.")
    if blank.seed is not None:
        says.append(f"Cells run in random order, seed {blank.seed}.")
    if "data_dir" in blank.asked:
        says.append(f"Records of ImageNet: {blank.asked['data_dir']}.")
    elif any(str(cell.options.get("data_dir")).startswith("made:") for cell in cells):
        says.append("Real input: a few generated images, created for the sweep (--data-dir for others).")
    return tuple(says)


def _matrix(text: str, origin: str, asked: dict[str, Any]) -> Matrix:
    matrix = parse_matrix(text, known_options(), origin=origin, unfit=UNFIT)
    return msgspec.structs.replace(matrix, order=asked.get("order", matrix.order))
