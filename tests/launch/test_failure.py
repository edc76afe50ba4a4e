import signal
from pathlib import Path

import pytest

from gputopo.launch import failure
from gputopo.values.run.events import GpuSample, RankFailed, Sample
from tests.launch.specs import cpu_spec


@pytest.mark.parametrize(
    ("signum", "kind", "code"),
    [
        (signal.SIGINT, "interrupted", 130),
        (signal.SIGTERM, "terminated", 143),
        (signal.SIGHUP, "terminated", 129),
    ],
)
def test_a_signal_to_the_launcher_has_its_kind_and_code(signum: int, kind: str, code: int) -> None:
    failed = failure.asked_to_end(signum, cpu_spec(), time_s=1.0)
    assert (failed.kind, failed.exit_code, failed.signal) == (kind, code, signal.Signals(signum).name)


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ended_by_a_signal_gives_128_and_its_number(signum: int) -> None:
    failed = failure.of_exit(-signum, cpu_spec(), time_s=1.0)
    assert (failed.kind, failed.exit_code) == ("killed", 128 + signum)
    assert signal.Signals(signum).name in failed.cause
    assert failed.remedy


def test_a_crash_is_not_called_out_of_memory_because_something_else_was_killed() -> None:
    assert "memory" not in failure.of_exit(-signal.SIGSEGV, cpu_spec(), time_s=1.0, oom_kills=1).cause


GIB = 2**30


def crashed(used: int, backend: str = "cpu", signum: int = signal.SIGSEGV) -> RankFailed:
    spec = cpu_spec(batch_size=64, backend=backend)
    return failure.of_exit(-signum, spec, time_s=1.0, peak_bytes=used, memory_bytes=32 * GIB)


@pytest.mark.parametrize("used", [8 * GIB, 31 * GIB])
def test_a_crash_on_cpus_with_much_of_the_memory_used_is_reported_as_out_of_memory(used: int) -> None:
    failed = crashed(used)
    assert (failed.kind, failed.exit_code, failed.signal) == ("out_of_memory", 3, "SIGSEGV")
    assert f"it used {used / GIB:.1f} of the host's 32.0 GiB" in failed.cause
    assert failed.remedy == "use a smaller --batch-size (now 64 per device)"


@pytest.mark.parametrize(
    "line",
    [
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:",
        "2026-01-01 W bfc_allocator.cc:500 Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB",
        "E cuda_driver.cc failed to allocate: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "MemoryError",
        "MemoryError: Unable to allocate 7.4 GiB for an array",
    ],
)
def test_a_failed_allocation_is_known_by_any_of_its_words(line: str) -> None:
    failed = failure.of_exit(1, cpu_spec(batch_size=64), time_s=1.0, last_lines=["before", line])
    assert (failed.kind, failed.exit_code) == ("out_of_memory", 3)
    assert failed.remedy == "use a smaller --batch-size (now 64 per device)"


def test_the_last_exception_is_the_cause_also_where_more_lines_follow_it() -> None:
    lines = [
        "KeyError: 'a'",
        "During handling of the above exception, another exception occurred:",
        "  File 'x.py', line 1, in f",
        "keras.src.errors.ShapeError: no",
        "",
        "Detected at node",
    ]
    assert failure.last_words(lines) == "keras.src.errors.ShapeError: no"


def test_without_an_exception_the_last_line_is_the_cause_and_without_lines_the_code() -> None:
    assert failure.last_words(["one", "two", " "]) == "two"
    assert failure.of_exit(9, cpu_spec(), time_s=1.0).cause == "the worker ended with exit code 9"


@pytest.mark.parametrize("module", ["tensorflow", "tensorflow.python", "keras"])
def test_a_missing_tensorflow_is_advised_how_to_install(module: str) -> None:
    line = f"ModuleNotFoundError: No module named '{module}'"
    assert "pip install" in failure.of_exit(1, cpu_spec(), time_s=1.0, last_lines=[line]).remedy


@pytest.mark.parametrize(
    ("status", "line", "cause", "limit"),
    [
        (
            1,
            "Original error was: libgfortran.so.5: failed to map segment from shared object",
            None,
            "ulimit -v",
        ),
        (
            -signal.SIGABRT,
            "F0000 00:00:17.48 11157 env.cc:84] Check failed: ret == 0 (11 vs. 0) Thread tf_Compute creation "
            "via pthread_create() failed.",
            "the worker failed: Check failed: ret == 0 (11 vs. 0) Thread tf_Compute creation via "
            "pthread_create() failed",
            "ulimit -u",
        ),
        (1, "RuntimeError: can't start new thread", None, "ulimit -u"),
    ],
)
def test_a_limit_of_the_process_is_named_not_the_library_that_met_it(
    status: int, line: str, cause: str | None, limit: str
) -> None:
    failed = failure.of_exit(status, cpu_spec(), time_s=1.0, last_lines=[line, "at 0x7f cfunction_call"])
    assert (failed.kind, failed.exit_code) == ("error", 3)
    assert failed.cause == (cause or f"the worker failed: {line}")
    assert limit in failed.remedy


def test_a_full_disk_names_the_file_and_the_reason() -> None:
    failed = failure.unwritable(Path("a/events.jsonl"), OSError(28, "No space left on device"), time_s=1.0)
    assert failed.cause == "cannot write a/events.jsonl: No space left on device"
    assert (failed.kind, failed.exit_code) == ("disk_full", 3)


def test_the_state_of_the_gpus_is_one_line_without_what_did_not_answer() -> None:
    gpus = (
        GpuSample(gpu=0, gpu_utilization_percent=100, graphics_mhz=1911, power_w=98.5, pstate="P2"),
        GpuSample(gpu=1, temperature_c=61),
    )
    words = failure.gpu_words(Sample(time_s=1.0, gpus=gpus))
    assert words == "GPU 0 100% busy 1911 MHz 98.5 W P2, GPU 1 61 °C"
    assert failure.gpu_words(None) == ""
