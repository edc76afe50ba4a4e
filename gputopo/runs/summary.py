"""The result of a run from its events only, so that a killed run can still be reported.

Any prefix of the events has a result: what was measured until then, and why it ended.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from gputopo.runs.counted import CountedSteps
from gputopo.runs.devices import batch_sizes, device_results
from gputopo.runs.first_part import SteadySpeed
from gputopo.runs.hardware import HardwareRecord
from gputopo.runs.ran import what_ran
from gputopo.runs.verdict.judge import Judgement, judge
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.sampled import (
    HOST_CPU,
    HOST_SWAP,
    HOST_TAKEN,
    OTHERS,
    THROTTLED_HARDWARE,
    THROTTLED_POWER,
    THROTTLED_THERMAL,
)
from gputopo.values.run.bounded import Thinned, known_middle
from gputopo.values.run.drill import labels
from gputopo.values.run.events import (
    Anomaly,
    CheckpointSaved,
    Device,
    Evaluated,
    Event,
    Exported,
    LossNotFinite,
    MemoryPeak,
    ModelBuilt,
    Noticed,
    PlacementChecked,
    RankFailed,
    Replanned,
    ReplicasCompared,
    Restarted,
    Resumed,
    RunFinished,
    RunStarted,
    Sample,
    Step,
    Traced,
    WarmupDone,
)
from gputopo.values.run.program import PROGRAM, job_of
from gputopo.values.run.result import Result
from gputopo.values.run.speed import RunningThroughput

UNFINISHED = "unfinished"  # the kind of failure if there is no last event
STOPPED_FROM_OUTSIDE = frozenset({"interrupted", "terminated"})  # kinds of RankFailed
# Samples that are kept for the medians of the clocks. Not measured; chosen because samples of 16 GPUs then
# take 6 MB.
KEPT_SAMPLES = 1000
# Facts of a GPU and of its host that slow a run: shares, or numbers of processes. And the minimum difference
# of a fact before and after a step that makes it a cause. Not measured.
_SLOWING_GPU = (THROTTLED_POWER, THROTTLED_THERMAL, THROTTLED_HARDWARE, OTHERS)
MIN_MORE = 0.1
_OF_DEVICES = (
    PlacementChecked,
    WarmupDone,
    ReplicasCompared,
    Anomaly,
)  # these are gone if a run continues with other devices
_KEPT = (
    *_OF_DEVICES,
    ModelBuilt,
    Replanned,
    Resumed,
    Evaluated,
    Exported,
    Traced,
    MemoryPeak,
    LossNotFinite,
    RankFailed,
    RunFinished,
)

E = TypeVar("E")


def summarise(events: Iterable[Event]) -> Result:
    """Return the result of a run from its events, complete or not.

    A run without its last event has the status "failed" ("interrupted" if its failure is of that kind).
    """
    summary = Summary()
    for event in events:
        summary.add(event)
    return summary.result()


class Summary:
    """The events of one run; `result` can be called at any time.

    Its memory does not grow with the run: steps and samples are summed, and only some of many are kept.
    """

    def __init__(self) -> None:
        self.running = RunningThroughput()
        self._steps = CountedSteps()
        self._rare: dict[type, list[Any]] = {}  # events other than steps and samples, by type
        self._noticed: dict[str, None] = {}
        self.hardware: HardwareRecord | None = None  # for a user's program
        self._last_time_s = 0.0
        self._begin(None)

    def _begin(self, started: RunStarted | None) -> None:
        """Start with these devices; measurements of earlier devices are dropped."""
        self._started = started
        self._judged: Judgement | None = None  # None after an event that it depends on
        for kind in _OF_DEVICES:
            self._rare.pop(kind, None)
        self._samples: Thinned[Sample] = Thinned(KEPT_SAMPLES)
        self._paces = Paces(())
        if started is not None:
            self._paces = Paces(started.devices, batches=batch_sizes(started), known=started.known)
        detects = started is None or started.spec.get("min_warmup_s", 0.0) is not None
        self._steady = SteadySpeed(lambda step: slowed_before(self._paces, step), detects_warmup=detects)

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._last_time_s = event.time_s
        if not isinstance(event, Anomaly | RankFailed | RunFinished):
            self._judged = None
        if isinstance(event, RunStarted):
            self._begin(event)
            if event.spec.get("task") == PROGRAM:
                self.hardware = HardwareRecord(event.devices)
        elif isinstance(event, Replanned) and self._started is not None:
            self._begin(msgspec.structs.replace(self._started, spec=event.spec, known=event.known))
        elif isinstance(event, Step) and self.hardware is not None:
            # If a program without GPUs reports how long each process was busy, each process is a device.
            known = self._paces.devices
            towers = {device.tower for device in known} | {mark.tower for mark in event.marks}
            if self._started and self._started.backend == "cpu" and len(towers) > len(known):
                devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in sorted(towers))
                self._started = msgspec.structs.replace(self._started, devices=devices)
                self._paces = Paces(devices)
        self.running.add(event)
        self._paces.add(event)
        match event:
            case Step():
                self._steps.add(event)
                if not event.warmup:
                    self._steady.add(event)
            case Sample():
                self._samples.add(event)
                if self.hardware is not None:
                    self.hardware.add(event)
            case Noticed() | Restarted():
                self._noticed[event.says] = None
            case CheckpointSaved():  # only checkpoints that still exist are kept
                left = [saved for saved in self._all(CheckpointSaved) if saved.path not in event.removed]
                self._rare[CheckpointSaved] = [*left, event]
            case _ if isinstance(event, _KEPT):
                self._rare.setdefault(type(event), []).append(event)
                if isinstance(event, Replanned):
                    self._noticed[event.says] = None

    def _all(self, kind: type[E]) -> tuple[E, ...]:
        return tuple(self._rare.get(kind, ()))

    def _last(self, kind: type[E]) -> E | None:
        return self._all(kind)[-1] if kind in self._rare else None

    def _first(self, kind: type[E]) -> E | None:
        return self._all(kind)[0] if kind in self._rare else None

    @property
    def has_peers(self) -> bool:
        """Return whether devices of the run can be compared with one another."""
        return len(self._paces.devices) > 1 and not self._is_input_alone()

    def latest(self) -> Callable[[], Judgement]:
        """Return a function that compares the devices by the recent steps; it may run in another thread."""
        return partial(self._judge, self._paces.latest())

    def judgement(self) -> Judgement:
        """Compare the devices by the steps so far. The result is cached until the next event."""
        if self._judged is None:
            self._judged = self._judge(self._paces)
        return self._judged

    def _judge(self, paces: Paces) -> Judgement:
        if self._is_input_alone():
            return Judgement(without_devices="the input was measured alone, without work for a device")
        if self._started is None:
            return judge(paces)
        mode, known = self._started.spec.get("variable_update"), self._started.known
        mode = mode if isinstance(mode, str) else None
        return judge(paces, mode=mode, expected=known.expected, unexpected=known.unexpected)

    def result(self) -> Result:
        """Return the result of the events so far."""
        judgement = self.judgement()
        anomalies = self._confirmed(judgement)
        status, exit_code, failure = self._ending()
        started, built = self._started, self._last(ModelBuilt)
        placement, warmup = self._last(PlacementChecked), self._last(WarmupDone)
        replicas, finished = self._last(ReplicasCompared), self._last(RunFinished)
        spec = {} if started is None else started.spec
        asked = spec.get("asked")
        part, speed = self._steady.found()
        before, before_s = (warmup.steps, warmup.seconds) if warmup else (self._steps.in_warmup, 0.0)
        batches = batch_sizes(started, self._steps.kept)
        window = self.running.window or (math.inf, -math.inf)
        samples = [sample for sample in self._samples.items if window[0] <= sample.time_s <= window[1]]
        noted = (*(started.says if started else ()), *(built.says if built else ()), *self._noticed)
        messages = dict.fromkeys((*noted, *self._loss_messages()))
        return Result(
            status=status,
            exit_code=exit_code,
            failure=failure,
            replanned=self._last(Replanned),
            spec=spec,
            asked=asked if isinstance(asked, dict) else {},
            ran=what_ran(job_of(spec)),
            backend="unknown" if started is None else started.backend,
            rehearsal_of=None if started is None else started.rehearsal_of,
            drills=labels(spec),
            says=(*messages, *self._withdrawn(judgement, anomalies)),
            versions={**(started.versions if started else {}), **(built.versions if built else {})},
            batch_size=batches[0] or None if len(set(batches)) == 1 else None,
            global_batch_size=sum(batches) or None,
            throughput=speed.throughput(),
            steps=self.running.steps,
            images=self.running.images,
            unit=warmup.unit if warmup else "images",
            counted_s=self.running.seconds if self.running.steps else None,
            devices=device_results(started, self._steps.kept, samples, judgement.devices, anomalies),
            exchange=self._paces.exchange.result(),
            anomalies=anomalies,
            anomaly_check=judgement.check,
            run_verdict=judgement.run,
            cost=judgement.cost,
            host_load=judgement.host,
            parameters=built.parameters if built else None,
            import_s=built.import_s if built else None,
            build_s=built.build_s if built else None,
            input=built.input if built else {},
            variables_on=placement.variables if placement else {},
            ops_on=placement.ops if placement else {},
            first_step_s=placement.first_step_s if placement else None,
            warmup_steps=before,
            warmup_s=warmup.seconds if warmup else None,
            steady_steps=None if part.warmup is None else before + part.warmup,
            steady_s=None if part.warmup is None else before_s + part.warmup_s,
            steady=part.says,
            speed_change=part.change,
            wall_s=finished.wall_s if finished else None,
            replica_difference=replicas.largest_difference if replicas else None,
            checkpoints=self._all(CheckpointSaved),
            evaluations=self._all(Evaluated),
            exports=self._all(Exported),
            traces=self._all(Traced),
            resumed=self._last(Resumed),
            memory=self._last(MemoryPeak),
            loss_not_finite=self._first(LossNotFinite),
            hardware=None if self.hardware is None else self.hardware.judge(),
            placed=None if self.hardware is None else self.hardware.placement.placed(),
            **self._steps.fields(),
        )

    def _ending(self) -> tuple[str, int, RankFailed | None]:
        finished, failure = self._last(RunFinished), self._first(RankFailed)  # later ones follow from it
        if finished:
            return finished.status, finished.exit_code, failure
        if failure:
            stopped = failure.kind in STOPPED_FROM_OUTSIDE
            return "interrupted" if stopped else "failed", failure.exit_code, failure
        unfinished = RankFailed(
            time_s=self._last_time_s,
            kind=UNFINISHED,
            cause="the events of the run stop before its end",
            remedy="if it is not still running, its launcher was killed, too: start it again",
            exit_code=1,
        )
        return "failed", 1, unfinished

    def _confirmed(self, judgement: Judgement) -> tuple[Anomaly, ...]:
        """Return the anomalies over all steps, or the reported ones if devices cannot be compared."""
        reported = self._all(Anomaly)
        if judgement.not_made is not None:
            return tuple({(event.tower, event.part): event for event in reported}.values())
        # A device may have been reported again with another cause: the first report gives the time.
        first_s = {(event.tower, event.part): event.time_s for event in reversed(reported)}
        events = (judgement.anomaly(slow, self._last_time_s) for slow in judgement.slow)
        return tuple(
            msgspec.structs.replace(event, time_s=first_s.get((event.tower, event.part), event.time_s))
            for event in events
        )

    def _withdrawn(self, judgement: Judgement, confirmed: Sequence[Anomaly]) -> tuple[str, ...]:
        """Return which reports about devices do not hold over all steps, and why."""
        named = {(event.tower, event.part) for event in confirmed}
        verdicts = {verdict.tower: verdict for verdict in judgement.devices}
        last = {(event.tower, event.part): event.says for event in self._all(Anomaly)}
        return tuple(
            f"Reported during the run: {says}. Over all steps: {verdicts[tower].says}."
            for (tower, part), says in last.items()
            if (tower, part) not in named and tower in verdicts
        )

    def _loss_messages(self) -> tuple[str, ...]:
        lost = self._steps.lost_loss
        without_loss = self._started is not None and self._started.spec.get("task") in ("input", PROGRAM)
        if lost is None or without_loss:
            return ()
        since = "from the warm-up on" if lost.warmup else f"from step {lost.step} on"
        event = self._first(LossNotFinite)
        what = "infinite" if event is not None and event.value.endswith("inf") else "not a number"
        return (
            f"The loss is {what} {since}: the speeds are valid, but the model does not learn; try a "
            "lower --learning-rate.",
        )

    def _is_input_alone(self) -> bool:
        """Return whether there is no model: then there is no loss and no computing device."""
        return self._started is not None and self._started.spec.get("task") == "input"


def slowed_before(paces: Paces, step: int) -> bool:
    """Return whether samples showed something that slows a run more up to a counted step than after it."""
    facts = paces.facts
    rows = sum(first <= step for first in facts.first_steps())
    for device in paces.devices:
        columns = [facts.of_gpu(device.tower, fact) for fact in _SLOWING_GPU]
        columns += [facts.of_host(device.tower, fact) for fact in (HOST_CPU, HOST_SWAP)]
        columns += [facts.of_host(device.tower, HOST_TAKEN)] if device.is_cpu else []
        for column in columns:
            if known_middle(column[:rows], fmean) > known_middle(column[rows:], fmean) + MIN_MORE:
                return True
    return False
