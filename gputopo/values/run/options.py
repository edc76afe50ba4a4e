"""What is asked of runs beside their plans and trainings: output, what a screen or a sweep covers."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import shown
from gputopo.values.run.placement import parse_gpu_list
from gputopo.values.run.readers import read_alarm, read_data_folder, read_folder


def read_written_file(flag: str, text: str) -> str:
    """Return the absolute path of a file that may be replaced. Raises UsageError, InputError."""
    if not text.strip():
        raise UsageError(f"{flag} names no file: it is empty", "name a file")
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        raise InputError(f"{flag} {shown(text)} is a folder", "name a file in it")
    return str(path)


def _read_sbatch(flag: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return options of a batch script. Raises UsageError for one that is none."""
    for text in texts:
        if re.fullmatch(r"[a-z][a-z-]*(=[^\s\x00-\x1f]+)?", text) is None:
            raise UsageError(
                f"{flag} cannot be {shown(text)}", "write it as in sbatch(1), such as partition=gpu"
            )
    return texts


Shape = Literal["table", "json", "tf-cnn-log", "env", "sbatch", "docker", "hostfile"]


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a run beside its training. `output`: its folder, absolute; None: a new one."""

    repeats: int = 1
    autotune: int | None = None
    require_gpu: bool = False
    cpu: bool = False
    no_affinity: bool = False
    output: Annotated[str | None, read_folder] = None
    shape: Shape = "table"
    sbatch_options: Annotated[tuple[str, ...], _read_sbatch] = ()
    verbose: bool = False
    display_every: int | None = None
    restart: int = 0
    stall_timeout: float | Literal["auto"] | None = None
    prometheus: Annotated[str | None, read_written_file] = None
    on_anomaly: Annotated[str | None, read_alarm] = None
    fail_on: Literal["warning", "error"] | None = None
    dry_run: bool = False


class ScreenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to screen, how long, and how it is shown. `model`: as typed."""

    model: str
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
    fail_on: Literal["warning", "error"] | None = None


def _values(_flag: str, text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


# Options of a sweep: values beside the matrix and in it, and what changes the cells of a new one.
_BESIDE = ("repeats", "seconds")
_AXES = ("model", "num_gpus", "batch_size", "variable_update", "precision")
_CELLS = ("compare_pairs", "data_dir", "order", "seed", "cpu")


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to sweep. Of the pace None: as the sweep began, at first as the matrix states."""

    preset: str | None = None
    matrix: Path | None = None
    output: Annotated[str | None, read_folder] = None
    resume: Annotated[str | None, read_folder] = None
    retry_failed: bool = False
    model: Annotated[tuple[str, ...] | None, _values] = None
    num_gpus: Annotated[tuple[str, ...] | None, _values] = None
    batch_size: Annotated[tuple[str, ...] | None, _values] = None
    variable_update: Annotated[tuple[str, ...] | None, _values] = None
    precision: Annotated[tuple[str, ...] | None, _values] = None
    repeats: int | None = None
    seconds: float | None = None
    compare_pairs: bool = False
    data_dir: Annotated[str | None, read_data_folder] = None
    order: Literal["listed", "rounds", "random"] | None = None
    seed: int | None = None
    cpu: bool = False
    time_budget: float | None = None
    cool_down: float | None = None
    cool_below: float | None = None
    dry_run: bool = False
    shape: Literal["table", "json"] = "table"
    fail_on: Literal["error"] | None = None

    @property
    def typed(self) -> str | None:
        """The matrix on the command line, all combinations of its values, as the TOML text of a file.

        None where no value was given. Raises UsageError.
        """
        fields = self._given(_AXES + _BESIDE)
        if not fields:
            return None
        if self.model is None:
            flag = f"--{next(iter(fields)).replace('_', '-')}"
            raise UsageError(f"{flag} needs --model", "add --model alexnet, or write it into the matrix")
        top = [f"{name} = {fields[name]}" for name in _BESIDE if name in fields]
        values = {
            name: ", ".join(one if one.isdecimal() else json.dumps(one) for one in fields[name])
            for name in _AXES
            if name in fields
        }
        return "\n".join((*top, "[matrix]", *(f"{name} = [{one}]" for name, one in values.items()), ""))

    @property
    def of_cells(self) -> dict[str, Any]:
        """What changes the cells, by name."""
        return self._given(_CELLS)

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        fields = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in fields if value is not None and value is not False}
