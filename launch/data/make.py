"""Small valid data folders: ImageNet's TFRecords (written by TensorFlow) or CIFAR-10's binary files.

A folder is written beside its place and moved there when it is complete: a full disk leaves nothing behind.
"""

import contextlib
import io
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.launch.data import cifar_files
from gputopo.launch.data.folder import DataName
from gputopo.launch.train.lifecycle.checkpoint_files import DiskError
from gputopo.values.errors import HardwareError, InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# What Pillow raises for damaged files.
_NO_IMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, struct.error, zlib.error)
_JPEG_MAX_SIDE = 65_500  # libjpeg's JPEG_MAX_DIMENSION
_TO_8_BITS = 257  # 65,535 / 255
JPEG_QUALITY = 90  # near the mean of ImageNet's files: about 110 KB at 500x375

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Picture:
    """A picture: pixels [height, width, 3], its class counted from 0, the class's name, and where it is from.

    `jpeg`: the file itself, where it is a JPEG of three colours that can be stored unchanged.
    """

    pixels: Pixels
    klass: int
    class_name: str
    origin: str
    jpeg: bytes | None = None

    def encoded(self) -> bytes:
        """Encode the picture as JPEG. Raises InputError for one that is too large for that."""
        if self.jpeg is not None:
            return self.jpeg
        from PIL import Image

        if max(self.pixels.shape[:2]) > _JPEG_MAX_SIDE:
            raise InputError(
                f"{self.origin} has a side of over {_JPEG_MAX_SIDE} pixels: no JPEG can hold it",
                "take it out of the folder",
            )
        out = io.BytesIO()
        Image.fromarray(self.pixels).save(out, "JPEG", quality=JPEG_QUALITY)
        return out.getvalue()


def drawn(number: int, *, classes: int, side: int, seed: int) -> Picture:
    """Draw picture `number`: a soft background of its class, spots and grain; `side`: shorter side in pixels.

    Classes alternate, one later in each round, so that every tenth picture is of another class too. Pictures
    of a class are similar, so that a network can learn the classes.
    """
    klass = (number + number // classes) % classes
    rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, number, 0, 0]))
    of_class = np.random.Generator(np.random.Philox(key=seed, counter=[0, klass, 1, 0]))
    longer = side + int(rng.integers(0, side // 2 + 1))
    height, width = (side, longer) if rng.integers(2) else (longer, side)
    soft = _stretched(of_class.uniform(40, 215, (4, 4, 3)), height, width)
    spots = _stretched(rng.uniform(-40, 40, (24, 24, 3)), height, width)
    grain = rng.normal(0, 6, (height, width, 1))
    pixels = np.clip(soft + spots + grain, 0, 255).astype(np.uint8)
    return Picture(pixels, klass, f"class {klass}", f"drawn-{number:08d}.JPEG")


def listed(folder: Path) -> list[tuple[Path, int, str]]:
    """List the image files under a folder: file, class from 0, the class's name.

    Each folder directly under it is a class, in order of their names; images in the folder itself are one
    class more, before the others. Names that begin with a dot are ignored. Raises InputError if there is
    no folder or no image.
    """
    hint = f"give --from a folder of images ({', '.join(SUFFIXES)}), one folder a class"
    try:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}", hint)
        files = sorted(path for path in _found(folder) if path.suffix.lower() in SUFFIXES and path.is_file())
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be read: {error.strerror}", "check its owner and permissions"
        ) from error
    if not files:
        raise InputError(f"{folder} holds no image", hint)
    owners = [path.relative_to(folder).parts[0] if path.parent != folder else "" for path in files]
    classes = sorted(set(owners))
    return [
        (path, classes.index(owner), owner or folder.name) for path, owner in zip(files, owners, strict=True)
    ]


