"""Runs that became slower as a whole, and the part of the step that grew."""

from dataclasses import dataclass

import msgspec
import pytest

from gputopo.runs.verdict.judge import judge
from gputopo.runs.verdict.paces import Paces
from gputopo.values.run.events import GpuSample, Sample, Step
from gputopo.values.run.verdict import Causes
from tests.runs.causes.cards import events
from tests.runs.verdict.drills import Trainer


@dataclass
class Grown:
    """Seconds more of each step from 200 on; `waited`: in them, all towers waited for the input."""

    seconds: float
    waited: bool

    def causes(self) -> Causes:
        trainer = Trainer()
        paces = Paces(trainer.devices)
        for event in trainer.events(400):
            if isinstance(event, Step):
                more = self.seconds if event.step >= 200 else 0.0
                waited_s = 0.001 + (more if self.waited else 0.0)
                event = msgspec.structs.replace(event, seconds=event.seconds + more, waited_s=waited_s)
            paces.add(event)
        run = judge(paces).run
        assert run is not None
        assert run.causes is not None
        assert run.causes.says in run.says
        return run.causes


@pytest.mark.parametrize(("waited", "cause"), [(True, "input-starved"), (False, "reduction-slow")])
def test_a_run_that_became_slower_names_the_part_of_the_step_that_grew(waited: bool, cause: str) -> None:
    found = Grown(0.04, waited).causes()
    assert found.found[0].id == cause
    assert found.found[0].how == "measured"
    assert found.covered_share > 0.8
    assert found.says.startswith("Cause: ")


def test_a_gpu_that_is_lost_is_named_beside_its_missing_marks_and_not_called_slow() -> None:
    trainer = Trainer(gone={2: 50})
    paces = Paces(trainer.devices)
    for event in events(trainer, 100):
        if isinstance(event, Sample) and paces.steps >= 50:
            event = msgspec.structs.replace(
                event, gpus=tuple(GpuSample(gpu=2, lost=True) if one.gpu == 2 else one for one in event.gpus)
            )
        paces.add(event)
    verdict = judge(paces).devices[2]
    assert verdict.word == "cannot tell"
    assert verdict.why == "no time marks after step 50; NVML reported that the GPU is lost"
    assert verdict.causes is None
