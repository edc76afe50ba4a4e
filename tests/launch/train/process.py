"""Run the training core in its own process: `python -m tests.launch.train.process CASES_FILE OUT_FOLDER`.

CASES_FILE is JSON: {"towers": 2, "cases": {"name": {fields of RunSpec}}}; `model` is a name of `MODELS`, or
of a network of gputopo; `transfers`: whether to count what goes from host to host. With `all`, the spec of a
run on several hosts whose servers run, each case has `on`: the number of hosts, and of devices on each. For
each case OUT_FOLDER/name.npz holds the losses of all steps, the first and last weights of every place, the
last moving statistics, the images and labels of the joint batch, the placements, and the result of an
evaluation; a case that fails writes name.error instead.
"""

import functools
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.values.errors import GputopoError
from gputopo.values.run.events import Device, Evaluated, Event, Noticed, PlacementChecked, Step
from gputopo.values.run.spec import RunSpec, Server
from tests.launch.train.hosts import devices_of
from tests.launch.train.normed_model import NormedModel
from tests.launch.train.slope_model import SlopeModel
from tests.launch.train.small_model import SmallModel

WIDE = 2000  # classes, of a dense layer that is worth cutting into four parts
MODELS: dict[str, Any] = {
    "small": SmallModel,
    "norm": NormedModel,
    "wide": partial(NormedModel, classes=WIDE),
    "slope": SlopeModel,
}


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train import joined, set_up_devices

    whole = msgspec.convert(reported["all"], RunSpec) if "all" in reported else None
    cases = {name: _case(reported, whole, fields) for name, fields in reported["cases"].items()}
    every = whole or next(iter(cases.values()))[0]
    set_up_devices(every)
    with joined(every):
        for name, (spec, transfers) in cases.items():
            try:
                np.savez(Path(out) / f"{name}.npz", **_run(spec, transfers=transfers))
            except GputopoError as error:
                (Path(out) / f"{name}.error").write_text(error.what)


def _case(reported: dict[str, Any], whole: RunSpec | None, fields: dict[str, Any]) -> tuple[RunSpec, bool]:
    """Return the spec of a case, and whether to count transfers."""
    transfers = fields.pop("transfers", False)
    types = {field.name: field.type for field in msgspec.structs.fields(RunSpec)}
    if whole is None:
        count = reported["towers"]
        devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(count))
    else:
        fields["servers"] = reported["all"]["servers"]
        devices = devices_of(*fields.pop("on"))
    given = {name: msgspec.convert(value, types[name]) for name, value in fields.items()}
    return RunSpec(**{"model": "small", "devices": devices, "backend": "cpu", **given}), transfers


@functools.cache
def _first(name: str, seed: int, device: Device, servers: tuple[Server, ...]) -> list[Any]:
    """Return the first weights of a model, created on a device."""
    from gputopo.launch.train.placement import place

    fields: dict[str, Any] = {"model": name, "seed": seed, "batch_size": 1, "ps_device": device.device}
    spec = RunSpec(backend="cpu", devices=(device,), servers=servers, **fields)
    return [variable.numpy() for variable in place(_model(name), spec).places[0]]


def _model(name: str) -> Any:
    from gputopo.launch.models import build_model

    return MODELS[name]() if name in MODELS else build_model(name)


def _run(spec: RunSpec, *, transfers: bool) -> dict[str, Any]:
    from gputopo.launch.models import Stream, TowerRows
    from gputopo.launch.train import stepper_of, train
    from gputopo.launch.train.inputs import examples
    from gputopo.launch.train.lifecycle import evaluate, pass_forward

    events: list[Event] = []
    model = _model(spec.model)
    placement = {"train": train, "forward": pass_forward, "eval": evaluate}[spec.task](
        model, spec, events.append
    )
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
    if transfers:
        found["transfers"] = np.array(transfers_in(stepper_of(model, spec).graph_nodes()))
    found["says"] = np.array([event.says for event in events if isinstance(event, Noticed)])
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
    for number, array in enumerate(_first(spec.model, spec.seed, spec.devices[0], spec.servers)):
        found[f"first{number}"] = array
    for place, variables in enumerate(placement.places):
        for number, variable in enumerate(variables):
            found[f"last{place}_{number}"] = variable.numpy()
    for number, variable in enumerate(placement.states[0]):
        found[f"state{number}"] = variable.numpy()
    return found


def transfers_in(nodes: Sequence[Any]) -> int:
    """Count what goes from host to host in a graph: a tensor or signal once for each device that reads it."""
    devices = {node.name: node.device for node in nodes}
    pairs = {
        (name, node.device)
        for node in nodes
        for name in node.input
        if host_of(devices[name.lstrip("^").partition(":")[0]]) not in (None, host_of(node.device))
    }
    return len(pairs)


def host_of(device: str) -> str | None:
    """Return the host's part in the name of a device, if it has one."""
    found = re.search(r"task:\d+", device)
    return found[0] if found else None


if __name__ == "__main__":
    main(*sys.argv[1:])
