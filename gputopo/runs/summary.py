"""The result of a run from its events alone, so that a killed run can still be reported.

Any prefix of the events has a result: what was measured until then, and why it ended.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gputopo.runs.bounded import Thinned
from gputopo.runs.devices import batch_sizes, device_results
from gputopo.runs.hardware import HostRecords
from gputopo.runs.ran import what_ran
from gputopo.runs.speed import CountedSteps, RunningThroughput
from gputopo.runs.verdict.judge import AnomalyCheck, event_of, judge
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.sampled import OneMachine
from gputopo.values.run.drill import labels
from gputopo.values.run.events import (
    Anomaly,
    CheckpointSaved,
    Evaluated,
    Event,
    Exported,
    LossNotFinite,
    MemoryPeak,
    ModelBuilt,
    Noticed,
    PlacementChecked,
    RankFailed,
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
from gputopo.values.run.job import PROGRAM, job_of
from gputopo.values.run.result import DeviceResult, Result
from gputopo.values.run.verdict import Known


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


UNFINISHED = "unfinished"  # the kind of failure where the events just end
STOPPED_FROM_OUTSIDE = frozenset({"interrupted", "terminated"})  # kinds of RankFailed
# Samples that are stored for the medians of the clocks; of 16 GPUs they take 6 MB. Ours.
KEPT_SAMPLES = 1000


def summarise(events: Iterable[Event]) -> Result:
    """Return the result of a run from its events, or from as many of them as there are.

    A run without its last event has the status "failed" ("interrupted" if its failure is of that kind).
    """
    summary = Summary()
    for event in events:
        summary.add(event)
    return summary.result()


class Summary:
    """The events of one run; `result` can be called at any time.

    Its memory does not grow with the run: steps and samples become sums, and a few of many are stored.
    """

    def __init__(self) -> None:
        self.running = RunningThroughput()
        self._started: RunStarted | None = None
        self._steps = CountedSteps()
        self._failure: RankFailed | None = None
        self._finished: RunFinished | None = None
        self._life = Life()
        self.hardware: HostRecords | None = None  # of a program of the user
        self._last_time_s = 0.0
        self._built: ModelBuilt | None = None
        self._begin(None)

    def _begin(self, started: RunStarted | None) -> None:
        """Begin with these devices: what was measured of others before is not theirs."""
        self._started = started
        self._checked: AnomalyCheck | None = None  # while nothing came that it depends on
        self._placement: PlacementChecked | None = None
        self._warmup: WarmupDone | None = None
        self._samples: Thinned[Sample] = Thinned(KEPT_SAMPLES)
        self._replicas: ReplicasCompared | None = None
        self._anomalies: list[Anomaly] = []
        self._one_machine = OneMachine({} if started is None else started.spec)
        self._paces = Paces(())
        if started is not None:
            self._paces = Paces(started.devices, batches=batch_sizes(started), known=started.known)

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._last_time_s = event.time_s
        if not isinstance(event, Anomaly | RankFailed | RunFinished):
            self._checked = None
        if isinstance(event, RunStarted):
            self._begin(event)
        elif isinstance(event, Restarted) and event.fewer is not None and self._started is not None:
            self._begin(event.started_with(self._started))
            self._steps.begin_anew()
        elif isinstance(event, Sample):
            event = self._one_machine.without_ranks(event)
        self.running.add(event)
        self._life.add(event)
        if isinstance(event, RunStarted) and event.spec.get("task") == PROGRAM:
            self.hardware = HostRecords(event.devices, event.spec)
        self._paces.add(event)
        match event:
            case Step():
                self._steps.add(event)
            case Sample():
                self._samples.add(event)
                if self.hardware is not None:
                    self.hardware.add(event)
            case Anomaly():
                self._anomalies.append(event)
            case ModelBuilt():
                self._built = event
            case PlacementChecked():
                self._placement = event
            case WarmupDone():
                self._warmup = event
            case ReplicasCompared():
                self._replicas = event
            case RankFailed():
                self._failure = self._failure or event  # later ones are consequences of the first
            case RunFinished():
                self._finished = event

    def check(self) -> AnomalyCheck:
        """Compare the devices by the steps so far: once, however often it is asked at the end of a run."""
        if self._checked is None:
            self._checked = self._check()
        return self._checked

    def _check(self) -> AnomalyCheck:
        if self._is_input_alone():
            return AnomalyCheck(not_made="the input was measured alone, without work for a device")
        mode = self._started.spec.get("variable_update") if self._started else None
        known = self._started.known if self._started else Known()
        return AnomalyCheck.of(
            judge(
                self._paces,
                mode=mode if isinstance(mode, str) else None,
                expected=known.expected,
                unexpected=known.unexpected,
            )
        )

    def result(self) -> Result:
        """Return the result of the events so far."""
        check = self.check()
        anomalies = self._confirmed(check)
        status, exit_code, failure = self._ending()
        return Result(
            status=status,
            exit_code=exit_code,
            failure=failure,
            warmup_steps=self._warmup.steps if self._warmup else self._steps.in_warmup,
            throughput=self.running.throughput(),
            devices=_with_verdicts(
                device_results(
                    self._started,
                    self._steps.kept,
                    self._samples_of_counted_steps(),
                    _words_by_tower(anomalies),
                ),
                check,
            ),
            exchange=self._paces.exchange.result(),
            anomalies=anomalies,
            anomaly_check=check.verdict,
            run_verdict=check.judgement.run,
            cost=check.judgement.cost,
            host_load=check.judgement.host,
            replica_difference=self._replicas.largest_difference if self._replicas else None,
            hardware=None if self.hardware is None else self.hardware.judge(),
            placed=None if self.hardware is None else self.hardware.placed(),
            **self._from_start(),
            **self._from_events(),
            **self._batches(),
            **self._steps.fields(),
            **self._life.fields(),
        )

    def _batches(self) -> dict[str, Any]:
        batches = batch_sizes(self._started, self._steps.kept)
        return {
            "batch_size": batches[0] or None if len(set(batches)) == 1 else None,
            "global_batch_size": sum(batches) or None,
        }

    def _from_start(self) -> dict[str, Any]:
        started = self._started
        if started is None:
            return {"spec": {}, "backend": "unknown", "says": self._messages()}
        return {
            "spec": started.spec,
            "asked": asked if isinstance(asked := started.spec.get("asked"), dict) else {},
            "ran": what_ran(job_of(started.spec)),
            "backend": started.backend,
            "rehearsal_of": started.rehearsal_of,
            "drills": labels(started.spec),
            "says": self._messages(),
        }

    def _messages(self) -> tuple[str, ...]:
        """Return the messages that belong to the result, each once."""
        started = self._started.says if self._started else ()
        built = self._built.says if self._built else ()
        return tuple(dict.fromkeys((*started, *built, *self._life.notices, *self._loss_messages())))

    def _from_events(self) -> dict[str, Any]:
        built, placement = self._built, self._placement
        fields: dict[str, Any] = {
            "versions": {
                **(self._started.versions if self._started else {}),
                **(built.versions if built else {}),
            },
            "warmup_s": self._warmup.seconds if self._warmup else None,
            "wall_s": self._finished.wall_s if self._finished else None,
        }
        if built:
            fields |= {
                "parameters": built.parameters,
                "import_s": built.import_s,
                "build_s": built.build_s,
                "input": built.input,
            }
        if placement:
            fields |= {
                "variables_on": placement.variables,
                "ops_on": placement.ops,
                "first_step_s": placement.first_step_s,
            }
        return fields

    def _ending(self) -> tuple[str, int, RankFailed | None]:
        if self._finished:
            return self._finished.status, self._finished.exit_code, self._failure
        if self._failure:
            stopped = self._failure.kind in STOPPED_FROM_OUTSIDE
            return "interrupted" if stopped else "failed", self._failure.exit_code, self._failure
        unfinished = RankFailed(
            time_s=self._last_time_s,
            kind=UNFINISHED,
            cause="the events of the run stop before its end",
            remedy="if it is not still running, it was killed together with its launcher: start it again",
            exit_code=1,
        )
        return "failed", 1, unfinished

    def _confirmed(self, check: AnomalyCheck) -> tuple[Anomaly, ...]:
        """Return the anomalies over all steps; the reported ones where the check cannot be made."""
        if not check.made:
            return tuple({(event.tower, event.part): event for event in self._anomalies}.values())
        # A device may have been reported again, with another cause: what counts is when it was seen first.
        ranks = check.judgement.ranks
        events = [
            event_of(slow, self._last_time_s, ranks.get(slow.tower or 0, 0)) for slow in check.anomalies
        ]
        reported = {(event.tower, event.part): event for event in reversed(self._anomalies)}
        return tuple(
            msgspec.structs.replace(event, time_s=known.time_s)
            if (known := reported.get((event.tower, event.part)))
            else event
            for event in events
        )

    def _loss_messages(self) -> tuple[str, ...]:
        lost = self._steps.lost_loss
        if lost is None or not self._has_loss():
            return ()
        since = "from the warm-up on" if lost.warmup else f"from step {lost.step} on"
        event = self._life.loss_not_finite
        what = "infinite" if event is not None and event.value.endswith("inf") else "not a number"
        return (
            f"The loss is {what} {since}: the speeds are valid, but nothing is learned; "
            "a lower --learning-rate may help.",
        )

    def _is_input_alone(self) -> bool:
        """Whether there is no model: then there is no loss and no computing device."""
        return self._started is not None and self._started.spec.get("task") == "input"

    def _samples_of_counted_steps(self) -> list[Sample]:
        window = self.running.window
        if window is None:
            return []
        return [sample for sample in self._samples.items if window[0] <= sample.time_s <= window[1]]

    def _has_loss(self) -> bool:
        """Whether the steps have one: a program of the user reports none."""
        return self._started is None or self._started.spec.get("task") not in ("input", PROGRAM)


def _with_verdicts(rows: Iterable[DeviceResult], check: AnomalyCheck) -> tuple[DeviceResult, ...]:
    verdicts = {verdict.tower: verdict for verdict in check.judgement.devices}
    return tuple(msgspec.structs.replace(row, verdict=verdicts.get(row.device.tower)) for row in rows)


def _words_by_tower(anomalies: Iterable[Anomaly]) -> Mapping[int, str]:
    words: dict[int, list[str]] = {}
    for anomaly in anomalies:
        words.setdefault(anomaly.tower, []).append(anomaly.says)
    return {tower: "; ".join(lines) for tower, lines in words.items()}