def _found(folder: Path) -> Iterator[Path]:
    """Iterate over all files under a folder that are not hidden, through links too.

    Raises OSError for a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    for place, inner, names in os.walk(folder, onerror=refuse, followlinks=True):
        above = Path(place).parent.resolve()
        if Path(place).is_symlink() and above.is_relative_to(Path(place).resolve()):  # it leads up again
            inner.clear()
            continue
        inner[:] = [name for name in inner if not _hidden(name)]
        yield from (Path(place, name) for name in names if not _hidden(name))


def _hidden(name: str) -> bool:
    """Whether a name is one that programs leave beside pictures, such as .thumbnails."""
    return name.startswith(".")


def read(files: Sequence[tuple[Path, int, str]]) -> Iterator[Picture]:
    """Read image files one by one. Raises InputError that names a file which is no image."""
    from PIL import Image

    for path, klass, name in files:
        try:
            data = path.read_bytes()
            with Image.open(io.BytesIO(data)) as image:
                keep = data if image.format == "JPEG" and image.mode == "RGB" else None
                pixels = _of_three_colours(image)
        except _NO_IMAGE as error:
            raise InputError(f"{path} cannot be read as an image", "take it out of the folder") from error
        except Image.DecompressionBombError as error:
            raise InputError(f"{path} is too large: {error}", "take it out of the folder") from error
        yield Picture(pixels, klass, name, path.name, keep)


def _of_three_colours(image: Any) -> Pixels:
    """Convert the pixels to 8 bits a colour. Raises ValueError where the value of white is unknown."""
    # Pillow has 16 bits of grey as I;16, or as I where it reads a PNG; its conversion would clip at 255.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        grey = np.rint(np.asarray(image) / _TO_8_BITS).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of kind {image.mode}")
    return np.asarray(image.convert("RGB"))


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize a picture."""
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def _stretched(coarse: Any, height: int, width: int) -> Any:
    """Stretch [h, w, 3] to [height, width, 3] by linear interpolation."""
    down = np.linspace(0, coarse.shape[0] - 1, height)
    across = np.linspace(0, coarse.shape[1] - 1, width)
    top, left = np.floor(down).astype(int), np.floor(across).astype(int)
    below = np.minimum(top + 1, coarse.shape[0] - 1)
    right = np.minimum(left + 1, coarse.shape[1] - 1)
    y, x = (down - top)[:, None, None], (across - left)[None, :, None]
    upper = coarse[top][:, left] * (1 - x) + coarse[top][:, right] * x
    lower = coarse[below][:, left] * (1 - x) + coarse[below][:, right] * x
    return upper * (1 - y) + lower * y


IMAGENET_CLASSES = 1000
VALIDATION_EVERY = 10  # one picture in ten is for validation
_BOX = (0.2, 0.8)  # of drawn pictures: the middle, as most of ImageNet's boxes; fractions of both sides

Pictures = Callable[[Iterable[int]], Iterable[Picture]]
"""Reads or draws the pictures of some numbers."""


