"""Metrics that a user's layers keep are named, for nothing counts them up."""

from pathlib import Path

import pytest

from gputopo.values.run.events import ModelBuilt
from tests.launch.train.worker_process import run_worker, trivial_spec

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(("model", "reported"), [("metered", ["seen"]), ("yes_or_no", [])])
def test_metrics_of_layers_are_named_and_those_of_compile_are_not_among_them(
    tmp_path: Path, model: str, reported: list[str]
) -> None:
    spec = trivial_spec(model=f"tests.launch.train.user_models:{model}", batch_size=4)
    code, events, stderr = run_worker(tmp_path, spec)
    assert code == 0, stderr[-2000:]
    (built,) = (event for event in events if isinstance(event, ModelBuilt))
    said = [one for one in built.says if "metrics" in one]
    assert said == [
        f"The model's layers have metrics ({name}), which a run does not update or show." for name in reported
    ]
