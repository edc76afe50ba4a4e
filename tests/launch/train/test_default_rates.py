"""Catalogue models on synthetic data at the rate that their authors train them with."""

import numpy as np
import pytest

from gputopo.workload import known_architectures
from tests.launch.train.trained import Found, steps_of

pytestmark = pytest.mark.tensorflow

BATCH = 2  # the smallest that norms can work with, and the one whose gradients are the largest
# One of each family that is small; the others take seconds a step.
MODELS = (
    "lenet",
    "resnet20",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Found:
    cases = {}
    for name in MODELS:
        cases[name] = {
            "model": name,
            "steps": 3,
            "batch_size": BATCH,
            "learning_rate": known_architectures()[name].learning_rate,
            "variable_update": "parameter_server",
            "ps_device": "/CPU:0",
        }
    return steps_of(tmp_path_factory.mktemp("rates"), 1, cases)


@pytest.mark.parametrize("name", MODELS)
def test_losses_stay_finite_and_the_model_learns(ran: Found, name: str) -> None:
    losses = ran[name]["losses"][:, 0]
    assert np.isfinite(losses).all()
    assert losses.min() < losses[0]
