"""What is reported of reductions, whatever their processes do."""

import json
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch.jobs import METHODS, ReductionJob, ReductionTimes, require_memory, time_methods
from gputopo.values.bandwidth import CollectiveRate
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.events import Device
from tests.kit_workers.stand_in import PYTHON, REDUCTION, in_place_of
from tests.launch.specs import cpu_spec


def test_cpu_devices_that_do_not_fit_into_free_memory_are_refused_with_both_numbers() -> None:
    devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(4))
    job = ReductionJob(run=cpu_spec(devices=devices), method="copy", repeats=1, warm_up=1)
    with pytest.raises(HardwareError, match=r"4 CPU devices need about 16\.0 GB of memory, and 15\.9 GB"):
        require_memory(10**9, job, free=15_900_000_000)
    require_memory(10**9, job, free=16_000_000_000)


# What a worker of these tests can use: `send(event, ...)`, `times()`, and the job's method as `method`.
PRELUDE = """
import json, os, signal, sys, time
job = json.loads(sys.argv[1])
method = job["method"]
def send(event, **fields):
    os.write(int(sys.argv[2]), json.dumps({"event": event, "time_s": 1.0, **fields}).encode() + b"\\n")
def step(number, us):
    send("step", step=number, seconds=us / 1e6, images=0, loss=None, marks=[])
def times():
    send("model_built", parameters=250, parameter_bytes=1000, import_s=0, build_s=0)
    step(0, 1e6)
    for number in range(job["repeats"]):
        step(number + 1, 4.0 if number == 0 else 2.0)
    send("phase", phase="calls without a reduction")
    for number in range(job["repeats"]):
        step(number + 1, 0.5)
def refuse(kind, cause):
    send("rank_failed", kind=kind, cause=cause, remedy="", exit_code=3)
    sys.exit(3)
"""
SEND_TIMES = "times()"


REPEATS = 10


class Worker:
    """A line of Python that runs in the worker's place, or for some methods another one."""

    def __init__(self, folder: Path, script: str, **of_method: str) -> None:
        self.jobs_file = folder / "jobs"
        program = "scripts = %r\nopen(%r, 'a').write(sys.argv[1] + '\\n')\nexec(scripts.get(method, %r))\n"
        self.program = PRELUDE + program % (of_method, str(self.jobs_file), script)

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """What the processes were to do."""
        return [json.loads(line) for line in self.jobs_file.read_text().splitlines()]


