"""Checkpoint files: their contents, atomic writing, and the search for the newest one.

A checkpoint is an uncompressed zip of `.npy` arrays, which `numpy.load(file)` reads as an `.npz`. The header
is JSON in the member `checkpoint.json`. The zip's CRC-32 of every member detects damage. Arrays:

| array                        | what it is                                                         |
|------------------------------|--------------------------------------------------------------------|
| variables/PLACE/NAME         | a trained variable; one place, or one per tower if independent     |
| slots/PLACE/NAME/NUMBER      | the optimizer's state for this variable                            |
| state/PLACE/NAME             | moving statistics                                                  |
| scale/NUMBER                 | the state of an automatic loss scale                               |
"""

import errno
import math
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from gputopo.launch.train.lifecycle.folders import DiskError, require_empty, require_writable
from gputopo.values import schema
from gputopo.values.errors import InputError, UsageError
from gputopo.values.run.spec import Lifecycle, RunSpec
from gputopo.workload import require_workload, workload_names

HEADER = "checkpoint.json"
_NAME = re.compile(r"checkpoint-\d+\.npz")
# RuntimeError: raised if a flipped bit means "encrypted" or an unknown compression.
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, KeyError, ValueError, RuntimeError)

Array = np.ndarray[Any, Any]


class CheckpointHeader(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.checkpoint/1"
):
    """Describes the run that a checkpoint is from."""

    steps: int = 0  # steps trained so far
    model: str
    classes: int
    optimizer: str
    variable_update: str
    places: int = 1  # number of sets of variables
    seed: int
    images: int | None = None  # images used in these steps, None: unknown
    arrays: dict[str, tuple[int, ...]] = {}  # the shape of every array in the file
    finite: bool = True  # no array holds a NaN or an infinite number
    versions: dict[str, str] = {}

    @property
    def parameters(self) -> int:
        """Number of trained parameters in one set."""
        return sum(math.prod(shape) for name, shape in self.arrays.items() if name.startswith("variables/0/"))

    @property
    def alone(self) -> bool:
        """Whether every tower trained its own copy."""
        return self.variable_update == "independent"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk."""

    path: Path
    header: CheckpointHeader

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield all arrays. Raises InputError if the file is damaged."""
        try:
            with zipfile.ZipFile(self.path) as file:
                for name in self.header.arrays:
                    with file.open(f"{name}.npy") as member:
                        yield name, np.lib.format.read_array(member, allow_pickle=False)
                        if member.read(1):  # reading to the end checks the CRC
                            raise ValueError("more numbers than the shape has")
        except (*_DAMAGE, OSError) as error:
            raise _damaged(self.path, error) from error


def write_checkpoint(
    folder: Path, header: CheckpointHeader, arrays: Iterable[tuple[str, Array]]
) -> Checkpoint:
    """Write a checkpoint atomically: to a temporary file, then fsync, then rename.

    Raises DiskError if it cannot be written; earlier checkpoints are not changed.
    """
    path = folder / f"checkpoint-{header.steps:08d}.npz"
    with _replacing(path) as stream, zipfile.ZipFile(stream, "w", allowZip64=True) as file:
        shapes, finite = {}, True
        for name, array in arrays:
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
            shapes[name] = tuple(array.shape)
            finite = finite and (array.dtype.kind != "f" or bool(np.isfinite(array).all()))
        header = msgspec.structs.replace(header, arrays=shapes, finite=finite)
        file.writestr(HEADER, schema.encode_pretty(header))
    return Checkpoint(path, header)


