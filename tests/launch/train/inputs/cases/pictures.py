"""What becomes of pictures and labels between the file and the tower."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.data.records import example, framed
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, spec_of, steps

# Resize method, distortions, task, cache.
PICTURES: tuple[tuple[str, bool, str, str | None], ...] = (
    ("round_robin", False, "train", None),
    ("bilinear", False, "train", None),
    ("bilinear", False, "train", "decoded"),
    ("bilinear", True, "train", None),
    ("bilinear", True, "eval", None),
)
SEED = 5
EACH = 8  # pictures by each: always the same one


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
    """Mean colours of pictures of other forms than a JPEG of three colours, each with another label.

    The model that is evaluated has no background class.
    """
    known = folders.forms()
    records = [folders.record(label, encoded=encoded) for label, encoded in enumerate(known.values(), 1)]
    data = folders.with_records(root / "forms", records)
    boxed = example(known["progressive"], len(known) + 1, folders.OUTSIDE)
    (data / "validation-00000-of-00001").write_bytes(b"".join(map(framed, [*records, boxed])))
    results: dict[str, Any] = {}
    for task, resize, first in (("train", "bilinear", 1), ("train", "crop", 1), ("eval", "bilinear", 0)):
        batch = len(known) + (task == "eval")
        spec = spec_of(data, towers=1, batch=batch, task=task, resize=resize)
        images, labels = steps(spec, range(1), Picture(classes=1000 + first))
        for image, label in zip(images[: len(known)], labels, strict=False):
            results[f"{list(known)[int(label) - first]}-{task}-{resize}"] = image.mean((0, 1)).tolist()
    return {**results, "judged": labels.tolist()}
