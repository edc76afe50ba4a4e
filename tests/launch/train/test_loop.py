"""The loop with steps that are made up, in a process of its own: what it tells of each."""

import json
from typing import Any

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

TAKE = """
import json, sys
from types import SimpleNamespace
import numpy as np
from gputopo.launch.train.loop import Loop
from gputopo.launch.train.step import StepOutcome
from tests.launch.specs import cpu_spec
def outcome(losses, counts):
    examples = None if counts is None else np.array(counts, np.float32)
    return StepOutcome(np.array(losses, np.float32), np.zeros((2, 3)), examples=examples)
outcomes = [outcome(*one) for one in json.loads(sys.argv[1])]
class Step:
    source = SimpleNamespace(waited_s=0.0)
    def __call__(self, number):
        return outcomes[number]
told = []
Loop(Step(), cpu_spec(num_batches=len(outcomes)), told.append).counted_steps()
json.dump([[step.loss, step.images] for step in told], sys.stdout)
"""


def told(*steps: tuple[list[float], list[int] | None]) -> list[list[Any]]:
    """Give loss and images of each step as told, for the towers' losses and examples."""
    done = run_program("-c", TAKE, json.dumps(steps))
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def test_the_loss_of_a_step_is_the_mean_of_its_examples_also_where_a_tower_has_few_or_none() -> None:
    whole, uneven, one, training = told(
        ([2.0, 4.0], [4, 4]), ([2.0, 4.0], [3, 1]), ([2.0, 0.0], [1, 0]), ([2.0, 4.0], None)
    )
    assert (whole, uneven, one) == ([3.0, 8], [2.5, 4], [2.0, 1])
    assert training[0] == 3.0
