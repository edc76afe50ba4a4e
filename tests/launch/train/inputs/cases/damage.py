"""Records that cannot be used, and data that do not fit their model."""

import functools
import gc
from pathlib import Path
from typing import Any

from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import (
    Picture,
    error_of,
    joint,
    source,
    spec_of,
    steps,
)

PASSES = 2  # of 15 good records, six a step


def damage(root: Path) -> Any:
    """All kinds, if they are skipped."""
    with source(spec_of(folders.damaged(root / "all", *folders.DAMAGE), batch=3, bad_records="skip")) as made:
        labels = [label for step in range(PASSES * 5 // 2) for label in joint(made.feed(step))[1].tolist()]
        return {"labels": labels, "says": list(made.notices), "images": made.images_per_epoch}


def nothing_good(root: Path) -> Any:
    data = folders.with_records(root / "junk", [b"junk"] * 5)
    with source(spec_of(data, bad_records="skip")) as made:
        return error_of(functools.partial(made.feed, 0))


def unfit(root: Path) -> Any:
    def of(folder: Path, shape: Picture) -> Any:
        return error_of(lambda: steps(spec_of(folder), range(1), shape))

    return {
        "few classes": of(folders.cifar(root / "cifar")[0], Picture((32, 32, 3), 5)),
        "small range": of(folders.coloured(root / "coloured"), Picture(classes=2)),
    }


def let_go(root: Path) -> Any:
    """Iterators of TensorFlow that are alive after a source has raised for boxes outside of a picture."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    data = folders.with_records(root / "let_go", [folders.schemas()["boxes outside"]])
    with source(spec_of(data)) as made:
        error = error_of(functools.partial(made.feed, 0))
        gc.collect()
        return {"error": error, "alive": sum(isinstance(one, OwnedIterator) for one in gc.get_objects())}


def not_opened(root: Path) -> Any:
    """Labels of an evaluation one of whose files is removed after it was listed, and the notice."""
    data = folders.damaged(root / "not_opened", "none")
    with source(spec_of(data, task="eval", batch=3, bad_records="skip")) as made:
        (data / "validation-00001-of-00003").unlink()
        labels = joint(made.feed(0))[1].tolist()
        return {"labels": labels, "notice": made.notices[-1]}
