import signal

import pytest

from gputopo.launch import failure_of_exit
from gputopo.values.run.events import RankFailed
from tests.launch.specs import cpu_spec


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGKILL])
def test_a_worker_ended_by_a_signal_gives_128_and_its_number(signum: int) -> None:
    failed = failure_of_exit(-signum, cpu_spec(), time_s=1.0)
    assert (failed.kind, failed.exit_code) == ("killed", 128 + signum)
    assert signal.Signals(signum).name in failed.cause
    assert failed.remedy


def test_a_crash_is_not_called_out_of_memory_because_something_else_was_killed() -> None:
    assert "memory" not in failure_of_exit(-signal.SIGSEGV, cpu_spec(), time_s=1.0, oom_kills=1).cause


GIB = 2**30


def crashed(used: int, backend: str = "cpu", signum: int = signal.SIGSEGV) -> RankFailed:
    spec = cpu_spec(batch_size=64, backend=backend)
    return failure_of_exit(-signum, spec, time_s=1.0, peak_bytes=used, memory_bytes=32 * GIB)


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
        "E cuda_driver.cc failed to allocate: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "MemoryError",
    ],
)
def test_a_failed_allocation_is_known_by_any_of_its_words(line: str) -> None:
    failed = failure_of_exit(1, cpu_spec(batch_size=64), time_s=1.0, last_lines=["before", line])
    assert (failed.kind, failed.exit_code) == ("out_of_memory", 3)
    assert failed.remedy == "use a smaller --batch-size (now 64 per device)"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                "KeyError: 'a'",
                "During handling of the above exception, another exception occurred:",
                "  File 'x.py', line 1, in f",
                "keras.src.errors.ShapeError: no",
                "",
                "Detected at node",
            ],
            "the worker failed: keras.src.errors.ShapeError: no",
        ),
        (["one", "two", " "], "the worker failed: two"),
        ([], "the worker ended with exit code 9"),
    ],
)
def test_the_last_exception_or_else_the_last_line_or_else_the_code_is_the_cause(
    lines: list[str], cause: str
) -> None:
    assert failure_of_exit(9, cpu_spec(), time_s=1.0, last_lines=lines).cause == cause


def test_a_missing_tensorflow_is_advised_how_to_install() -> None:
    line = "ModuleNotFoundError: No module named 'tensorflow.python'"
    assert "pip install" in failure_of_exit(1, cpu_spec(), time_s=1.0, last_lines=[line]).remedy


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
    failed = failure_of_exit(status, cpu_spec(), time_s=1.0, last_lines=[line, "at 0x7f cfunction_call"])
    assert (failed.kind, failed.exit_code) == ("error", 3)
    assert failed.cause == (cause or f"the worker failed: {line}")
    assert limit in failed.remedy
