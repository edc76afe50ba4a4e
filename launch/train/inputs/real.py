"""The input that reads a data set from a folder."""

import os
from pathlib import Path

from gputopo.launch.spec import data_folder
from gputopo.launch.spec.data_folder import DataFolder, DataName, Subset
from gputopo.launch.spec.run_spec import Data, RunSpec
from gputopo.launch.train.inputs.bad_records import BadRecords
from gputopo.launch.train.inputs.caching import require_room
from gputopo.launch.train.inputs.cifar10 import Cifar10, read
from gputopo.launch.train.inputs.feeds import FedSource, readiness, staged
from gputopo.launch.train.inputs.imagenet import ImageNet
from gputopo.launch.train.inputs.pipeline import Pipeline, PipelineMaker
from gputopo.launch.train.inputs.preprocessing import NORMALISATION, Recipe
from gputopo.launch.train.inputs.source import Fact, Shape
from gputopo.launch.train.inputs.threads import private_threads
from gputopo.launch.train.placement.devices import turn_width
from gputopo.values.errors import UsageError
from gputopo.workload import workloads as workload

_COLOURS = 3
_FEWEST_CLASSES: dict[DataName, int] = {"imagenet": 2, "cifar10": 10}  # ImageNet's 0 is the background


def real_source(model: Shape, spec: RunSpec) -> FedSource:
    """Give the source that reads `spec.data.folder`. An evaluation reads the validation files, once.

    Raises InputError for a folder or records that cannot be used, UsageError for a data set that is not the
    model's, NoRoomError for one that shall be kept in memory and does not fit.
    """
    found = data_folder.find(Path(spec.data.folder or ""), spec.data.name)
    require_fit(found, model, spec.model)
    if found.name == "cifar10" and (spec.data.cache or spec.data.resize != Data().resize):
        raise UsageError(
            f"{found.folder} holds CIFAR-10, whose pictures are taken in their own size and held in memory",
            "leave --resize-method and --cache out",
        )
    subset: Subset = "validation" if spec.task == "eval" else "train"
    bad = BadRecords(spec.data.bad_records)
    for path, record, why in data_folder.check(found, subset):
        bad.note(path, record, why)
    threads = private_threads(
        spec.data.private_threads,
        cores=len(os.sched_getaffinity(0)),
        backend=spec.backend,
        running=turn_width(spec),
        per_gpu_threads=spec.runtime.per_gpu_threads,
    )
    pipeline = _pipeline(found, subset, model, spec, threads, bad)
    images = len(pipeline.labels) if isinstance(pipeline, Cifar10) else data_folder.count(found, subset)
    maker = PipelineMaker(pipeline, spec)
    taken = staged(maker, spec, ahead=spec.data.prefetch)
    facts = _facts(found, subset, spec, threads, images)
    uncounted = bad.count  # what was found until now is not among the images

    def usable() -> int | None:
        return None if images is None else images - (bad.count - uncounted)

    return FedSource(model, spec, maker, taken, facts, made_format="NHWC", images=usable)


def require_fit(found: DataFolder, model: Shape, name: str) -> None:
    """Raise UsageError if a data set is not what a model is made for.

    A model of the catalogue names its data set. Another model must have three colours and enough classes;
    its labels are checked as they come.
    """
    known = workload.require(name).data_name if name in workload.names() else None
    if known is not None and known != found.name:
        raise UsageError(
            f"{name} is made for {known}, {found.folder} holds {found.name}",
            f"give --data-dir a folder of {known}, or choose a model for {found.name}",
        )
    colours = model.input_shape[2]
    if colours != _COLOURS or model.classes < _FEWEST_CLASSES[found.name]:
        has = "1 class" if model.classes == 1 else f"{model.classes} classes"
        raise UsageError(
            f"{name} takes {colours} colours and has {has}: {found.name} does not fit it",
            f"choose a model for {found.name}, or leave --data-dir out for synthetic images",
        )


def _pipeline(
    found: DataFolder, subset: Subset, model: Shape, spec: RunSpec, threads: int, bad: BadRecords
) -> Pipeline:
    height, width, _ = model.input_shape
    recipe = Recipe(
        height=height,
        width=width,
        resize=spec.data.resize,
        distortions=spec.data.distortions,
        training=spec.task != "eval",
        seed=spec.seed,
    )
    says = (*found.says, _said(found, subset, threads))
    paths = found.of(subset)
    if found.name == "cifar10":
        return Cifar10(*read(paths, bad), recipe, spec.batch_size, threads, bad, says)
    if spec.data.cache is not None:
        require_room(paths, spec.data.cache)
    return ImageNet(paths, recipe, model.classes, spec.batch_size, threads, spec.data.cache, bad, says)


def _said(found: DataFolder, subset: Subset, threads: int) -> str:
    files = len(found.of(subset))
    return (
        f"Input: {found.name} from {files} {subset} file{'' if files == 1 else 's'} in {found.folder}, "
        f"on {threads} thread{'' if threads == 1 else 's'} of its own; {NORMALISATION}."
    )


def _facts(
    found: DataFolder, subset: Subset, spec: RunSpec, threads: int, images: int | None
) -> dict[str, Fact]:
    return {
        "data": found.name,
        "folder": str(found.folder),
        "form": found.form,
        "subset": subset,
        "images": images,
        "threads": threads,
        **readiness(spec, spec.data.prefetch),
        **({"resize": spec.data.resize} if found.name == "imagenet" else {}),  # CIFAR-10 keeps its own size
        "distortions": str(spec.data.distortions).lower(),
        "cache": spec.data.cache,
        "bad_records": spec.data.bad_records,
        "normalisation": NORMALISATION,
    }
