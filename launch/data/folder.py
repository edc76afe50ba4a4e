"""Data folders: the data set and its files, and the damage that can be found without reading the data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from gputopo.launch.data.cifar_files import CLASSES, RECORD_BYTES, bad_label
from gputopo.launch.data.tfrecords import walk
from gputopo.values.errors import InputError, UsageError
from gputopo.workload import require_workload, workload_names

DataName = Literal["imagenet", "cifar10"]
Form = Literal["tfrecord", "binary", "python"]
Subset = Literal["train", "validation"]
NAMES: tuple[str, ...] = get_args(DataName)
# Folders up to this size are checked record by record before the run, which takes up to a second. Larger
# folders are checked while they are read.
WALKED_BYTES = 1 << 30
_MAKE = "gputopo make-data writes a small valid folder"
_SHARD = re.compile(r"(train|validation)-([0-9]{1,9})-of-([0-9]{1,9})")
_CIFAR: dict[Form, dict[Subset, tuple[str, ...]]] = {
    "binary": {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "validation": ("test_batch.bin",)},
    "python": {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "validation": ("test_batch",)},
}
_ARCHIVES = (".tar", ".tar.gz", ".tgz")  # formats in which data sets are published
# Folders that the archives of CIFAR-10 unpack to.
_INNER = ("cifar-10-batches-bin", "cifar-10-batches-py")


@dataclass(frozen=True)
class DataFolder:
    """A data set on the disk."""

    name: DataName
    form: Form
    folder: Path
    files: dict[Subset, tuple[Path, ...]]  # by subset, sorted by name
    notices: tuple[str, ...] = field(default=())  # what must be reported with a result, such as missing files

    def of(self, subset: Subset) -> tuple[Path, ...]:
        """Return the files of a subset. Raises InputError if there are none."""
        if not self.files[subset]:
            pattern = "validation-00000-of-00128" if self.form == "tfrecord" else _CIFAR[self.form][subset][0]
            raise InputError(
                f"{self.folder} has no {subset} files", f"their names are like {pattern}; {_MAKE}"
            )
        return self.files[subset]


def find_data(folder: Path, name: str | None = None) -> DataFolder:
    """Find the data set in a folder. `name`: the requested data set; None: any, imagenet if both are there.

    Raises InputError if the folder is missing or does not hold the requested data set.
    """
    listed = _listing(folder)
    sets = [data for data in (_imagenet(folder, listed), _cifar10(folder, listed)) if data is not None]
    if not sets:
        inner = [folder / part for part in _INNER if part in listed and (folder / part).is_dir()]
        sets = [data for path in inner if (data := _cifar10(path, _listing(path))) is not None]
    if not sets:
        raise _nothing(folder, listed, name)
    fitting = [data for data in sets if name in (None, data.name)]
    if not fitting:
        raise InputError(
            f"{folder} holds {sets[0].name}, not {name}",
            f"give a folder of {name}, or choose a model for {sets[0].name}",
        )
    return fitting[0]


def find_damage(data: DataFolder, subset: Subset) -> list[tuple[Path, int, str]]:
    """List the damage that can be found without reading the data: file, record, what is wrong.

    In large folders only the first record of each file is checked. Raises InputError if a file cannot be
    opened.
    """
    files = data.of(subset)
    try:
        sizes = [file.stat().st_size for file in files]
        if data.form == "tfrecord":
            max_records = 1 if sum(sizes) > WALKED_BYTES else None
            walked = ((file, walk(file, max_records=max_records)) for file in files)
            return [
                (file, framing.records, framing.damage)
                for file, framing in walked
                if framing.damage is not None
            ]
    except OSError as error:
        raise _unreadable(data.folder, error) from error
    return [
        (
            file,
            size // RECORD_BYTES,
            f"the file ends within record {size // RECORD_BYTES}" if size else "the file is empty",
        )
        for file, size in zip(files, sizes, strict=True)
        if size == 0 or (data.form == "binary" and size % RECORD_BYTES)
    ]


def require_made_for(data: DataFolder, model: str) -> None:
    """Raise UsageError if a model of the catalogue is made for another data set."""
    known = require_workload(model).data_name if model in workload_names() else None
    if known is not None and known != data.name:
        raise UsageError(
            f"{model} is made for {known}, {data.folder} holds {data.name}",
            f"give --data-dir a folder of {known}, or choose a model for {data.name}",
        )


def require_sound(data: DataFolder, subset: Subset) -> None:
    """Raise InputError for the first bad record that can be found without TensorFlow.

    Checks lengths, and labels in CIFAR-10's binary version. The error is the same as when the record is read.
    """
    for damage in find_damage(data, subset):
        raise bad_record(*damage)
    try:
        for file in data.of(subset) if data.form == "binary" else ():
            labels = file.read_bytes()[::RECORD_BYTES]
            for number in np.flatnonzero(np.frombuffer(labels, np.uint8) >= CLASSES):
                raise bad_record(file, int(number), bad_label(labels[number]))
    except OSError as error:
        raise _unreadable(data.folder, error) from error


def bad_record(path: Path, record: int, why: str) -> InputError:
    """Return the error for a record that stops a run."""
    return InputError(
        f"{path}, record {record}: {why}",
        "download the file again, or skip such records with --bad-records skip",
    )


def count_records(data: DataFolder, subset: Subset) -> int | None:
    """Return the number of whole records of a subset, or None if counting would take long."""
    files = data.of(subset)
    try:
        total = sum(file.stat().st_size for file in files)
        if data.form == "binary":
            return sum(file.stat().st_size // RECORD_BYTES for file in files)
        if data.form == "tfrecord" and total <= WALKED_BYTES:
            return sum(walk(file).records for file in files)
    except OSError as error:
        raise _unreadable(data.folder, error) from error
    return None


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError as error:
        raise InputError(f"there is no folder {folder}", f"give --data-dir a folder; {_MAKE}") from error
    except NotADirectoryError as error:
        raise InputError(
            f"{folder} is a file, not a folder", f"give --data-dir the folder that holds the files; {_MAKE}"
        ) from error
    except OSError as error:
        raise _unreadable(folder, error) from error


def _imagenet(folder: Path, listed: Sequence[str]) -> DataFolder | None:
    matches = [shard for shard in map(_SHARD.fullmatch, listed) if shard]
    if not matches:
        return None
    files: dict[Subset, tuple[Path, ...]] = {"train": (), "validation": ()}
    notices = []
    for subset in files:
        matched = [shard for shard in matches if shard[1] == subset]
        files[subset] = tuple(folder / shard[0] for shard in matched)
        totals = sorted({int(shard[3]) for shard in matched})
        if len(totals) > 1:
            sets = " and ".join(f"-of-{total:05d}" for total in totals)
            notices.append(f"{folder} has {subset} files of several sets ({sets}): all of them are read.")
        elif totals and totals[0] > len(matched):
            notices.append(
                f"{folder} has {len(matched)} of {totals[0]} {subset} files: images of the missing files "
                "are skipped."
            )
    return DataFolder("imagenet", "tfrecord", folder, files, tuple(notices))


def _cifar10(folder: Path, listed: Sequence[str]) -> DataFolder | None:
    """Return CIFAR-10 in the form with more files, or in the binary form if the numbers are equal."""
    versions: dict[Form, dict[Subset, tuple[Path, ...]]] = {
        form: {
            subset: tuple(folder / name for name in wanted if name in listed)
            for subset, wanted in names.items()
        }
        for form, names in _CIFAR.items()
    }
    counts = {form: sum(map(len, files.values())) for form, files in versions.items()}
    form = max(counts, key=lambda form: counts[form])
    if not counts[form]:
        return None
    notices = []
    if all(counts.values()):
        notices.append(f"{folder} has CIFAR-10 in both versions: the {form} files are read.")
    got, expected = len(versions[form]["train"]), len(_CIFAR[form]["train"])
    if 0 < got < expected:
        notices.append(
            f"{folder} has {got} of {expected} training files: images of the missing files are skipped."
        )
    return DataFolder("cifar10", form, folder, versions[form], tuple(notices))


def _nothing(folder: Path, listed: Sequence[str], name: str | None) -> InputError:
    if not listed:
        return InputError(f"{folder} is empty", _MAKE)
    packed = next((name for name in listed if name.endswith(_ARCHIVES)), None)
    if packed is not None:
        return InputError(f"{folder} holds no data set but {packed}", f"unpack it there: tar xf {packed}")
    if any(entry.startswith("cifar-100") for entry in (folder.name, *listed)):
        return InputError(
            f"{folder} holds CIFAR-100, which no model of gputopo supports", f"get CIFAR-10; {_MAKE}"
        )
    wanted = {
        "imagenet": "train-00000-of-01024 (TFRecords)",
        "cifar10": "data_batch_1.bin or data_batch_1 (CIFAR-10)",
    }
    expected = wanted[name] if name in wanted else " or ".join(wanted.values())
    shown = ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
    return InputError(
        f"{folder} has no data set with known file names: {shown}",
        f"files must be named like {expected}; {_MAKE}",
    )


def _unreadable(folder: Path, error: OSError) -> InputError:
    where = error.filename or folder
    return InputError(f"{where} cannot be read: {error.strerror or error}", "check its owner and permissions")


_HINT = "each host reads the folder itself: it needs the same path and files on all hosts"


class Listing(msgspec.Struct, frozen=True):
    """The files of a subset on a host, as bytes by name. `error`: why the files could not be listed."""

    sizes: dict[str, int]
    error: str | None = None


def list_files(path: Path | str, name: str, subset: Subset) -> Listing:
    """List the files of a data set's subset in a folder on this host."""
    try:
        files = find_data(Path(path), name).of(subset)
        return Listing({file.name: file.stat().st_size for file in files})
    except InputError as error:
        return Listing({}, error.what)
    except OSError as error:
        return Listing({}, f"{error.filename} cannot be read: {error.strerror}")


