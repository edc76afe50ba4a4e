"""What the worker decides without TensorFlow."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs.reduction_bench import measure, sample_of
from gputopo.launch.jobs.reduction_worker import ReductionJob, require_memory
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.all_reduce import options_of, parse
from gputopo.values.run.events import Device
from gputopo.values.run.spec import RunSpec
from tests.launch.train.reduction_cases import run_spec

JOB = ReductionJob(run=run_spec(4), method="copy", repeats=1, warm_up=1)
GB = 10**9


def test_cpu_devices_that_do_not_fit_into_free_memory_are_refused_with_both_numbers() -> None:
    with pytest.raises(HardwareError, match=r"4 CPU devices need about 16\.0 GB of memory, and 15\.9 GB"):
        require_memory(GB, JOB, free=16 * GB - 100_000_000)
    assert refused(JOB, free=16 * GB) is None


def refused(job: ReductionJob, *, free: int) -> str | None:
    """Why a gigabyte of gradients is refused, None where it is not."""
    try:
        require_memory(GB, job, free=free)
    except HardwareError as error:
        return error.what
    return None


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


class Worker:
    """A command that runs a line of Python in the worker's place, and stores its jobs."""

    def __init__(self, script: str, **of_method: str) -> None:
        self._script = script
        self._of_method = of_method
        self.jobs: list[ReductionJob] = []

    def __call__(self, job: ReductionJob, events: int) -> Sequence[str]:
        self.jobs.append(job)
        script = PRELUDE + self._of_method.get(job.method, self._script)
        return (sys.executable, "-IS", "-c", script, msgspec.json.encode(job).decode(), str(events))


def reasons(worker: Worker, methods: Sequence[str] = ("copy",), **options: Any) -> list[str]:
    times = measure("alexnet", None, methods=methods, command=worker, **options)
    return [left_out.reason for left_out in times.not_measured]


def test_every_method_gets_a_process_in_the_order_asked_for() -> None:
    worker = Worker(SEND_TIMES)
    shown: list[tuple[str, int, int]] = []
    times = measure(
        "alexnet",
        None,
        methods=["ring", "copy"],
        command=worker,
        repeats=7,
        progress=lambda *step: shown.append(step),
    )
    assert [sample.algorithm for sample in times.samples] == ["ring", "copy"]
    assert shown == [("ring", 0, 2), ("copy", 1, 2)]
    assert [job.repeats for job in worker.jobs] == [7, 7]
    assert times.complete
    assert times.fixed_cost_us == {"ring": 0.5, "copy": 0.5}
    assert "without a copy" in times.notes[0]


def test_groups_are_given_to_the_hierarchical_reduction_alone() -> None:
    worker = Worker(SEND_TIMES)
    groups = ((0, 2), (1,))
    measure("alexnet", [4, 5, 6], methods=["hierarchical", "copy"], groups=groups, command=worker)
    assert [options_of(parse(job.method), job.groups)[1] for job in worker.jobs] == [{"groups": groups}, {}]


def test_a_sample_has_time_algorithm_bandwidth_and_bus_bandwidth() -> None:
    (sample,) = measure(
        "alexnet", [5, 2, 7, 0], methods=["copy"], repeats=3, command=Worker(SEND_TIMES)
    ).samples
    assert (sample.kind, sample.model, sample.bytes) == ("allreduce", "alexnet", 1000)
    assert sample.source == sample.destination == "gpu:5,2,7,0"
    assert sample.source.gpu is None, "the place is no single GPU"
    assert sample.median_us == 2.0
    assert sample.repeats_us == (4.0, 2.0, 2.0)
    assert sample.repeats_gb_per_s == pytest.approx((0.25, 0.5, 0.5))  # 1000 bytes in 2 us
    assert sample.median_gb_per_s == pytest.approx(0.5)
    assert sample.bus_gb_per_s == pytest.approx(0.75)  # x 2 x 3 / 4
    assert sample.spread_percent == pytest.approx(50.0)


