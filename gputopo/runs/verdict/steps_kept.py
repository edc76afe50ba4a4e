"""Some steps of a run with all their marks, evenly spread over it: every k-th, k doubling as it grows."""

from collections.abc import Mapping

import msgspec

from gputopo.values.run.events import Step, TowerMarks

CAPACITY = 400  # steps; their mean has 1/20 of the noise of one step


class KeptStep(msgspec.Struct, frozen=True):
    """A step's seconds, images and usable marks by tower."""

    step: int
    seconds: float
    images: int
    marks: Mapping[int, TowerMarks]


class StepsKept:
    """The steps that were kept, in their order."""

    def __init__(self) -> None:
        self.steps: list[KeptStep] = []
        self._every = 1
        self._seen = 0

    def add(self, step: Step, marks: Mapping[int, TowerMarks]) -> None:
        """Add the next step."""
        if self._seen % self._every == 0:
            self.steps.append(KeptStep(step.step, step.seconds, step.images, marks))
        self._seen += 1
        if len(self.steps) > CAPACITY:
            self.steps = self.steps[::2]
            self._every *= 2
