"""The files of CIFAR-10, without TensorFlow: the binary version and the Python version.

Both hold 32x32 images as three planes, red, green, blue (https://www.cs.toronto.edu/~kriz/cifar.html). The
Python version is a pickle. The reader accepts bytes, text, numbers, lists, dicts and numpy arrays. It imports
and calls nothing else that the pickle refers to.
"""

import io
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.values.errors import InputError

SIDE = 32
CLASSES = 10
PIXELS = 3 * SIDE * SIDE
RECORD_BYTES = 1 + PIXELS
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# Exceptions that pickle raises for a damaged file, and the reader below for a file of another kind.
_NO_BATCH = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    MemoryError,
    OverflowError,
)


@dataclass(frozen=True)
class CifarFile:
    """Contents of a file: images [n, 3072] as planes, labels [n], and the damage after them (None: none)."""

    images: Bytes
    labels: Bytes
    damage: str | None = None


def read_cifar(path: Path) -> CifarFile:
    """Read one file of either version. Raises InputError if it is neither, OSError if it cannot be read."""
    return read_binary(path) if path.suffix == ".bin" else read_python(path)


def read_binary(path: Path) -> CifarFile:
    """Read records of a label and 3072 pixels. A truncated last record is reported as damage."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    whole = len(data) // RECORD_BYTES
    records = data[: whole * RECORD_BYTES].reshape(whole, RECORD_BYTES)
    damage = None if len(data) % RECORD_BYTES == 0 else f"the file ends within record {whole}"
    return CifarFile(records[:, 1:], records[:, 0], damage)


def write_cifar(path: Path, images: Bytes, labels: Bytes) -> None:
    """Write images [n, 3072] as planes and labels [n]. Raises OSError."""
    path.write_bytes(np.concatenate([labels.reshape(-1, 1), images], axis=1, dtype=np.uint8).tobytes())


def read_python(path: Path) -> CifarFile:
    """Read a pickle of the Python version. Raises InputError if the file is something else or damaged."""
    hint = "download CIFAR-10 again, or write a small one with gputopo make-data"
    try:
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        images, labels = _part(batch, "data"), np.array(_part(batch, "labels"))
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
            raise ValueError("its data is not an array of bytes")
    except _NO_BATCH as error:
        why = f"{error}" or type(error).__name__
        raise InputError(f"{path} is not a CIFAR-10 batch, or is damaged: {why}", hint) from error
    if images.ndim != 2 or images.shape[1] != PIXELS or labels.shape != images.shape[:1]:
        raise InputError(f"{path} holds arrays of {images.shape} and {labels.shape}", hint)
    if labels.dtype.kind not in "iu":
        raise InputError(f"{path} has labels that are not integers", hint)
    # A label that does not fit into a byte becomes 255, which is out of range too.
    return CifarFile(images, np.where((labels < 0) | (labels > 255), 255, labels).astype(np.uint8))


def to_planes(pixels: Bytes) -> Bytes:
    """Convert images [n, 32, 32, 3] to planes [n, 3072]."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(-1, PIXELS)


def to_pixels(planes: Bytes) -> Bytes:
    """Convert planes [n, 3072] to images [n, 32, 32, 3]."""
    return np.ascontiguousarray(planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


_ALLOWED = {
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("_codecs", "encode"),  # for bytes that Python 3 writes into old pickles
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a function or class that makes arrays. Nothing else that a pickle refers to is imported."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not needed for a batch")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _part(batch: Any, name: str) -> Any:
    """Return a part of a batch. Its keys are bytes, as Python 2 pickled them."""
    if not isinstance(batch, dict):
        raise ValueError("it is not a table")
    if name.encode() not in batch:
        raise ValueError(f"it has no {name}")
    return batch[name.encode()]


def bad_label(label: int) -> str:
    """Describe a label that is out of range."""
    return f"its label {label} is not between 0 and {CLASSES - 1}"


def joined(parts: Iterable[CifarFile]) -> tuple[Bytes, Bytes]:
    """Join the images and the labels of several files."""
    listed: Sequence[CifarFile] = list(parts)
    return np.concatenate([part.images for part in listed]), np.concatenate([part.labels for part in listed])
