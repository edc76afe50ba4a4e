"""Writes small valid data folders, ImageNet's TFRecords or CIFAR-10's binaries, without TensorFlow.

A folder is written beside its place and moved there when it is whole: a full disk leaves nothing behind.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gputopo.launch.spec.data_folder import DataName
from gputopo.launch.train.inputs import cifar_files, pictures
from gputopo.launch.train.inputs.examples_proto import Box, LabelledImage, example
from gputopo.launch.train.inputs.pictures import Picture
from gputopo.launch.train.inputs.tfrecords import frame
from gputopo.launch.train.lifecycle.checkpoint_files import DiskError
from gputopo.values.errors import InputError

IMAGENET_CLASSES = 1000
# One picture in ten is kept for validation.
VALIDATION_EVERY = 10
# Boxes of drawn pictures: the middle of the picture, as most of ImageNet's are.
_BOX = Box(ymin=0.2, xmin=0.2, ymax=0.8, xmax=0.8)


@dataclass(frozen=True)
class Wish:
    """What to write. `images`: a folder to take them from; None: `count` drawn ones.

    `files`: training files of ImageNet; CIFAR-10 always has five. `side`: shorter side of drawn pictures in
    pixels. `classes`: of drawn pictures, None: as many as the data set has.
    """

    name: DataName
    images: Path | None = None
    count: int = 256
    files: int = 4
    side: int = 256
    classes: int | None = None
    seed: int = 1234


@dataclass(frozen=True)
class Written:
    """What was written: images of each subset, and bytes in all."""

    folder: Path
    train: int
    validation: int
    bytes: int


def make(folder: Path, wish: Wish) -> Written:
    """Write a data folder. It must not be there yet, or be empty.

    Raises InputError if it holds something, or the images cannot be read or are of too many classes,
    DiskError if it cannot be written; then nothing is left behind.
    """
    count, each = _pictures(wish)
    if count < 2:
        raise InputError("a data set needs two images at least", "give more of them")
    writer = _imagenet if wish.name == "imagenet" else _cifar10
    try:
        there = folder.exists()
        if there and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is there already", "give a new folder, or remove it first")
        # An empty folder stays what it is: it may be a mount point, a link, or where the user's shell stands.
        beside = folder if there else folder.parent
        made = _made(beside)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished.", dir=beside))
        try:
            unfinished.chmod(0o755)  # mkdtemp makes it readable for its owner alone
            train, validation = writer(unfinished, wish, count, each)
            size = sum(file.stat().st_size for file in unfinished.iterdir())
            if there:
                _emptied_into(unfinished, folder)
            else:
                unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            _remove(made)
            raise
    except OSError as error:
        raise DiskError(
            f"{folder} cannot be written: {error.strerror or error}; nothing was left behind",
            "choose a folder on a disk with room for it that you may write to",
        ) from error
    return Written(folder, train, validation, size)


def _made(folder: Path) -> list[Path]:
    """Make a folder and those above it; give those that were not there, innermost first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _remove(made: Iterable[Path]) -> None:
    for folder in made:
        with contextlib.suppress(OSError):  # somebody else put something there
            folder.rmdir()


def _emptied_into(unfinished: Path, folder: Path) -> None:
    """Move all files up into an empty folder, or none of them."""
    moved = []
    try:
        for file in sorted(unfinished.iterdir()):
            moved.append(file.rename(folder / file.name))
        unfinished.rmdir()
    except BaseException:
        for file in moved:
            file.unlink(missing_ok=True)
        raise


def _pictures(wish: Wish) -> tuple[int, Callable[[Iterable[int]], Iterable[Picture]]]:
    """Give how many pictures there are, and a function that gives those of some numbers."""
    most = IMAGENET_CLASSES if wish.name == "imagenet" else cifar_files.CLASSES
    if wish.images is None:
        classes = min(wish.classes or most, most)
        return wish.count, lambda numbers: (
            pictures.drawn(number, classes=classes, side=wish.side, seed=wish.seed) for number in numbers
        )
    files = pictures.listed(wish.images)
    classes = 1 + max(klass for _, klass, _ in files)
    if classes > most:
        raise InputError(
            f"{wish.images} has {classes} classes, {wish.name} has {most} at most",
            f"leave {most} folders in it",
        )
    order = np.random.Generator(np.random.Philox(key=wish.seed)).permutation(len(files))
    return len(files), lambda numbers: pictures.read([files[order[number]] for number in numbers])


def _split(count: int) -> tuple[range | list[int], range | list[int]]:
    """Give the numbers of the pictures for training and for validation: both have one at least."""
    train = [number for number in range(count) if (number + 1) % VALIDATION_EVERY]
    validation = [number for number in range(count) if (number + 1) % VALIDATION_EVERY == 0]
    return (train, validation) if validation else (range(count - 1), [count - 1])


def _imagenet(
    folder: Path, wish: Wish, count: int, each: Callable[..., Iterable[Picture]]
) -> tuple[int, int]:
    subsets = dict(zip(("train", "validation"), _split(count), strict=True))
    for subset, numbers in subsets.items():
        files = min(wish.files if subset == "train" else max(1, wish.files // 4), len(numbers))
        for shard in range(files):
            path = folder / f"{subset}-{shard:05d}-of-{files:05d}"
            with path.open("wb") as out:
                for picture in each(numbers[shard::files]):
                    out.write(frame(example(_labelled(picture, boxes=wish.images is None))))
    return len(subsets["train"]), len(subsets["validation"])


def _labelled(picture: Picture, *, boxes: bool) -> LabelledImage:
    height, width, _ = picture.pixels.shape
    return LabelledImage(
        encoded=picture.encoded(),
        label=picture.klass + 1,  # 0 is the background, which no image has
        height=height,
        width=width,
        text=os.fsencode(picture.class_name),
        synset=f"n{picture.klass + 1:08d}",
        filename=os.fsencode(picture.origin),
        boxes=(_BOX,) if boxes else (),
    )


def _cifar10(folder: Path, wish: Wish, count: int, each: Callable[..., Iterable[Picture]]) -> tuple[int, int]:
    train, validation = _split(count)
    parts = [train[batch::5] for batch in range(5)]
    names = [f"data_batch_{batch}.bin" for batch in range(1, 6)]
    side = cifar_files.SIDE
    classes = dict(enumerate(cifar_files.NAMES)) if wish.images is None else {}
    for name, numbers in zip([*names, "test_batch.bin"], [*parts, validation], strict=True):
        small = []
        for picture in each(numbers):
            small.append((pictures.resized(picture.pixels, side, side), picture.klass))
            classes.setdefault(picture.klass, picture.class_name)
        pixels = np.array([one for one, _ in small], np.uint8).reshape(-1, side, side, 3)
        labels = np.array([klass for _, klass in small], np.uint8)
        cifar_files.write_binary(folder / name, cifar_files.to_planes(pixels), labels)
    names = [classes[klass] for klass in sorted(classes)]
    (folder / "batches.meta.txt").write_bytes(b"".join(os.fsencode(f"{name}\n") for name in names))
    return len(train), len(validation)
