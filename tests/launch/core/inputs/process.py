"""Everything that needs TensorFlow, in one process: `python -m tests.launch.core.inputs.process FOLDER`.

FOLDER/NAME.json holds what the case NAME gave; one that fails with an error of ours gives {"error": ...}.
"""

import functools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.errors import GputopoError
from gputopo.events import Device, ModelBuilt, Noticed, Step, WarmupDone
from gputopo.launch.core.inputs.examples_proto import Box, LabelledImage, example
from gputopo.launch.core.inputs.tfrecords import frame
from gputopo.launch.spec import Data, RunSpec
from tests.launch.core.inputs import folders
from tests.launch.core.small_model import SmallModel

MOST_TOWERS = 4
LONG_S = 0.2
FEEDS = ("sync", "queue", "dataset", "staged")
RESIZES = ("crop", "nearest", "bilinear", "bicubic", "area", "round_robin")
PICTURES = (
    *((resize, False, "train") for resize in RESIZES),
    *((resize, True, "train") for resize in ("bilinear", "round_robin")),
    *((resize, False, "eval") for resize in ("crop", "bilinear")),
    ("bilinear", True, "eval"),
)
Case = Callable[[Path], Any]


@dataclass(frozen=True)
class Picture:
    """What an input must know of a model."""

    input_shape: tuple[int, int, int] = (24, 32, 3)
    classes: int = 1001


def spec_of(folder: Path | None = None, *, towers: int = 2, batch: int = 4, **fields: Any) -> RunSpec:
    data = {key: fields.pop(key) for key in tuple(fields) if key in Data.__struct_fields__}
    given: dict[str, Any] = {"num_batches": 3, "num_warmup_batches": 2, "model": "own", **fields}
    return RunSpec(
        backend="cpu",
        devices=tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(towers)),
        batch_size=batch,
        data=Data(folder=None if folder is None else str(folder), **data),
        **given,
    )


@contextmanager
def source(spec: RunSpec, model: Any = None) -> Iterator[Any]:
    from gputopo.launch.core.inputs.source import source_of

    with closing(source_of(model or Picture(), spec)) as made:
        yield made


def joint(fed: Any) -> tuple[Any, Any]:
    """Join the towers' images and labels."""
    arrays = [one.numpy() for one in fed]
    return np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2])


def to_the_end(spec: RunSpec, model: Any = None) -> tuple[Any, Any]:
    """Give all images and labels of one pass, without those that are no examples."""
    images, labels = [], []
    with source(spec, model) as made:
        for step in range(1000):
            try:
                got = joint(made.feed(step))
            except StopIteration:
                break
            images.append(got[0])
            labels.append(got[1])
    every, known = np.concatenate(images), np.concatenate(labels)
    return every[known >= 0], known[known >= 0]


def steps(spec: RunSpec, numbers: Any, model: Any = None) -> tuple[Any, Any]:
    with source(spec, model) as made:
        got = [joint(made.feed(number)) for number in numbers]
    return np.concatenate([one for one, _ in got]), np.concatenate([one for _, one in got])


def colours_and_labels(root: Path) -> Any:
    data = folders.coloured(root / "coloured")
    images, labels = to_the_end(spec_of(data, task="eval", batch=2))
    colours = {int(label): image.mean((0, 1)).tolist() for image, label in zip(images, labels, strict=True)}
    return {"colours": colours, "labels": labels.tolist(), "deviation": float(images.std((1, 2)).max())}


def known_fields(root: Path) -> Any:
    import tensorflow as tf

    box = Box(ymin=0.25, xmin=0.0, ymax=1.0, xmax=0.5)
    image = LabelledImage(b"\xff\xd8" + bytes(300), 615, 462, 581, "knee pad", "n03623198", "a.JPEG", (box,))
    path = root / "one"
    path.write_bytes(frame(example(image)) * 3)
    found = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
    told: dict[str, Any] = {}
    for name, feature in found[0].features.feature.items():
        values = list(getattr(feature, feature.WhichOneof("kind")).value)
        told[name] = [len(one) if name == "image/encoded" else one for one in values]
    return {
        "records": len(found),
        "fields": {
            name: [one.decode() if isinstance(one, bytes) else one for one in values]
            for name, values in told.items()
        },
    }


