"""What the strategies that are stale by one step carry from step to step."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.worker_process import environment

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import numpy as np
import msgspec
from gputopo.launch.core.placement import devices, placements
from gputopo.launch.core.placement.variables import largest_difference
from gputopo.launch.spec import Exchange
from tests.launch.core.reduction_cases import run_spec
from tests.launch.core.small_model import SmallModel

base = msgspec.structs.replace(run_spec(2), model="small")
devices.set_up(base)
told = {}
for name, update, exchange in (
    ("staged", "parameter_server", Exchange(staged=True)),
    ("relaxed", "replicated", Exchange(relaxed=True)),
    ("plain", "replicated", Exchange()),
):
    spec = msgspec.structs.replace(base, variable_update=update, exchange=exchange)
    held = placements.place(SmallModel(), spec)
    made = [variable.device[-5:] for variable in held.buffers]
    for variable in (*held.buffers, *(one for place in held.places for one in place)):
        buffer = any(variable is one for one in held.buffers)
        variable.assign(np.full(variable.shape, 7.0 if buffer else 3.0))
    held.start_afresh()
    told[name] = {
        "on": made,
        "values": sorted({float(value) for one in held.buffers for value in one.numpy().flat}),
        "weights": [float(one.numpy().flat[0]) for tower in (0, 1) for one in held.weights(tower)],
    }
json.dump(told, sys.stdout)
"""


def test_afresh_staged_weights_are_the_variables_and_no_gradient_waits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env=environment(),
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    staged, relaxed, plain = told["staged"], told["relaxed"], told["plain"]
    # Four variables: weights and gradients of two towers, or gradients alone.
    of_towers = ["CPU:0"] * 4 + ["CPU:1"] * 4
    assert staged["on"] == of_towers * 2
    assert relaxed["on"] == of_towers
    assert plain["on"] == []
    assert staged["values"] == [0.0, 3.0]
    assert relaxed["values"] == [0.0]
    for found in (staged, relaxed, plain):
        assert found["weights"] == [3.0] * 8
