"""What becomes of pictures and labels between the file and the tower."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.data.records import example, framed
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, spec_of, steps, to_the_end

RESIZES = ("nearest", "bilinear", "bicubic", "area", "round_robin")
# Resize method, distortions, task, cache.
PICTURES: tuple[tuple[str, bool, str, str | None], ...] = (
    *((resize, False, "train", None) for resize in RESIZES),
    ("bilinear", False, "train", "decoded"),
    ("bilinear", True, "train", None),
    ("bilinear", True, "eval", None),
)
SEED = 5
EACH = 8  # pictures by each: always the same one


def colours_and_labels(root: Path) -> Any:
    """Of a model without a background class."""
    data = folders.coloured(root / "coloured")
    images, labels = to_the_end(spec_of(data, task="eval", batch=2), Picture(classes=1000))
    colours = {int(label): image.mean((0, 1)).tolist() for image, label in zip(images, labels, strict=True)}
    return {"colours": colours, "labels": labels.tolist()}


def pictures(root: Path) -> None:
    """Save the pictures that pipelines make of one photograph, by each method and use."""
    import tensorflow as tf

    stored = sorted(folders.photographs(root / "photos").glob("train-*"))[0]
    (photograph,) = (one.numpy() for one in tf.data.TFRecordDataset(str(stored)).take(1))
    folder = folders.with_records(root / "one", [photograph] * EACH)
    shutil.copy(folder / "train-00000-of-00001", folder / "validation-00000-of-00001")
    for form in PICTURES:
        resize, distortions, task, cache = form
        fields: dict[str, Any] = {"resize": resize, "distortions": distortions, "task": task, "cache": cache}
        made, _ = steps(spec_of(folder, towers=1, batch=EACH, seed=SEED, **fields), range(1))
        np.save(root / f"{'-'.join(map(str, form))}.npy", made)


def forms(root: Path) -> Any:
    """Mean colours of pictures of other forms than a JPEG of three colours, each with another label."""
    known = folders.forms()
    records = [folders.record(label, encoded=encoded) for label, encoded in enumerate(known.values(), 1)]
    data = folders.with_records(root / "forms", records)
    boxed = example(known["progressive"], len(known) + 1, folders.OUTSIDE)
    (data / "validation-00000-of-00001").write_bytes(b"".join(map(framed, [*records, boxed])))
    results: dict[str, Any] = {}
    for task, resize in (("train", "bilinear"), ("train", "crop"), ("eval", "bilinear")):
        batch = len(known) + (task == "eval")
        images, labels = steps(spec_of(data, towers=1, batch=batch, task=task, resize=resize), range(1))
        for image, label in zip(images[: len(known)], labels, strict=False):
            results[f"{list(known)[int(label) - 1]}-{task}-{resize}"] = image.mean((0, 1)).tolist()
    return {**results, "judged": labels.tolist()}
