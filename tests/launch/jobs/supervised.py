"""Runs a worker that misbehaves in one respect at a time. Waiting is on pipes and processes only."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from gputopo.launch.jobs import RunJob, supervise
from gputopo.launch.supervise import RunFolder, WorkerLimits
from gputopo.values.run.events import (
    Event,
    PhaseBegun,
    RankFailed,
    Step,
    read_events,
)
from gputopo.values.run.result import Result
from gputopo.values.run.spec import RunSpec
from tests.kit_workers.stand_in import WORKER, behaves, in_place_of
from tests.launch.specs import cpu_spec

LONG = WorkerLimits(
    after_term=60, after_last_event=60, after_kill=60
)  # that a test fails by, never waits for


@dataclass(frozen=True)
class Ended:
    """How a run ended, and all its events, those that could not be written too."""

    exit_code: int
    events: tuple[Event, ...]
    result: Result
    stopped: bool


class Run:
    """One run of a misbehaving worker in a folder, and the processes left of it."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.pid = 0
        self.on_step: Callable[[], None] = lambda: None
        self.on_phase: Callable[[], None] = lambda: None
        self._others = set(psutil.Process().children(recursive=True))  # that tests before have started

    def __call__(
        self,
        behaviour: str,
        *,
        spec: RunSpec | None = None,
        limits: WorkerLimits = LONG,
        environment: dict[str, str] | None = None,
        **more: object,
    ) -> Ended:
        events: list[Event] = []

        def on_event(event: Event) -> None:
            events.append(event)
            for child in self.children():
                self.pid = child.pid
            if isinstance(event, Step):
                self.on_step()
            elif isinstance(event, PhaseBegun):
                self.on_phase()

        parent = dict(os.environ) if environment is None else environment
        job = RunJob(
            spec=spec or cpu_spec(),
            folder=self.folder,
            on_event=on_event,
            environment=parent,
            limits=limits,
            **more,  # type: ignore[arg-type]
        )
        beside = self.folder.path.with_name(f"{self.folder.path.name}-stand-in")
        with in_place_of(WORKER, behaves(behaviour), beside):
            outcome = supervise(job)
        assert self.children() == []
        return Ended(outcome.exit_code, tuple(events), outcome.result, outcome.stopped)

    def children(self) -> list[psutil.Process]:
        """Processes of this run that have not ended."""
        return [child for child in psutil.Process().children(recursive=True) if child not in self._others]

    def written(self) -> list[Event]:
        with self.folder.events.open("rb") as lines:
            return list(read_events(lines, origin="events.jsonl"))


def once(act: Callable[[], None]) -> Callable[[], None]:
    left = [act]
    return lambda: left.pop()() if left else None


def failure(outcome: Ended) -> RankFailed:
    (found,) = (event for event in outcome.events if isinstance(event, RankFailed))
    return found