def feeds(root: Path) -> Any:
    from gputopo.launch.core import training

    losses: dict[str, Any] = {}
    by_two = [("cpu", 2, "NHWC"), *((name, 2, "NHWC") for name in FEEDS)]
    for name, towers, data_format in (
        *by_two,
        ("staged", 2, "NCHW"),
        ("sync", 4, "NHWC"),
        ("cpu", 1, "NHWC"),
    ):
        place: dict[str, Any] = {"source": "python", "feed": name} if name in FEEDS else {"source": name}
        spec = spec_of(
            towers=towers,
            batch=8 // towers,
            ps_device="/CPU:0",
            learning_rate=0.3,
            data_format=data_format,
            **place,
        )
        events: list[Any] = []
        training.train(SmallModel(), spec, events.append)
        told = [event.loss for event in events if isinstance(event, Step)]
        losses[f"{name}-{towers}-{data_format}"] = told
    return losses


def order(root: Path) -> Any:
    from gputopo.launch.core.inputs import imagenet

    data = folders.numbered(root / "numbered")  # 60 pictures to train with, each of a class of its own
    two = spec_of(data, batch=5, towers=2)

    def labels(spec: RunSpec, numbers: Any) -> list[int]:
        return [int(label) for label in steps(spec, numbers)[1]]

    pixels_of_four, _ = steps(spec_of(data, batch=3, towers=4), range(3))
    pixels_of_one, _ = steps(spec_of(data, batch=12, towers=1), range(3))
    whole, imagenet.PASSED_BYTES = imagenet.PASSED_BYTES, 0
    with source(two) as made:
        far = [int(label) for label in joint(made.feed(3))[1]]
        restarted = list(made.says)
    imagenet.PASSED_BYTES = whole
    ends = []
    with source(spec_of(data, task="eval", batch=2)) as made:
        for number in (1, 2, 3, 4, 1):
            try:
                ends.append(len(made.feed(number)) == 4)
            except StopIteration:
                ends.append(False)
    return {
        "far": far,
        "restarted": restarted,
        "ends": ends,
        "first": labels(two, range(6)),
        "again": labels(two, range(6)),
        "second_pass": labels(two, range(12))[60:],
        "other_seed": labels(spec_of(data, batch=5, towers=2, seed=7), range(6)),
        "from_three": labels(two, range(3, 6)),
        "cached": labels(spec_of(data, batch=5, towers=2, cache=True), range(6)),
        "by_towers": float(np.abs(pixels_of_four - pixels_of_one).max()),
    }


def damage(root: Path) -> Any:
    told: dict[str, Any] = {}
    for kind in folders.DAMAGE:
        data = folders.damaged(root / kind, kind)
        if kind in folders.SEEN_EACH_IN_ITS_OWN_WAY:
            spec = spec_of(data, task="eval", batch=3)
            told[f"{kind}-stop"] = _error(functools.partial(to_the_end, spec))
        for task in ("eval", "train") if kind in folders.SEEN_EACH_IN_ITS_OWN_WAY else ("eval",):
            with source(spec_of(data, task=task, batch=3, bad_records="skip")) as made:
                labels: list[int] = []
                for step in range(12):
                    try:
                        labels += joint(made.feed(step))[1].tolist()
                    except StopIteration:
                        break
                told[f"{kind}-{task}"] = {"labels": labels, "says": list(made.says)}
    return told


def nothing_good(root: Path) -> Any:
    data = folders.with_records(root / "junk", [b"junk"] * 5)
    spec = spec_of(data, bad_records="skip")
    with source(spec) as made:
        return _error(lambda: made.feed(0))


def pictures(root: Path) -> Any:
    data = folders.photographs(root / "photos")
    found: dict[str, Any] = {}
    for resize, distortions, task in PICTURES:
        spec = spec_of(data, batch=4, resize=resize, distortions=distortions, task=task)
        images, _ = steps(spec, range(1))
        name = f"{resize}-{distortions}-{task}"
        np.save(root / f"{name}.npy", images)
        found[name] = [list(images.shape), float(images.min()), float(images.max())]
    kept, _ = steps(spec_of(data, batch=4, cache=True, cache_form="decoded", distortions=True), range(1))
    plain, _ = steps(spec_of(data, batch=4, distortions=True), range(1))
    found["decoded"] = float(np.abs(kept - plain).mean())
    turned, _ = steps(spec_of(data, batch=4, data_format="NCHW"), range(1))
    found["NCHW"] = list(turned.shape)
    return found


def without_background(root: Path) -> Any:
    data = folders.coloured(root / "background")
    _, labels = to_the_end(spec_of(data, task="eval", batch=2), Picture(classes=1000))
    return sorted(labels.tolist())


