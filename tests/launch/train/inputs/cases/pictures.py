"""What becomes of pictures and labels between the file and the tower."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, spec_of, steps, to_the_end

RESIZES = ("crop", "nearest", "bilinear", "bicubic", "area", "round_robin")
PICTURES = (
    *((resize, False, "train") for resize in RESIZES),
    *((resize, True, "train") for resize in ("bilinear", "round_robin")),
    *((resize, False, "eval") for resize in ("crop", "bilinear")),
    ("bilinear", True, "eval"),
)


def colours_and_labels(root: Path) -> Any:
    data = folders.coloured(root / "coloured")
    images, labels = to_the_end(spec_of(data, task="eval", batch=2))
    colours = {int(label): image.mean((0, 1)).tolist() for image, label in zip(images, labels, strict=True)}
    return {"colours": colours, "labels": labels.tolist(), "deviation": float(images.std((1, 2)).max())}


def pictures(root: Path) -> Any:
    data = folders.photographs(root / "photos")
    found: dict[str, Any] = {}
    for resize, distortions, task in PICTURES:
        spec = spec_of(data, batch=4, resize=resize, distortions=distortions, task=task)
        images, _ = steps(spec, range(1))
        name = f"{resize}-{distortions}-{task}"
        np.save(root / f"{name}.npy", images)
        found[name] = [list(images.shape), float(images.min()), float(images.max())]
    cached, _ = steps(spec_of(data, batch=4, cache="decoded", distortions=True), range(1))
    plain = np.load(root / "bilinear-True-train.npy")
    found["decoded"] = float(np.abs(cached - plain).mean())
    return found


def forms(root: Path) -> Any:
    """Mean colours of pictures of other forms than a JPEG of three colours, each with another label."""
    known = folders.forms()
    records = [folders.record(label, encoded=encoded) for label, encoded in enumerate(known.values(), 1)]
    data = folders.with_records(root / "forms", records)
    (data / "validation-00000-of-00001").write_bytes((data / "train-00000-of-00001").read_bytes())
    results: dict[str, Any] = {}
    for task, resize in (("train", "bilinear"), ("train", "crop"), ("eval", "bilinear")):
        images, labels = steps(spec_of(data, towers=1, batch=len(known), task=task, resize=resize), range(1))
        for image, label in zip(images, labels, strict=True):
            results[f"{list(known)[int(label) - 1]}-{task}-{resize}"] = image.mean((0, 1)).tolist()
    return results


def far_too_long(root: Path) -> Any:
    """What is taken of pictures that are a line: an evaluation's middle, and a window of training."""
    import tensorflow as tf

    from gputopo.launch.train.inputs.preprocessing import Preprocessing, decoded_picture

    results = {}
    for height, width in ((1, 60_000), (60_000, 1)):
        pixels = tf.cast(tf.fill((height, width, 3), 255), tf.uint8)
        for training in (False, True):
            recipe = Preprocessing(224, 224, "crop" if training else "bilinear", False, training, seed=1)
            made = decoded_picture(recipe, pixels, tf.zeros((0, 4)), tf.constant(0, tf.int64)).numpy()
            results[f"{height}x{width} {training}"] = [list(made.shape), float(made.min())]
    return results


def without_background(root: Path) -> Any:
    data = folders.coloured(root / "background")
    _, labels = to_the_end(spec_of(data, task="eval", batch=2), Picture(classes=1000))
    return sorted(labels.tolist())
