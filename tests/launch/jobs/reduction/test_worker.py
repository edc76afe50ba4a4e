"""What the worker decides without TensorFlow."""

import msgspec
import pytest

from gputopo.launch.jobs.reduction.spec import METHODS, ReductionJob
from gputopo.launch.jobs.reduction.worker import require_memory
from gputopo.values.errors import HardwareError
from tests.launch.train.reduction_cases import run_spec

JOB = ReductionJob(run=run_spec(4), method=METHODS["copy"], repeats=1, warm_up=1)
GB = 10**9


def test_cpu_devices_that_do_not_fit_into_free_memory_are_refused_with_both_numbers() -> None:
    with pytest.raises(HardwareError, match=r"4 CPU devices need about 16\.0 GB of memory, and 15\.9 GB"):
        require_memory(GB, JOB, free=16 * GB - 100_000_000)
    assert refused(JOB, free=16 * GB) is None


def test_gpus_do_not_ask_for_the_hosts_memory() -> None:
    on_gpus = msgspec.structs.replace(JOB, run=msgspec.structs.replace(JOB.run, backend="gpu"))
    assert refused(JOB, free=0) is not None
    assert refused(on_gpus, free=0) is None


def refused(job: ReductionJob, *, free: int) -> str | None:
    """Why a gigabyte of gradients is refused, None where it is not."""
    try:
        require_memory(GB, job, free=free)
    except HardwareError as error:
        return error.what
    return None