def cifar(root: Path) -> Any:
    binary, python, pixels, labels = folders.cifar(root / "cifar")
    model = Picture((32, 32, 3), 11)

    def of(folder: Path, numbers: Any = range(1), **fields: Any) -> tuple[Any, Any]:
        return steps(spec_of(folder, batch=10, **fields), numbers, model)

    images, known = of(binary, range(2))
    same, _ = of(python, range(2))
    distorted, distorted_labels = of(binary, range(2), distortions=True)
    tested, tested_labels = to_the_end(spec_of(binary, task="eval", batch=3), model)
    matches = [folders.find(image, pixels["train"]) for image in images]
    return {
        "labels_fit": [
            int(labels["train"][match]) == int(label) for match, label in zip(matches, known, strict=True)
        ],
        "rows": sorted(matches),
        "formats_differ": float(np.abs(images - same).max()),
        "windows": [
            folders.is_window(image, pixels["train"][labels["train"] == label])
            for image, label in zip(distorted, distorted_labels, strict=True)
        ],
        "moved": float(np.abs(distorted - images).max()),
        "test": float(np.abs(tested - folders.normalised(pixels["test"])).max()),
        "test_labels": [tested_labels.tolist(), labels["test"].tolist()],
        "cut": _error(lambda: of(folders.cut_cifar(root / "cut"))),
        "skipped": list(_says(spec_of(folders.cut_cifar(root / "cut2"), batch=2, bad_records="skip"), model)),
        "label": _error(lambda: of(folders.mislabelled_cifar(root / "label"))),
    }


def unfit(root: Path) -> Any:
    imagenet, tiny = folders.coloured(root / "unfit"), folders.cifar(root / "unfit-cifar")[0]

    def of(folder: Path, shape: Any, **fields: Any) -> Any:
        return _error(lambda: steps(spec_of(folder, **fields), range(1), shape))

    return {
        "resnet20 on imagenet": of(imagenet, Picture((32, 32, 3), 11), model="resnet20"),
        "resnet50 on cifar10": of(tiny, Picture(), model="resnet50"),
        "own with few classes": of(tiny, Picture((32, 32, 3), 5)),
        "own with small range": of(imagenet, Picture(classes=2)),
        "name": of(imagenet, Picture(), name="cifar10"),
    }


def failing(root: Path) -> Any:
    """A maker that fails at step 2, behind each way of feeding from a thread."""
    from gputopo.launch.core.inputs import feeds as fed
    from gputopo.launch.core.inputs.python_made import Generated

    class Failing:
        def make(self, number: int) -> Any:
            if number == 2:
                raise OSError(28, "No space left on device")
            if number == 5:
                raise StopIteration
            return [np.full((4, 24, 32, 3), number, np.float32), np.zeros(4, np.int64)] * 2

        def close(self) -> None:
            pass

    told: dict[str, Any] = {}
    spec = spec_of()
    ways: dict[str, fed.Taken] = {
        "sync": fed.AtOnce(Failing().make),
        "queue": fed.Ahead(Failing().make, 3),
        "dataset": Generated(Failing(), spec, Picture().input_shape, 1),
        "staged": fed.staged(Failing(), spec, ahead=2),
    }
    for name, taken in ways.items():
        with closing(fed.FedSource(Picture(), spec, Failing(), taken, {}, made_format="NHWC")) as made:
            values = [float(joint(made.feed(number))[0].mean()) for number in (0, 1)]
            error = _error(functools.partial(made.feed, 2))
            values += [float(joint(made.feed(number))[0].mean()) for number in (3, 4)]
            try:
                made.feed(5)
                ended = None
            except (StopIteration, GputopoError) as stop:
                ended = type(stop).__name__
            again = float(joint(made.feed(1))[0].mean())
        told[name] = {"values": values, "error": error, "ended": ended, "again": again}
    return told


