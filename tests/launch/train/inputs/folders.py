"""Data folders for the tests: sound ones, and ones with one damage each."""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gputopo.launch.data import DataRequest, make_data, write_cifar
from tests.launch.data.records import FOOTER_BYTES, HEADER_BYTES, example, framed

COLOURS = ((250, 190, 10), (20, 40, 230), (10, 220, 220), (12, 12, 12))
EACH = 3
# What is wrong, and the label of the record that it is in (the third of the second file: labels 4, 5, 6).
DAMAGE = ("checksum", "truncated", "picture", "label", "empty_record")
DAMAGED_RECORD = 1
RECORDS = 3  # of each file
PIXELS = 3 * 32 * 32  # of an image of CIFAR-10
MIDDLE = [(0.2, 0.2, 0.8, 0.8)]
OUTSIDE = [(0.1, 0.2, 0.8, 1.5)]  # a box that is not within its picture


def coloured(folder: Path) -> Path:
    """Write a data set of pictures of one colour each, of a class a colour."""
    drawn = [
        (np.full((50, 40 + number, 3), colour, np.uint8), klass)
        for number in range(EACH * 4)
        for klass, colour in enumerate(COLOURS)
    ]
    return _written(folder / "data", drawn, range(len(COLOURS)), files=3)


def numbered(folder: Path) -> Path:
    """Write 60 pictures of one colour each to train with, each of a separate class."""
    drawn = [
        (np.full((36, 48, 3), (number, 2 * number, 255 - number), np.uint8), number) for number in range(66)
    ]
    return _written(folder / "data", drawn, range(6), files=4)


def _written(
    folder: Path, drawn: Sequence[tuple[Any, int]], validation: Sequence[int], *, files: int
) -> Path:
    folder.mkdir(parents=True)
    order = np.random.Generator(np.random.Philox(key=1)).permutation(len(drawn)).tolist()
    train = [number for number in order if number not in validation]
    for subset, numbers, count in (("train", train, files), ("validation", validation, 1)):
        for shard in range(count):
            pictures = [drawn[number] for number in numbers[shard::count]]
            records = [example(jpeg(pixels), klass + 1, MIDDLE) for pixels, klass in pictures]
            (folder / f"{subset}-{shard:05d}-of-{count:05d}").write_bytes(b"".join(map(framed, records)))
    return folder


