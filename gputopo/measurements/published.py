"""Published figures as measurements, and the machines on which they were measured."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gputopo.captures import bundled_names, read_bundled
from gputopo.measurements.study import study_of
from gputopo.reference import (
    PUBLISHED_SOURCES,
    Missing,
    Published,
    published_figures,
    published_machines,
    published_missing,
)
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import PUBLISHED, DeviceFigure, Measurement
from gputopo.values.study import Study, UnreadFile

# Programs whose column `version` has the method, not a version.
_METHODS = frozenset({"keras-2017"})


@functools.cache
def published_measurements(source: str | None = None) -> tuple[Measurement, ...]:
    """Return all published cells of one source, or of all: those with a figure, then those without."""
    rows: tuple[Published | Missing, ...] = (*published_figures(), *published_missing())
    return tuple(of_published(row) for row in rows if source in (None, row.source))


def of_published(row: Published | Missing) -> Measurement:
    """Return one cell of a published table as a measurement."""
    real = row.data.removesuffix("-distorted")
    method = row.version if row.program in _METHODS else None
    machine, known = machine_named(row.machine), published_machines().get(row.machine)
    name = (machine.gpus[row.gpus[0]].name or "").removeprefix("NVIDIA ") or None
    return Measurement(
        source=PUBLISHED + row.source,
        machine=row.machine,
        cpu=known.cpu if known else None,
        gpu=f"{name} (assumed)" if name and known and (known.assumed or "").startswith("the card") else name,
        gpus=row.gpus,
        n_gpus=len(row.gpus),
        backend="gpu",
        model=row.model,
        dataset="imagenet",
        data=real,
        # Only sources that publish figures both with and without distortions say which one it is.
        distortions=(row.data == "real-distorted") if _has_distorted(row.source) and real == "real" else None,
        batch_per_gpu=row.batch_per_gpu,
        conditions=() if row.batch is None else (f"batch {row.batch} of all GPUs together",),
        precision=row.precision,
        data_format=row.data_format,
        xla=row.xla,
        framework=row.program.removesuffix("-2017"),
        method=method,
        version=None if method else row.version,
        variable_update=row.variable_update,
        ps_device=row.ps_device,
        all_reduce=row.all_reduce,
        **_outcome(row),
    )


def _outcome(row: Published | Missing) -> dict[str, Any]:
    if isinstance(row, Missing):
        return {"status": "missing", "reason": row.reason}
    device = DeviceFigure(number=row.gpus[0], graphics_mhz=row.core_mhz)
    return {
        "images_per_sec": row.images_per_sec,
        "suspect": row.note if row.is_suspect else None,
        "devices": (device,) if row.core_mhz else (),
    }


@functools.cache
def _has_distorted(source: str) -> bool:
    return any(row.source == source and row.data == "real-distorted" for row in published_figures())


@functools.cache
def machine_named(name: str) -> Machine:
    """Return a bundled machine, or one of the published figures. Raises KeyError for another name."""
    return read_bundled(name) if name in bundled_names() else published_machines()[name].machine()


def known_machines() -> Mapping[str, Machine]:
    """Return all machines of published figures by name."""
    return {name: machine_named(name) for name in {row.machine for row in published_figures()}}


# Names of the documents on the command line. Each has the name of its source, and the id of the observation
# that answers the document's question; None: the headline of any study answers it.
DOCUMENTS: Mapping[str, tuple[str, str | None]] = {
    "tensorpack": ("tensorpack", "program.ratio"),
    "tf-official": ("tensorflow.org", "scaling.verdict"),
    "lambda-cpu": ("lambda-2018", "cpu.matters"),
    "keras-multi-gpu": ("rossumai", None),
}


def published_study(name: str) -> Study:
    """Return the study of a document, computed from its raw figures."""
    source, answer = DOCUMENTS[name]
    study = study_of(
        published_measurements(source),
        title=f"{name}, recomputed from its raw figures",
        machines=known_machines(),
        sources={source: PUBLISHED_SOURCES[source]},
    )
    says = " ".join(observation.says for observation in study.observations if observation.id == answer)
    return msgspec.structs.replace(study, headline=says or study.headline)


def compared_study(
    measurements: Iterable[Measurement],
    *,
    machines: Mapping[str, Machine],
    earlier: Iterable[Measurement],
    smallest_effect: float,
    unfinished: Iterable[str],
    unread: Iterable[UnreadFile],
) -> Study:
    """Return the study of measurements, next to the figures that were published for the same GPUs.

    The arguments are described in `study_of`.
    """
    study = study_of(
        measurements,
        title="Training throughput",
        machines={**known_machines(), **machines},
        earlier=earlier,
        references=published_measurements(),
        smallest_effect=smallest_effect,
        unfinished=unfinished,
        unread=unread,
    )
    names = dict.fromkeys(row.reference.removeprefix(PUBLISHED) for row in study.figures.against)
    return msgspec.structs.replace(
        study, sources={name: PUBLISHED_SOURCES[name] for name in names if name in PUBLISHED_SOURCES}
    )
