"""Records that cannot be used, and data that do not fit their model."""

import functools
import gc
from pathlib import Path
from typing import Any
from unittest import mock

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
    """Each kind, where it is left out."""
    from gputopo.launch.train.inputs import records

    results: dict[str, Any] = {}
    data = folders.damaged(root / "all", *folders.DAMAGE)
    for task in ("eval", "train"):
        noted: set[tuple[str, int, str]] = set()
        note = records.BadRecords.note

        def noting(
            bad: records.BadRecords, path: Path, record: int, why: str, noted: Any = noted, note: Any = note
        ) -> None:
            noted.add((path.name, record, why))
            note(bad, path, record, why)

        with (
            mock.patch.object(records.BadRecords, "note", noting),
            source(spec_of(data, task=task, batch=3, bad_records="skip")) as made,
        ):
            labels: list[int] = []
            for step in range(PASSES * 5 // 2):
                try:
                    labels += joint(made.feed(step))[1].tolist()
                except StopIteration:
                    break
            results[task] = {
                "labels": labels,
                "says": list(made.notices),
                "noted": sorted(noted),
                "images": made.images_per_epoch,
            }
    return results


def nothing_good(root: Path) -> Any:
    data = folders.with_records(root / "junk", [b"junk"] * 5)
    with source(spec_of(data, bad_records="skip")) as made:
        return error_of(functools.partial(made.feed, 0))


def unfit(root: Path) -> Any:
    imagenet, tiny = folders.coloured(root / "unfit"), folders.cifar(root / "unfit-cifar")[0]

    def of(folder: Path, shape: Any, **fields: Any) -> Any:
        return error_of(lambda: steps(spec_of(folder, **fields), range(1), shape))

    return {
        "resnet20 on imagenet": of(imagenet, Picture((32, 32, 3), 11), model="resnet20"),
        "resnet50 on cifar10": of(tiny, Picture(), model="resnet50"),
        "own with few classes": of(tiny, Picture((32, 32, 3), 5)),
        "own with small range": of(imagenet, Picture(classes=2)),
        "name": of(imagenet, Picture(), name="cifar10"),
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
    """What the reader and the look at the sizes of pictures make of a file that cannot be opened."""
    import tensorflow as tf

    from gputopo.launch.train.inputs import factory
    from gputopo.launch.train.inputs.records import BadRecords, careful

    data = folders.damaged(root / "not_opened", "none")
    (data / "train-00001-of-00003").unlink()
    paths = [data / f"train-{shard:05d}-of-00003" for shard in range(3)]
    bad = BadRecords("skip")
    records = careful(paths, tf.data.Dataset.range(3), bad, (1, 1000))
    return {
        "read": [[int(file), int(number)] for file, number, _ in records],
        "bad": bad.notices,
        "growth": factory.decoded_growth(paths[1:2]),
    }
