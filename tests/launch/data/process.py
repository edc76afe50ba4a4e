"""What TensorFlow writes and reads back, in one process: `python -m tests.launch.data.process FOLDER`.

FOLDER/found.json holds what was found.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gputopo.launch.data import DataRequest, folder, make_data
from gputopo.launch.data.make import serialized
from gputopo.launch.data.tfrecords import walk
from gputopo.launch.train.lifecycle.folders import DiskError
from tests.launch.train.inputs import folders
from tests.launch.train.small_disk import small_disk


def known_fields(root: Path) -> Any:
    import tensorflow as tf

    image = serialized(b"\xff\xd8" + bytes(300), 615, (462, 581), [(0.25, 0.0, 1.0, 0.5)])
    path = root / "one"
    with tf.io.TFRecordWriter(str(path)) as out:
        for _ in range(3):
            out.write(image)
    found = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
    fields: dict[str, Any] = {}
    for name, feature in found[0].features.feature.items():
        values = list(getattr(feature, feature.WhichOneof("kind")).value)
        values = [len(one) if name == "image/encoded" else one for one in values]
        fields[name] = [one.decode() if isinstance(one, bytes) else one for one in values]
    return {
        "records": len(found),
        "walked": walk(path).records,
        "fields": fields,
    }


def wrong(root: Path) -> Any:
    from gputopo.launch.data.examples import wrong_fields, wrong_picture

    undecodable = folders.record(3, encoded=b"\xff\xd8\xff\xe0 this is no picture")
    return {
        "fields": {kind: wrong_fields(record) for kind, record in folders.schemas().items()},
        "picture": wrong_picture(undecodable),
    }


def imagenet(root: Path) -> Any:
    done = make_data(root / "data", DataRequest(name="imagenet", count=40, files=3, side=24))
    found = folder.find_data(root / "data")
    return {
        "counts": [done.train, done.validation],
        "names": [path.name for path in found.of("train")],
        "records": [walk(path).records for path in found.of("train")],
        "damage": folder.check(found, "train"),
        "validation": folder.count(found, "validation"),
        "bytes": [done.bytes, sum(path.stat().st_size for path in (root / "data").iterdir())],
    }


def seeds(root: Path) -> Any:
    written = []
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        make_data(root / name, DataRequest(name="imagenet", count=4, files=1, side=16, seed=seed))
        written.append((root / name / "train-00000-of-00001").read_bytes())
    return [written[0] == written[1], written[0] == written[2]]


def full_disk(root: Path) -> Any:
    request = DataRequest(name="imagenet", count=20, files=1, side=64)
    (root / "empty").mkdir()
    errors = []
    for place in ("data", "new/and/deeper", "empty"):
        with small_disk(20_000):
            try:
                make_data(root / place, request)
            except DiskError as error:
                errors.append([error.what, error.exit_code])
    return {"errors": errors, "left": [path.name for path in root.rglob("*")]}


def main(root: str) -> None:
    found = {}
    for case in (known_fields, wrong, imagenet, seeds, full_disk):
        place = Path(root) / case.__name__
        place.mkdir()
        found[case.__name__] = case(place)
    (Path(root) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
