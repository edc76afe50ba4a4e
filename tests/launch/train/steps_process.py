"""Take steps with any trainer in its own process: `python -m tests.launch.train.steps_process CASES OUT`.

CASES is JSON: {"towers": 2, "cases": {name: {fields of RunSpec}}}; besides, a case may have `steps` (else 4)
and `overflow`: {"tower": 1, "steps": [2]}. Models: as in `_model`. OUT gets NAME.npz, and
`found.json`: what `_run` returns, or {name: {error, hint, exit}}.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.values.errors import GputopoError
from gputopo.values.run.spec import RunSpec
from tests.launch.train.normed_model import NormedModel
from tests.launch.train.small_model import SmallModel

_TOWER = re.compile(r"(?:^|/)tower_(\d+)/")


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train import set_up_devices

    cases = {name: _case(reported["towers"], fields) for name, fields in reported["cases"].items()}
    set_up_devices(_case(reported["towers"], {"model": "small"})[0])
    found = {}
    for name, (spec, more) in cases.items():
        try:
            found[name] = _run(spec, Path(out) / f"{name}.npz", **more)
        except GputopoError as error:
            found[name] = {"error": error.what, "hint": error.hint, "exit": error.exit_code}
    (Path(out) / "found.json").write_text(json.dumps(found))


def _case(towers: int, fields: dict[str, Any]) -> tuple[RunSpec, dict[str, Any]]:
    more: dict[str, Any] = {key: fields.pop(key) for key in ("steps", "overflow") if key in fields}
    given: dict[str, Any] = {
        "devices": [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(towers)],
        "backend": "cpu",
        "learning_rate": 0.2,
        "batch_size": 4,
        "schema": "gputopo.runspec/1",
    }
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


def _model(spec: RunSpec) -> Any:
    from gputopo.launch.models import build_model

    own: dict[str, Any] = {"tiny": tiny, "small": SmallModel, "normed": NormedModel}
    own["dropping"] = partial(NormedModel, keep=0.5)
    return own[spec.model]() if spec.model in own else build_model(spec.model, spec)


def _run(
    spec: RunSpec,
    file: Path,
    *,
    steps: int = 4,
    overflow: dict[str, Any] | None = None,
) -> dict[str, Any]:
    from gputopo.launch.models import Stream, TowerRows
    from gputopo.launch.train import stepper_of
    from gputopo.launch.train.inputs import examples

    model = _model(spec) if overflow is None else Overflowing(_model(spec), **overflow)
    stepper: Any = stepper_of(model, spec)
    placement = stepper.placement
    first = [variable.numpy() for variable in placement.places[0]]
    outcome, counts = stepper.first(0)
    assert counts is not None
    outcomes = [outcome, *(stepper(number) for number in range(1, steps))]
    arrays: dict[str, Any] = {"losses": np.array([one.losses for one in outcomes])}  # [steps, towers]
    rows = TowerRows(0, spec.joint_batch, Stream(spec.seed, 0))
    images, labels = examples(model, rows, seed=spec.seed, data_format="NHWC")
    arrays |= {"marks": np.array([one.marks for one in outcomes])}
    arrays |= {"images": images.numpy(), "labels": labels.numpy()}
    arrays |= {f"first{number}": array for number, array in enumerate(first)}
    arrays |= _last(stepper)
    report = stepper.scale.report()
    np.savez(file, **arrays)
    return {
        "variables": stepper.check_variables(),
        "ops": stepper.check_ops(counts),
        "says": stepper.says,
        "nodes": _nodes(stepper),
        "types": sorted({node.op for node in stepper.graph_nodes()}),
        "scale": None if report is None else dict(zip(("scales", "skipped"), report, strict=True)),
    }


def _last(stepper: Any) -> dict[str, Any]:
    """The variables, slots and statistics of every place after the last step."""
    placement, found = stepper.placement, {}
    for place, variables in enumerate(placement.places):
        for number, variable in enumerate(variables):
            found[f"last{place}_{number}"] = variable.numpy()
            for slot, held in enumerate(stepper.slots[place][number]):
                found[f"slot{place}_{number}_{slot}"] = held.numpy()
                assert held.device == variable.device
    for place, variables in enumerate(placement.states):
        found |= {f"state{place}_{number}": variable.numpy() for number, variable in enumerate(variables)}
    return found


def _nodes(stepper: Any) -> dict[str, dict[str, dict[str, int]]]:
    """Count matrix products as built, before any rewriting: {tower: {pass: {device: number}}}."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for node in stepper.graph_nodes():
        tower = _TOWER.search(node.name)
        if tower and node.op in ("MatMul", "BatchMatMulV2", "Conv2D", "Conv2DBackpropFilter"):
            back = "gradient" in node.name or node.op.endswith("Filter")
            of_tower = counts.setdefault(tower[1], {"forward": Counter(), "backward": Counter()})
            of_tower["backward" if back else "forward"][node.device.rpartition("device:")[2]] += 1
    return {tower: {key: dict(counter) for key, counter in one.items()} for tower, one in counts.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
