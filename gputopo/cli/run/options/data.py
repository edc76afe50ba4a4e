"""Where the examples come from."""

from collections.abc import Mapping
from typing import Any, get_args

from gputopo.cli.choices import require_choice, shown
from gputopo.cli.run.offers import Offer, at_least, folder_of
from gputopo.launch.spec.run_spec import CacheForm, Data, DataSource, Feed, ResizeMethod
from gputopo.values.errors import InputError

SOURCES: tuple[DataSource, ...] = get_args(DataSource)
FEEDS: tuple[Feed, ...] = get_args(Feed)
RESIZES: tuple[ResizeMethod, ...] = get_args(ResizeMethod)
CACHE_FORMS: tuple[CacheForm, ...] = get_args(CacheForm)
BAD_RECORDS = ("stop", "skip")
_NAME_IT = "name the folder that holds the records; an archive must be unpacked first"

DATA_SOURCE = Offer(
    "--data-source",
    str,
    "|".join(SOURCES),
    "Synthetic examples: made once on the device, each step on the CPU in TensorFlow, or in Python. "
    "Default: gpu.",
)
FEED = Offer("--feed", str, "|".join(FEEDS), "How what Python makes comes to the devices. Default: sync.")
DATA_DIR = Offer("--data-dir", str, "DIR", "Real examples: ImageNet's TFRecords or CIFAR-10's binaries.")
DISTORTIONS = Offer(
    "--distortions", bool, None, "Distort real images: colours of ImageNet's, place and side of CIFAR-10's."
)
RESIZE_METHOD = Offer("--resize-method", str, "NAME", f"ImageNet: {', '.join(RESIZES)}. Default: bilinear.")
PRIVATE_THREADS = Offer(
    "--datasets-num-private-threads", int, "N", "Threads of the input pipeline. Default: by the cores."
)
CACHE = Offer(
    "--cache",
    str,
    "|".join(CACHE_FORMS),
    "Keep ImageNet's records in memory after the first pass: raw as in the files, or decoded.",
)
PREFETCH = Offer(
    "--prefetch",
    int,
    "N",
    "Batches ready on the devices ahead of their step; 0: one, on the host. Default: 1.",
)
BAD_RECORD = Offer("--bad-records", str, "|".join(BAD_RECORDS), "At a damaged record. Default: stop.")

OFFERS = (
    DATA_SOURCE,
    FEED,
    DATA_DIR,
    DISTORTIONS,
    RESIZE_METHOD,
    PRIVATE_THREADS,
    CACHE,
    PREFETCH,
    BAD_RECORD,
)


def data_of(typed: Mapping[str, Any]) -> Data:
    """Check the options of this theme and give where examples come from. Raises UsageError, InputError."""
    plain = Data()
    words = {
        "source": _choice(DATA_SOURCE, typed, SOURCES, plain.source),
        "feed": _choice(FEED, typed, FEEDS, plain.feed),
        "resize": _choice(RESIZE_METHOD, typed, RESIZES, plain.resize),
        "bad_records": _choice(BAD_RECORD, typed, BAD_RECORDS, plain.bad_records),
        "cache": _choice(CACHE, typed, CACHE_FORMS, plain.cache),
    }
    prefetch = at_least(0, PREFETCH, typed["prefetch"])
    return Data(
        **words,
        folder=None if typed["data_dir"] is None else _folder(typed["data_dir"]),
        distortions=typed["distortions"],
        private_threads=at_least(1, PRIVATE_THREADS, typed["datasets_num_private_threads"]),
        prefetch=plain.prefetch if prefetch is None else prefetch,
    )


def _choice(offer: Offer, typed: Mapping[str, Any], choices: tuple[Any, ...], default: str | None) -> Any:
    value = typed[offer.name]
    return default if value is None else require_choice(offer.option, value, choices)


def _folder(text: str) -> str:
    path = folder_of(DATA_DIR, text, way=_NAME_IT)
    if not path.is_dir():
        raise InputError(f"--data-dir {shown(text)} is not a folder", _NAME_IT)
    return str(path)