Measure = Callable[..., ReductionTimes]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Measures with a worker in the place of TensorFlow."""

    def measured(
        worker: Worker | str,
        methods: Sequence[str] = ("copy",),
        gpus: Sequence[int] | None = None,
        **options: Any,
    ) -> ReductionTimes:
        if isinstance(worker, str):
            worker = Worker(tmp_path, worker)
        command = f'exec {PYTHON} -IS -c {shlex.quote(worker.program)} "$@"'
        with in_place_of(REDUCTION, command, tmp_path / "stand-in"):
            return time_methods("alexnet", gpus, methods=methods, **options)

    return measured


def reasons(times: ReductionTimes) -> list[str]:
    return [left_out.reason for left_out in times.not_measured]


def test_every_method_gets_a_process_in_the_given_order(
    measure: Measure, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = Worker(tmp_path, SEND_TIMES)
    times = measure(worker, ["ring", "copy"])
    assert [sample.algorithm for sample in times.samples.of(CollectiveRate)] == ["ring", "copy"]
    assert capfd.readouterr().err.splitlines() == [
        "gputopo: reduction 1 of 2: ring",
        "gputopo: reduction 2 of 2: copy",
    ]
    assert [job["repeats"] for job in worker.jobs] == [REPEATS, REPEATS]
    assert times.complete
    assert times.fixed_cost_us == {"ring": 0.5, "copy": 0.5}


def test_a_sample_has_time_algorithm_bandwidth_and_bus_bandwidth(measure: Measure, tmp_path: Path) -> None:
    worker = Worker(tmp_path, SEND_TIMES)
    (sample,) = measure(worker, gpus=[5, 2, 7, 0], groups=((0, 2), (1, 3))).samples.of(CollectiveRate)
    assert worker.jobs[0]["groups"] == [[0, 2], [1, 3]]
    assert (sample.kind, sample.model, sample.bytes) == ("allreduce", "alexnet", 1000)
    assert sample.source == sample.destination == "gpu:5,2,7,0"
    assert sample.source.gpu is None, "the place is no single GPU"
    assert sample.median_us == 2.0
    assert sample.repeats_us == (4.0, *[2.0] * (REPEATS - 1))
    assert sample.repeats_gb_per_s == pytest.approx((0.25, *[0.5] * (REPEATS - 1)))  # 1000 bytes in 2 us
    assert sample.median_gb_per_s == pytest.approx(0.5)
    assert sample.bus_gb_per_s == pytest.approx(0.75)  # x 2 x 3 / 4
    assert sample.spread_percent == pytest.approx(50.0)


def test_a_hung_process_is_killed_after_the_limit_and_the_rest_goes_on(
    measure: Measure, tmp_path: Path
) -> None:
    hang = "send('phase', phase=f'call {os.getpid()}'); print('waiting for device 1', flush=True); "
    worker = Worker(tmp_path, SEND_TIMES, ring=hang + "time.sleep(600)")
    times = measure(worker, ["ring", "copy"], silence_s=1.0)
    assert [sample.algorithm for sample in times.samples.of(CollectiveRate)] == ["copy"]
    (hung,) = times.not_measured
    assert "ring" in hung.what
    assert "hangs" in hung.reason
    assert hung.reason.endswith(": waiting for device 1")
    pid = int(hung.reason.partition("call ")[2].partition("'")[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_aborts_is_reported_with_its_last_line(measure: Measure) -> None:
    script = "send('phase', phase='the warm-up'); print('F0000 Check failed: peer', flush=True); os.abort()"
    assert reasons(measure(script)) == [
        "the worker was ended by SIGABRT, in the warm-up: F0000 Check failed: peer"
    ]


def test_wrong_sums_are_a_failure_and_no_sample(measure: Measure, tmp_path: Path) -> None:
    wrong = "refuse('wrong sum', 'adds up to 11, not 111')"
    times = measure(Worker(tmp_path, SEND_TIMES, ring=wrong), ["ring", "copy"], [0, 1])
    (failed,) = times.failures
    assert (failed.kind, failed.reason, failed.source) == ("allreduce", "WRONG_DATA", "gpu:0,1")
    assert failed.says == "adds up to 11, not 111"
    assert [sample.algorithm for sample in times.samples.of(CollectiveRate)] == ["copy"]
    assert times.not_measured == ()


def test_what_holds_for_all_methods_is_found_out_once(measure: Measure, tmp_path: Path) -> None:
    worker = Worker(tmp_path, "refuse('refused for all', 'no TensorFlow')")
    assert reasons(measure(worker, ["copy", "ring", "pscpu"])) == ["no TensorFlow"] * 3
    assert len(worker.jobs) == 1


def test_the_chosen_gpus_replace_the_visible_ones(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "refuse('refused', json.dumps({k: v for k, v in os.environ.items() if k.startswith('CUDA')}))"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    visible = {"CUDA_VISIBLE_DEVICES": "3,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    (reason,) = reasons(measure(script, gpus=[3, 1], visible=visible))
    assert json.loads(reason) == {**visible, "CUDA_CACHE_MAXSIZE": "4294967296"}
    (reason,) = reasons(measure(script))
    assert json.loads(reason)["CUDA_VISIBLE_DEVICES"] == "-1"


def test_ctrl_c_while_a_process_hangs_ends_it_and_keeps_the_rest(measure: Measure, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    hang = (
        f"open({str(note)!r}, 'w').write(str(os.getpid())); "
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    )
    times = measure(Worker(tmp_path, SEND_TIMES, ring=hang), ["copy", "ring"])
    assert [sample.algorithm for sample in times.samples.of(CollectiveRate)] == ["copy"]
    assert [left_out.reason for left_out in times.not_measured] == ["interrupted"]
    assert not times.complete
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


@pytest.mark.parametrize(
    ("gpus", "says"),
    [([4], "nothing is reduced"), ([1, 2, 1], "lists a GPU twice")],
)
def test_too_few_and_doubled_devices_are_refused_in_words(
    measure: Measure, gpus: list[int], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        measure(SEND_TIMES, METHODS, gpus)
