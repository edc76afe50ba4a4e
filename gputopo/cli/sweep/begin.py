"""The manifest that a sweep begins or goes on with."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gputopo import __version__
from gputopo.cli.sweep.cells import UNFIT, known_options, lasting_defaults
from gputopo.cli.sweep.options import CellOptions, PaceOptions
from gputopo.launch.jobs.sweep import FILE
from gputopo.sweeps.expand import Box, differences, expand
from gputopo.sweeps.matrix import MAX_BYTES, PRESETS, Matrix, preset_text, read
from gputopo.values import schema
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import listed
from gputopo.values.run.several_runs import BY_TIME, Sweep, SweepCell


def begun(preset: str | None, file: Path | None, options: CellOptions) -> tuple[Sweep, Matrix]:
    """Return the manifest of a new sweep, without cells, and its matrix. Raises GputopoError."""
    if (preset is None) == (file is None):
        what = "nothing to sweep" if preset is None else "--matrix cannot be combined with a preset"
        raise UsageError(what, f"name a preset ({listed(PRESETS)}), or a file with --matrix")
    origin, text = _source(preset, file)
    asked = options.given
    seed = asked.pop("seed", None)
    matrix = _matrix(text, origin, asked)
    if matrix.order != "random" and seed is not None:
        raise UsageError("--seed is for a random order", "add --order random, or leave --seed out")
    if matrix.order == "random":
        seed = next(one for one in (seed, matrix.seed, int(time.time())) if one is not None)
    blank = Sweep(
        title=matrix.title,
        origin=origin,
        matrix=text,
        backend="cpu",
        cells=(),
        asked=asked,
        defaults=lasting_defaults(),
        seed=seed,
        began_at=time.time(),
        cool_down_s=matrix.cool_down_s,
        cool_down_c=matrix.cool_down_c,
        time_budget_s=matrix.time_budget_s,
        version=__version__,
    )
    return blank, matrix


def resumed(
    folder: Path, preset: str | None, file: Path | None, *, retry_failed: bool
) -> tuple[Sweep, Matrix]:
    """Return the manifest of a folder's sweep, and its matrix. Raises GputopoError.

    A preset or a file beside it must be that of the sweep, unchanged. Cells that were refused are asked for
    again: memory may be free now, or a folder there.
    """
    path = folder / FILE
    try:
        found = schema.decode(path.read_bytes(), Sweep, origin=str(path))
    except OSError as error:
        raise InputError(
            f"{folder} holds no sweep: {path.name}: {error.strerror}", "name the folder of a sweep"
        ) from error
    if preset is not None or file is not None:
        origin, text = _source(preset, file)
        if _matrix(text, origin, {}) != _matrix(found.matrix, found.origin, {}):
            raise InputError(
                f"{origin} is no longer the matrix of the sweep in {folder}",
                f"leave it out to go on with the matrix as it was ({FILE} has it), or begin a new sweep",
            )
    again = ("refused", "failed") if retry_failed else ("refused",)
    blank: dict[str, Any] = {"state": "pending", "reason": None, "began_at": None, "seconds": None}
    cells = (msgspec.structs.replace(cell, **blank) if cell.state in again else cell for cell in found.cells)
    found = msgspec.structs.replace(found, cells=tuple(cells))
    return found, _matrix(found.matrix, found.origin, found.asked)


def paced(blank: Sweep, pace: PaceOptions) -> Sweep:
    """Return the manifest at this pace; what is not given stays as it was.

    Of the time budget that is what is left; where it ended the sweep, as many seconds again.
    """
    given = {"cool_down_s": pace.cool_down, "cool_down_c": pace.cool_below, "time_budget_s": pace.time_budget}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "time_budget_s" in changed or blank.ended_by == BY_TIME:
        changed["budget_from_s"] = blank.seconds
    return msgspec.structs.replace(blank, **changed)


def with_cells(blank: Sweep, matrix: Matrix, box: Box, machine: str | None) -> Sweep:
    """Return the manifest with the cells of this machine, those of a resumed sweep as far as they came.

    `machine`: its fingerprint. Raises InputError where the cells of a resumed sweep are no longer the same.
    """
    found = expand(matrix, box)
    if not blank.cells:
        return msgspec.structs.replace(
            blank,
            cells=found.cells,
            excluded=found.excluded,
            duplicates=found.duplicates,
            backend=box.backend,
            fingerprint=machine,
            says=_says(blank, box, found.cells),
        )
    if blank.fingerprint != machine or blank.backend != box.backend:
        raise InputError(
            "the sweep began on another machine", "begin a new one: speeds of two cannot be mixed"
        )
    new, gone = differences(blank.cells, found.cells)
    if new or gone:
        raise InputError(
            f"the cells are no longer those of the sweep: {new} are new, {gone} are gone",
            "are all GPUs free, as when it began? Otherwise begin a new sweep",
        )
    return msgspec.structs.replace(blank, complete=False, ended_by=None)


def _says(blank: Sweep, box: Box, cells: Sequence[SweepCell]) -> tuple[str, ...]:
    says = []
    if box.backend == "cpu":
        says.append(f"{box.why_cpu}: cells run on logical CPU devices, which share all cores.")
    if blank.seed is not None:
        says.append(f"Cells run in random order, seed {blank.seed}.")
    if "data_dir" in blank.asked:
        says.append(f"Records of ImageNet: {blank.asked['data_dir']}.")
    elif any(str(cell.options.get("data_dir")).startswith("made:") for cell in cells):
        says.append("Real input: a few drawn images, made for the sweep (--data-dir names others).")
    return tuple(says)


def _source(preset: str | None, file: Path | None) -> tuple[str, str]:
    """Return the name and the text of a matrix. Raises InputError, UsageError."""
    if file is None:
        assert preset is not None
        return preset, preset_text(preset)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(f"{file} is too large for a matrix", f"at most {MAX_BYTES >> 20} MiB are read")
        return file.name, file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", "name a TOML file with --matrix") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is no text in UTF-8", "name a TOML file with --matrix") from error


def _matrix(text: str, origin: str, asked: dict[str, Any]) -> Matrix:
    found = read(text, known_options(), origin=origin, unfit=UNFIT)
    return msgspec.structs.replace(found, order=asked.get("order", found.order))
