"""Several runs in one process, in order: `python -m tests.launch.train.lifecycle.life_process CASES OUT`.

CASES is JSON: {"towers": 2, "runs": [{"name": ..., "model": {arguments of NormedModel} or "module:function",
fields of RunSpec}]}; `from_checkpoint`: a file that is copied into the run's folder of checkpoints first.
OUT/joint_batch.npz holds the synthetic examples of four rows a tower. OUT/name.json holds a run's events, and
where it was refused {"error": ..., "hint": ..., "exit_code": ...}; OUT/name.npz the last weights and moving
statistics of every place.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.values.errors import GputopoError
from gputopo.values.run.events import Event, encode_line
from gputopo.values.run.spec import RunSpec
from tests.launch.train.normed_model import NormedModel
from tests.launch.train.small_disk import small_disk


def main(cases_file: str, out: str) -> None:
    reported = json.loads(Path(cases_file).read_text())
    from gputopo.launch.train import set_up_devices

    set_up_devices(_spec(reported["towers"], {"batch_size": 1}))
    _save_examples(Path(out), 4 * reported["towers"])
    for fields in reported["runs"]:
        _run(Path(out), fields.pop("name"), reported["towers"], fields)


def _spec(towers: int, fields: dict[str, Any]) -> RunSpec:
    devices = [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(towers)]
    named = {"schema": "gputopo.runspec/1", "model": "norm", "devices": devices, "backend": "cpu", **fields}
    return msgspec.convert(named, RunSpec)


def _save_examples(out: Path, rows: int) -> None:
    from gputopo.launch.models import Stream, TowerRows
    from gputopo.launch.train.inputs import examples

    seed = 1234
    images, labels = examples(
        NormedModel(), TowerRows(0, rows, Stream(seed, 0)), seed=seed, data_format="NHWC"
    )
    np.savez(out / "joint_batch.npz", images=images.numpy(), labels=labels.numpy())


def _run(out: Path, name: str, towers: int, fields: dict[str, Any]) -> None:
    from gputopo.launch.models import build_model
    from gputopo.launch.train import train
    from gputopo.launch.train.lifecycle import evaluate, pass_forward

    named = fields.pop("model", {})
    disk_bytes = fields.pop("disk_bytes", None)
    if (begun := fields.pop("from_checkpoint", None)) is not None:
        Path(fields["lifecycle"]["checkpoints"]).mkdir()
        shutil.copy(begun, fields["lifecycle"]["checkpoints"])
    spec = _spec(towers, {"model": named, **fields} if isinstance(named, str) else fields)
    model = build_model(spec.model, spec) if isinstance(named, str) else NormedModel(keep=0.7, **named)
    events: list[Event] = []
    refused: dict[str, Any] = {}
    work = {"train": train, "forward": pass_forward, "eval": evaluate}[spec.task]
    try:
        with small_disk(disk_bytes):
            held = work(model, spec, events.append)
    except GputopoError as error:
        refused = {"error": error.what, "hint": error.hint, "exit_code": int(error.exit_code)}
    else:
        sets = {"variables": held.places, "state": held.states}
        last = {
            f"{kind}/{place}/{number}": variable.numpy()
            for kind, places in sets.items()
            for place, variables in enumerate(places)
            for number, variable in enumerate(variables)
        }
        np.savez(out / f"{name}.npz", **last)
    reported = [json.loads(encode_line(event)) for event in events]
    (out / f"{name}.json").write_text(json.dumps({"events": reported, **refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
