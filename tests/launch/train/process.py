"""Run the training core in its own process: `python -m tests.launch.train.process CASES_FILE OUT_FOLDER`.

CASES_FILE is JSON: {"towers": 2, "cases": {"name": {fields of RunSpec}}}; `model` is a name of `MODELS`, or
of a network of gputopo; `in_parts`: variables are cut as on GPUs, into parts of any size. For each case
OUT_FOLDER/name.npz holds the losses of all steps, the first and last weights of every place, the last moving
statistics, the images and labels of the joint batch, and the placements found; a case that fails writes
name.error instead.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import GputopoError
from gputopo.values.run.events import Device, Event, PlacementChecked, Step
from tests.launch.train.cutting import cut_as_on_gpus
from tests.launch.train.normed_model import NormedModel
from tests.launch.train.slope_model import SlopeModel
from tests.launch.train.small_model import SmallModel

MODELS: dict[str, Any] = {"small": SmallModel, "norm": NormedModel, "slope": SlopeModel}


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train.placement import devices

    cut = {name for name, fields in reported["cases"].items() if fields.pop("in_parts", False)}
    specs = {name: _spec(reported["towers"], fields) for name, fields in reported["cases"].items()}
    devices.set_up(next(iter(specs.values())))
    for name, spec in specs.items():
        try:
            with cut_as_on_gpus(min_chunk=1) if name in cut else nullcontext():
                np.savez(Path(out) / f"{name}.npz", **_run(spec))
        except GputopoError as error:
            (Path(out) / f"{name}.error").write_text(error.what)


def _spec(towers: int, fields: dict[str, Any]) -> RunSpec:
    types = {field.name: field.type for field in msgspec.structs.fields(RunSpec)}
    given = {name: msgspec.convert(value, types[name]) for name, value in fields.items()}
    devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(towers))
    return RunSpec(**{"model": "small", "devices": devices, "backend": "cpu", **given})


def _run(spec: RunSpec) -> dict[str, Any]:
    from gputopo.launch.models import models
    from gputopo.launch.models.layers import Rows
    from gputopo.launch.models.randomness import Stream
    from gputopo.launch.train import training
    from gputopo.launch.train.inputs.synthetic import examples
    from gputopo.launch.train.placement import variables as made

    events: list[Event] = []
    model = MODELS[spec.model]() if spec.model in MODELS else models.build(spec.model)
    first = [variable.numpy() for variable in made.create(model, "/CPU:0", spec.seed)]
    placement = training.train(model, spec, events.append)
    rows = Rows(0, spec.joint_batch, Stream(spec.seed, 0))
    images, labels = examples(model, rows, seed=spec.seed, data_format="NHWC")
    found = {
        "losses": np.array([event.loss for event in events if isinstance(event, Step)]),
        "images": images.numpy(),
        "labels": labels.numpy(),
        "marks": np.array(
            [
                [(mark.start_s, mark.weights_s, mark.compute_s) for mark in event.marks]
                for event in events
                if isinstance(event, Step)
            ]
        ),
    }
    checked = next(event for event in events if isinstance(event, PlacementChecked))
    found["variables_on"] = np.array(json.dumps(checked.variables))
    found["ops_on"] = np.array(json.dumps(checked.ops))
    for number, array in enumerate(first):
        found[f"first{number}"] = array
    for place, variables in enumerate(placement.places):
        for number, variable in enumerate(variables):
            found[f"last{place}_{number}"] = variable.numpy()
    for number, variable in enumerate(placement.states[0]):
        found[f"state{number}"] = variable.numpy()
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
