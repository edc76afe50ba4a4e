"""What TensorFlow writes and reads back, in one process: `python -m tests.launch.data.process FOLDER`.

FOLDER/found.json holds what was found.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gputopo.launch.data import DataRequest, count_records, find_damage, find_data, make_data, wrong_fields
from gputopo.launch.train.lifecycle import DiskError
from tests.launch.train.inputs import folders
from tests.launch.train.small_disk import small_disk


def imagenet(root: Path) -> Any:
    import tensorflow as tf

    done = make_data(root / "data", DataRequest(name="imagenet", count=40, files=3, side=24))
    found = find_data(root / "data")
    files = found.of("train")
    by_file = [list(tf.data.TFRecordDataset(str(path))) for path in files]
    first = tf.train.Example.FromString(by_file[0][0].numpy())
    fields: dict[str, Any] = {}
    for name, feature in first.features.feature.items():
        (value,) = getattr(feature, feature.WhichOneof("kind")).value
        fields[name] = value.decode() if isinstance(value, bytes) and name != "image/encoded" else value
    image = tf.io.decode_jpeg(fields.pop("image/encoded"))
    return {
        "counts": [done.train, done.validation],
        "names": [path.name for path in files],
        "records": [len(records) for records in by_file],
        "counted": [count_records(found, subset) for subset in ("train", "validation")],
        "damage": find_damage(found, "train"),
        "bytes": [done.bytes, sum(path.stat().st_size for path in (root / "data").iterdir())],
        "shape": list(image.shape),
        "fields": fields,
    }


def wrong(root: Path) -> Any:
    return {kind: wrong_fields(record) for kind, record in folders.schemas().items()}


def seeds(root: Path) -> Any:
    written = []
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        make_data(root / name, DataRequest(name="imagenet", count=4, files=1, side=16, seed=seed))
        written.append((root / name / "train-00000-of-00001").read_bytes())
    return [written[0] == written[1], written[0] == written[2]]


def full_disk(root: Path) -> Any:
    try:
        with small_disk(20_000):
            make_data(root / "data", DataRequest(name="imagenet", count=20, files=1, side=64))
    except DiskError as error:
        return [error.what, error.exit_code, [path.name for path in root.rglob("*")]]


def main(root: str) -> None:
    found = {}
    for case in (imagenet, wrong, seeds, full_disk):
        place = Path(root) / case.__name__
        place.mkdir()
        found[case.__name__] = case(place)
    (Path(root) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