def threads(root: Path) -> Any:
    """Threads of Python after each source was closed, some of them before their first step."""
    data = folders.coloured(root / "threads")
    left = []
    ways: list[dict[str, Any]] = [{"source": "python", "feed": feed} for feed in FEEDS]
    ways = [{"folder": data}, {"source": "cpu"}, *ways]
    for fields in ways:
        for taken in (0, 2):
            spec = spec_of(**fields)
            with source(spec) as made:
                for number in range(taken):
                    made.feed(number)
            made.close()  # a second time does nothing
            left += [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    return left


def marks(root: Path) -> Any:
    """Times of a step, in seconds, whose batch takes `LONG_S` to make."""
    from gputopo.launch.core import step as core
    from gputopo.launch.core.inputs import feeds as fed
    from gputopo.launch.core.inputs.python_made import Pool
    from gputopo.launch.core.placement import placements

    spec = spec_of(ps_device="/CPU:0")
    model = SmallModel()
    pool = Pool(model, spec)

    def slowly(number: int) -> Any:
        until = time.perf_counter() + LONG_S
        batch = pool.make(number)
        while time.perf_counter() < until:
            batch = pool.make(number)
        return batch

    with closing(fed.FedSource(model, spec, pool, fed.AtOnce(slowly), {}, made_format="NHWC")) as made:
        taken = core.TrainingStep(model, spec, placements.place(model, spec), made)
        taken(0)
        began = time.perf_counter()
        outcome = taken(1)
        return {
            "step": time.perf_counter() - began,
            "waited": made.waited_s,
            "last_mark": float(outcome.marks.max()),
        }


def input_only(root: Path) -> Any:
    from gputopo.launch.core.inputs.input_only import measure_input, run_input_only

    data = folders.damaged(root / "only", "checksum")
    events: list[Any] = []
    said = measure_input(Picture(), spec_of(data, bad_records="skip", batch=3), events.append)
    short: list[Any] = []
    measure_input(Picture(), spec_of(data, task="eval", bad_records="skip", batch=3), short.append)
    known: list[Any] = []
    run_input_only(spec_of(model="resnet20", source="python", feed="queue"), known.append)
    counted = [event for event in events if isinstance(event, Step)]
    return {
        "kinds": [type(event).__name__ for event in events],
        "steps": [event.step for event in counted],
        "losses": [event.loss for event in counted],
        "images": [event.images for event in counted],
        "marks": [
            [
                mark.tower,
                mark.weights_s >= 0,
                mark.compute_s > 0,
                mark.weights_s + mark.compute_s <= event.seconds,
            ]
            for event in counted
            for mark in event.marks
        ],
        "says": next(event.says for event in events if isinstance(event, ModelBuilt)),
        "noticed": [event.says for event in events if isinstance(event, Noticed)],
        "describes": dict(said),
        "short": Counter(type(event).__name__ for event in short),
        "known": Counter(type(event).__name__ for event in known if isinstance(event, Step | WarmupDone)),
    }


def gpu_kernels(root: Path) -> Any:
    """Ops that reading puts on a tower's device (CPU 1 stands for a GPU) and that have no kernel there."""
    import msgspec
    from tensorflow.python.framework import kernels

    from gputopo.launch.core.inputs.input_only import Arrival

    def kinds(op: str) -> set[str]:
        return {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(op).kernel}

    data = folders.coloured(root / "kernels")
    device = (Device(tower=0, device="/CPU:1"),)
    used = set()
    ways: list[dict[str, Any]] = [{"folder": data}, {"source": "cpu"}, {"source": "gpu"}]
    for fields in ways:
        spec = msgspec.structs.replace(spec_of(**fields, data_format="NCHW", towers=1), devices=device)
        with source(spec) as made:
            arrival = Arrival(made, spec)
            arrival(0)
            nodes = arrival._graph.graph.as_graph_def().node
            used |= {node.op for node in nodes if node.device.endswith("CPU:1")}
    return {
        "gpu_build": "GPU" in kinds("Conv2D"),
        "used": sorted(used),
        "without": sorted(op for op in used if not kinds(op) & {"GPU", "DEFAULT"}),
    }


def _says(spec: RunSpec, model: Any) -> tuple[str, ...]:
    with source(spec, model) as made:
        made.feed(0)
        said: tuple[str, ...] = made.says
        return said


def _error(call: Callable[[], Any]) -> Any:
    try:
        call()
    except GputopoError as error:
        return [error.what, error.hint]
    return None


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        colours_and_labels,
        known_fields,
        feeds,
        order,
        damage,
        nothing_good,
        pictures,
        without_background,
        cifar,
        unfit,
        failing,
        threads,
        marks,
        input_only,
        gpu_kernels,
    )
}


def main(folder: str, *names: str) -> None:
    from gputopo.launch.core.placement import devices

    devices.set_up(spec_of(towers=MOST_TOWERS))
    for name in names or CASES:
        place = Path(folder) / name
        place.mkdir()
        began = time.perf_counter()
        (Path(folder) / f"{name}.json").write_text(json.dumps(CASES[name](place)))
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
