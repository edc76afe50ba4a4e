"""The result of a run from its events alone, so that a killed run can still be reported.

Any prefix of the events has a result: what was measured until then, and why it ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gputopo.runs.anomaly import AnomalyCheck, event_of
from gputopo.runs.device_results import batch_sizes, device_results
from gputopo.runs.life import Life
from gputopo.runs.ran import what_ran
from gputopo.runs.steadiness import steady
from gputopo.runs.throughput import RunningThroughput
from gputopo.runs.verdict.judge import judge
from gputopo.runs.verdict.paces import Paces
from gputopo.values.run.events import (
    Anomaly,
    Event,
    ModelBuilt,
    PlacementChecked,
    RankFailed,
    ReplicasCompared,
    RunFinished,
    RunStarted,
    Sample,
    Step,
    WarmupDone,
)
from gputopo.values.run.result import DeviceResult, Result

UNFINISHED = "unfinished"  # the kind of failure where the events just end
STOPPED_FROM_OUTSIDE = frozenset({"interrupted", "terminated"})  # kinds of RankFailed


def summarise(events: Iterable[Event]) -> Result:
    """Return the result of a run from its events, or from as many of them as there are.

    A run without its last event has the status "failed" ("interrupted" if its failure is of that kind).
    """
    summary = Summary()
    for event in events:
        summary.add(event)
    return summary.result()


class Summary:
    """The events of one run; `result` can be called at any time."""

    def __init__(self) -> None:
        self.running = RunningThroughput()
        self._started: RunStarted | None = None
        self._built: ModelBuilt | None = None
        self._placement: PlacementChecked | None = None
        self._warmup: WarmupDone | None = None
        self._steps: list[Step] = []
        self._samples: list[Sample] = []
        self._replicas: ReplicasCompared | None = None
        self._anomalies: list[Anomaly] = []
        self._failure: RankFailed | None = None
        self._finished: RunFinished | None = None
        self._life = Life()
        self._paces = Paces(())
        self._last_time_s = 0.0

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._last_time_s = event.time_s
        self.running.add(event)
        self._life.add(event)
        if isinstance(event, RunStarted):
            self._paces = Paces(event.devices, batches=batch_sizes(event))
        self._paces.add(event)
        match event:
            case Step():
                self._steps.append(event)
            case Sample():
                self._samples.append(event)
            case Anomaly():
                self._anomalies.append(event)
            case RunStarted():
                self._started = event
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
        """Compare the devices by the steps so far."""
        if self._is_input_alone():
            return AnomalyCheck(not_made="the input was measured alone, without work for a device")
        mode = self._started.spec.get("variable_update") if self._started else None
        return AnomalyCheck.of(judge(self._paces, mode=mode if isinstance(mode, str) else None))

    def result(self) -> Result:
        """Return the result of the events so far."""
        counted = [step for step in self._steps if not step.warmup]
        check = self.check()
        anomalies = self._confirmed(check)
        status, exit_code, failure = self._ending()
        return Result(
            status=status,
            exit_code=exit_code,
            failure=failure,
            steps=len(counted),
            warmup_steps=self._warmup.steps if self._warmup else len(self._steps) - len(counted),
            images=sum(step.images for step in counted),
            throughput=self.running.throughput(),
            devices=_with_verdicts(
                device_results(
                    self._started, counted, self._samples_of_counted_steps(), _words_by_tower(anomalies)
                ),
                check,
            ),
            anomalies=anomalies,
            anomaly_check=check.verdict,
            run_verdict=check.judgement.run,
            cost=check.judgement.cost,
            host_load=check.judgement.host,
            first_loss=counted[0].loss if counted else None,
            last_loss=counted[-1].loss if counted else None,
            replica_difference=self._replicas.largest_difference if self._replicas else None,
            **self._from_start(),
            **self._from_events(),
            **self._measured(counted),
            **self._life.fields(),
        )

    def _measured(self, counted: Sequence[Step]) -> dict[str, Any]:
        found = steady([step.seconds for step in self._steps])
        batches = batch_sizes(self._started, counted)
        return {
            "batch_size": batches[0] or None if len(set(batches)) == 1 else None,
            "global_batch_size": sum(batches) or None,
            "counted_s": sum(step.seconds for step in counted) if counted else None,
            "input_waited_share": _waited_share(counted),
            "steady_steps": found.steps,
            "steady_s": found.seconds,
            "steady": found.says,
            "last_top1": counted[-1].top1 if counted else None,
            "last_top5": counted[-1].top5 if counted else None,
        }

    def _from_start(self) -> dict[str, Any]:
        started = self._started
        if started is None:
            return {"spec": {}, "backend": "unknown", "says": self._messages()}
        return {
            "spec": started.spec,
            "asked": asked if isinstance(asked := started.spec.get("asked"), dict) else {},
            "ran": what_ran(started.spec),
            "backend": started.backend,
            "rehearsal_of": started.rehearsal_of,
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
        events = [event_of(slow, self._last_time_s) for slow in check.anomalies]
        reported = {(event.tower, event.part): event for event in self._anomalies}
        return tuple(
            msgspec.structs.replace(event, time_s=known.time_s, rank=known.rank)
            if (known := reported.get((event.tower, event.part)))
            else event
            for event in events
        )

    def _loss_messages(self) -> tuple[str, ...]:
        lost = next((step for step in self._steps if step.loss is None), None)
        if lost is None or self._is_input_alone():
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
        return [sample for sample in self._samples if window[0] <= sample.time_s <= window[1]]


def _waited_share(counted: Sequence[Step]) -> float | None:
    """Return the share of the steps' time, 0 to 1, in which the devices waited for the input."""
    measured = [(step.waited_s, step.seconds) for step in counted if step.waited_s is not None]
    seconds = sum(of_step for _, of_step in measured)
    waited_s = sum(waited for waited, _ in measured)
    return min(max(waited_s / seconds, 0.0), 1.0) if seconds > 0 else None


def _with_verdicts(rows: Iterable[DeviceResult], check: AnomalyCheck) -> tuple[DeviceResult, ...]:
    verdicts = {verdict.tower: verdict for verdict in check.judgement.devices}
    return tuple(msgspec.structs.replace(row, verdict=verdicts.get(row.device.tower)) for row in rows)


def _words_by_tower(anomalies: Iterable[Anomaly]) -> Mapping[int, str]:
    words: dict[int, list[str]] = {}
    for anomaly in anomalies:
        words.setdefault(anomaly.tower, []).append(anomaly.says)
    return {tower: "; ".join(lines) for tower, lines in words.items()}