def newest_checkpoint(folder: Path, *, verify: bool = True) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Return the intact checkpoint with the most trained steps, and remarks on skipped ones.

    The steps come from the headers, not from file names or times. Damaged files are skipped and reported. So
    are files with numbers that are not finite, because training from them would never give finite ones.
    Without `verify` only headers are read. Raises InputError if the folder cannot be read.
    """
    checkpoints, damaged = _read_headers(folder)
    for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.header.steps, reverse=True):
        try:
            if not checkpoint.header.finite:
                raise _unusable(checkpoint.path, "has numbers that are not finite")
            for _ in checkpoint.arrays() if verify else ():
                pass
        except InputError as error:
            damaged.append(error)
            continue
        taken = f"; using the checkpoint of step {checkpoint.header.steps}"
        return checkpoint, tuple(f"{error.what}{taken}" for error in damaged)
    return None, tuple(error.what for error in damaged)


def to_begin(saved: Lifecycle, *, verify: bool = True) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Return the checkpoint from which a training continues (None: from the start), and remarks.

    Raises InputError if the run must resume and there is no checkpoint, or all are damaged. Raises UsageError
    if a new run would write into a folder with checkpoints of an earlier run.
    """
    folder = Path(saved.checkpoints or ".")
    checkpoint, remarks = newest_checkpoint(folder, verify=verify)
    resumes = saved.resume or saved.resume_or_start
    if checkpoint is None and remarks and resumes:
        raise _all_damaged(remarks)
    if checkpoint is None and saved.resume and not saved.resume_or_start:
        raise InputError(
            f"there is no checkpoint in {folder} to resume",
            "give the folder of a run's checkpoints, or start from the beginning with --resume auto",
        )
    if checkpoint is not None and not resumes:
        raise UsageError(
            f"{folder} already holds a checkpoint of step {checkpoint.header.steps}",
            "continue from it with --resume, or use another folder with --checkpoints",
        )
    return checkpoint, remarks


def to_evaluate(
    spec: RunSpec, classes: int | None = None, *, verify: bool = True
) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the checkpoint that an evaluation uses, whatever way it was trained, and remarks.

    `classes`: the model's number of classes; None: not known. Raises InputError if there is no checkpoint of
    the model.
    """
    folder = Path(spec.lifecycle.checkpoints or ".")
    checkpoint, remarks = newest_checkpoint(folder, verify=verify)
    if checkpoint is None and remarks:
        raise _all_damaged(remarks)
    if checkpoint is None:
        raise InputError(
            f"there is no checkpoint in {folder}",
            "give the folder of a run's checkpoints with --checkpoints",
        )
    known = _classes(spec, checkpoint) if classes is None else classes
    require_same(checkpoint, msgspec.structs.replace(checkpoint.header, model=spec.model, classes=known))
    return checkpoint, remarks


def require_files(spec: RunSpec) -> None:
    """Check a run's folders and checkpoints before TensorFlow is loaded; create missing folders.

    Only the headers of checkpoints are read. Raises the same GputopoError as the worker would.
    """
    saved = spec.lifecycle
    if spec.task == "eval":
        if saved.checkpoints is not None:
            to_evaluate(spec, verify=False)
        return
    for option, name in (
        ("--checkpoints", saved.checkpoints),
        ("--tensorboard", saved.tensorboard),
        ("--export", saved.export),
    ):
        if name is not None:
            require_writable(Path(name), option)
    if saved.export is not None:
        require_empty(Path(saved.export))
    if saved.checkpoints is not None:
        checkpoint, _ = to_begin(saved, verify=False)
        if checkpoint is not None:
            require_same(checkpoint, header_of(spec, _classes(spec, checkpoint)))


def header_of(spec: RunSpec, classes: int, **more: Any) -> CheckpointHeader:
    """Return the header for a run's checkpoints. `more`: further fields."""
    alone = spec.variable_update == "independent"
    return CheckpointHeader(
        model=spec.model,
        classes=classes,
        optimizer=spec.optimization.optimizer,
        variable_update=spec.variable_update,
        places=len(spec.devices) if alone else 1,
        seed=spec.seed,
        **more,
    )


def _classes(spec: RunSpec, checkpoint: Checkpoint) -> int:
    """Return the model's number of classes, or the checkpoint's if the model would have to be built."""
    known = spec.model in workload_names()
    return require_workload(spec.model).classes if known else checkpoint.header.classes


def _all_damaged(damaged: Sequence[str]) -> InputError:
    return InputError(
        f"{damaged[0]}, and there is no other checkpoint",
        "remove it to start from the beginning, or use another folder with --checkpoints",
    )


