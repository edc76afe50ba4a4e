from gputopo.report import RunMetrics
from gputopo.values.run.events import Anomaly, Event, GpuSample, HostLoad, Judged, Sample, Standing
from tests import there
from tests.invented_runs import InventedRun, Noise, gpu_devices, stream
from tests.report.exposition_grammar import read

RUN = InventedRun(2, slow={1: 0.5}, noise=Noise(common=0.0, own=0.0, stalls=0.0))
EVENTS: list[Event] = list(stream(gpu_devices(2), RUN.steps(20)))


def metrics(*events: Event) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = RunMetrics()
    for event in events:
        found.add(event)
    return {one.identity: one.value for family in read(found.text()).values() for one in family.samples}


def of(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float | None:
    return found.get((f"gputopo_{name}", frozenset(labels.items())))


def test_steps_speed_and_the_marks_of_each_device_are_shown() -> None:
    found = metrics(*EVENTS[:-1])
    assert of(found, "run_steps_total") == 20
    assert of(found, "run_images_total") == 20 * 16
    assert of(found, "run_status", state="running") == 1
    seconds = [
        of(found, "run_device_seconds", tower=str(n), device=f"/GPU:{n}", gpu=str(n), part="compute")
        for n in range(2)
    ]
    assert seconds[1] == 2 * there(seconds[0])


def test_the_end_and_anomalies_are_shown() -> None:
    slow = Anomaly(
        time_s=1.0,
        tower=1,
        part="compute",
        percent_under=50.0,
        percent_under_low=49.0,
        confidence=0.99,
        says="",
    )
    found = metrics(*EVENTS[:-1], slow, slow, EVENTS[-1])
    assert (of(found, "run_status", state="complete"), of(found, "run_status", state="running")) == (1, 0)
    assert of(found, "run_anomalies") == 1


def test_the_verdicts_so_far_are_shown_with_their_figures() -> None:
    slow = Standing(tower=0, gpu=0, word="slow", percent=12.5, cause="power-cap")
    even = Standing(tower=1, gpu=1, word="even", percent=2.0)
    found = metrics(*EVENTS[:-1], Judged(time_s=1.0, step=9, devices=(slow, even)))
    states = [of(found, "run_device_verdict", tower="0", gpu="0", state=one) for one in ("slow", "even")]
    assert states == [1, 0]
    assert of(found, "run_device_slower_ratio", tower="0", gpu="0", cause="power-cap") == 0.125
    assert of(found, "run_device_resolution_ratio", tower="1", gpu="1") == 0.02


def test_gpus_show_the_latest_of_each_fact_until_they_are_lost() -> None:
    first = GpuSample(gpu=0, graphics_mhz=1700, temperature_c=71, throttled_s={"power": 1.5})
    second = GpuSample(gpu=0, graphics_mhz=1600)
    load = HostLoad(time_s=1.0, seconds=1.0, other_cpu_share=0.25)
    seen = [*EVENTS, Sample(time_s=1.0, gpus=(first,), host=load), Sample(time_s=2.0, gpus=(second,))]
    found = metrics(*seen)
    assert of(found, "gpu_clock_hertz", gpu="0", domain="graphics") == 1.6e9
    assert of(found, "gpu_temperature_celsius", gpu="0", sensor="gpu") == 71
    assert of(found, "gpu_throttled_seconds_total", gpu="0", reason="power") == 1.5
    assert of(found, "run_host_cpu_ratio", programs="others") == 0.25
    lost = metrics(*seen, Sample(time_s=3.0, gpus=(GpuSample(gpu=0, lost=True),)))
    assert of(lost, "gpu_lost", gpu="0") == 1
    assert of(lost, "gpu_clock_hertz", gpu="0", domain="graphics") is None
