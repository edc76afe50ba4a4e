"""What the strategies that are stale by one step carry from step to step."""

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import numpy as np
import msgspec
from gputopo.launch.train.placement import devices, placements
from gputopo.launch.spec.run_spec import Exchange
from tests.launch.train.reduction_cases import run_spec
from tests.launch.train.small_model import SmallModel

base = msgspec.structs.replace(run_spec(2), model="small")
devices.set_up(base)
reported = {}
for name, update, exchange in (
    ("staged", "parameter_server", Exchange(staged=True)),
    ("relaxed", "replicated", Exchange(relaxed=True)),
    ("plain", "replicated", Exchange()),
):
    spec = msgspec.structs.replace(base, variable_update=update, exchange=exchange)
    held = placements.place(SmallModel(), spec)
    for variable in (one for place in held.places for one in place):
        variable.assign(np.full(variable.shape, 3.0))
    held.reset_buffers()
    reported[name] = [float(one.numpy().flat[0]) for tower in (0, 1) for one in held.weights(tower)]
json.dump(reported, sys.stdout)
"""


def test_afresh_staged_weights_are_the_variables() -> None:
    assert answer_of("-c", ASK) == {name: [3.0] * 8 for name in ("staged", "relaxed", "plain")}
