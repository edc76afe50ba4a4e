"""The input without a model."""

from pathlib import Path
from typing import Any

from gputopo.values.run.events import ModelBuilt, Noticed, Step
from gputopo.values.run.spec import Backend
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, spec_of


def input_only(root: Path) -> Any:
    from gputopo.launch.train.lifecycle import measure_input

    data = folders.damaged(root / "only", "checksum")
    events: list[Any] = []
    said = measure_input(Picture(), spec_of(data, bad_records="skip", batch=3), events.append)
    counted = [event for event in events if isinstance(event, Step)]
    return {
        "kinds": [type(event).__name__ for event in events],
        "steps": [event.step for event in counted],
        "losses": [event.loss for event in counted],
        "images": [event.images for event in counted],
        "towers": [mark.tower for event in counted for mark in event.marks],
        "marks": [
            0 <= mark.weights_s < mark.weights_s + mark.compute_s <= event.seconds
            for event in counted
            for mark in event.marks
        ],
        "says": next(event.says for event in events if isinstance(event, ModelBuilt)),
        "noticed": [event.says for event in events if isinstance(event, Noticed)],
        "describes": dict(said),
        "input": next(event.input for event in events if isinstance(event, ModelBuilt)),
        "waited": [event.waited_s is not None and event.waited_s <= event.seconds for event in counted],
    }


def threads_left(root: Path) -> Any:
    """Threads of a pipeline, of known machines and as asked for."""
    from gputopo.launch.train.inputs import private_threads

    machines: list[tuple[int, Backend, int]] = [(8, "cpu", 2), (40, "gpu", 8), (1, "cpu", 16)]
    return {
        "known": [
            private_threads(None, cores=cores, backend=backend, running=running, per_gpu_threads=2)
            for cores, backend, running in machines
        ],
        "asked": private_threads(3, cores=1, backend="gpu", running=8, per_gpu_threads=2),
    }
