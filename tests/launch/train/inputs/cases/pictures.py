"""What becomes of pictures and labels between the file and the tower."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.launch.data.make import serialized
from tests.launch.data.records import framed
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, spec_of, steps, to_the_end

RESIZES = ("crop", "nearest", "bilinear", "bicubic", "area", "round_robin")
PICTURES = (
    *((resize, False, "train") for resize in RESIZES),
    ("bilinear", True, "train"),
    ("bilinear", False, "eval"),
    ("bilinear", True, "eval"),
)


SEED = 5
EACH = 8  # pictures by each


def colours_and_labels(root: Path) -> Any:
    """Of a model without a background class."""
    data = folders.coloured(root / "coloured")
    images, labels = to_the_end(spec_of(data, task="eval", batch=2), Picture(classes=1000))
    colours = {int(label): image.mean((0, 1)).tolist() for image, label in zip(images, labels, strict=True)}
    return {"colours": colours, "labels": labels.tolist()}


def pictures(root: Path) -> Any:
    """Pictures by each method and use, made one by one; and what pipelines make of some."""
    import tensorflow as tf

    from gputopo.launch.data.examples import parsed
    from gputopo.launch.train.inputs.preprocessing import Preprocessing, picture

    data = folders.photographs(root / "photos")
    stored = sorted(data.glob("train-*"))[0]
    records = [one.numpy() for one in tf.data.TFRecordDataset(str(stored)).take(EACH)]

    def made(records: Sequence[bytes], resize: Any, distortions: bool, task: str) -> Any:
        height, width, _ = Picture().input_shape
        recipe = Preprocessing(height, width, resize, distortions, training=task == "train", seed=SEED)
        parts = [parsed(tf.constant(one)) for one in records]
        return np.stack([picture(recipe, one, boxes, at).numpy() for at, (one, _, boxes) in enumerate(parts)])

    for form in PICTURES:
        np.save(root / f"{'-'.join(map(str, form))}.npy", made(records, *form))
    one = folders.with_records(root / "one", records[:1])  # again and again
    folders.with_records(root / "eval", records)
    (root / "eval" / "train-00000-of-00001").rename(root / "eval" / "validation-00000-of-00001")
    trained: dict[str, Any] = {"distortions": True, "resize": "round_robin", "seed": SEED}
    for name, pictures, form, spec in (
        ("read", records[:1] * EACH, ("round_robin", True, "train"), spec_of(one, **trained)),
        (
            "decoded",
            records[:1] * EACH,
            ("round_robin", True, "train"),
            spec_of(one, cache="decoded", **trained),
        ),
        ("judged", records, ("area", True, "eval"), spec_of(root / "eval", task="eval", resize="area")),
    ):
        np.save(root / f"{name}.npy", steps(spec, range(1))[0])
        np.save(root / f"{name} alone.npy", made(pictures, *form))
    return None


def forms(root: Path) -> Any:
    """Mean colours of pictures of other forms than a JPEG of three colours, each with another label."""
    known = folders.forms()
    records = [folders.record(label, encoded=encoded) for label, encoded in enumerate(known.values(), 1)]
    data = folders.with_records(root / "forms", records)
    boxed = serialized(known["progressive"], len(known) + 1, boxes=folders.OUTSIDE)
    (data / "validation-00000-of-00001").write_bytes(b"".join(map(framed, [*records, boxed])))
    results: dict[str, Any] = {}
    for task, resize in (("train", "bilinear"), ("train", "crop"), ("eval", "bilinear")):
        batch = len(known) + (task == "eval")
        images, labels = steps(spec_of(data, towers=1, batch=batch, task=task, resize=resize), range(1))
        for image, label in zip(images[: len(known)], labels, strict=False):
            results[f"{list(known)[int(label) - 1]}-{task}-{resize}"] = image.mean((0, 1)).tolist()
    return {**results, "judged": labels.tolist()}