def jpeg(pixels: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def photographs(folder: Path) -> Path:
    """Write drawn pictures of many colours, larger and smaller than a model's input."""
    return make_data(folder, DataRequest(name="imagenet", count=8, side=30, files=1, classes=1)).folder


def record(label: int, *, encoded: bytes | None = None) -> bytes:
    """An example whose picture's grey is ten times its label."""
    return example(encoded or grey(label), label)


def forms() -> dict[str, bytes]:
    """Pictures of one red that data sets contain beside usual JPEGs; grey ones of a grey."""

    def encoded(image: Image.Image, form: str, **settings: Any) -> bytes:
        out = io.BytesIO()
        image.save(out, form, **settings)
        return out.getvalue()

    red = Image.new("RGB", (40, 50), (200, 10, 10))
    return {
        "progressive": encoded(red, "JPEG", progressive=True),
        "grey": encoded(Image.new("L", (40, 50), 200), "JPEG"),
        "cmyk": encoded(red.convert("CMYK"), "JPEG"),
        "png": encoded(red, "PNG"),
        "grey png": encoded(Image.new("L", (40, 50), 200), "PNG"),
        "png with alpha": encoded(red.convert("RGBA"), "PNG"),
        "gif": encoded(red.convert("P", palette=Image.Palette.ADAPTIVE), "GIF"),
        "one pixel": encoded(Image.new("RGB", (1, 1), (200, 10, 10)), "JPEG"),
        "a line": encoded(Image.new("RGB", (1, 3000), (200, 10, 10)), "JPEG"),
    }


def schemas() -> dict[str, bytes]:
    """Records of other schemas, each wrong in one respect, and one that is not."""
    import tensorflow as tf

    def changed(labels: list[bytes] | list[int]) -> bytes:
        example = tf.train.Example.FromString(sound)
        feature = example.features.feature["image/class/label"]
        (feature.bytes_list if isinstance(labels[0], bytes) else feature.int64_list).value[:] = labels
        return example.SerializeToString()  # type: ignore[no-any-return]

    sound = record(3)
    boxed = example(grey(3), 3, OUTSIDE)
    return {
        "sound": sound,
        "no message": b"\x07 this is no example",
        "no picture": sound.replace(b"image/encoded", b"image/encodes"),
        "no label": sound.replace(b"image/class/label", b"image/class/lab-l"),
        "label of text": changed([b"3"]),
        "two labels": changed([3, 4]),
        "odd boxes": boxed.replace(b"image/object/bbox/xmax", b"image/object/bbox/XMAX"),
        "boxes outside": boxed,
    }


def grey(label: int) -> bytes:
    """A picture whose grey is ten times its label."""
    return jpeg(np.full((40, 40, 3), 10 * label % 256, np.uint8))


def with_records(folder: Path, records: Sequence[bytes]) -> Path:
    """Write a data set of one training file."""
    folder.mkdir(parents=True)
    (folder / "train-00000-of-00001").write_bytes(b"".join(map(framed, records)))
    return folder


def damaged(folder: Path, *kinds: str) -> Path:
    """Write files for both subsets: of labels 1 to 3, and of the next three for each kind, and of three more.

    The second record of the file of a kind is damaged.
    """
    folder.mkdir(parents=True)
    shards = ("", *kinds, "")
    for shard, kind in enumerate(shards):
        labels = range(RECORDS * shard + 1, RECORDS * shard + RECORDS + 1)
        records = [record(label) for label in labels]
        replaced = {
            "picture": record(labels[DAMAGED_RECORD], encoded=b"\xff\xd8\xff\xe0 this is no picture"),
            "label": record(2000),
            "empty_record": b"",
        }
        records[DAMAGED_RECORD] = replaced.get(kind, records[DAMAGED_RECORD])
        data = bytearray(b"".join(map(framed, records)))
        begin = len(records[0]) + HEADER_BYTES + FOOTER_BYTES
        if kind == "checksum":
            data[begin + HEADER_BYTES + 100] ^= 1
        if kind == "truncated":
            del data[begin + 200 :]
        for subset in ("train", "validation"):
            (folder / f"{subset}-{shard:05d}-of-{len(shards):05d}").write_bytes(data)
    return folder


def cifar(folder: Path) -> tuple[Path, Path, dict[str, Any], dict[str, Any]]:
    """Write CIFAR-10 of 100 and 7 random pictures in both versions; return the pixels and labels too."""
    rng = np.random.default_rng(3)
    pixels = {"train": rng.integers(0, 256, (100, 32, 32, 3), np.uint8)}
    pixels["test"] = rng.integers(0, 256, (7, 32, 32, 3), np.uint8)
    labels = {name: np.arange(len(of)).astype(np.uint8) % 10 for name, of in pixels.items()}
    binary, python = folder / "bin", folder / "cifar-10-batches-py"
    for path in (binary, python):
        path.mkdir(parents=True)
    for number in range(6):
        subset, rows = (
            ("test", slice(None)) if number == 5 else ("train", slice(20 * number, 20 * number + 20))
        )
        planes = pixels[subset][rows].transpose(0, 3, 1, 2).reshape(-1, PIXELS)
        name = "test_batch" if number == 5 else f"data_batch_{number + 1}"
        write_cifar(binary / f"{name}.bin", planes, labels[subset][rows])
        batch = {b"data": planes, b"labels": labels[subset][rows].tolist(), b"batch_label": name.encode()}
        (python / name).write_bytes(pickle.dumps(batch, protocol=2))
    return binary, folder, pixels, labels


def cut_cifar(folder: Path) -> Path:
    """Write a training file whose second record has label 10, and whose third one is cut short."""
    folder.mkdir(parents=True)
    path, labels = folder / "data_batch_1.bin", np.array([0, 10, 0], np.uint8)
    write_cifar(path, np.zeros((3, PIXELS), np.uint8), labels)
    path.write_bytes(path.read_bytes()[:-1])
    return folder


def normalised(pixels: Any) -> Any:
    return pixels.astype(np.float32) / 127.5 - 1


def find(image: Any, pixels: Any) -> int:
    """Number of the picture that an image is; -1: none."""
    far = np.abs(normalised(pixels) - image).max((1, 2, 3))
    return int(far.argmin()) if far.min() < 1e-5 else -1


def is_window(image: Any, pixels: Any) -> bool:
    """Whether an image, or its mirror, is a window of a picture with four pixels of black around."""
    wide = normalised(np.pad(pixels, [(0, 0), (4, 4), (4, 4), (0, 0)]))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (32, 32), axis=(1, 2))  # [n, 9, 9, 3, 32, 32]
    return any(
        bool((np.abs(windows - one.transpose(2, 0, 1)).max((3, 4, 5)) < 1e-5).any())
        for one in (image, image[:, ::-1])
    )
