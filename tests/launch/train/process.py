"""Run the training core in its own process: `python -m tests.launch.train.process CASES_FILE OUT_FOLDER`.

CASES_FILE is JSON: {"towers": 2, "cases": {"name": {fields of RunSpec}}}; `model` is a name of `MODELS`, of a
network of gputopo or of a user's. A case with `steps` takes so many steps by its stepper, `overflow`:
{"tower": 1, "steps": [2]}; any other case runs its task. With `all`, the spec of a run on several hosts whose
servers run, a case may have `on`: the number of hosts, and of devices on each. OUT_FOLDER gets NAME.npz, and
`found.json`: what `_take_steps` or `_run_task` reports, or {"error": ..., "hint": ..., "exit": ...}.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.values.errors import GputopoError
from gputopo.values.run.events import Evaluated, Event, Noticed, PlacementChecked, Step
from gputopo.values.run.spec import RunSpec
from tests.launch.train.hosts import devices_of
from tests.launch.train.normed_model import NormedModel
from tests.launch.train.slope_model import SlopeModel
from tests.launch.train.small_model import SmallModel

WIDE = 2000  # classes, of a dense layer that is worth cutting into four parts
_TOWER = re.compile(r"(?:^|/)tower_(\d+)/")
Found = dict[str, Any]


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train import joined, set_up_devices

    cases = {name: _case(reported, fields) for name, fields in reported["cases"].items()}
    every = msgspec.convert(reported["all"], RunSpec) if "all" in reported else _case(reported, {})[0]
    set_up_devices(every)
    found = {}
    with joined(every):
        for name, (spec, more) in cases.items():
            try:
                arrays, found[name] = _take_steps(spec, **more) if more else _run_task(spec)
            except GputopoError as error:
                found[name] = {"error": error.what, "hint": error.hint, "exit": error.exit_code}
            else:
                np.savez(Path(out) / f"{name}.npz", **arrays)
    (Path(out) / "found.json").write_text(json.dumps(found))


def _case(reported: Found, fields: Found) -> tuple[RunSpec, Found]:
    """Return the spec of a case, and the arguments of `_take_steps`, if it has any."""
    more: Found = {key: fields.pop(key) for key in ("steps", "overflow") if key in fields}
    given: Found = {
        "model": "small",
        "devices": [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(reported["towers"])],
        "backend": "cpu",
        "learning_rate": 0.2,
        "batch_size": 4,
        "schema": "gputopo.runspec/1",
    }
    if "on" in fields:
        given["devices"] = msgspec.to_builtins(devices_of(*fields.pop("on")))
        given["servers"] = reported["all"]["servers"]
    return msgspec.convert({**given, **fields}, RunSpec), more


@dataclass(frozen=True)
class Overflowing:
    """A model whose logits are infinite on one tower in some steps."""

    inner: Any
    tower: int
    steps: list[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, weights: Any, state: Any, images: Any, rows: Any, *others: Any, **named: Any) -> Any:
        import tensorflow as tf

        from gputopo.launch.models import Forward

        passed = self.inner.forward(weights, state, images, rows, *others, **named)
        if rows.first // rows.batch != self.tower:
            return passed
        now = tf.reduce_any(tf.equal(tf.constant(self.steps, tf.int64), rows.stream.step))
        return Forward(passed.logits * tf.where(now, float("inf"), 1.0), passed.state)


def tiny() -> Any:
    """Return a network of the catalogue's words with a norm, neighbours, pools and dropout."""
    from gputopo.launch.models import NetworkModel
    from gputopo.workload import Architecture, Norm

    def build(layers: Any, x: Any, classes: int) -> Any:
        x = layers.conv(x, 8, 3, norm=Norm(decay=0.9, epsilon=1e-5, scale=True))
        x = layers.max_pool(x, 2, 2)
        x = layers.local_response(layers.conv(x, 8, 3), 2, 1.0, 1e-2, 0.75)
        x = layers.average_pool(x, 2, 1)
        x = layers.dense(layers.flatten(x), 16)
        x = layers.dropout(x, 0.5)
        return layers.dense(x, classes, activation=None, logits=True)

    return NetworkModel.of(Architecture("tiny", build, (8, 8, 3), 5, "cifar10", 4, 4, learning_rate=0.1))


MODELS: dict[str, Any] = {
    "small": SmallModel,
    "norm": NormedModel,
    "dropping": partial(NormedModel, keep=0.5),
    "wide": partial(NormedModel, classes=WIDE),
    "slope": SlopeModel,
    "tiny": tiny,
}


def _model(spec: RunSpec) -> Any:
    from gputopo.launch.models import build_model

    return MODELS[spec.model]() if spec.model in MODELS else build_model(spec.model, spec)


