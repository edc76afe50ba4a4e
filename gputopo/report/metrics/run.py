"""The metrics of a run while it lasts, from its events, as Prometheus text: steps, speeds, GPUs and host."""

from gputopo.report.metrics.exposition import MIB, Exposition
from gputopo.runs.throughput import RunningThroughput
from gputopo.values.run.events import (
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
)
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW

_MHZ, _MB = 1e6, 1e6  # Hz, bytes


class RunMetrics:
    """What a run reported last. GPUs have the metrics of `gputopo inspect --format prometheus`."""

    def __init__(self) -> None:
        self._running = RunningThroughput()
        self._devices: tuple[Device, ...] = ()
        self._step: Step | None = None
        self._facts: dict[int, dict[str, object]] = {}  # by GPU, the latest of each fact
        self._host: HostLoad | None = None
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
                for one in event.gpus:
                    known = {name: getattr(one, name) for name in one.__struct_fields__}
                    latest = {} if one.lost else self._facts.get(one.gpu, {})
                    self._facts[one.gpu] = latest | {
                        name: value for name, value in known.items() if value is not None
                    }
                self._host = event.host or self._host
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
            _add_verdict(out, standing)
        for gpu in sorted(self._facts):
            # A dict of the facts of one struct: they have its types.
            _add_gpu(out, GpuSample(**self._facts[gpu]))  # type: ignore[arg-type]
        if self._host is not None:
            _add_host(out, self._host)
        return out.text()

    def _add_step(self, out: Exposition, step: Step) -> None:
        out.gauge("run_step_seconds", "the last step", step.seconds)
        out.gauge("run_loss", "loss of the last step", step.loss)
        devices = {device.tower: device for device in self._devices}
        for mark in step.marks:
            labels: dict[str, str | int | None] = {"tower": mark.tower}
            if (device := devices.get(mark.tower)) is not None:
                labels |= {"device": device.device, "gpu": device.gpu}
            says = "time of the last step in which a device waited for weights or computed"
            out.gauge("run_device_seconds", says, mark.weights_s, **labels, part="weights")
            out.gauge("run_device_seconds", says, mark.compute_s, **labels, part="compute")


def _add_verdict(out: Exposition, found: Standing) -> None:
    words = (SLOW, EVEN, CANNOT_TELL)
    labels = {"tower": found.tower, "gpu": found.gpu}
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


def _add_gpu(out: Exposition, last: GpuSample) -> None:
    gpu = last.gpu
    out.gauge("gpu_lost", "whether a GPU is lost", last.lost, gpu=gpu)
    for domain, mhz in (("graphics", last.graphics_mhz), ("memory", last.memory_mhz)):
        out.gauge("gpu_clock_hertz", "clock now", None if mhz is None else mhz * _MHZ, gpu=gpu, domain=domain)
    out.gauge("gpu_power_watts", "power draw", last.power_w, gpu=gpu)
    out.gauge("gpu_power_enforced_limit_watts", "power limit in force", last.power_limit_w, gpu=gpu)
    for sensor, celsius in (("gpu", last.temperature_c), ("memory", last.memory_temperature_c)):
        out.gauge("gpu_temperature_celsius", "temperature", celsius, gpu=gpu, sensor=sensor)
    out.gauge("gpu_throttle_mask", "clock event reasons as a mask", last.throttle_mask, gpu=gpu)
    says = "time in which a policy throttled the clocks, since the run began"
    out.counters("gpu_throttled_seconds_total", says, last.throttled_s, "reason", gpu=gpu)
    out.gauge("gpu_processes", "processes on a GPU", last.processes, gpu=gpu)
    out.gauge(
        "gpu_other_processes", "processes on a GPU that are not of the run", last.other_processes, gpu=gpu
    )
    used = None if last.memory_used_mib is None else last.memory_used_mib * MIB
    out.gauge("gpu_memory_used_bytes", "device memory in use", used, gpu=gpu)
    out.gauge("run_gpu_pcie_generation", "generation of the PCIe link now", last.pcie_gen, gpu=gpu)
    out.gauge("run_gpu_pcie_lanes", "lanes of the PCIe link now", last.pcie_width, gpu=gpu)
    for direction, rate in (("in", last.pcie_in_mb_per_s), ("out", last.pcie_out_mb_per_s)):
        says = "throughput of the PCIe link, as the GPU sees it"
        value = None if rate is None else rate * _MB
        out.gauge("run_gpu_pcie_bytes_per_second", says, value, gpu=gpu, direction=direction)
    out.counter("run_gpu_pcie_replays_total", "PCIe packets sent again", last.pcie_replays, gpu=gpu)
    out.counter("run_gpu_nvlink_errors_total", "errors of all NVLinks", last.nvlink_errors, gpu=gpu)


def _add_host(out: Exposition, load: HostLoad) -> None:
    for who, share in (("run", load.run_cpu_share), ("others", load.other_cpu_share)):
        says = "CPU time as a share of the cores that the run may use"
        out.gauge("run_host_cpu_ratio", says, share, programs=who)
    out.gauge("run_host_run_queue", "threads that run or could", load.run_queue)
    available = load.memory_available_share
    out.gauge("run_host_memory_available_ratio", "memory that is available", available)
