"""The files of CIFAR-10, without TensorFlow: the binary version and the Python version.

Both hold 32x32 images as three planes, red, green, blue (https://www.cs.toronto.edu/~kriz/cifar.html). The
Python version is a pickle: it is read by a reader that knows bytes, text, numbers, lists, dicts and one kind
of array, and calls nothing.
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


@dataclass(frozen=True)
class CifarFile:
    """What a file holds: images [n, 3072] in planes, labels [n], and why what comes after is missing."""

    images: Bytes
    labels: Bytes
    damage: str | None = None


def read(path: Path) -> CifarFile:
    """Read one file of either version. Raises InputError if it is neither, OSError if it cannot be read."""
    return read_binary(path) if path.suffix == ".bin" else read_python(path)


def read_binary(path: Path) -> CifarFile:
    """Read records of a label and 3072 pixels. A last record that is cut short is told as damage."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    whole = len(data) // RECORD_BYTES
    records = data[: whole * RECORD_BYTES].reshape(whole, RECORD_BYTES)
    damage = None if len(data) % RECORD_BYTES == 0 else f"the file ends within record {whole}"
    return CifarFile(records[:, 1:], records[:, 0], damage)


def write_binary(path: Path, images: Bytes, labels: Bytes) -> None:
    """Write images [n, 3072] in planes and labels [n]. Raises OSError."""
    path.write_bytes(np.concatenate([labels.reshape(-1, 1), images], axis=1, dtype=np.uint8).tobytes())


def read_python(path: Path) -> CifarFile:
    """Read a pickle of the Python version. Raises InputError for anything else, or if it is damaged."""
    hint = "get CIFAR-10 anew, or write a small one with gputopo make-data"
    try:
        held = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        images, labels = _array(_part(held, "data")), np.array(_part(held, "labels"))
    except (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is no batch of CIFAR-10, or is damaged: {_said(error)}", hint) from error
    except (AttributeError, ImportError, MemoryError, OverflowError) as error:
        raise InputError(f"{path} is no batch of CIFAR-10, or is damaged: {_said(error)}", hint) from error
    if images.ndim != 2 or images.shape[1] != PIXELS or labels.shape != images.shape[:1]:
        raise InputError(f"{path} holds arrays of {images.shape} and {labels.shape}", hint)
    if labels.dtype.kind not in "iu":
        raise InputError(f"{path} has labels that are no whole numbers", hint)
    # A label that no byte holds is out of range as 255 is.
    return CifarFile(images, np.where((labels < 0) | (labels > 255), 255, labels).astype(np.uint8))


def to_planes(pixels: Bytes) -> Bytes:
    """Turn images [n, 32, 32, 3] into planes [n, 3072]."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(-1, PIXELS)


def to_pixels(planes: Bytes) -> Bytes:
    """Turn planes [n, 3072] into images [n, 32, 32, 3]."""
    return np.ascontiguousarray(planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


class _Array:
    """Stands for a numpy array in a pickle: keeps what the pickle says of it."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type(_Array):
    """Stands for a numpy type in a pickle."""

    def __init__(self, name: object = None, *_: object) -> None:
        super().__init__()
        self.name = name


def _text_as_bytes(text: str, encoding: str) -> bytes:
    """Do what `_codecs.encode` does for the bytes that Python 3 writes into old pickles."""
    return text.encode(encoding)


def _from_buffer(raw: object, kind: object, shape: object, order: object) -> _Array:
    """Do what numpy's own function does for arrays of protocol 5."""
    array = _Array()
    array.state = (1, shape, kind, order == "F", raw)
    return array


_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
_STANDS_FOR: dict[tuple[str, str], Any] = {
    **{(module, name): _Array for module in _NUMPY for name in ("_reconstruct", "ndarray")},
    **{(module, "_frombuffer"): _from_buffer for module in _NUMERIC},
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _text_as_bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Give a stand-in: nothing that a pickle names is ever imported."""
        if (module, name) not in _STANDS_FOR:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _STANDS_FOR[module, name]


def _part(held: Any, name: str) -> Any:
    """Give a part of a batch, whose names are bytes, or text where it was pickled anew by Python 3."""
    if not isinstance(held, dict):
        raise ValueError("it is no table")
    for key in (name.encode(), name):
        if key in held:
            return held[key]
    raise ValueError(f"it has no {name}")


def _array(held: Any) -> Bytes:
    if not isinstance(held, _Array):
        raise ValueError("its data is no array")
    _, shape, kind, column_major, raw = held.state
    if not isinstance(kind, _Type) or kind.name not in ("u1", b"u1", "|u1", b"|u1", "uint8"):
        raise ValueError("its data are no bytes")
    array = np.frombuffer(raw, np.uint8)
    return array.reshape(shape, order="F" if column_major else "C")


def bad_records(labels: Bytes, *, classes: int = CLASSES) -> list[int]:
    """Give the numbers of the records whose label is none of 0 to 9."""
    return [int(number) for number in np.flatnonzero(labels >= classes)]


def joined(parts: Iterable[CifarFile]) -> tuple[Bytes, Bytes]:
    """Join the images and the labels of several files."""
    listed: Sequence[CifarFile] = list(parts)
    return np.concatenate([part.images for part in listed]), np.concatenate([part.labels for part in listed])


def _said(error: BaseException) -> str:
    return f"{error}" or type(error).__name__