def prune_checkpoints(folder: Path, keep: int) -> tuple[Path, ...]:
    """Remove all but the newest `keep` checkpoints, and temporary files of killed writers.

    Checkpoints with non-finite numbers are counted separately, so that they do not replace good ones. Damaged
    and other files are kept. Returns the removed checkpoints.
    """
    checkpoints, _ = _read_headers(folder)
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.header.steps, reverse=True)
    removed = []
    for finite in (True, False):
        of_a_kind = [checkpoint for checkpoint in ordered if checkpoint.header.finite == finite]
        for checkpoint in of_a_kind[max(keep, 1) :]:
            checkpoint.path.unlink(missing_ok=True)
            removed.append(checkpoint.path)
    for left in folder.glob(".checkpoint-*.npz.*"):
        left.unlink(missing_ok=True)
    return tuple(removed)


def require_same(checkpoint: Checkpoint, wanted: CheckpointHeader) -> None:
    """Raise InputError with the differences if a run with the header `wanted` cannot use a checkpoint."""
    header = checkpoint.header
    compared = [
        ("the model", header.model, wanted.model),
        ("the number of classes", header.classes, wanted.classes),
        ("the optimizer", header.optimizer, wanted.optimizer),
    ]
    if header.alone or wanted.alone:
        compared.append(("", _towers(header), _towers(wanted)))
    differs = [f"{what} {was}, not {now}".lstrip() for what, was, now in compared if was != now]
    if differs:
        raise InputError(
            f"{checkpoint.path} is a checkpoint of another run: it has {'; '.join(differs)} "
            f"({header.parameters:,} parameters)",
            "use the same options as for the checkpoint, or use another folder with --checkpoints",
        )


def require_shapes(checkpoint: Checkpoint, wanted: dict[str, tuple[int, ...]]) -> None:
    """Raise InputError if an array is missing in a checkpoint or has another shape."""
    for name, shape in wanted.items():
        stored = checkpoint.header.arrays.get(name)
        if stored != shape:
            has = "nothing" if stored is None else f"shape {list(stored)}"
            raise InputError(
                f"{checkpoint.path} is a checkpoint of another model: "
                f"for {name} of shape {list(shape)} it has {has}",
                "use the model and the number of classes of the checkpoint",
            )


def names_of(plain: Sequence[str]) -> list[str]:
    """Return unique names: a second `conv/kernel` becomes `conv/kernel~2`."""
    times: dict[str, int] = {}
    names = []
    for name in plain:
        times[name] = times.get(name, 0) + 1
        names.append(name if times[name] == 1 else f"{name}~{times[name]}")
    return names


def _read_headers(folder: Path) -> tuple[list[Checkpoint], list[InputError]]:
    checkpoints, damaged = [], []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".npz")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise InputError(
            f"cannot read {folder}: {error.strerror}", "use another folder with --checkpoints"
        ) from error
    for path in paths:
        try:
            with zipfile.ZipFile(path) as file:
                if HEADER in file.namelist():  # else it is another .npz
                    header = schema.decode(file.read(HEADER), CheckpointHeader, origin=str(path))
                    checkpoints.append(Checkpoint(path, header))
        except (*_DAMAGE, OSError) as error:
            if _NAME.fullmatch(path.name):
                damaged.append(_damaged(path, error))
    return checkpoints, damaged


def _towers(header: CheckpointHeader) -> str:
    return f"{header.places} separate trainings" if header.alone else "one set of variables"


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)  # else the rename may be lost in a power failure
        finally:
            os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _damaged(path: Path, error: Exception) -> InputError:
    lines = str(error).strip().splitlines()
    return _unusable(path, f"is damaged or cut short ({lines[0] if lines else type(error).__name__})")


def _unusable(path: Path, why: str) -> InputError:
    return InputError(f"{path} {why}", "remove it, or use another folder with --checkpoints")


def _unwritable(path: Path, error: OSError) -> DiskError:
    if error.errno == errno.ENOENT:
        return DiskError(
            f"cannot write {path}: its folder was removed during the run",
            "start it again, with a folder that stays there for --checkpoints",
        )
    return DiskError(
        f"cannot write {path}: {error.strerror or error}",
        "free some space or use another folder with --checkpoints; checkpoints written before are intact",
    )
