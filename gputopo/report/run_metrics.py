"""The metrics of a run while it lasts, from its events, as Prometheus text: steps, speeds, verdicts."""

from gputopo.report.prometheus import Exposition
from gputopo.values.run.events import (
    Anomaly,
    Device,
    Event,
    Judged,
    RunFinished,
    RunStarted,
    Standing,
    Step,
    place_name,
)
from gputopo.values.run.speed import RunningThroughput
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW


class RunMetrics:
    """What a run reported last. For GPUs and host there are other exporters, such as NVIDIA's of DCGM."""

    def __init__(self) -> None:
        self._running = RunningThroughput()
        self._devices: tuple[Device, ...] = ()
        self._step: Step | None = None
        self._anomalies: set[tuple[int, str]] = set()
        self._standings: tuple[Standing, ...] = ()
        self._status = "running"

    def add(self, event: Event) -> None:
        """Add the next event of the run."""
        self._running.add(event)
        match event:
            case RunStarted():
                self._devices = event.devices
            case Step() if not event.warmup:
                self._step = event
            case Anomaly():
                self._anomalies.add((event.tower, event.part))
            case Judged():
                self._standings = event.devices
            case RunFinished():
                self._status = event.status

    def text(self) -> str:
        """Return the metrics so far."""
        out = Exposition()
        states = ("running", "complete", "interrupted", "failed")
        out.states("run_status", "whether the run goes on, and how it ended", states, self._status)
        out.counter("run_steps_total", "counted steps", self._running.steps)
        out.counter("run_images_total", "images of counted steps", self._running.images)
        out.gauge("run_images_per_second", "images by the mean step time", self._running.mean)
        out.gauge("run_anomalies", "slow devices that were reported", len(self._anomalies))
        if self._step is not None:
            self._add_step(out, self._step)
        for standing in self._standings:
            of_tower = (device.host for device in self._devices if device.tower == standing.tower)
            _add_verdict(out, standing, next(of_tower, None))
        return out.text()

    def _add_step(self, out: Exposition, step: Step) -> None:
        out.gauge("run_step_seconds", "the last step", step.seconds)
        out.gauge("run_loss", "loss of the last step", step.loss)
        devices = {device.tower: device for device in self._devices}
        for mark in step.marks:
            labels: dict[str, str | int | None] = {"tower": mark.tower}
            if (device := devices.get(mark.tower)) is not None:
                labels |= {
                    "device": place_name(device.device, (device,)),
                    "gpu": device.gpu,
                    "host": device.host,
                }
            says = "time of the last step in which a device waited for weights or computed"
            out.gauge("run_device_seconds", says, mark.weights_s, **labels, part="weights")
            out.gauge("run_device_seconds", says, mark.compute_s, **labels, part="compute")


def _add_verdict(out: Exposition, found: Standing, host: str | None) -> None:
    words = (SLOW, EVEN, CANNOT_TELL)
    labels = {"tower": found.tower, "gpu": found.gpu, "host": host}
    out.states(
        "run_device_verdict", "the verdict on a device by the latest steps", words, found.word, **labels
    )
    share = None if found.percent is None else found.percent / 100
    if found.word == SLOW:
        says = "how much slower a device is than its peers, by its largest known cause"
        out.gauge("run_device_slower_ratio", says, share, **labels, cause=found.cause)
    else:
        says = "a device is even with its peers to within, or differences are resolved above"
        out.gauge("run_device_resolution_ratio", says, share, **labels)
