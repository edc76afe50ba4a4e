"""What the cases share: a spec, a source of it, and what comes out of it."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.values.errors import GputopoError
from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Device
from gputopo.values.run.spec import Data, RunSpec

FEEDS = ("sync", "queue", "dataset", "staged")


@dataclass(frozen=True)
class Picture:
    """What an input must know of a model."""

    input_shape: tuple[int, int, int] = (24, 32, 3)
    classes: int = 1001


def spec_of(folder: Path | None = None, *, towers: int = 2, batch: BatchSize = 4, **fields: Any) -> RunSpec:
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
    from gputopo.launch.train.inputs import source_of

    with closing(source_of(model or Picture(), spec)) as made:
        yield made


def joint(fed: Any) -> tuple[Any, Any]:
    """Join the towers' images and labels."""
    arrays = [one.numpy() for one in fed]
    return np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2])


def steps(spec: RunSpec, numbers: Any, model: Any = None) -> tuple[Any, Any]:
    with source(spec, model) as made:
        got = [joint(made.feed(number)) for number in numbers]
    return np.concatenate([one for one, _ in got]), np.concatenate([one for _, one in got])


def error_of(call: Callable[[], Any]) -> Any:
    try:
        call()
    except GputopoError as error:
        return [error.what, error.hint]
    return None