def require_same(path: Path, subset: Subset, listing: Listing, others: Mapping[str, Listing]) -> None:
    """Raise InputError if a host's files differ from rank 0's `listing`. `others`: by a text per host."""
    differences = {host: _difference(path, subset, listing, there, host) for host, there in others.items()}
    hosts = [host for host, difference in differences.items() if difference is not None]
    if hosts:
        also = f"; the same on {', '.join(hosts[1:])}" if hosts[1:] else ""
        raise InputError(f"{differences[hosts[0]]}{also}", _HINT)


def _difference(path: Path, subset: Subset, listing: Listing, there: Listing, host: str) -> str | None:
    if there.error is not None:
        return f"host {host}: {there.error}"
    lacking = sorted(listing.sizes.keys() - there.sizes.keys())
    if lacking:
        got = len(listing.sizes) - len(lacking)
        return f"host {host} has {got} of the {len(listing.sizes)} {subset} files in {path}: {_such(lacking)}"
    more = sorted(there.sizes.keys() - listing.sizes.keys())
    if more:
        has = f"{len(listing.sizes)} of the {len(there.sizes)} {subset} files that host {host} has in {path}"
        return f"rank 0 has {has}: {_such(more)}"
    for name, size in listing.sizes.items():
        if there.sizes[name] != size:
            return f"{path / name} has {there.sizes[name]} bytes on host {host}, and {size} on rank 0"
    return None


def _such(names: list[str]) -> str:
    """Return a text that lists the missing files."""
    return (
        f"{names[0]} is missing" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are missing"
    )
