"""Pictures for data sets: read from a folder of images, or drawn. Needs Pillow, not TensorFlow."""

import io
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.values.errors import InputError

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
