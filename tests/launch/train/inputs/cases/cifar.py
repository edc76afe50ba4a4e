"""CIFAR-10 as batches."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, error_of, source, spec_of, steps


def cifar(root: Path) -> Any:
    binary, python, pixels, labels = folders.cifar(root / "cifar")
    model = Picture((32, 32, 3), 11)

    def of(folder: Path, numbers: Any = range(1), **fields: Any) -> tuple[Any, Any]:
        return steps(spec_of(folder, batch=10, **fields), numbers, model)

    images, known = of(binary, range(2))
    distorted, distorted_labels = of(python, range(2), distortions=True)
    tested, tested_labels = of(binary, task="eval", distortions=True)  # 7, filled up
    matches = [folders.find(image, pixels["train"]) for image in images]
    cut = folders.cut_cifar(root / "cut")
    with source(spec_of(cut, batch=2, bad_records="skip"), model) as made:
        skipped = list(made.notices)
    return {
        "labels_fit": [
            int(labels["train"][match]) == int(label) for match, label in zip(matches, known, strict=True)
        ],
        "rows": sorted(matches),
        "windows": [
            folders.is_window(image, pixels["train"][labels["train"] == label])
            for image, label in zip(distorted[:6], distorted_labels[:6], strict=True)
        ],
        "moved": float(np.abs(distorted - images).max()),
        "test": float(np.abs(tested[:7] - folders.normalised(pixels["test"])).max()),
        "test_labels": [tested_labels.tolist(), [*labels["test"].tolist(), *[-1] * 13]],
        "cut": error_of(lambda: of(cut)),
        "skipped": skipped,
    }
