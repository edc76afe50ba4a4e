"""Small valid data folders of generated images: TFRecords of ImageNet, or binary files of CIFAR-10.

A folder is written next to its final path and moved there when complete: a full disk leaves nothing behind.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.launch.data import cifar_files
from gputopo.launch.data.folder import DataName
from gputopo.launch.train.lifecycle.folders import DiskError, move_all
from gputopo.values.errors import HardwareError, InputError
from gputopo.values.install import install_tensorflow

JPEG_QUALITY = 90  # gives files near ImageNet's mean size: about 110 KB at 500x375
_MAX_CLASSES = {"imagenet": 1000, "cifar10": cifar_files.CLASSES}
_VALIDATION_EVERY = 10  # one image in ten is for validation
_BOX = (0.2, 0.8)  # the middle, like most of ImageNet's boxes; fractions of both sides

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Draw = Callable[[int], tuple[Pixels, int]]
"""Returns the pixels [height, width, 3] of image `number`, and its class from 0."""


@dataclass(frozen=True)
class DataRequest:
    """The data folder to write, with `count` generated images."""

    name: DataName
    count: int = 256
    files: int = 4  # training files of ImageNet; CIFAR-10 always has five
    side: int = 256  # shorter side in pixels; CIFAR-10 images are resized to 32
    classes: int | None = None  # None: all classes of the data set
    seed: int = 1234


@dataclass(frozen=True)
class Written:
    """Images written for each subset, and the total size in bytes."""

    folder: Path
    train: int
    validation: int
    bytes: int


def make_data(folder: Path, request: DataRequest) -> Written:
    """Write a data folder, which must be new or empty.

    Raises InputError if it is not empty, DiskError if it cannot be written, and HardwareError without
    TensorFlow. After an error nothing is left behind.
    """
    max_classes = _MAX_CLASSES[request.name]
    classes = min(request.classes or max_classes, max_classes)

    def draw(number: int) -> tuple[Pixels, int]:
        return drawn(number, classes=classes, side=request.side, seed=request.seed)

    # At least one image for each subset.
    last = range(request.count)[_VALIDATION_EVERY - 1 :: _VALIDATION_EVERY] or range(request.count)[-1:]
    train = [number for number in range(request.count) if number not in last]
    try:
        there = folder.exists()
        if there and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} already exists", "use a new folder, or remove it first")
        # Do not replace an empty folder: it may be a mount point, a link, or the shell's working folder.
        beside = folder if there else folder.parent
        new = [path for path in (beside, *beside.parents) if not path.exists()]
        beside.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished.", dir=beside))
        try:
            unfinished.chmod(0o755)  # mkdtemp makes it readable only by its owner
            if request.name == "imagenet":
                write_imagenet(unfinished, train, last, draw, files=request.files)
            else:
                _write_cifar10(unfinished, train, last, draw)
            size = sum(file.stat().st_size for file in unfinished.iterdir())
            if there:
                move_all(unfinished, folder)
                unfinished.rmdir()
            else:
                unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            for path in new:
                with contextlib.suppress(OSError):  # another program wrote into it
                    path.rmdir()
            raise
    except OSError as error:
        raise DiskError(
            f"{folder} cannot be written: {error.strerror or error}; nothing was left behind",
            "choose a writable folder on a disk with enough space",
        ) from error
    return Written(folder, len(train), len(last), size)


def drawn(number: int, *, classes: int, side: int, seed: int) -> tuple[Pixels, int]:
    """Draw image `number`: a soft background for its class, spots and grain. `side`: shorter side in pixels.

    Classes alternate and shift by one in each round, so that the validation images (every tenth) have all
    classes. Images of a class are similar, so that a network can learn the classes.
    """
    klass = (number + number // classes) % classes
    rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, number, 0, 0]))
    of_class = np.random.Generator(np.random.Philox(key=seed, counter=[0, klass, 1, 0]))
    longer = side + int(rng.integers(0, side // 2 + 1))
    height, width = (side, longer) if rng.integers(2) else (longer, side)
    soft = stretched(of_class.uniform(40, 215, (4, 4, 3)), height, width)
    spots = stretched(rng.uniform(-40, 40, (24, 24, 3)), height, width)
    grain = rng.normal(0, 6, (height, width, 1))
    return np.clip(soft + spots + grain, 0, 255).astype(np.uint8), klass


def stretched(coarse: Any, height: int, width: int) -> Any:
    """Resize [h, w, 3] to [height, width, 3] by linear interpolation."""

    def weights(size: int, cells: int) -> Any:  # [size, cells]
        places = np.linspace(0, cells - 1, size)[:, None]
        return np.maximum(1 - np.abs(places - np.arange(cells)), 0)

    down, across = weights(height, coarse.shape[0]), weights(width, coarse.shape[1])
    return np.einsum("yh,xw,hwc->yxc", down, across, coarse, optimize=True)


def write_imagenet(
    folder: Path, train: Sequence[int], validation: Sequence[int], draw: Draw, *, files: int
) -> None:
    """Write the images with these numbers as TFRecords in `files` training files.

    There are a quarter as many validation files. Raises HardwareError without TensorFlow, and OSError.
    """
    tf = _tensorflow()
    low, high = _BOX
    for subset, numbers, count in (("train", train, files), ("validation", validation, max(1, files // 4))):
        count = min(count, len(numbers))
        for shard in range(count):
            path = folder / f"{subset}-{shard:05d}-of-{count:05d}"
            try:
                with tf.io.TFRecordWriter(os.fsencode(path)) as out:
                    for number in numbers[shard::count]:
                        pixels, klass = draw(number)
                        with tf.device("/CPU:0"):
                            jpeg = tf.io.encode_jpeg(pixels, quality=JPEG_QUALITY).numpy()
                        # Label 0 is the background, which no image has.
                        out.write(serialized(jpeg, klass + 1, pixels.shape[:2], [(low, low, high, high)]))
            except tf.errors.OpError as error:
                raise OSError(error.message) from error


def serialized(
    jpeg: bytes,
    label: int,
    size: Sequence[int] = (40, 40),
    boxes: Sequence[tuple[float, float, float, float]] = (),
) -> bytes:
    """Return an image (`size`: height, width) as a serialized Example; equal images yield equal bytes.

    `boxes`: ymin, xmin, ymax, xmax as fractions. The fields are those of the ImageNet builder scripts
    (tensorflow/models, build_imagenet_data.py).
    """
    import tensorflow as tf

    sides = {
        f"image/object/bbox/{side}": tf.train.Feature(
            float_list=tf.train.FloatList(value=[box[place] for box in boxes])
        )
        for place, side in enumerate(("ymin", "xmin", "ymax", "xmax"))
    }
    numbers = {
        "image/height": [size[0]],
        "image/width": [size[1]],
        "image/channels": [3],
        "image/class/label": [label],
        "image/object/bbox/label": [label] * len(boxes),
    }
    texts = {
        "image/colorspace": b"RGB",
        "image/class/synset": b"n%08d" % label,
        "image/class/text": b"class %d" % label,
        "image/format": b"JPEG",
        "image/filename": b"drawn.JPEG",
        "image/encoded": jpeg,
    }
    fields = sides
    for name, listed in numbers.items():
        fields[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=listed))
    for name, text in texts.items():
        fields[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
    example = tf.train.Example(features=tf.train.Features(feature=fields))
    encoded: bytes = example.SerializeToString(deterministic=True)
    return encoded


def _tensorflow() -> Any:
    """Import TensorFlow and suppress what its libraries print. Raises HardwareError if there is none."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow
    except ImportError as error:
        raise HardwareError(
            f"TensorFlow cannot be imported: {error}",
            f"it writes the TFRecords: {install_tensorflow(cuda=False)}, or use --data-name cifar10",
        ) from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    return tensorflow


def _write_cifar10(folder: Path, train: Sequence[int], validation: Sequence[int], draw: Draw) -> None:
    def write(name: str, numbers: Iterable[int]) -> None:
        pictures = [draw(number) for number in numbers]
        side = cifar_files.SIDE
        pixels = np.array([stretched(image, side, side) for image, _ in pictures]).reshape(-1, side, side, 3)
        labels = np.array([klass for _, klass in pictures], np.uint8)
        cifar_files.write_cifar(folder / name, cifar_files.to_planes(pixels.astype(np.uint8)), labels)

    for batch in range(5):
        write(f"data_batch_{batch + 1}.bin", train[batch::5])
    write("test_batch.bin", validation)
    (folder / "batches.meta.txt").write_text("".join(f"{name}\n" for name in cifar_files.NAMES))
