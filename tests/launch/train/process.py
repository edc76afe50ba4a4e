"""Run the training core in its own process: `python -m tests.launch.train.process CASES_FILE OUT_FOLDER`.

CASES_FILE is JSON: {"towers": 2, "cases": {"name": {fields of RunSpec}}}; `model` is a name of `MODELS`, or
of a network of gputopo; `in_parts`: variables are cut as on GPUs, into parts of any size; `lost`: a tower
whose gradients the reduction `copy` leaves out. With `all`, the spec of a run on several hosts whose servers
stand, each case has `on`: the number of hosts, and of devices on each. For each case OUT_FOLDER/name.npz
holds the losses of all steps, the first and last weights of every place, the last moving statistics, the
images and labels of the joint batch, the placements found, and the result of an evaluation; a case that fails
writes name.error instead.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from gputopo.launch.device_names import rank_of
from gputopo.values.errors import GputopoError
from gputopo.values.run.events import Device, Evaluated, Event, PlacementChecked, Step
from gputopo.values.run.spec import RunSpec
from tests.launch.train.cutting import cut_as_on_gpus
from tests.launch.train.hosts import devices_of
from tests.launch.train.normed_model import NormedModel
from tests.launch.train.slope_model import SlopeModel
from tests.launch.train.small_model import SmallModel

MODELS: dict[str, Any] = {"small": SmallModel, "norm": NormedModel, "slope": SlopeModel}


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train.placement import devices

    faults = {name: _around(fields) for name, fields in reported["cases"].items()}
    whole = msgspec.convert(reported["all"], RunSpec) if "all" in reported else None
    specs = {name: _spec(reported, whole, fields) for name, fields in reported["cases"].items()}
    every = whole or next(iter(specs.values()))
    devices.set_up_devices(every)
    with devices.joined(every):
        for name, spec in specs.items():
            try:
                with faults[name]:
                    np.savez(Path(out) / f"{name}.npz", **_run(spec))
            except GputopoError as error:
                (Path(out) / f"{name}.error").write_text(error.what)


def _around(fields: dict[str, Any]) -> AbstractContextManager[Any]:
    """Take what is no field of a spec out of a case, and return the context to run it in."""
    if fields.pop("in_parts", False):
        return cut_as_on_gpus(min_chunk=1)
    lost = fields.pop("lost", None)
    if lost is None:
        return nullcontext()
    from gputopo.launch.train.placement import methods

    def losing(devices: Sequence[str]) -> Any:
        whole = copy(devices)
        return lambda gradients: whole([[*row[:lost], 0 * row[lost], *row[lost + 1 :]] for row in gradients])

    copy = methods.ALGORITHMS["copy"]
    return patch.dict(methods.ALGORITHMS, copy=losing)


def _spec(reported: dict[str, Any], whole: RunSpec | None, fields: dict[str, Any]) -> RunSpec:
    types = {field.name: field.type for field in msgspec.structs.fields(RunSpec)}
    if whole is None:
        count = reported["towers"]
        devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(count))
    else:
        fields["servers"] = reported["all"]["servers"]
        devices = devices_of(*fields.pop("on"))
    given = {name: msgspec.convert(value, types[name]) for name, value in fields.items()}
    return RunSpec(**{"model": "small", "devices": devices, "backend": "cpu", **given})


def _run(spec: RunSpec) -> dict[str, Any]:
    from gputopo.launch.models import models
    from gputopo.launch.models.layers import Stream, TowerRows
    from gputopo.launch.train import training
    from gputopo.launch.train.inputs.synthetic import examples
    from gputopo.launch.train.lifecycle import evaluating
    from gputopo.launch.train.placement import variables as made

    events: list[Event] = []
    model = MODELS[spec.model]() if spec.model in MODELS else models.build_model(spec.model)
    first = [variable.numpy() for variable in made.create(model, "/CPU:0", spec.seed)]
    tasks = {"train": training.train, "forward": evaluating.pass_forward, "eval": evaluating.evaluate}
    steppers: list[Any] = []
    make = training.stepper_of

    def kept(*given: Any, **named: Any) -> Any:
        steppers.append(make(*given, **named))
        return steppers[-1]

    with patch.object(training, "stepper_of", kept):
        placement = tasks[spec.task](model, spec, events.append)
    rows = TowerRows(0, spec.joint_batch, Stream(spec.seed, 0))
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
    found["transfers"] = np.array([transfers(one.graph_nodes()) for one in steppers])
    if (scale := steppers[0].scale if steppers else None) is not None and scale.automatic:
        found["scale"] = np.concatenate(scale.report())  # its value, skipped steps
    found["exchange"] = np.array(
        [
            [(one.sends_s, one.receives_s, one.sums_s) for one in event.exchange]
            for event in events
            if isinstance(event, Step)
        ],
        float,
    )
    for event in events:
        if isinstance(event, Evaluated):
            found["evaluated"] = np.array([event.examples, event.top1, event.top5, event.loss])
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


def transfers(nodes: Sequence[Any]) -> int:
    """Count what goes from host to host in a graph: a tensor or signal once for each device that reads it."""
    devices = {node.name: node.device for node in nodes}
    pairs = {
        (name, node.device)
        for node in nodes
        for name in node.input
        if rank_of(devices[name.lstrip("^").partition(":")[0]]) not in (None, rank_of(node.device))
    }
    return len(pairs)


if __name__ == "__main__":
    main(*sys.argv[1:])
