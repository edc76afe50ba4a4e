"""Take steps with any trainer in its own process: `-m tests.launch.train.trainer_process CASES OUT`.

CASES is JSON: {"towers": 2, "steps": 4, "cases": {name: {fields of RunSpec}}}. The model `small` is that of
small_model. OUT gets NAME.npz, the last weights of every place as `w<place>_<number>`, and `found.json`:
{name: {losses, marks, variables, ops, says, nodes, ...}} or {name: {error, hint, exit}}.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import GputopoError
from tests.launch.train.small_model import SmallModel

_TOWER = re.compile(r"(?:^|/)tower_(\d+)/")


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train.placement import devices

    specs = {name: _spec(reported["towers"], fields) for name, fields in reported["cases"].items()}
    devices.set_up(next(iter(specs.values())))
    found = {}
    for name, spec in specs.items():
        try:
            found[name] = _run(spec, reported["steps"], Path(out) / f"{name}.npz")
        except GputopoError as error:
            found[name] = {"error": error.what, "hint": error.hint, "exit": error.exit_code}
    (Path(out) / "found.json").write_text(json.dumps(found))


def _spec(towers: int, fields: dict[str, Any]) -> RunSpec:
    given: dict[str, Any] = {
        "devices": [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(towers)],
        "backend": "cpu",
        "learning_rate": 0.2,
        "batch_size": 4,
        "schema": "gputopo.runspec/1",
    }
    return msgspec.convert({**given, **fields}, RunSpec)


def _run(spec: RunSpec, steps: int, file: Path) -> dict[str, Any]:
    from gputopo.launch.models import models
    from gputopo.launch.models.model import parameter_count
    from gputopo.launch.train.placement import checking
    from gputopo.launch.train.training import stepper_of

    model: Any = SmallModel() if spec.model == "small" else models.build(spec.model, spec)
    stepper: Any = stepper_of(model, spec)
    first, counts = checking.run_and_collect(lambda: stepper(0))
    assert counts is not None
    outcomes = [first] + [stepper(number) for number in range(1, steps)]
    np.savez(
        file,
        **{
            f"w{place}_{number}": variable.numpy()
            for place, variables in enumerate(stepper.placement.places)
            for number, variable in enumerate(variables)
        },
        **{f"s{number}": variable.numpy() for number, variable in enumerate(stepper.placement.states[0])},
    )
    return {
        "losses": [float(outcome.losses.mean()) for outcome in outcomes],
        "marks": [
            [(start, ready - start, done - ready) for start, ready, done in outcome.marks.tolist()]
            for outcome in outcomes
        ],
        "variables": stepper.check_variables(),
        "ops": stepper.check_ops(counts),
        "says": stepper.says,
        "nodes": _nodes(stepper),
        "parameters": parameter_count(model),
        "scale": _scale(stepper),
        "slots": [[len(slots) for slots in place] for place in stepper.slots],
    }


def _scale(stepper: Any) -> dict[str, Any] | None:
    """Where the loss scale stands after the last step."""
    report = stepper.scale.report()
    return None if report is None else dict(zip(("scales", "skipped"), report, strict=True))


def _nodes(stepper: Any) -> dict[str, dict[str, dict[str, int]]]:
    """Count matrix products as built, before any rewriting: {tower: {pass: {device: number}}}."""
    if not hasattr(stepper, "graph_nodes"):
        return {}
    found: dict[str, dict[str, Counter[str]]] = {}
    for node in stepper.graph_nodes():
        tower = _TOWER.search(node.name)
        if tower and node.op in ("MatMul", "BatchMatMulV2", "Conv2D", "Conv2DBackpropFilter"):
            back = "gradient" in node.name or node.op.endswith("Filter")
            of_tower = found.setdefault(tower[1], {"forward": Counter(), "backward": Counter()})
            of_tower["backward" if back else "forward"][node.device.rpartition("device:")[2]] += 1
    return {tower: {key: dict(counts) for key, counts in one.items()} for tower, one in found.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
