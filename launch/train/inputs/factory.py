"""Makes the input of a run: synthetic, made in Python, or read from a data folder."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
import tensorflow as tf

from gputopo.launch.data import (
    Listing,
    count_records,
    examples,
    find_damage,
    find_data,
    list_files,
    require_made_for,
    require_same,
)
from gputopo.launch.data.folder import DataFolder, DataName, Subset
from gputopo.launch.train.inputs.datasets import Cifar10, ImageNet, read
from gputopo.launch.train.inputs.fed import FedSource, readiness, staged
from gputopo.launch.train.inputs.pipeline import Pipeline, PipelineMaker, Share, shares_of
from gputopo.launch.train.inputs.preprocessing import NORMALISATION, Preprocessing
from gputopo.launch.train.inputs.records import BadRecords
from gputopo.launch.train.inputs.source import Fact, InputSource, Shape
from gputopo.launch.train.inputs.synthetic import SyntheticSource, host_source, python_source
from gputopo.launch.train.placement.devices import ask_host, concurrent_towers
from gputopo.values.errors import ExitCode, GputopoError, UsageError
from gputopo.values.run.spec import Backend, CacheForm, Data, RunSpec

# As in tf_cnn_benchmarks: a GPU needs two host threads in addition to its private threads.
MONITORING_THREADS = 2
_COLOURS = 3
_MIN_CLASSES: dict[DataName, int] = {"imagenet": 2, "cifar10": 10}  # ImageNet's 0 is the background
_SAMPLED_RECORDS = 32  # for the mean growth in decoding
_GIB = 2**30


class CacheMemoryError(GputopoError):
    """The cached records would not fit into memory."""

    exit_code = ExitCode.HARDWARE


def source_of(model: Shape, spec: RunSpec) -> InputSource:
    """Make the input of a spec. The caller must close it.

    Raises InputError if the data folder cannot be used, UsageError if it does not fit the model.
    """
    if spec.data.folder is not None:
        return data_set_source(model, spec)
    if spec.data.source == "cpu":
        return host_source(model, spec)
    if spec.data.source == "python":
        return python_source(model, spec)
    return SyntheticSource(model, spec)


def data_set_source(model: Shape, spec: RunSpec) -> FedSource:
    """Make the source that reads `spec.data.folder`. An evaluation reads the validation files once.

    Raises InputError if the folder or its records cannot be used, UsageError if the data set does not fit the
    model, and CacheMemoryError if the cache does not fit into memory.
    """
    data = find_data(Path(spec.data.folder or ""), spec.data.name)
    require_fit(data, model, spec.model)
    if data.name == "cifar10" and (spec.data.cache or spec.data.resize != Data().resize):
        raise UsageError(
            f"{data.folder} holds CIFAR-10, whose images are not resized and always in memory",
            "remove --resize-method and --cache",
        )
    subset: Subset = "validation" if spec.task == "eval" else "train"
    bad = BadRecords(spec.data.bad_records)
    for path, record, why in find_damage(data, subset):
        bad.note(path, record, why)
    shares = shares_of(spec, _threads_of_hosts(spec))
    pipeline = _pipeline(data, subset, model, spec, shares, bad)
    images = len(pipeline.labels) if isinstance(pipeline, Cifar10) else count_records(data, subset)
    maker = PipelineMaker(pipeline, spec, shares)
    batches = staged(maker, spec, ahead=spec.data.prefetch)
    facts = _facts(data, subset, spec, shares, images)
    uncounted = bad.count  # `images` does not include the bad records found until now

    def usable() -> int | None:
        return None if images is None else images - (bad.count - uncounted)

    return FedSource(model, spec, maker, batches, facts, made_format="NHWC", images=usable)


def require_fit(data: DataFolder, model: Shape, name: str) -> None:
    """Raise UsageError if a data set does not fit a model.

    A model of the catalogue has a fixed data set. Any other model must take three colours and have enough
    classes; its labels are checked while they are read.
    """
    require_made_for(data, name)
    colours = model.input_shape[2]
    if colours != _COLOURS or model.classes < _MIN_CLASSES[data.name]:
        has = "1 class" if model.classes == 1 else f"{model.classes} classes"
        raise UsageError(
            f"{name} takes {colours} colours and has {has}: {data.name} does not fit it",
            f"choose a model for {data.name}, or remove --data-dir for synthetic images",
        )


def private_threads(
    asked: int | None, *, cores: int, backend: Backend, running: int, per_gpu_threads: int
) -> int:
    """Return the threads of an input pipeline: as requested, or the cores that the towers leave, at least 1.

    `running`: towers that run at the same time. A tower on a CPU device needs one core; a tower on a GPU
    needs `per_gpu_threads` and `MONITORING_THREADS`.
    """
    if asked is not None:
        return asked
    each = 1 if backend == "cpu" else per_gpu_threads + MONITORING_THREADS
    return max(cores - running * each, 1)


def _threads_of_hosts(spec: RunSpec) -> dict[int, int]:
    """Return the number of pipeline threads of each host that reads for this process, by rank."""
    own_rank = spec.rank or 0
    return {
        rank: private_threads(
            spec.data.private_threads,
            cores=len(os.sched_getaffinity(0)) if rank == own_rank else spec.servers[rank].cores,
            backend=spec.backend,
            running=concurrent_towers(spec, rank),
            per_gpu_threads=spec.runtime.per_gpu_threads,
        )
        for rank in (spec.ranks if spec.rank is None else (spec.rank,))
    }


def require_cache_memory(
    paths: Sequence[Path], form: CacheForm, *, free: int | None = None, host: str | None = None
) -> None:
    """Raise CacheMemoryError if the records of these files, cached in a form, exceed the free bytes.

    `free`: default: the bytes that can be allocated without swapping (MemAvailable). `host`: the host with
    this memory; None: rank 0. Check this before the run, because the kernel would kill the process during the
    first pass. Raises OSError if a file cannot be read.
    """
    available = psutil.virtual_memory().available if free is None else free
    raw = sum(path.stat().st_size for path in paths)
    needed = raw if form == "raw" else round(raw * decoded_growth(paths))
    if needed <= available:
        return
    other = f"use --cache raw, which needs {raw / _GIB:.1f} GiB" if raw <= available < needed else ""
    raise CacheMemoryError(
        f"--cache {form} needs about {needed / _GIB:.1f} GiB of memory, "
        f"and {available / _GIB:.1f} GiB are free{'' if host is None else f' on host {host}'}",
        other or "remove --cache: the kernel caches as much of the files as fits into memory",
    )


def decoded_growth(paths: Sequence[Path]) -> float:
    """Return the decoded size per byte of file, measured on the first records; 1.0 if none decodes."""
    stored = decoded = 0
    with tf.device("/CPU:0"):
        records = tf.data.TFRecordDataset([str(path) for path in paths])
        # Zip with a range before ignoring errors: a file that cannot be opened gives errors without end.
        tried = tf.data.Dataset.zip(tf.data.Dataset.range(_SAMPLED_RECORDS), records).ignore_errors()
        for _, record in tried:
            try:
                encoded = examples.parsed(record)[0]
                height, width, colours = tf.image.extract_jpeg_shape(encoded).numpy().tolist()
            except tf.errors.OpError:  # not a JPEG: the reader reports it, or can read it
                continue
            stored += len(record.numpy())
            decoded += height * width * max(colours, 3)
    return decoded / stored if stored else 1.0


def _pipeline(
    data: DataFolder, subset: Subset, model: Shape, spec: RunSpec, shares: Sequence[Share], bad: BadRecords
) -> Pipeline:
    height, width, _ = model.input_shape
    recipe = Preprocessing(
        height=height,
        width=width,
        resize=spec.data.resize,
        distortions=spec.data.distortions,
        training=spec.task != "eval",
        seed=spec.seed,
    )
    paths, threads = data.of(subset), _threads(shares)
    summary = (
        f"Input: {data.name} from {len(paths)} {subset} file{'' if len(paths) == 1 else 's'} in "
        f"{data.folder}, on {threads} private thread{'' if threads == 1 else 's'}"
        f"{' of each host' if spec.servers else ''}; {NORMALISATION}."
    )
    notices = (*data.notices, summary)
    if data.name == "cifar10":
        return Cifar10(*read(paths, bad), recipe, bad, notices)
    there: dict[str, Listing] = {}
    for share in shares:
        if share.host is not None:
            answer = ask_host(share.device, "files", str(data.folder), data.name, subset, dtype=tf.string)
            there[share.host] = msgspec.json.decode(answer, type=Listing)
    if there:
        require_same(data.folder, subset, list_files(data.folder, data.name, subset), there)
    if spec.data.cache is not None:
        for share in shares:  # each host caches all records
            free = None if share.host is None else int(ask_host(share.device, "free_bytes", dtype=tf.int64))
            require_cache_memory(paths, spec.data.cache, free=free, host=share.host)
    return ImageNet(paths, recipe, model.classes, spec.data.cache, bad, notices)


def _threads(shares: Sequence[Share]) -> int | str:
    """Return the number of threads of each host, or a text such as "6, 6, 2" if hosts differ."""
    threads = [share.threads for share in shares]
    return threads[0] if len(set(threads)) == 1 else ", ".join(map(str, threads))


def _facts(
    data: DataFolder, subset: Subset, spec: RunSpec, shares: Sequence[Share], images: int | None
) -> dict[str, Fact]:
    return {
        "data": data.name,
        "folder": str(data.folder),
        "form": data.form,
        "subset": subset,
        "images": images,
        "threads": _threads(shares),
        **readiness(spec, spec.data.prefetch),
        **({"resize": spec.data.resize} if data.name == "imagenet" else {}),  # CIFAR-10 is not resized
        "distortions": str(spec.data.distortions).lower(),
        "cache": spec.data.cache,
        "bad_records": spec.data.bad_records,
        "normalisation": NORMALISATION,
    }