@dataclass(frozen=True)
class Request:
    """The data folder to write. `images`: a folder to read them from; None: `count` drawn ones.

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
    """Images written of each subset, and bytes in all."""

    folder: Path
    train: int
    validation: int
    bytes: int


def make(folder: Path, request: Request) -> Written:
    """Write a data folder, which must be new or empty.

    Raises InputError if it is not empty, or the images cannot be read or are of too many classes,
    DiskError if it cannot be written, HardwareError without TensorFlow; then nothing is left behind.
    """
    count, each = _pictures(request)
    if count < 2:
        raise InputError("a data set needs at least two images", "give more of them")
    writer = _imagenet if request.name == "imagenet" else _cifar10
    try:
        there = folder.exists()
        if there and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is there already", "give a new folder, or remove it first")
        # An empty folder is not replaced: it may be a mount point, a link, or the shell's working folder.
        beside = folder if there else folder.parent
        made = _new_folders(beside)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished.", dir=beside))
        try:
            unfinished.chmod(0o755)  # mkdtemp makes it readable for its owner only
            train, validation = writer(unfinished, request, count, each)
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
            "choose a writable folder on a disk with enough space",
        ) from error
    return Written(folder, train, validation, size)


def _new_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return the new ones, innermost first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # another program wrote into it
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


def _pictures(request: Request) -> tuple[int, Pictures]:
    """Return the number of pictures, and how to get those of some numbers."""
    max_classes = IMAGENET_CLASSES if request.name == "imagenet" else cifar_files.CLASSES
    if request.images is None:
        classes = min(request.classes or max_classes, max_classes)
        return request.count, lambda numbers: (
            drawn(number, classes=classes, side=request.side, seed=request.seed) for number in numbers
        )
    files = listed(request.images)
    classes = 1 + max(klass for _, klass, _ in files)
    if classes > max_classes:
        raise InputError(
            f"{request.images} has {classes} classes, {request.name} has {max_classes} at most",
            f"leave {max_classes} folders in it",
        )
    order = np.random.Generator(np.random.Philox(key=request.seed)).permutation(len(files))
    return len(files), lambda numbers: read([files[order[number]] for number in numbers])


def _split(count: int) -> tuple[range | list[int], range | list[int]]:
    """Numbers of the pictures for training and for validation, at least one each."""
    train = [number for number in range(count) if (number + 1) % VALIDATION_EVERY]
    validation = [number for number in range(count) if (number + 1) % VALIDATION_EVERY == 0]
    return (train, validation) if validation else (range(count - 1), [count - 1])


def _imagenet(folder: Path, request: Request, count: int, each: Pictures) -> tuple[int, int]:
    tf = _tensorflow()
    train, validation = _split(count)
    for subset, numbers, files in (
        ("train", train, request.files),
        ("validation", validation, max(1, request.files // 4)),
    ):
        files = min(files, len(numbers))
        for shard in range(files):
            path = folder / f"{subset}-{shard:05d}-of-{files:05d}"
            try:
                with tf.io.TFRecordWriter(os.fsencode(path)) as out:
                    for picture in each(numbers[shard::files]):
                        out.write(_example(picture, boxed=request.images is None))
            except tf.errors.OpError as error:
                raise OSError(error.message) from error
    return len(train), len(validation)


def _tensorflow() -> Any:
    """Import TensorFlow, without what its libraries print as they load. Raises HardwareError without it."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow
    except ImportError as error:
        raise HardwareError(
            f"TensorFlow cannot be imported: {error}",
            "it writes the TFRecords: install it (pip install tensorflow), or use --data-name cifar10",
        ) from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    return tensorflow


def _example(picture: Picture, *, boxed: bool) -> bytes:
    from gputopo.launch.data.examples import Box, LabelledImage, serialized

    height, width, _ = picture.pixels.shape
    low, high = _BOX
    return serialized(
        LabelledImage(
            encoded=picture.encoded(),
            label=picture.klass + 1,  # 0 is the background, which no image has
            height=height,
            width=width,
            text=os.fsencode(picture.class_name),
            synset=f"n{picture.klass + 1:08d}",
            filename=os.fsencode(picture.origin),
            boxes=(Box(ymin=low, xmin=low, ymax=high, xmax=high),) if boxed else (),
        )
    )


def _cifar10(
    folder: Path, request: Request, count: int, each: Callable[..., Iterable[Picture]]
) -> tuple[int, int]:
    train, validation = _split(count)
    parts = [train[batch::5] for batch in range(5)]
    names = [f"data_batch_{batch}.bin" for batch in range(1, 6)]
    side = cifar_files.SIDE
    classes = dict(enumerate(cifar_files.NAMES)) if request.images is None else {}
    for name, numbers in zip([*names, "test_batch.bin"], [*parts, validation], strict=True):
        small = []
        for picture in each(numbers):
            small.append((resized(picture.pixels, side, side), picture.klass))
            classes.setdefault(picture.klass, picture.class_name)
        pixels = np.array([one for one, _ in small], np.uint8).reshape(-1, side, side, 3)
        labels = np.array([klass for _, klass in small], np.uint8)
        cifar_files.write_binary(folder / name, cifar_files.to_planes(pixels), labels)
    names = [classes[klass] for klass in sorted(classes)]
    (folder / "batches.meta.txt").write_bytes(b"".join(os.fsencode(f"{name}\n") for name in names))
    return len(train), len(validation)
