"""Events of a run other than its steps: checkpoints, evaluations, traces, exports, memory, notices."""

from typing import Any

from gputopo.values.run.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Exported,
    LossNotFinite,
    MemoryPeak,
    Noticed,
    Restarted,
    Resumed,
    Traced,
)


class Life:
    """The events of one run; `fields` are those of `gputopo.values.run.result.Result`."""

    def __init__(self) -> None:
        self._noticed: dict[str, None] = {}
        self._checkpoints: list[CheckpointSaved] = []
        self._evaluations: list[Evaluated] = []
        self._exports: list[Exported] = []
        self._traces: list[Traced] = []
        self._resumed: Resumed | None = None
        self._memory: MemoryPeak | None = None
        self.loss_not_finite: LossNotFinite | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """The notices of the run, each once."""
        return tuple(self._noticed)

    def add(self, event: Event) -> None:
        """Add an event of the run; others than those change nothing."""
        match event:
            case Noticed() | Restarted():
                self._noticed[event.says] = None
            case CheckpointSaved():
                there = (saved for saved in self._checkpoints if saved.path not in event.removed)
                self._checkpoints = [*there, event]
            case Evaluated():
                self._evaluations.append(event)
            case Exported():
                self._exports.append(event)
            case Traced():
                self._traces.append(event)
                self._noticed |= dict.fromkeys(event.says)
            case Resumed():
                self._resumed = event
            case MemoryPeak():
                self._memory = event
            case LossNotFinite():
                self.loss_not_finite = self.loss_not_finite or event

    def fields(self) -> dict[str, Any]:
        """Return the fields so far; of the checkpoints only those that were not removed."""
        return {
            "checkpoints": tuple(self._checkpoints),
            "evaluations": tuple(self._evaluations),
            "exports": tuple(self._exports),
            "traces": tuple(self._traces),
            "resumed": self._resumed,
            "memory": self._memory,
            "loss_not_finite": self.loss_not_finite,
        }
