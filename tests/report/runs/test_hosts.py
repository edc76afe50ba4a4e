"""What is shown of a run over two hosts that have a GPU 0 each."""

import re
from collections.abc import Iterator

import msgspec
import pytest

from gputopo.report import RunMetrics, TfCnnLog, document_text, run_document
from gputopo.runs import read_over_time, summarise
from gputopo.values.run.events import (
    Event,
    GpuSample,
    HostLoad,
    Judged,
    LossNotFinite,
    RunStarted,
    Sample,
    Standing,
    WarmupDone,
)
from tests import there
from tests.invented_runs import InventedRun, Noise, gpu_devices, on_hosts, stream
from tests.report.exposition_grammar import read
from tests.report.runs.displays import drawn

CLOCKS = {0: 1500, 1: 1200}  # of GPU 0, by rank
MAX_CLOCKS = {"0": {"graphics": 2000}, "1:0": {"graphics": 1500}}
DEVICES = on_hosts(gpu_devices(1), gpu_devices(1))


def events() -> Iterator[Event]:
    """A run over n1 and n2: each host samples its GPU 0 and its own load."""
    steps = InventedRun(2, noise=Noise(own=0.01, stalls=0.0)).steps(40)
    for event in stream(DEVICES, steps):
        if isinstance(event, RunStarted):
            spec = event.spec | {"max_clocks_mhz": MAX_CLOCKS}
            event = msgspec.structs.replace(event, spec=spec, backend="gpu")
        yield event
        for rank, clock in CLOCKS.items():
            load = HostLoad(time_s=event.time_s, seconds=1.0, run_queue=1.0 + rank)
            seen = GpuSample(gpu=0, graphics_mhz=clock, temperature_c=60 + rank)
            yield Sample(time_s=event.time_s, rank=rank, gpus=(seen,), host=load)


@pytest.fixture(scope="module")
def run() -> list[Event]:
    return list(events())


def test_the_report_names_hosts_and_no_task_of_tensorflow(run: list[Event]) -> None:
    words = " ".join(document_text(run_document(summarise(run)), 120).split())
    assert "/job:" not in words
    assert ": alexnet on 2 GPUs of 2 hosts, parameter_server, variables on n1 GPU 0" in words
    assert "ops 200 on n1 GPU 0, 200 on n2 GPU 0" in words
    for name, clock in (("n1 GPU 0", "1500 (75)"), ("n2 GPU 0", "1200 (80)")):
        assert re.search(rf"{name} GTX 1070 [^|]*? {re.escape(clock)}", words), "of its own host's maximum"


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ({2: 12.0}, "n2 GPU 0 slow by 12% (thermal)"),
        (
            {1: 9.0, 2: 12.0, 3: 12.0},
            "n1 GPU 1 slow by 9.0% (thermal), host n2: all 2 GPUs slow by 12% (thermal)",
        ),
    ],
)
def test_the_verdict_so_far_names_the_device_or_the_host(slow: dict[int, float], words: str) -> None:
    steps = InventedRun(4).steps(3)
    begun = list(stream(on_hosts(gpu_devices(2), gpu_devices(2)), steps))
    training = 1 + next(n for n, event in enumerate(begun) if isinstance(event, WarmupDone))
    standings = (
        Standing(tower=tower, gpu=tower % 2, word="slow", percent=by, cause="thermal")
        for tower, by in slow.items()
    )
    look = Judged(time_s=0.0, step=1, devices=tuple(standings))
    assert f"verdict: {words}" in drawn([*begun[:training], look])


def test_metrics_have_the_host_as_a_label(run: list[Event]) -> None:
    metrics = RunMetrics()
    for event in run:
        metrics.add(event)
    families = read(metrics.text()).values()
    found = {one.identity: one.value for family in families for one in family.samples}
    clocks = {dict(labels)["host"]: value for (name, labels), value in found.items() if "gpu_clock" in name}
    assert clocks == {"n1": 1500e6, "n2": 1200e6}
    queues = {dict(labels)["host"]: value for (name, labels), value in found.items() if "run_queue" in name}
    assert queues == {"n1": 1.0, "n2": 2.0}
    devices = {dict(labels)["device"] for (name, labels) in found if name.endswith("run_device_seconds")}
    assert devices == {"n1 GPU 0", "n2 GPU 0"}


def test_curves_over_time_are_of_each_hosts_gpu(run: list[Event]) -> None:
    found = there(read_over_time(run))
    clocks = {one.label: set(one.values) for one in found.facts["core clock, MHz"]}
    assert clocks == {"n1 GPU 0": {1500.0}, "n2 GPU 0": {1200.0}}
    assert [one.label for one in found.paces] == ["n1 GPU 0", "n2 GPU 0"]


def test_the_log_of_tf_cnn_benchmarks_and_the_news_name_them(run: list[Event]) -> None:
    log = TfCnnLog()
    assert "Devices:     ['n1 GPU 0', 'n2 GPU 0']" in [line for event in run for line in log.lines(event)]
    lost = LossNotFinite(time_s=0.0, step=5, value="nan", towers=(1,))
    assert "the loss is nan from step 5 on (n2 GPU 0)" in drawn([*run[:-3], lost], 120)