def test_a_hung_process_is_killed_after_the_limit_and_the_rest_goes_on() -> None:
    hang = "send('phase', phase=f'call {os.getpid()}'); print('waiting for device 1', flush=True); "
    worker = Worker(SEND_TIMES, ring=hang + "time.sleep(600)")
    times = measure("alexnet", None, methods=["ring", "copy"], command=worker, silence_limit_s=1.0)
    assert [sample.algorithm for sample in times.samples] == ["copy"]
    (hung,) = times.not_measured
    assert "ring" in hung.what
    assert "hangs" in hung.reason
    assert hung.reason.endswith(": waiting for device 1")
    pid = int(hung.reason.partition("call ")[2].partition("'")[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_aborts_is_reported_with_its_last_line() -> None:
    script = "send('phase', phase='the warm-up'); print('F0000 Check failed: peer', flush=True); os.abort()"
    assert reasons(Worker(script)) == [
        "the worker was ended by SIGABRT, in the warm-up: F0000 Check failed: peer"
    ]


def test_wrong_sums_are_a_failure_and_no_sample() -> None:
    wrong = "refuse('wrong sum', 'adds up to 11, not 111')"
    times = measure("alexnet", [0, 1], methods=["ring", "copy"], command=Worker(SEND_TIMES, ring=wrong))
    (failed,) = times.failures
    assert (failed.kind, failed.reason, failed.source) == ("allreduce", "WRONG_DATA", "gpu:0,1")
    assert failed.says == "adds up to 11, not 111"
    assert [sample.algorithm for sample in times.samples] == ["copy"]
    assert times.not_measured == ()
    assert times.notes == (), "the note is about CPU devices"


def test_what_holds_for_all_methods_is_found_out_once() -> None:
    worker = Worker("refuse('refused for all', 'no TensorFlow')")
    assert reasons(worker, ["copy", "ring", "pscpu"]) == ["no TensorFlow"] * 3
    assert len(worker.jobs) == 1


def test_the_chosen_gpus_replace_the_visible_ones_in_pci_order() -> None:
    script = "refuse('refused', json.dumps({k: v for k, v in os.environ.items() if k.startswith('CUDA')}))"
    given_environment = {"CUDA_VISIBLE_DEVICES": "6,7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    times = measure("alexnet", [3, 1], 2, ["copy"], given_environment, command=Worker(script))
    assert json.loads(times.not_measured[0].reason) == {
        "CUDA_VISIBLE_DEVICES": "3,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_CACHE_MAXSIZE": "4294967296",
    }
    times = measure("alexnet", None, 2, ["copy"], {}, command=Worker(script))
    assert json.loads(times.not_measured[0].reason) == {"CUDA_VISIBLE_DEVICES": "-1"}


def test_ctrl_c_while_a_process_hangs_ends_it_and_keeps_the_rest(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    hang = (
        f"open({str(note)!r}, 'w').write(str(os.getpid())); "
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    )
    times = measure("alexnet", None, methods=["copy", "ring"], command=Worker(SEND_TIMES, ring=hang))
    assert [sample.algorithm for sample in times.samples] == ["copy"]
    assert [left_out.reason for left_out in times.not_measured] == ["interrupted"]
    assert not times.complete
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_too_few_too_many_and_doubled_devices_are_refused_in_words() -> None:
    cases: list[tuple[list[int] | None, int, str]] = [
        (None, 1, "nothing is reduced"),
        (None, 0, "nothing is reduced"),
        (None, -3, "nothing is reduced"),
        ([4], 2, "nothing is reduced"),
        ([], 2, "nothing is reduced"),
        ([1, 2, 1], 2, "names a GPU twice"),
        (None, 10_000, "too many"),
    ]
    for gpus, cpu_devices, says in cases:
        with pytest.raises(UsageError, match=says):
            measure("alexnet", gpus, cpu_devices, command=Worker(SEND_TIMES))


@given(
    devices=st.integers(2, 64),
    size=st.integers(1, 10**12),
    repeats=st.lists(st.floats(0.1, 1e9), min_size=1, max_size=20),
)
def test_bus_bandwidth_is_what_each_device_of_a_ring_sends(
    devices: int, size: int, repeats: list[float]
) -> None:
    towers = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(devices))
    run = RunSpec(model="alexnet", devices=towers, backend="cpu", batch_size=1)
    sample = sample_of(run, "ring", size, repeats)
    assert sample.median_us is not None
    assert sample.median_gb_per_s is not None
    assert sample.bus_gb_per_s is not None
    assert sample.spread_percent is not None
    # A ring of n cuts the data in n pieces; each device sends n - 1 of them to add and n - 1 to spread.
    sent = 2 * (devices - 1) * (size / devices)
    assert sample.bus_gb_per_s == pytest.approx(sent / (sample.median_us * 1e-6) / 1e9)
    assert min(repeats) <= sample.median_us <= max(repeats)
    assert sample.median_gb_per_s <= sample.bus_gb_per_s < 2 * sample.median_gb_per_s
    assert sample.spread_percent >= 0