def _take_steps(spec: RunSpec, *, steps: int, overflow: Found | None = None) -> tuple[Found, Found]:
    """Losses are [steps, towers], `joint` those of each step; marks in seconds from the step's start."""
    from gputopo.launch.train import stepper_of

    model = _model(spec) if overflow is None else Overflowing(_model(spec), **overflow)
    stepper: Any = stepper_of(model, spec)
    first = [variable.numpy() for variable in stepper.placement.places[0]]
    outcome, counts = stepper.first(0)
    assert counts is not None
    outcomes = [outcome, *(stepper(number) for number in range(1, steps))]
    exchanges = [[(part.sends_s, part.receives_s, part.sums_s) for part in one.exchange] for one in outcomes]
    arrays: Found = {
        "losses": np.array([one.losses for one in outcomes]),
        "joint": np.array([one.mean_loss for one in outcomes]),
        "marks": np.array([one.marks for one in outcomes]),
        "exchange": np.array(exchanges, float),  # [steps, hosts, 3]
        **{f"first{number}": array for number, array in enumerate(first)},
        **_examples(model, spec),
        **_last(stepper.placement),
    }
    for place, variables in enumerate(stepper.slots):
        for number, slots in enumerate(variables):
            arrays |= {f"slot{place}_{number}_{slot}": held.numpy() for slot, held in enumerate(slots)}
    scale = stepper.scale.report()
    nodes = stepper.graph_nodes()
    return arrays, {
        "variables": stepper.check_variables(),
        "ops": stepper.check_ops(counts),
        "says": stepper.says,
        "nodes": _products(nodes),
        "types": sorted({node.op for node in nodes}),
        "transfers": _transfers(nodes),
        "scale": None if scale is None else dict(zip(("scales", "skipped"), scale, strict=True)),
    }


def _run_task(spec: RunSpec) -> tuple[Found, Found]:
    """Losses are those of each step; `evaluated`: examples, top-1, top-5 and loss."""
    from gputopo.launch.train import train
    from gputopo.launch.train.lifecycle import evaluate, pass_forward

    events: list[Event] = []
    model = _model(spec)
    work = {"train": train, "forward": pass_forward, "eval": evaluate}[spec.task]
    arrays = _last(work(model, spec, events.append)) | _examples(model, spec)
    arrays["losses"] = np.array([event.loss for event in events if isinstance(event, Step)])
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    (checked,) = (event for event in events if isinstance(event, PlacementChecked))
    return arrays, {
        "variables": checked.variables,
        "says": [event.says for event in events if isinstance(event, Noticed)],
        "evaluated": [(one.examples, one.top1, one.top5, one.loss) for one in evaluated],
    }


def _examples(model: Any, spec: RunSpec) -> Found:
    """The synthetic examples of the joint batch."""
    from gputopo.launch.models import Stream, TowerRows
    from gputopo.launch.train.inputs import examples

    rows = TowerRows(0, spec.joint_batch, Stream(spec.seed, 0))
    images, labels = examples(model, rows, seed=spec.seed, data_format="NHWC")
    return {"images": images.numpy(), "labels": labels.numpy()}


def _last(placement: Any) -> Found:
    """The variables and statistics of every place after the last step."""
    sets = {"last": placement.places, "state": placement.states}
    return {
        f"{kind}{place}_{number}": variable.numpy()
        for kind, places in sets.items()
        for place, variables in enumerate(places)
        for number, variable in enumerate(variables)
    }


def _products(nodes: Sequence[Any]) -> dict[str, dict[str, dict[str, int]]]:
    """Count matrix products as built, before any rewriting: {tower: {pass: {device: number}}}."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for node in nodes:
        tower = _TOWER.search(node.name)
        if tower and node.op in ("MatMul", "BatchMatMulV2", "Conv2D", "Conv2DBackpropFilter"):
            back = "gradient" in node.name or node.op.endswith("Filter")
            of_tower = counts.setdefault(tower[1], {"forward": Counter(), "backward": Counter()})
            of_tower["backward" if back else "forward"][node.device.rpartition("device:")[2]] += 1
    return {tower: {key: dict(counter) for key, counter in one.items()} for tower, one in counts.items()}


def _transfers(nodes: Sequence[Any]) -> int:
    """Count what goes from host to host in a graph: a tensor or signal once for each device that reads it."""
    devices = {node.name: node.device for node in nodes}
    pairs = {
        (name, node.device)
        for node in nodes
        for name in node.input
        if _host_of(devices[name.lstrip("^").partition(":")[0]]) not in (None, _host_of(node.device))
    }
    return len(pairs)


def _host_of(device: str) -> str | None:
    """Return the host's part in the name of a device, if it has one."""
    found = re.search(r"task:\d+", device)
    return found[0] if found else None


if __name__ == "__main__":
    main(*sys.argv[1:])
