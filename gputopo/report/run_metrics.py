"""The metrics of a running run, from its events, as Prometheus text: steps, speeds, GPUs and host."""

from gputopo.report.prometheus import Exposition, Label, add_fact
from gputopo.values.fields import fields_of
from gputopo.values.gpu import Gpu
from gputopo.values.run.events import (
    SAMPLED_FACTS,
    Anomaly,
    Device,
    Event,
    GpuSample,
    HostLoad,
    Judged,
    RunFinished,
    RunStarted,
    Sample,
    Standing,
    Step,
    place_name,
)
from gputopo.values.run.speed import RunningThroughput
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW

_MB = 1e6  # bytes
# Fields of a sample with the same series as in `gputopo inspect --format prometheus`.
_AS_INSPECTED = (
    "graphics_mhz",
    "memory_mhz",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "memory_temperature_c",
    "throttle_mask",
    "memory_used_mib",
)


class RunMetrics:
    """The latest state of a run. GPUs have the metrics of `gputopo inspect --format prometheus`."""

    def __init__(self) -> None:
        self._running = RunningThroughput()
        self._devices: tuple[Device, ...] = ()
        self._step: Step | None = None
        self._gpus: dict[tuple[int, int], GpuSample] = {}  # by rank and GPU: the latest value of each fact
        self._hosts: dict[int, HostLoad] = {}  # by rank
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
            case Sample():
                for gpu in event.gpus:
                    place = (event.rank, gpu.gpu)
                    self._gpus[place] = gpu.with_earlier(self._gpus.get(place))
                if event.host is not None:
                    self._hosts[event.rank] = event.host
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
        out.states("run_status", "whether the run is active, and how it ended", states, self._status)
        out.counter("run_steps_total", "counted steps", self._running.steps)
        out.counter("run_images_total", "images of counted steps", self._running.images)
        out.gauge("run_images_per_second", "images by the mean step time", self._running.mean)
        out.gauge("run_anomalies", "slow devices that were reported", len(self._anomalies))
        if self._step is not None:
            self._add_step(out, self._step)
        for standing in self._standings:
            of_tower = (device.host for device in self._devices if device.tower == standing.tower)
            _add_verdict(out, standing, next(of_tower, None))
        names = {device.rank: device.host for device in self._devices}
        for (rank, _), last in sorted(self._gpus.items()):
            _add_gpu(out, last, names.get(rank))
        for rank, load in sorted(self._hosts.items()):
            _add_host(out, load, names.get(rank))
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


def _add_verdict(out: Exposition, standing: Standing, host: str | None) -> None:
    words = (SLOW, EVEN, CANNOT_TELL)
    labels = {"tower": standing.tower, "gpu": standing.gpu, "host": host}
    out.states(
        "run_device_verdict", "the verdict on a device by the latest steps", words, standing.word, **labels
    )
    share = None if standing.percent is None else standing.percent / 100
    if standing.word == SLOW:
        says = "how much slower a device is than its peers, by its largest known cause"
        out.gauge("run_device_slower_ratio", says, share, **labels, cause=standing.cause)
    else:
        says = "largest difference of a device from its peers that is still possible"
        out.gauge("run_device_resolution_ratio", says, share, **labels)


def _add_gpu(out: Exposition, last: GpuSample, host: str | None) -> None:
    labels: dict[str, Label] = {"gpu": last.gpu, "host": host}
    out.gauge("gpu_lost", "whether a GPU is lost", last.lost, **labels)
    for name in _AS_INSPECTED:
        add_fact(out, fields_of(Gpu)[SAMPLED_FACTS[name].path], getattr(last, name), labels)
    says = "time in which a policy throttled the clocks, since the run began"
    out.counters("gpu_throttled_seconds_total", says, last.throttled_s, "reason", **labels)
    out.gauge("gpu_processes", "processes on a GPU", last.processes, **labels)
    out.gauge(
        "gpu_other_processes", "processes on a GPU that are not of the run", last.other_processes, **labels
    )
    out.gauge("run_gpu_pcie_generation", "generation of the PCIe link now", last.pcie_gen, **labels)
    out.gauge("run_gpu_pcie_lanes", "lanes of the PCIe link now", last.pcie_width, **labels)
    for direction, rate in (("in", last.pcie_in_mb_per_s), ("out", last.pcie_out_mb_per_s)):
        says = "throughput of the PCIe link, as the GPU sees it"
        value = None if rate is None else rate * _MB
        out.gauge("run_gpu_pcie_bytes_per_second", says, value, **labels, direction=direction)
    out.counter("run_gpu_pcie_replays_total", "PCIe packets sent again", last.pcie_replays, **labels)
    out.counter("run_gpu_nvlink_errors_total", "errors of all NVLinks", last.nvlink_errors, **labels)


def _add_host(out: Exposition, load: HostLoad, host: str | None) -> None:
    for who, share in (("run", load.run_cpu_share), ("others", load.other_cpu_share)):
        says = "CPU time as a share of the cores that the run may use"
        out.gauge("run_host_cpu_ratio", says, share, programs=who, host=host)
    out.gauge("run_host_run_queue", "threads that run or could", load.run_queue, host=host)
    available = load.memory_available_share
    out.gauge("run_host_memory_available_ratio", "memory that is available", available, host=host)
