"""What becomes of pictures and labels between the file and the tower."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, spec_of, steps, to_the_end

RESIZES = ("crop", "nearest", "bilinear", "bicubic", "area", "round_robin")
PICTURES = (
    *((resize, False, "train") for resize in RESIZES),
    ("bilinear", True, "train"),
    ("bilinear", False, "eval"),
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


def without_background(root: Path) -> Any:
    data = folders.coloured(root / "background")
    _, labels = to_the_end(spec_of(data, task="eval", batch=2), Picture(classes=1000))
    return sorted(labels.tolist())
