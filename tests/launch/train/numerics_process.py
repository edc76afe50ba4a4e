"""Run steps of the training core: `python -m tests.launch.train.numerics_process CASES_FILE OUT_FOLDER`.

CASES_FILE is JSON: {"towers": 2, "cases": {"name": {"model": "small", "steps": 4, "spec": {fields of
RunSpec}, "overflow": {"tower": 1, "steps": [2]}}}}. For each case OUT_FOLDER/name.npz holds what `_run`
gives; a case that is refused writes name.error.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import GputopoError
from tests.launch.train.small_model import SmallModel


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train.placement import devices

    cases = {name: (case, _spec(reported["towers"], case)) for name, case in reported["cases"].items()}
    devices.set_up(next(iter(cases.values()))[1])
    for name, (case, spec) in cases.items():
        try:
            np.savez(Path(out) / f"{name}.npz", **_run(spec, case))
        except GputopoError as error:
            (Path(out) / f"{name}.error").write_text(f"{error.what}\n{error.hint}")


def _spec(towers: int, case: dict[str, Any]) -> RunSpec:
    devices = [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(towers)]
    fields = {"schema": "gputopo.runspec/1", "model": case["model"], "devices": devices, "backend": "cpu"}
    return msgspec.json.decode(json.dumps(fields | case["spec"]), type=RunSpec)


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

        from gputopo.launch.models.model import Forward

        passed = self.inner.forward(weights, state, images, rows, *others, **named)
        if rows.first // rows.batch != self.tower:
            return passed
        now = tf.reduce_any(tf.equal(tf.constant(self.steps, tf.int64), rows.stream.step))
        return Forward(passed.logits * tf.where(now, float("inf"), 1.0), passed.state)


def _model(case: dict[str, Any]) -> Any:
    from gputopo.launch.models import models

    own: dict[str, Callable[[], Any]] = {
        "small": SmallModel,
        "tiny": lambda: tiny(keep=0.5),
        "normed": lambda: tiny(keep=1.0),
    }
    made: Any = own.get(case["model"], lambda: models.build(case["model"]))()
    return Overflowing(made, **case["overflow"]) if "overflow" in case else made


def tiny(keep: float) -> Any:
    """Return a network of the catalogue's words with a norm, neighbours, pools, and dropout below keep 1."""
    from gputopo.launch.models.models import NetworkModel
    from gputopo.workload.sketch import RESIDUAL_NORM
    from gputopo.workload.workloads import Architecture

    def build(layers: Any, x: Any, classes: int) -> Any:
        x = layers.conv(x, 8, 3, norm=RESIDUAL_NORM)
        x = layers.max_pool(x, 2, 2)
        x = layers.local_response(layers.conv(x, 8, 3), 2, 1.0, 1e-2, 0.75)
        x = layers.average_pool(x, 2, 1)
        x = layers.dense(layers.flatten(x), 16)
        x = layers.dropout(x, keep) if keep < 1.0 else x
        return layers.dense(x, classes, activation=None, logits=True)

    return NetworkModel.of(Architecture("tiny", build, (8, 8, 3), 5, "cifar10", 4, 4, learning_rate=0.1))


def _run(spec: RunSpec, case: dict[str, Any]) -> dict[str, Any]:
    from gputopo.launch.models.layers import Stream, TowerRows
    from gputopo.launch.train.inputs.synthetic import examples
    from gputopo.launch.train.training import stepper_of

    model = _model(case)
    taken: Any = stepper_of(model, spec)
    placement = taken.placement
    first = [variable.numpy() for variable in placement.places[0]]
    outcomes = [taken(number) for number in range(case["steps"])]
    if case.get("losses_only"):  # the weights of real models are large files
        return {"losses": np.array([outcome.losses for outcome in outcomes])}
    rows = TowerRows(0, spec.joint_batch, Stream(spec.seed, 0))
    images, labels = examples(model, rows, seed=spec.seed, data_format="NHWC")
    found = {
        "losses": np.array([outcome.losses for outcome in outcomes]),  # [steps, towers]
        "marks": np.array([outcome.marks for outcome in outcomes]),
        "images": images.numpy(),
        "labels": labels.numpy(),
        "ops": np.array(sorted({node.op for node in taken.graph_nodes()})),
    }
    found |= {f"first{number}": array for number, array in enumerate(first)}
    for place_number, variables in enumerate(placement.places):
        for number, variable in enumerate(variables):
            found[f"last{place_number}_{number}"] = variable.numpy()
            for slot, held in enumerate(taken.slots[place_number][number]):
                found[f"slot{place_number}_{number}_{slot}"] = held.numpy()
                assert held.device == variable.device
    for place_number, variables in enumerate(placement.states):
        for number, variable in enumerate(variables):
            found[f"state{place_number}_{number}"] = variable.numpy()
    report = taken.scale.report()
    if report is not None:
        found |= {"scales": np.array(report[0]), "skipped": np.array(report[1])}
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
